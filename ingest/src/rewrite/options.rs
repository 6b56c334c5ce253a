//! Options of a rewrite, and its progress.

use crate::threads::default_threads;
use crate::{Error, Result};
use feedstock_dataset::{Layout, Shuffle};
use feedstock_ops::image::{RestartMarkers, ShrinkImage};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Smaller shards than this are never meant: a block is 4 MiB.
const MIN_SHARD_BYTES: u64 = 4 << 10;
/// Larger pages are better cut by bytes, which is the default.
const MAX_PAGE_SAMPLES: u32 = 1_024;

/// The files to write.
///
/// ```
/// use feedstock_dataset::Layout;
/// use feedstock_ingest::RewriteFormat;
///
/// assert_eq!(RewriteFormat::default().extension(), "parquet");
/// assert_eq!((RewriteFormat::Ipc.extension(), RewriteFormat::Ipc.layout()), ("arrow", Layout::ArrowIpc));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewriteFormat {
    /// Parquet as Hugging Face `datasets` reads it: `struct<bytes, path>`, features, offset and column index.
    #[default]
    Parquet,
    /// Arrow IPC files with the same columns and features; read without decoding, in ranges of rows.
    Ipc,
}

impl RewriteFormat {
    /// Returns the layout of the shards.
    pub fn layout(self) -> Layout {
        match self {
            Self::Parquet => Layout::HfParquet,
            Self::Ipc => Layout::ArrowIpc,
        }
    }

    /// Returns the file extension of shards.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Ipc => "arrow",
        }
    }
}

/// Shrinking of large images. Images within the limit are copied byte for byte.
///
/// Aspect ratio and EXIF orientation are kept (the pixels are not turned; the tag goes along); other metadata inside
/// the image is dropped. PNG and WebP over the limit become JPEG; alpha is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recode {
    /// Images whose longer side exceeds this are shrunk to it; pixels, 1 … 32,768.
    pub max_side: u32,
    /// JPEG quality of shrunk images, 1 … 100.
    pub quality: u8,
}

/// What to do with an image that should be changed and cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadPicture {
    /// Stop, naming the sample.
    #[default]
    Raise,
    /// Keep its bytes unchanged, and name it in the report.
    Copy,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewriteStage {
    /// Reading the source and writing shards.
    Writing,
    /// Reading the shards back.
    Verifying,
}

/// How far a rewrite is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RewriteProgress {
    /// What is being done.
    pub stage: RewriteStage,
    /// Samples done in this stage, those of earlier runs included.
    pub done: u64,
    /// Samples in all.
    pub total: u64,
    /// Shards that are safely written.
    pub shards: u64,
}

/// Called with [`RewriteProgress`] about once for each batch, on the caller's thread.
pub type RewriteProgressFn = Arc<dyn Fn(RewriteProgress) + Send + Sync>;

/// How to rewrite. Start from `RewriteOptions::default()`.
#[derive(Clone)]
pub struct RewriteOptions {
    /// Default Parquet.
    pub format: RewriteFormat,
    /// What shard names begin with, best the split's name; default `train`, as in `train-00000-of-00012.parquet`.
    pub name: String,
    /// Encoded bytes of the source in a shard, about; default 512 MiB. With shrinking, shards come out smaller.
    pub shard_bytes: u64,
    /// Encoded bytes in a row group or record batch at most (one sample at least); default 4 MiB, a block.
    pub group_bytes: u64,
    /// Samples of a Parquet page of the payload columns; default `None`: pages of about 1 MiB. With 1 to 3 samples of about 100 kB,
    /// a shuffle permutes pages instead of blocks, and mixes class-sorted data almost like a full shuffle. Row groups and shards
    /// then hold a multiple of it, so a group may have up to `page_samples` − 1 samples more than `group_bytes`.
    pub page_samples: Option<NonZeroU32>,
    /// The order of the samples; default [`Shuffle::none`], the catalog's. [`Shuffle::full`] shuffles globally and
    /// reads each sample on its own. Lanes are set to one.
    pub shuffle: Shuffle,
    /// `None`, the default: images keep their size.
    pub recode: Option<Recode>,
    /// JPEGs get a restart marker after each run of this many MCUs (blocks coded together, 16×16 px in a 4:2:0 image),
    /// without loss: the pixels stay, which is checked for each, and crops skip what they do not show. With 4,
    /// `random_resized_crop` costs about a quarter less CPU. Each image gets its own Huffman tables, so that
    /// most get smaller; progressive images become baseline, about 6 % larger. Default `None`.
    pub restart_interval: Option<u16>,
    /// Default: raise.
    pub on_error: OnBadPicture,
    /// Read everything back at the end and compare; default true. Costs one more read of the shards.
    pub verify: bool,
    /// CPU threads for changing images; default: [`default_threads`], the rank's share of the machine.
    pub threads: usize,
    /// Bytes of blocks read ahead at most, decompressed; default 512 MiB, which holds the default window of a windowed shuffle.
    pub budget_bytes: u64,
    /// The longest wait for a batch; default 5 min.
    pub deadline: Duration,
    /// Called with the progress; default `None`.
    pub progress: Option<RewriteProgressFn>,
}

impl Default for RewriteOptions {
    fn default() -> Self {
        Self {
            format: RewriteFormat::Parquet,
            name: "train".to_owned(),
            shard_bytes: 512 << 20,
            group_bytes: 4 << 20,
            page_samples: None,
            shuffle: Shuffle::none(),
            recode: None,
            restart_interval: None,
            on_error: OnBadPicture::Raise,
            verify: true,
            threads: default_threads(),
            budget_bytes: 512 << 20,
            deadline: Duration::from_secs(300),
            progress: None,
        }
    }
}

impl RewriteOptions {
    pub(super) fn check(&self) -> Result<()> {
        let bad = |message: String| Err(Error::config(message));
        if self.shard_bytes < MIN_SHARD_BYTES || self.group_bytes == 0 {
            return bad(format!(
                "shard_bytes {} must be at least {MIN_SHARD_BYTES}, group_bytes {} at least 1",
                self.shard_bytes, self.group_bytes
            ));
        }
        if self.group_bytes > 1 << 30 {
            return bad(format!("group_bytes {} is over 1 GiB; a few MiB read best", self.group_bytes));
        }
        if self.page_samples.is_some() && self.format != RewriteFormat::Parquet {
            return bad(
                "page_samples requires the format Parquet; samples of IPC files can be read without it"
                    .to_owned(),
            );
        }
        if let Some(samples) = self.page_samples.filter(|samples| samples.get() > MAX_PAGE_SAMPLES) {
            return bad(format!("page_samples {samples} must be 1 to {MAX_PAGE_SAMPLES}"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(plain) {
            return bad(format!(
                "the name {:?} must consist of letters, digits, '_', '-' and '.'",
                self.name
            ));
        }
        if let Some(recode) = self.recode {
            ShrinkImage { max_side: recode.max_side, quality: recode.quality }.check()?;
        }
        if let Some(interval) = self.restart_interval {
            RestartMarkers::new(interval)?;
        }
        Ok(())
    }

    pub(super) fn report(&self, stage: RewriteStage, done: u64, total: u64, shards: u64) {
        if let Some(progress) = &self.progress {
            progress(RewriteProgress { stage, done, total, shards });
        }
    }
}
