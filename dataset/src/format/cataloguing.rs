//! What formats catalogue with.

use super::bad_shards::BadShards;
use crate::Storage;
use crate::catalog::CatalogOptions;
use std::path::Path;

/// What a format needs in order to catalog a data set.
pub(crate) struct Cataloguing<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) options: &'a CatalogOptions,
    /// Encoded bytes that a block aims at.
    pub(crate) block_bytes: u64,
    /// What happens to a damaged shard.
    pub(crate) bad_shards: BadShards,
    /// Where seekable copies of compressed archives are kept.
    pub(crate) archives: Option<&'a Path>,
    /// The split, where a place holds several.
    pub(crate) split: Option<&'a str>,
}

/// Objects whose headers or footers are read at a time at least; storage bounds its own requests below that.
pub(crate) const CATALOG_READS: usize = 32;
/// Objects whose headers or footers are read at a time at most: each walk through a remote tar is one thread and up to 2 MiB of
/// buffers, 256 MiB in all.
const CATALOG_READS_MAX: usize = 128;

impl Cataloguing<'_> {
    /// Objects to read at a time. A walk through a tar has one request under way, so it takes one walk for each request that
    /// storage allows.
    pub(crate) fn reads_at_once(&self) -> usize {
        self.storage.options().max_concurrency.clamp(CATALOG_READS, CATALOG_READS_MAX)
    }
}
