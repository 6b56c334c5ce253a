//! The inputs of cataloguing.

use super::bad_shards::BadShards;
use super::finished::Finished;
use super::tar_headers::TarHeaders;
use crate::Storage;
use crate::catalog::CatalogOptions;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

/// What a format needs in order to catalog a data set.
pub(crate) struct Cataloguing<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) options: &'a CatalogOptions,
    /// Target for the encoded bytes of a block.
    pub(crate) block_bytes: u64,
    /// What happens to a damaged shard.
    pub(crate) bad_shards: BadShards,
    /// When the headers of WebDataset tars are read.
    pub(crate) tar_headers: TarHeaders,
    /// Where seekable copies of compressed archives are kept.
    pub(crate) archives: Option<&'a Path>,
    /// The split, if a place holds several.
    pub(crate) split: Option<&'a str>,
    /// The patterns of files that belong together, by column.
    pub(crate) pair: &'a BTreeMap<String, String>,
    /// What an interrupted build had read; `None` if it is not stored.
    pub(crate) finished: Option<&'a Finished>,
}

/// Minimum of the objects whose headers or footers are read at a time; storage may limit its requests to fewer.
pub(crate) const CATALOG_READS: usize = 32;
/// Maximum of the objects whose headers or footers are read at a time: each walk through a remote tar is one thread and up
/// to 2 MiB of buffers, 256 MiB in all.
const CATALOG_READS_MAX: usize = 128;

impl Cataloguing<'_> {
    /// Returns the number of objects to read at a time. A walk through a tar makes one request at a time, so there is one
    /// walk for each request that storage allows.
    pub(crate) fn reads_at_once(&self) -> usize {
        let limit = self.storage.options().max_concurrency.map_or(CATALOG_READS, NonZeroUsize::get);
        limit.clamp(CATALOG_READS, CATALOG_READS_MAX)
    }
}
