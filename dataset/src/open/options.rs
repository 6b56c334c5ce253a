//! How a data set is opened.

use super::probe::{AudioProbe, Durations};
use crate::home;
use crate::{BadShards, CatalogOptions, CatalogStore, DiskCacheOptions, Layout, StorageOptions, TarHeaders};
use datafusion::logical_expr::ScalarUDF;
use std::path::PathBuf;
use std::sync::Arc;

/// Encoded bytes of a block: 38 images of 110 KB. Reading it with one request to object storage takes longer at 1.6 Gbit/s
/// than the time to first byte (about 20 ms).
pub(crate) const DEFAULT_BLOCK_BYTES: u64 = 4 << 20;
/// How a data set is opened. Start from `OpenOptions::default()`.
pub struct OpenOptions {
    /// Endpoints, credentials, deadlines.
    pub storage: StorageOptions,
    /// Where the catalog is kept, and what receives the progress of building it.
    pub catalog: CatalogOptions,
    /// The layout; `None`, the default: recognised from the objects.
    pub layout: Option<Layout>,
    /// The split, if the URI holds several: `train`, `dev`, `validated` … For Common Voice it is the name of a TSV; for other
    /// layouts a folder's name or a word of the files' names. With `None`, the default, all samples are read, or an error lists
    /// the splits if there are several.
    pub split: Option<String>,
    /// Whether durations of audio clips are read from their headers if the data set lacks them; default [`Durations::Auto`].
    pub durations: Durations,
    /// Reads a duration from the first bytes of an audio clip. With `None`, the default, headers are not read, and a data set
    /// that states no durations has no column `duration`.
    pub audio_probe: Option<AudioProbe>,
    /// Where seekable copies of compressed archives (Common Voice's `.tar.gz`) are kept; each takes as much disk space as the
    /// unpacked content. Default: `$FEEDSTOCK_CACHE/archives`, else `~/.cache/feedstock/archives`, else `None`. With `None`,
    /// opening such an archive is an error.
    pub archives: Option<PathBuf>,
    /// The disk cache of blocks; `None`, the default: blocks are not cached on disk.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Target of the encoded bytes of a block; default 4 MiB, at least 4 KiB. Other blocks give another order.
    pub block_bytes: u64,
    /// What happens to a damaged shard; default [`BadShards::Raise`].
    pub bad_shards: BadShards,
    /// When the headers of WebDataset tars are read; default [`TarHeaders::Open`].
    pub tar_headers: TarHeaders,
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
            tar_headers: TarHeaders::default(),
            functions: Vec::new(),
        }
    }
}

impl OpenOptions {
    /// Creates the user's own cache folder for this user alone. Explicitly named folders follow the umask, as do files stored
    /// next to the data.
    pub(crate) fn make_private_folders(&self) {
        let stored = match &self.catalog.store {
            CatalogStore::Cache(folder) => Some(folder.clone()),
            // What an interrupted build has read is kept in the cache.
            CatalogStore::Beside => home::cache_folder("catalogs"),
            CatalogStore::Nowhere => None,
        };
        for folder in stored.iter().chain(&self.archives) {
            home::make_private(folder);
        }
    }

    /// Whether durations are read from the headers of audio clips.
    pub(crate) fn probes(&self) -> bool {
        self.audio_probe.is_some() && self.durations == Durations::Auto
    }
}
