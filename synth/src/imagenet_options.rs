//! The options of ImageNet-like sample data.

use crate::mark::{MARK_HEIGHT, MARK_WIDTH};
use crate::names::by_name;
use crate::range::in_range;
use crate::{Error, Result};
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// JPEG quality with which a 400×350 image has about 110 KB on average.
pub const DEFAULT_QUALITY: u8 = 95;
/// JPEG's limit for width and height.
pub(crate) const MAX_SIDE: u32 = 65_500;
/// Maximum number of classes: class names have eight digits.
pub(crate) const MAX_CLASSES: u32 = 7_000;

/// Layout of the files.
///
/// ```
/// use feedstock_synth::Layout;
///
/// assert_eq!("webdataset".parse::<Layout>()?, Layout::WebDataset);
/// assert_eq!(Layout::ALL.map(Layout::name), ["parquet", "folder", "webdataset", "ipc", "ilsvrc"]);
/// # Ok::<(), feedstock_synth::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Hugging Face: `data/train-00000-of-0000N.parquet` with `image: struct<bytes, path>`, `label`.
    Parquet,
    /// `<class>/<name>.JPEG`.
    Folder,
    /// `imagenet-train-000000.tar` … with `.jpg`, `.cls` and `.json` members.
    WebDataset,
    /// Arrow IPC streams `data-00000-of-0000N.arrow` as `datasets` saves them to disk.
    Ipc,
    /// `ILSVRC2012_img_train.tar`, a tar of one tar per class.
    Ilsvrc,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 5] = [Self::Parquet, Self::Folder, Self::WebDataset, Self::Ipc, Self::Ilsvrc];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Folder => "folder",
            Self::WebDataset => "webdataset",
            Self::Ipc => "ipc",
            Self::Ilsvrc => "ilsvrc",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        by_name("layout", &Self::ALL, Self::name, name)
    }
}

/// Compression of Parquet pages. JPEG bytes do not get smaller; the options differ in the reader's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Snappy, as Hugging Face `datasets` writes.
    #[default]
    Snappy,
    /// Uncompressed pages.
    None,
}

/// Options of an ImageNet-like data set; see [`ImagenetOptions::default`] for the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagenetOptions {
    /// Number of samples, 1 … 2^32 − 1. Default 4000 (440 MB).
    pub samples: u64,
    /// Seed of all random choices. Default 1.
    pub seed: u64,
    /// Layout of the files. Default [`Layout::Parquet`].
    pub layout: Layout,
    /// Number of classes, 1 … 7000. `None` (default) means 1000, or the number of samples if that is less. Every
    /// class has at least one sample.
    pub classes: Option<u32>,
    /// Mean width in pixels, 64 … 65500. Default 400.
    pub width: u32,
    /// Mean height in pixels, 32 … 65500. Default 350.
    pub height: u32,
    /// Make every image exactly `width` × `height`. By default, each side varies by up to 15 %.
    pub exact_size: bool,
    /// JPEG quality, 1 … 100. Default [`DEFAULT_QUALITY`].
    pub quality: u8,
    /// Samples per shard (Parquet, WebDataset, IPC). Default 500 (55 MB).
    pub samples_per_shard: u64,
    /// Rows per Parquet row group or IPC record batch. Default 100 (11 MB), as `datasets` writes images.
    pub rows_per_group: usize,
    /// Compression of Parquet pages. Default [`Compression::Snappy`].
    pub compression: Compression,
    /// Number of threads. Default: one per core.
    pub threads: usize,
    /// Replace sample data that is already in the folder. By default, a folder that is not empty is an error. Files
    /// that this crate does not write are never deleted.
    pub overwrite: bool,
}

impl Default for ImagenetOptions {
    fn default() -> Self {
        Self {
            samples: 4000,
            seed: 1,
            layout: Layout::Parquet,
            classes: None,
            width: 400,
            height: 350,
            exact_size: false,
            quality: DEFAULT_QUALITY,
            samples_per_shard: 500,
            rows_per_group: 100,
            compression: Compression::Snappy,
            threads: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            overwrite: false,
        }
    }
}

impl ImagenetOptions {
    /// Returns the number of classes of the data set.
    pub fn class_count(&self) -> u32 {
        self.classes.unwrap_or_else(|| u32::try_from(self.samples).unwrap_or(u32::MAX).min(1000))
    }

    /// Validates every option.
    pub(crate) fn check(&self) -> Result<()> {
        let most = u64::from(u32::MAX);
        in_range("samples", self.samples, 1, most)?;
        in_range("classes", self.class_count().into(), 1, MAX_CLASSES.into())?;
        in_range("width", self.width.into(), MARK_WIDTH.into(), MAX_SIDE.into())?;
        in_range("height", self.height.into(), MARK_HEIGHT.into(), MAX_SIDE.into())?;
        in_range("quality", self.quality.into(), 1, 100)?;
        in_range("samples_per_shard", self.samples_per_shard, 1, most)?;
        in_range("rows_per_group", self.rows_per_group as u64, 1, most)?;
        in_range("threads", self.threads as u64, 1, 1024)?;
        if u64::from(self.class_count()) > self.samples {
            return Err(Error::config(format!(
                "{} classes need at least one sample each, but samples is {}: raise samples or lower classes",
                self.class_count(),
                self.samples
            )));
        }
        Ok(())
    }
}
