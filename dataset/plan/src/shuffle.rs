//! How samples are shuffled, and the lanes and window that follow from the data set.

use crate::access::Access;
use crate::input::PlanInput;
use crate::random::hash;
use feedstock_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// Encoded bytes that the default window of a shuffle of blocks spans. A lane's window has to span several blocks.
const BLOCKS_WINDOW_BYTES: u64 = 512 << 20;

/// Encoded bytes that the default window of a shuffle of pieces spans; of photographs of 110 kB, 2,440, in pieces of 2. Then the
/// labels of batches of 1,024 have 0.97 of the entropy that they have after a full shuffle, even if the data are sorted.
const PIECES_WINDOW_BYTES: u64 = 256 << 20;

/// Encoded bytes of a piece: at 85 MB/s and 27 ms until the first byte, a request for a piece has a tenth of the throughput of
/// an endless one, so tens of requests at once are enough. With smaller pieces, requests would cost more than they improve.
const PIECE_BYTES: u64 = 256 << 10;

/// Maximum number of lanes chosen by default: at most 64 open windows, and a multiple of most world sizes.
const DEFAULT_MAX_LANES: u64 = 64;

/// Minimum number of blocks or pieces that a lane's window spans: with fewer, its shuffle would hardly mix them.
const UNITS_PER_LANE_WINDOW: u64 = 4;

/// The version of the arithmetic of orders that permute blocks, single samples or nothing.
pub(crate) const BLOCKS_VERSION: u32 = 1;

/// The version of the arithmetic of orders that permute pieces.
pub(crate) const PIECES_VERSION: u32 = 2;

/// Distinguishes the generators of a mix from those of its parts' shuffles.
pub(crate) const MIXING_SALT: u64 = 0x006D_6978_6564; // "mixed"

/// What is permuted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShuffleKind {
    /// Nothing: the catalog's order.
    None,
    /// Blocks or pieces, then samples inside windows: one window in memory.
    Window,
    /// Every sample separately: for storage with cheap random reads.
    Full,
}

/// What a windowed shuffle permutes before it shuffles samples inside windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Depends on the access and on whether a window is set.
    #[default]
    Auto,
    /// Blocks.
    Blocks,
    /// Pieces of about 256 KiB, at most a block, at least a page.
    Bytes,
    /// Pieces of k samples.
    Pieces(u32),
}

/// A shuffle of one data set, with nothing left to choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resolved {
    pub(crate) kind: ShuffleKind,
    /// C.
    pub(crate) lanes: u32,
    /// W.
    pub(crate) window: u64,
    /// k; none if blocks are permuted, or nothing.
    pub(crate) piece: Option<u64>,
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
    pub(crate) kind: ShuffleKind,
    pub(crate) seed: u64,
    pub(crate) window: Option<u64>,
    pub(crate) lanes: Option<u32>,
    #[serde(default, skip_serializing_if = "is_auto")]
    pub(crate) unit: Unit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shuffle_bytes: Option<u64>,
}

impl Shuffle {
    /// Shuffles as well as the data set's layout and storage allow, differently in each epoch:
    ///
    /// | data set | what is permuted |
    /// |---|---|
    /// | folders; on local disks tars, Arrow IPC and Parquet with a page for each sample | every sample: a full shuffle |
    /// | these on object storage, except folders | pieces of about 256 KiB, then samples inside windows of 256 MiB |
    /// | Parquet with a page for every few samples, without a filter | pieces of whole pages, then samples inside windows of 256 MiB, or of 512 MiB if a page has more than 256 KiB |
    /// | other Parquet, compressed Arrow IPC | blocks, then samples inside windows of 512 MiB |
    ///
    /// With an explicit [`window`](Self::window) it is blocks for all of them, unless [`piece`](Self::piece) is set.
    pub const fn seeded(seed: u64) -> Self {
        Self::of_kind(ShuffleKind::Window, seed)
    }

    const fn of_kind(kind: ShuffleKind, seed: u64) -> Self {
        Self { kind, seed, window: None, lanes: None, unit: Unit::Auto, shuffle_bytes: None }
    }

    /// Draws every sample separately: each takes a separate read.
    pub const fn full(seed: u64) -> Self {
        Self::of_kind(ShuffleKind::Full, seed)
    }

    /// Keeps the catalog's order in every epoch, on one lane unless [`lanes`](Self::lanes) sets more (then position p
    /// is entry p/C of lane p mod C of the unpermuted order).
    pub const fn none() -> Self {
        Self::of_kind(ShuffleKind::None, 0)
    }

    /// Sets W, the samples shuffled among each other, 1 to 2³² − 1. Default: see [`seeded`](Self::seeded).
    #[must_use]
    pub const fn window(mut self, samples: u64) -> Self {
        self.window = Some(samples);
        self
    }

    /// Sets W by the encoded bytes of its samples, over all ranks. It has no effect if [`window`](Self::window) is set, or on a
    /// full shuffle.
    #[must_use]
    pub const fn shuffle_bytes(mut self, bytes: u64) -> Self {
        self.shuffle_bytes = Some(bytes);
        self
    }

    /// Sets k, and permutes pieces of k consecutive selected samples instead of blocks; at least 1. Smaller pieces mix better
    /// and take more requests.
    #[must_use]
    pub const fn piece(mut self, samples: u32) -> Self {
        self.unit = Unit::Pieces(samples);
        self
    }

    /// Permutes blocks, whatever the data set allows.
    #[must_use]
    pub const fn blocks(mut self) -> Self {
        self.unit = Unit::Blocks;
        self
    }

    /// Sets C, the number of lanes, at least 1. Default: the maximum, up to 64, with which each lane's window is four blocks
    /// or pieces long. Large jobs set a multiple of the largest world size that they plan.
    #[must_use]
    pub const fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Returns what is permuted.
    pub const fn kind(&self) -> ShuffleKind {
        self.kind
    }

    /// Whether it leaves what is permuted to the data set.
    pub fn has_default_unit(&self) -> bool {
        self.kind == ShuffleKind::Window && self.unit == Unit::Auto && self.window.is_none()
    }

    /// Returns k if it is set.
    pub(crate) fn piece_samples(&self) -> Option<u64> {
        match (self.kind, self.unit) {
            (ShuffleKind::Window, Unit::Pieces(samples)) => Some(samples.into()),
            _ => None,
        }
    }

    /// Returns the seed of the order.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns this shuffle of one part of a mix, whose share of the positions is `quota` of `cycle`: with a separate seed, and
    /// that share of the window.
    pub(crate) fn of_part(
        &self,
        part: usize,
        (quota, cycle): (u64, u64),
        input: &PlanInput,
        sample_bytes: u64,
    ) -> Self {
        let decided = self.decided(input);
        let window = decided.window_of(sample_bytes, input.access);
        let share = (u128::from(window) * u128::from(quota)).div_ceil(u128::from(cycle));
        let window = (decided.kind == ShuffleKind::Window).then(|| u64::try_from(share).unwrap_or(u64::MAX));
        Self { seed: part_seed(self.seed, part), window, ..decided }
    }

    /// Returns C, W and k for `samples` selected samples.
    pub(crate) fn resolve(&self, samples: u64, input: &PlanInput) -> Result<Resolved> {
        let decided = self.decided(input);
        let sample_bytes = sample_bytes(&input.block_starts, input.encoded_bytes);
        let window = match decided.kind {
            ShuffleKind::Window => decided.window_of(sample_bytes, input.access).min(samples),
            ShuffleKind::None | ShuffleKind::Full => 1,
        };
        if window == 0 || window > u64::from(u32::MAX) {
            return Err(Error::config(format!(
                "the shuffle window must be 1 to 2³² − 1 samples; got {window}"
            )));
        }
        let blocks = (input.block_starts.len() as u64).saturating_sub(1).max(1);
        let block_samples = samples.div_ceil(blocks);
        let piece = match (decided.kind, decided.unit) {
            (ShuffleKind::None, _) | (ShuffleKind::Window, Unit::Auto | Unit::Blocks) => None,
            (ShuffleKind::Full, _) => Some(1),
            (ShuffleKind::Window, Unit::Pieces(0)) => {
                return Err(Error::config("a piece must have at least 1 sample; got 0"));
            }
            (ShuffleKind::Window, Unit::Pieces(samples)) => Some(u64::from(samples)),
            (ShuffleKind::Window, Unit::Bytes) => {
                Some(default_piece(input.access, sample_bytes, block_samples))
            }
        };
        let unit_samples = piece.unwrap_or(block_samples);
        let lanes = match (decided.lanes, decided.kind) {
            (Some(lanes), _) => u64::from(lanes).min(samples),
            (None, ShuffleKind::None) => 1,
            (None, ShuffleKind::Full) => DEFAULT_MAX_LANES.min(samples),
            (None, ShuffleKind::Window) => (window / UNITS_PER_LANE_WINDOW.saturating_mul(unit_samples))
                .clamp(1, DEFAULT_MAX_LANES.min(samples)),
        };
        match u32::try_from(lanes) {
            Ok(lanes) if lanes > 0 => Ok(Resolved { kind: decided.kind, lanes, window, piece }),
            _ => Err(Error::config("lanes must be at least 1")),
        }
    }

    /// Returns the same shuffle without anything that depends on the access.
    fn decided(&self, input: &PlanInput) -> Self {
        if (self.kind, self.unit) != (ShuffleKind::Window, Unit::Auto) {
            return self.clone();
        }
        match (input.access, self.window) {
            (Access::Blocks, _) | (_, Some(_)) => Self { unit: Unit::Blocks, ..self.clone() },
            // Pieces of what a filter leaves begin within pages, so that most pages would be read twice.
            (Access::Pages { .. }, None) if input.selection.is_some() => {
                Self { unit: Unit::Blocks, ..self.clone() }
            }
            (Access::Ranges | Access::Pages { .. }, None) => Self { unit: Unit::Bytes, ..self.clone() },
            (Access::Samples, None) => Self { kind: ShuffleKind::Full, ..self.clone() },
        }
    }

    /// Returns the samples of the window, unless the data set ends earlier.
    fn window_of(&self, sample_bytes: u64, access: Access) -> u64 {
        let default = match (self.unit, access) {
            (Unit::Blocks, _) => BLOCKS_WINDOW_BYTES,
            (Unit::Bytes, Access::Pages { samples, .. })
                if u64::from(samples).saturating_mul(sample_bytes) > PIECE_BYTES =>
            {
                BLOCKS_WINDOW_BYTES
            }
            _ => PIECES_WINDOW_BYTES,
        };
        self.window.unwrap_or_else(|| (self.shuffle_bytes.unwrap_or(default) / sample_bytes).max(1))
    }
}

/// Returns the samples of a piece of about 256 KiB, at most a mean block: of whole pages, if a page has several samples. On local
/// disks, it is one page.
fn default_piece(access: Access, sample_bytes: u64, block_samples: u64) -> u64 {
    match access {
        Access::Pages { samples, is_local } => {
            let page = u64::from(samples).max(1);
            let pages = PIECE_BYTES / page.saturating_mul(sample_bytes).max(1);
            page * if is_local { 1 } else { pages.clamp(1, (block_samples / page).max(1)) }
        }
        Access::Blocks | Access::Ranges | Access::Samples => {
            (PIECE_BYTES / sample_bytes).clamp(1, block_samples)
        }
    }
}

/// Returns the encoded bytes of a sample, on average.
pub(crate) fn sample_bytes(block_starts: &[u64], encoded_bytes: u64) -> u64 {
    (encoded_bytes / block_starts.last().copied().unwrap_or(0).max(1)).max(1)
}

/// Returns the samples that the default window of a shuffle of blocks spans, unless the data set ends earlier.
pub(crate) fn default_window(sample_bytes: u64) -> u64 {
    (BLOCKS_WINDOW_BYTES / sample_bytes).max(1)
}

/// Whether the unit can be left out of JSON.
fn is_auto(unit: &Unit) -> bool {
    *unit == Unit::Auto
}

/// Returns the seed of a part's order.
fn part_seed(seed: u64, part: usize) -> u64 {
    hash(&[seed, MIXING_SALT, part as u64])
}
