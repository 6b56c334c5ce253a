//! Global steps and their cut into ranks.

use crate::size::StepSize;
use feedstock_base::{BlockId, Lane, Position, Rank, SampleId};
use serde::{Deserialize, Serialize};

/// What becomes of the last positions of an epoch that do not fill a global batch: with [`StepSize::Rows`], fewer than its
/// rows; with [`StepSize::Total`], fewer than one for each rank (a smaller last step is a step like any other).
///
/// ```
/// # use feedstock_base::{Position, Rank};
/// # use feedstock_plan::{Plan, Shuffle, StepShape, StepSize, Tail};
/// # use feedstock_plan::{Access, DataHashes, PlanInput};
/// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
/// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
/// let plan = Plan::new(input, &Shuffle::none())?; // 8 samples
/// let valid = |tail| -> Vec<bool> {
///     let shape = StepShape { size: StepSize::Rows(6), rank: Rank::new(0, 1), tail };
///     plan.epoch(0).step(Position(6), &shape).map_or_else(Vec::new, |step| step.rows.iter().map(|row| row.valid).collect())
/// };
/// assert!(valid(Tail::Drop).is_empty());
/// assert_eq!(valid(Tail::Pad).iter().filter(|valid| **valid).count(), 2);
/// assert_eq!((valid(Tail::Pad).len(), valid(Tail::Short).len()), (6, 2));
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// They are left out (training).
    #[default]
    Drop,
    /// The batch is filled with samples from the epoch's start, marked `valid = false` (evaluation).
    Pad,
    /// The last batch is shorter, and some ranks may have no row of it: for reading, never for training.
    Short,
}

/// How an epoch is cut: not part of the order, and free to change between steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepShape {
    /// Samples in a step over all ranks.
    pub size: StepSize,
    /// The rank, and the world size.
    pub rank: Rank,
    /// The epoch's end.
    pub tail: Tail,
}

/// One row of a rank's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRow {
    /// Its place in the order; for padding, the place that it repeats.
    pub position: Position,
    /// The sample.
    pub sample: SampleId,
    /// The block that holds it.
    pub block: BlockId,
    /// Its row in that block.
    pub row: u32,
    /// How often the epoch has drawn the sample before: random ops must differ between passes.
    pub pass: u64,
    /// Its lane.
    pub lane: Lane,
    /// Decides which strand of a lane has the row; see [`PlannedSample::turn`](crate::PlannedSample::turn).
    pub turn: u64,
    /// False for padding.
    pub valid: bool,
}

/// One rank's share of one global step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The epoch it belongs to.
    pub epoch: u64,
    /// Its first global position.
    pub position: Position,
    /// Where the next step starts; the epoch's length after the last one.
    pub next: Position,
    /// The rank's rows, by lane, then by entry.
    pub rows: Vec<PlannedRow>,
}

impl StepShape {
    /// Whether a step starts at `position` of an epoch of `samples`.
    pub fn has_step(&self, samples: u64, position: Position) -> bool {
        let left = samples.saturating_sub(position.0);
        left > 0 && (self.tail != Tail::Drop || left >= self.least_rows())
    }

    /// Returns the minimum rows of a step; with fewer, the tail is dropped or padded.
    pub(crate) fn least_rows(&self) -> u64 {
        match self.size {
            StepSize::Rows(rows) => rows,
            StepSize::Total { .. } => u64::from(self.rank.world_size),
        }
    }

    /// Returns this rank's part of a step's `rows`: lengths differ by at most one.
    pub(crate) fn share(&self, rows: u64) -> std::ops::Range<u64> {
        let (rank, world_size) = (u64::from(self.rank.rank), u64::from(self.rank.world_size));
        let start = |r: u64| r * (rows / world_size) + r.min(rows % world_size);
        start(rank)..start(rank + 1)
    }

    /// Returns about how many rows this rank has in an epoch: exactly with [`StepSize::Rows`], its equal share with a total.
    ///
    /// ```
    /// use feedstock_base::Rank;
    /// use feedstock_plan::{StepShape, StepSize, Tail};
    ///
    /// let shape = StepShape { size: StepSize::Rows(256), rank: Rank::new(0, 4), tail: Tail::Drop };
    /// assert_eq!(shape.rows(), 64);
    /// assert_eq!(shape.rows_per_epoch(1_000), 3 * 64); // three whole steps of 256
    /// assert_eq!(StepShape { tail: Tail::Pad, ..shape }.rows_per_epoch(1_000), 4 * 64);
    /// ```
    pub fn rows_per_epoch(&self, samples: u64) -> u64 {
        match self.size {
            StepSize::Total { .. } => samples.div_ceil(u64::from(self.rank.world_size)),
            StepSize::Rows(rows) => match self.tail {
                Tail::Drop => self.rows() * (samples / rows),
                Tail::Pad | Tail::Short => self.rows() * samples.div_ceil(rows),
            },
        }
    }

    /// Returns the maximum rows of this rank's batches.
    pub fn rows(&self) -> u64 {
        let share = self.share(self.size.max_rows());
        share.end - share.start
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rows of one batch are held in memory")]
pub(crate) fn narrow(rows: u64) -> usize {
    rows as usize
}
