//! Kernels and their arguments: structures by value, twins of those in `kernels/finish.cu`.

use super::driver::Address;

/// Threads of a block: whole warps, and enough of them on any device.
pub(crate) const BLOCK_THREADS: u32 = 256;

/// Blocks in y at most (CUDA's limit); kernels go on with the rows behind.
const MAX_GRID_Y: u32 = 65_535;

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
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }

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

/// Blocks in x and y, of [`BLOCK_THREADS`] threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) x: u32,
    pub(crate) y: u32,
}

impl Launch {
    /// The name of its entry.
    pub(crate) fn entry(&self) -> String {
        match self {
            Self::Crops(_) => "crops".to_owned(),
            Self::Pictures { real, planes, arguments } => {
                let layout = if *planes { "planes" } else { "last" };
                let pixels = pixels_a_thread(*real, *planes, arguments);
                match real.bytes() == 4 && !planes && pixels > 1 && arguments.mixes == 0 {
                    true => format!("pictures_{}_last_words", real.name()),
                    false => format!("pictures_{}_{layout}_{pixels}", real.name()),
                }
            }
            Self::FeatureChunks(_) => "feature_chunks".to_owned(),
            Self::FeatureStatistics(_) => "feature_statistics".to_owned(),
            Self::FeatureRowMeans(_) => "feature_row_means".to_owned(),
            Self::Features { real, arguments } => {
                format!("features_{}_{}", real.name(), neighbours_a_thread(arguments))
            }
        }
    }

    /// Blocks for all of its work.
    pub(crate) fn grid(&self) -> Grid {
        let over = |threads: u32, rows: u32| Grid {
            x: threads.div_ceil(BLOCK_THREADS).max(1),
            y: rows.clamp(1, MAX_GRID_Y),
        };
        match self {
            Self::Crops(a) => over(a.width * a.height, a.count),
            Self::Pictures { real, planes, arguments: a } => {
                over(a.width / pixels_a_thread(*real, *planes, a) * a.height, a.rows)
            }
            Self::FeatureChunks(a) => over(a.chunk_count * a.features, a.rows),
            Self::FeatureStatistics(a) => over(a.features, a.rows),
            Self::FeatureRowMeans(a) => over(a.rows, 1),
            Self::Features { arguments: a, .. } => {
                over(a.frames * a.features / neighbours_a_thread(a), a.rows)
            }
        }
    }

    /// Where its one parameter lies.
    pub(crate) fn arguments(&self) -> *const std::ffi::c_void {
        match self {
            Self::Crops(arguments) => std::ptr::from_ref(arguments).cast(),
            Self::Pictures { arguments, .. } => std::ptr::from_ref(arguments).cast(),
            Self::FeatureChunks(arguments)
            | Self::FeatureStatistics(arguments)
            | Self::FeatureRowMeans(arguments)
            | Self::Features { arguments, .. } => std::ptr::from_ref(arguments).cast(),
        }
    }
}

/// Pixels that one thread makes: as many as lie on whole words in every line. Words of 96 bytes side by side would lie too
/// far apart for a warp to write them well (half the bandwidth on an H100).
fn pixels_a_thread(real: Real, planes: bool, a: &PictureArguments) -> u32 {
    let most = if planes || real.bytes() < 4 { 8 } else { 4 };
    [8, 4].into_iter().find(|pixels| *pixels <= most && a.width.is_multiple_of(*pixels)).unwrap_or(1)
}

fn neighbours_a_thread(a: &FeatureArguments) -> u32 {
    let inner = if a.feature_major == 0 { a.features } else { a.frames };
    if inner.is_multiple_of(4) { 4 } else { 1 }
}
