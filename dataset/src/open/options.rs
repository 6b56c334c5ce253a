//! How a data set is opened.

use super::probe::{AudioProbe, Durations};
use crate::home;
use crate::{BadShards, CatalogOptions, CatalogStore, DiskCacheOptions, Layout, StorageOptions};
use datafusion::logical_expr::ScalarUDF;
use std::path::PathBuf;
use std::sync::Arc;

/// Encoded bytes that a block aims at: 38 pictures of 110 KB; one request to object storage, whose time to first
/// byte (about 20 ms) it outlasts at 1.6 Gbit/s.
pub(crate) const DEFAULT_BLOCK_BYTES: u64 = 4 << 20;
/// How a data set is opened. Start from `OpenOptions::default()`.
pub struct OpenOptions {
    /// Endpoints, credentials, deadlines.
    pub storage: StorageOptions,
    /// Where the catalog is kept, and who is told of its building.
    pub catalog: CatalogOptions,
    /// `None`, the default: recognised from the objects.
    pub layout: Option<Layout>,
    /// The split, where a place holds several: `train`, `dev`, `validated` … For Common Voice the name of a TSV; for
    /// other layouts a folder's name or a word of the files' names. `None`, the default: all there is, and an error
    /// that lists the splits where there are several.
    pub split: Option<String>,
    /// Finds clips' durations for a data set that does not tell them; default [`Durations::Auto`].
    pub durations: Durations,
    /// Reads a duration out of a clip's first bytes. `None`, the default: clips' headers are not read, and a data
    /// set that does not tell durations has no column `duration`.
    pub audio_probe: Option<AudioProbe>,
    /// Where seekable copies of compressed archives (Common Voice's `.tar.gz`) are kept; each needs as much disk as
    /// its unpacked content. Default: `$FEEDSTOCK_CACHE/archives`, else `~/.cache/feedstock/archives`; with neither,
    /// `None`, and opening such an archive is an error.
    pub archives: Option<PathBuf>,
    /// `None`, the default: blocks are not cached on disk.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Encoded bytes a block aims at; default 4 MiB, at least 4 KiB. Other blocks are another order.
    pub block_bytes: u64,
    /// What happens to a damaged shard; default [`BadShards::Raise`].
    pub bad_shards: BadShards,
    /// Functions for filters and queries, such as `image_width(image)`; default none.
    pub functions: Vec<Arc<ScalarUDF>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            storage: StorageOptions::default(),
            catalog: CatalogOptions::default(),
            layout: None,
            split: None,
            durations: Durations::default(),
            audio_probe: None,
            archives: home::cache_folder("archives"),
            disk_cache: None,
            block_bytes: DEFAULT_BLOCK_BYTES,
            bad_shards: BadShards::default(),
            functions: Vec::new(),
        }
    }
}

impl OpenOptions {
    /// Creates the user's own cache folder for this user alone. Folders that were named explicitly follow
    /// the umask, as does what is stored next to the data.
    pub(crate) fn make_private_folders(&self) {
        let stored = match &self.catalog.store {
            CatalogStore::Cache(folder) => Some(folder),
            CatalogStore::Beside | CatalogStore::Nowhere => None,
        };
        for folder in stored.into_iter().chain(&self.archives) {
            home::make_private(folder);
        }
    }

    /// Are durations looked for in clips' headers?
    pub(crate) fn probes(&self) -> bool {
        self.audio_probe.is_some() && self.durations == Durations::Auto
    }
}
