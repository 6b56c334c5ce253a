//! How CUDA runs a [`Launch`]: the kernel's entry point, its grid of threads and the address of its parameter.

use crate::element::Real;
use crate::kernels::{FeatureArguments, Launch, PictureArguments};

/// Threads per block: whole warps, and enough of them on any device.
pub(super) const BLOCK_THREADS: u32 = 256;

/// CUDA's limit on blocks in y; a kernel loops over the remaining rows.
const MAX_GRID_Y: u32 = 65_535;

/// Blocks in x and y, of [`BLOCK_THREADS`] threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) x: u32,
    pub(super) y: u32,
}

impl Launch {
    /// Returns the name of its entry point.
    pub(super) fn entry(&self) -> String {
        match self {
            Self::Crops(_) => "crops".to_owned(),
            Self::Pictures { real, planes, arguments } => {
                let layout = if *planes { "planes" } else { "last" };
                let pixels = pixels_a_thread(*real, *planes, arguments);
                match real.bytes() == 4 && !planes && pixels > 1 && arguments.mixes == 0 {
                    true => format!("pictures_{}_last_words", name(*real)),
                    false => format!("pictures_{}_{layout}_{pixels}", name(*real)),
                }
            }
            Self::FeatureChunks(_) => "feature_chunks".to_owned(),
            Self::FeatureStatistics(_) => "feature_statistics".to_owned(),
            Self::FeatureRowMeans(_) => "feature_row_means".to_owned(),
            Self::Features { real, arguments } => {
                format!("features_{}_{}", name(*real), neighbours_a_thread(arguments))
            }
        }
    }

    /// Returns the blocks that cover all of its work.
    pub(super) fn grid(&self) -> Grid {
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

    /// Returns the address of its only parameter.
    pub(super) fn arguments(&self) -> *const std::ffi::c_void {
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

/// Returns the pixels per thread: the most that start on whole words in every line. Threads that write 96 bytes each would
/// be too far apart for a warp to write efficiently (half the bandwidth on an H100).
fn pixels_a_thread(real: Real, planes: bool, a: &PictureArguments) -> u32 {
    let most = if planes || real.bytes() < 4 { 8 } else { 4 };
    [8, 4].into_iter().find(|pixels| *pixels <= most && a.width.is_multiple_of(*pixels)).unwrap_or(1)
}

fn neighbours_a_thread(a: &FeatureArguments) -> u32 {
    let inner = if a.feature_major == 0 { a.features } else { a.frames };
    if inner.is_multiple_of(4) { 4 } else { 1 }
}

/// Returns the name of an element type in the names of entry points.
fn name(real: Real) -> &'static str {
    match real {
        Real::F32 => "f32",
        Real::F16 => "f16",
        Real::BF16 => "bf16",
    }
}
