//! How samples are shuffled, and the lanes and window that follow from the data set.

use crate::input::PlanInput;
use crate::random::hash;
use feedstock_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Encoded bytes that the default window spans; a pipeline's memory budget must hold about this much.
const DEFAULT_WINDOW_BYTES: u64 = 512 << 20;

/// Maximum number of lanes chosen by default: at most 64 open windows, and a multiple of most world sizes.
const DEFAULT_MAX_LANES: u64 = 64;

/// Minimum number of blocks that a lane's window spans: with fewer, its shuffle would hardly mix blocks.
const BLOCKS_PER_LANE_WINDOW: u64 = 4;

/// Distinguishes the generators of a mix from those of its parts' shuffles.
pub(crate) const MIXING_SALT: u64 = 0x006D_6978_6564; // "mixed"

/// What is permuted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleKind {
    /// Nothing: the catalog's order.
    None,
    /// Blocks, then samples inside windows: sequential reads, one window in memory.
    Window,
    /// Every sample separately: for storage with cheap random reads.
    Full,
}

/// How samples are shuffled.
///
/// ```
/// # use feedstock_plan::{Shuffle, ShuffleKind};
/// let shuffle = Shuffle::seeded(7).window(16_384).lanes(64);
/// assert_eq!((shuffle.kind(), shuffle.seed()), (ShuffleKind::Window, 7));
/// assert_eq!(Shuffle::full(7).kind(), ShuffleKind::Full);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shuffle {
    kind: ShuffleKind,
    seed: u64,
    window: Option<u64>,
    lanes: Option<u32>,
}

impl Shuffle {
    /// Permutes blocks and shuffles samples inside windows, differently in each epoch.
    pub const fn seeded(seed: u64) -> Self {
        Self { kind: ShuffleKind::Window, seed, window: None, lanes: None }
    }

    /// Draws every sample separately: each takes a separate read.
    pub const fn full(seed: u64) -> Self {
        Self { kind: ShuffleKind::Full, seed, window: None, lanes: None }
    }

    /// Keeps the catalog's order in every epoch, on one lane unless [`lanes`](Self::lanes) sets more (then position p
    /// is entry p/C of lane p mod C of the unpermuted order).
    pub const fn none() -> Self {
        Self { kind: ShuffleKind::None, seed: 0, window: None, lanes: None }
    }

    /// Sets W, the samples shuffled among each other, 1 to 2³² − 1. Default: the number that fits in 512 MiB of encoded bytes.
    #[must_use]
    pub const fn window(mut self, samples: u64) -> Self {
        self.window = Some(samples);
        self
    }

    /// Sets C, the number of lanes, at least 1. Default: the maximum, up to 64, with which each lane's window is four blocks
    /// long. Large jobs set a multiple of the largest world size that they plan.
    #[must_use]
    pub const fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Returns what is permuted.
    pub const fn kind(&self) -> ShuffleKind {
        self.kind
    }

    /// Returns the seed of the order.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the shuffle of one part of a mix, whose share of the positions is `quota` of `cycle`: with a separate seed, and
    /// that share of the window.
    pub(crate) fn of_part(&self, part: usize, (quota, cycle): (u64, u64), sample_bytes: u64) -> Self {
        let window = self.window.unwrap_or_else(|| default_window(sample_bytes));
        let share = (u128::from(window) * u128::from(quota)).div_ceil(u128::from(cycle));
        let window = (self.kind == ShuffleKind::Window).then(|| u64::try_from(share).unwrap_or(u64::MAX));
        Self { seed: part_seed(self.seed, part), window, ..self.clone() }
    }

    /// Returns C and W for `samples` selected samples.
    pub(crate) fn resolve(&self, samples: u64, input: &PlanInput) -> Result<(u32, u64)> {
        let blocks = (input.block_starts.len() as u64).saturating_sub(1).max(1);
        let sample_bytes = sample_bytes(&input.block_starts, input.encoded_bytes);
        let window = match (self.kind, self.window) {
            (ShuffleKind::Window, None) => default_window(sample_bytes).min(samples),
            (ShuffleKind::Window, Some(window)) => window.min(samples),
            (ShuffleKind::None | ShuffleKind::Full, _) => 1,
        };
        if window == 0 || window > u64::from(u32::MAX) {
            return Err(Error::config(format!(
                "the shuffle window must be 1 to 2³² − 1 samples; got {window}"
            )));
        }
        let block_samples = samples.div_ceil(blocks);
        let lanes = match (self.lanes, self.kind) {
            (Some(lanes), _) => u64::from(lanes).min(samples),
            (None, ShuffleKind::None) => 1,
            (None, ShuffleKind::Full) => DEFAULT_MAX_LANES.min(samples),
            (None, ShuffleKind::Window) => {
                (window / (BLOCKS_PER_LANE_WINDOW * block_samples)).clamp(1, DEFAULT_MAX_LANES.min(samples))
            }
        };
        match u32::try_from(lanes) {
            Ok(lanes) if lanes > 0 => Ok((lanes, window)),
            _ => Err(Error::config("lanes must be at least 1")),
        }
    }
}

/// Returns the encoded bytes of a sample, on average.
pub(crate) fn sample_bytes(block_starts: &[u64], encoded_bytes: u64) -> u64 {
    (encoded_bytes / block_starts.last().copied().unwrap_or(0).max(1)).max(1)
}

/// Returns the samples that the default window spans, unless the data set ends earlier.
pub(crate) fn default_window(sample_bytes: u64) -> u64 {
    (DEFAULT_WINDOW_BYTES / sample_bytes).max(1)
}

/// Returns the seed of a part's order.
fn part_seed(seed: u64, part: usize) -> u64 {
    hash(&[seed, MIXING_SALT, part as u64])
}
