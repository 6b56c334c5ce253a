//! Kernels and their arguments. Each argument structure is passed by value and mirrors the one in `finish.cu`.

pub(crate) mod half;

use crate::element::Real;
use crate::handles::Address;

/// How one row of images is finished.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureRow {
    /// The row that is mixed in, or the row itself if none is.
    pub partner: u32,
    /// 1 if the row is mirrored, else 0.
    pub mirrored: u32,
    /// The weight of the row's own values outside the box.
    pub weight: f32,
    /// The box of the partner's values: top, left, bottom, right.
    pub cut: [u32; 4],
}

/// The parameter of the kernels that finish images.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PictureArguments {
    /// Rows of RGB, u8 × height × width × 3.
    pub input: Address,
    /// The destination of finished rows.
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
    /// The factor of each channel.
    pub scale: [f32; 3],
    /// The summand of each channel, added after scaling.
    pub bias: [f32; 3],
}

/// A decoded image, and the part of it that becomes a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CropRow {
    /// The offset of its RGB from the arena's start.
    pub source: u64,
    /// The row that it becomes.
    pub row: u32,
    /// 1 if left and right are exchanged, else 0.
    pub mirrored: u32,
    /// The bytes from one of its lines to the next.
    pub stride: u32,
    /// The part that the filter may read: left, top, width, height.
    pub view: [u32; 4],
    /// 1 if top and bottom are exchanged, else 0.
    pub upended: u32,
    /// The part that fills the row, relative to the view's corner: left, top, width, height.
    pub window: [f64; 4],
}

/// The parameter of the kernel that crops rows from decoded images.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CropArguments {
    /// All decoded images.
    pub arena: Address,
    /// [`CropRow`] × `count`.
    pub crops: Address,
    /// Rows of RGB.
    pub output: Address,
    /// The number of images.
    pub count: u32,
    /// Pixels of a row's column.
    pub height: u32,
    /// Pixels of a row's line.
    pub width: u32,
    /// Pads the structure to a multiple of 8 bytes.
    pub unused: u32,
}

/// A stretch of frames, or a band of features, that is overwritten.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask {
    /// 1 for frames, 0 for features.
    pub is_time: u32,
    /// The first one.
    pub start: u32,
    /// The one after the last.
    pub end: u32,
}

/// The frames that one thread sums.
pub const CHUNK_FRAMES: u32 = 64;
/// Statistics are those of each audio clip.
pub const BY_UTTERANCE: u32 = 1;
/// Statistics are those of the data set.
pub const BY_DATA_SET: u32 = 2;

/// The parameter of the kernels that finish features.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FeatureArguments {
    /// Per row: f32 × frames × features, or features × frames.
    pub input: Address,
    /// The destination of finished rows.
    pub output: Address,
    /// Per row: u32.
    pub lengths: Address,
    /// Per row, chunk and feature: f64 × 2.
    pub chunks: Address,
    /// Per row and feature: f64 × 2, mean and scale.
    pub stats: Address,
    /// Per row: f32.
    pub row_means: Address,
    /// Per feature: f32 × 2, scale and bias.
    pub scales: Address,
    /// Per row: [`Mask`] × `masks_per_row`.
    pub masks: Address,
    /// Rows of the batch.
    pub rows: u32,
    /// Frames of a row, padding included.
    pub frames: u32,
    /// Features of a frame.
    pub features: u32,
    /// 1 for features × frames, 0 for frames × features.
    pub feature_major: u32,
    /// Chunks of [`CHUNK_FRAMES`] frames per row.
    pub chunk_count: u32,
    /// Masks of a row.
    pub masks_per_row: u32,
    /// 0, [`BY_UTTERANCE`] or [`BY_DATA_SET`].
    pub normalize: u32,
    /// 1 if variances are normalised, too.
    pub normalize_vars: u32,
    /// The term added to the variance.
    pub epsilon: f64,
    /// The value that fills masks, unless `mask_with_mean`.
    pub mask_value: f32,
    /// 1 if masks are filled with the row's mean.
    pub mask_with_mean: u32,
}

/// One kernel over one column of a batch.
#[derive(Debug, Clone, Copy)]
pub enum Launch {
    /// Decoded images, cropped and resized as by the CPU's `bilinear`.
    Crops(CropArguments),
    /// Images: mirrored, normalised, mixed.
    Pictures {
        /// The element type of the output.
        real: Real,
        /// Whether the output has one plane per channel instead of channels last.
        planes: bool,
        /// The kernel's parameter.
        arguments: PictureArguments,
    },
    /// The sums of each chunk of 64 frames.
    FeatureChunks(FeatureArguments),
    /// The means and scales of each row.
    FeatureStatistics(FeatureArguments),
    /// The means that fill masks.
    FeatureRowMeans(FeatureArguments),
    /// Features: normalised, masked.
    Features {
        /// The element type of the output.
        real: Real,
        /// The kernel's parameter.
        arguments: FeatureArguments,
    },
}
