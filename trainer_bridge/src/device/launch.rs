//! Kernels and their arguments: structures by value, twins of those in `kernels/finish.cu`.

use super::driver::Address;

/// What one row of pictures becomes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PictureRow {
    /// The row that is mixed in; the row itself where none is.
    pub(crate) partner: u32,
    pub(crate) mirrored: u32,
    /// Of the row's own values, outside of the box.
    pub(crate) weight: f32,
    /// Top, left, bottom, right; inside, the partner's values stand alone.
    pub(crate) cut: [u32; 4],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PictureArguments {
    pub(crate) input: Address,
    pub(crate) output: Address,
    pub(crate) plan: Address,
    pub(crate) rows: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
    /// Whether rows may have partners.
    pub(crate) mixes: u32,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

/// A decoded picture, and what of it becomes a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CropRow {
    /// Where its RGB begins, from the arena's start on.
    pub(crate) source: u64,
    /// The row that it becomes.
    pub(crate) row: u32,
    pub(crate) mirrored: u32,
    /// Bytes from one of its lines to the next.
    pub(crate) stride: u32,
    /// Left, top, width, height: what the filter may read.
    pub(crate) view: [u32; 4],
    pub(crate) unused: u32,
    /// Left, top, width, height: what fills the row, from the view's corner on.
    pub(crate) window: [f64; 4],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CropArguments {
    /// All decoded pictures.
    pub(crate) arena: Address,
    /// [`CropRow`] × `count`.
    pub(crate) crops: Address,
    /// Rows of RGB.
    pub(crate) output: Address,
    pub(crate) count: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) unused: u32,
}

/// A stretch of frames, or a band of features, that is overwritten.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) is_time: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Frames whose sums one thread makes.
pub(crate) const CHUNK_FRAMES: u32 = 64;
pub(crate) const BY_UTTERANCE: u32 = 1;
pub(crate) const BY_DATA_SET: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeatureArguments {
    pub(crate) input: Address,
    pub(crate) output: Address,
    /// u32 a row.
    pub(crate) lengths: Address,
    /// f64 × 2 a row, chunk and feature.
    pub(crate) chunks: Address,
    /// f64 × 2 a row and feature: mean, scale.
    pub(crate) stats: Address,
    /// f32 a row.
    pub(crate) row_means: Address,
    /// f32 × 2 a feature: scale, bias.
    pub(crate) scales: Address,
    /// [`Mask`] × `masks_per_row` a row.
    pub(crate) masks: Address,
    pub(crate) rows: u32,
    pub(crate) frames: u32,
    pub(crate) features: u32,
    pub(crate) feature_major: u32,
    pub(crate) chunk_count: u32,
    pub(crate) masks_per_row: u32,
    pub(crate) normalize: u32,
    pub(crate) normalize_vars: u32,
    pub(crate) epsilon: f64,
    pub(crate) mask_value: f32,
    pub(crate) mask_with_mean: u32,
}

/// The element types that finishing makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Real {
    F32,
    F16,
    BF16,
}

impl Real {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// One kernel over one column of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Launch {
    /// Decoded pictures, cut out and resized as the CPU's `bilinear`.
    Crops(CropArguments),
    Pictures {
        real: Real,
        planes: bool,
        arguments: PictureArguments,
    },
    /// Sums of 64 frames each.
    FeatureChunks(FeatureArguments),
    /// Their means and scales.
    FeatureStatistics(FeatureArguments),
    /// The means that masks are filled with.
    FeatureRowMeans(FeatureArguments),
    Features {
        real: Real,
        arguments: FeatureArguments,
    },
}
