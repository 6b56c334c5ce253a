//! Kernels and their arguments: structures by value, twins of those in `finish.cu`.

pub(crate) mod half;

use crate::element::Real;
use crate::handles::Address;

/// What one row of pictures becomes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureRow {
    /// The row that is mixed in; the row itself where none is.
    pub partner: u32,
    /// 1 if the row is mirrored, else 0.
    pub mirrored: u32,
    /// Of the row's own values, outside of the box.
    pub weight: f32,
    /// Top, left, bottom, right; inside, the partner's values stand alone.
    pub cut: [u32; 4],
}

/// The parameter of the kernels that finish pictures.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PictureArguments {
    /// Rows of RGB, u8 × height × width × 3.
    pub input: Address,
    /// Where finished rows go.
    pub output: Address,
    /// [`PictureRow`] × `rows`.
    pub plan: Address,
    /// Rows of the batch.
    pub rows: u32,
    /// Pixels of a column.
    pub height: u32,
    /// Pixels of a line.
    pub width: u32,
    /// Whether rows may have partners.
    pub mixes: u32,
    /// What each channel is multiplied with.
    pub scale: [f32; 3],
    /// What is added then.
    pub bias: [f32; 3],
}

/// A decoded picture, and what of it becomes a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CropRow {
    /// Where its RGB begins, from the arena's start on.
    pub source: u64,
    /// The row that it becomes.
    pub row: u32,
    /// 1 if it is mirrored, else 0.
    pub mirrored: u32,
    /// Bytes from one of its lines to the next.
    pub stride: u32,
    /// Left, top, width, height: what the filter may read.
    pub view: [u32; 4],
    /// Keeps `window` on 8 bytes.
    pub unused: u32,
    /// Left, top, width, height: what fills the row, from the view's corner on.
    pub window: [f64; 4],
}

/// The parameter of the kernel that cuts rows out of decoded pictures.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CropArguments {
    /// All decoded pictures.
    pub arena: Address,
    /// [`CropRow`] × `count`.
    pub crops: Address,
    /// Rows of RGB.
    pub output: Address,
    /// How many pictures there are.
    pub count: u32,
    /// Pixels of a row's column.
    pub height: u32,
    /// Pixels of a row's line.
    pub width: u32,
    /// Fills the last 8 bytes.
    pub unused: u32,
}

/// A stretch of frames, or a band of features, that is overwritten.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask {
    /// 1 for frames, 0 for features.
    pub is_time: u32,
    /// The first of them.
    pub start: u32,
    /// The one after the last.
    pub end: u32,
}

/// Frames whose sums one thread makes.
pub const CHUNK_FRAMES: u32 = 64;
/// Statistics are those of each clip.
pub const BY_UTTERANCE: u32 = 1;
/// Statistics are those of the data set.
pub const BY_DATA_SET: u32 = 2;

/// The parameter of the kernels that finish features.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FeatureArguments {
    /// f32 × frames × features a row, or features × frames.
    pub input: Address,
    /// Where finished rows go.
    pub output: Address,
    /// u32 a row.
    pub lengths: Address,
    /// f64 × 2 a row, chunk and feature.
    pub chunks: Address,
    /// f64 × 2 a row and feature: mean, scale.
    pub stats: Address,
    /// f32 a row.
    pub row_means: Address,
    /// f32 × 2 a feature: scale, bias.
    pub scales: Address,
    /// [`Mask`] × `masks_per_row` a row.
    pub masks: Address,
    /// Rows of the batch.
    pub rows: u32,
    /// Frames of a row, padding included.
    pub frames: u32,
    /// Features of a frame.
    pub features: u32,
    /// 1 for features × frames, 0 for frames × features.
    pub feature_major: u32,
    /// Chunks of a row, of [`CHUNK_FRAMES`] frames.
    pub chunk_count: u32,
    /// Masks of a row.
    pub masks_per_row: u32,
    /// 0, [`BY_UTTERANCE`] or [`BY_DATA_SET`].
    pub normalize: u32,
    /// 1 if variances are normalised, too.
    pub normalize_vars: u32,
    /// The least standard deviation.
    pub epsilon: f64,
    /// What masks are filled with, unless `mask_with_mean`.
    pub mask_value: f32,
    /// 1 if masks are filled with the row's mean.
    pub mask_with_mean: u32,
}

/// One kernel over one column of a batch.
#[derive(Debug, Clone, Copy)]
pub enum Launch {
    /// Decoded pictures, cut out and resized as the CPU's `bilinear`.
    Crops(CropArguments),
    /// Pictures: mirrored, normalised, mixed.
    Pictures {
        /// The element type of the output.
        real: Real,
        /// One plane a channel, else channels last.
        planes: bool,
        /// The kernel's parameter.
        arguments: PictureArguments,
    },
    /// Sums of 64 frames each.
    FeatureChunks(FeatureArguments),
    /// Their means and scales.
    FeatureStatistics(FeatureArguments),
    /// The means that masks are filled with.
    FeatureRowMeans(FeatureArguments),
    /// Features: normalised, masked.
    Features {
        /// The element type of the output.
        real: Real,
        /// The kernel's parameter.
        arguments: FeatureArguments,
    },
}
