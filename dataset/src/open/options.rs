//! How a data set is opened.

use super::probe::{AudioProbe, Durations};
use crate::format::from_folder;
use crate::home;
use crate::{
    BadShards, CatalogOptions, CatalogStore, DiskCacheOptions, Error, Layout, Result, StorageOptions,
    TarHeaders,
};
use datafusion::logical_expr::ScalarUDF;
use std::collections::BTreeMap;
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
    /// Files that belong together by their names: column → pattern, such as `image` → `images/{}.jpg` and `mask` →
    /// `annotations/{}.png`. Patterns are relative to the data set's folder; `{}` is the key of a sample, and may contain `/`.
    /// A sample exists where each column has its file. Columns: `key`, then the files' bytes by the columns' names, sorted.
    /// Sorted by key. A file without its partner is an error; with [`BadShards::Skip`], its sample is left out. Default:
    /// empty, for data sets of other layouts.
    pub pair: BTreeMap<String, String>,
    /// COCO's file of annotations of the images in the data set's folder: a URI, or a path relative to that folder, which may
    /// begin with `../`. A sample for each of its `images`, sorted by `file_name`; columns: `image_id`, `file_name`, `width`,
    /// `height`, of files with boxes `boxes` (x, y, width, height), `category_id`, `area`, `iscrowd` and `keypoints`, of files
    /// with captions `captions`, and `image`. An image without its file is an error; with [`BadShards::Skip`], it is left
    /// out. The file may have at most 2 GiB; reading it takes its size and about 200 bytes an annotation of memory, plus
    /// captions and keypoints. Default: `None`.
    pub annotations: Option<String>,
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
            pair: BTreeMap::new(),
            annotations: None,
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

    /// Derives the layout from the options that belong to one, and makes the URI of the annotations absolute; the data set is
    /// at `uri`.
    ///
    /// # Errors
    /// `BadConfig` for options that contradict each other.
    pub(crate) fn settle(&mut self, uri: &str) -> Result<()> {
        let has_pair = !self.pair.is_empty();
        let implied = match (has_pair, &self.annotations) {
            (false, None) => None,
            (true, None) => Some((Layout::Pair, "pair")),
            (false, Some(_)) => Some((Layout::Coco, "annotations")),
            (true, Some(_)) => {
                return Err(Error::config("pair and annotations are for two layouts; set one of them"));
            }
        };
        match (implied, self.layout) {
            (Some((layout, option)), Some(named)) if named != layout => {
                return Err(Error::config(format!(
                    "{option} is for the layout `{layout}`; leave the layout out, or set it to `{layout}`; got `{named}`"
                )));
            }
            (None, Some(named @ (Layout::Pair | Layout::Coco))) => {
                let option = if named == Layout::Pair { "pair" } else { "annotations" };
                return Err(Error::config(format!("the layout `{named}` needs {option}; set it")));
            }
            (Some((layout, _)), _) => self.layout = Some(layout),
            (None, _) => {}
        }
        if let Some(annotations) = &mut self.annotations {
            if annotations.is_empty() {
                return Err(Error::config("annotations must be the URI of a JSON file; got an empty text"));
            }
            *annotations =
                from_folder(uri, annotations).map_err(|error| error.context("the value of annotations"))?;
        }
        Ok(())
    }

    /// Whether durations are read from the headers of audio clips.
    pub(crate) fn probes(&self) -> bool {
        self.audio_probe.is_some() && self.durations == Durations::Auto
    }
}
