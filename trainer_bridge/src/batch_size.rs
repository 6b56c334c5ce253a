//! How many samples a batch has.

use feedstock_dataset::{Rank, StepSize};

/// Rows of a rank's batch at most where a total bounds it: of audio clips of 0.1 s under 120 s there would be 1,200.
const MAX_ROWS_PER_RANK: u64 = 1024;

/// Rows of a global batch at most where a total bounds it: those of 64 such ranks.
const MAX_ROWS_GLOBAL: u64 = 64 * MAX_ROWS_PER_RANK;

/// How many samples a step takes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum BatchSize {
    /// For each rank: a step takes this times the world size.
    PerRank(u64),
    /// Over all ranks: shares differ by at most one row.
    Global(u64),
    /// As many for each rank as a bound on their padded length allows.
    PerRankTotal {
        /// Rows × longest length at most, in the unit of the lengths' column (seconds, frames, tokens).
        total: f64,
        /// Rows at most, however short they are.
        max_rows: u64,
    },
    /// As many over all ranks as a bound on their padded length allows.
    GlobalTotal {
        /// Rows × longest length at most, in the unit of the lengths' column.
        total: f64,
        /// Rows at most, however short they are.
        max_rows: u64,
    },
}

impl BatchSize {
    /// Samples a step for each rank.
    pub const fn per_rank(samples: u64) -> Self {
        Self::PerRank(samples)
    }

    /// Samples a step over all ranks.
    pub const fn global(samples: u64) -> Self {
        Self::Global(samples)
    }

    /// As many samples for each rank as `total` allows: rows × longest length ≤ `total`, in the unit of the lengths'
    /// column ([`Pipeline::bucket_by`](crate::Pipeline::bucket_by), [`Pipeline::lengths_from`](crate::Pipeline::lengths_from)); 1,024 rows at most, or
    /// [`max_rows`](Self::max_rows). All ranks take the same number of steps.
    ///
    /// The bound holds for each rank, so the global batches depend on the world size.
    pub const fn per_rank_total(total: f64) -> Self {
        Self::PerRankTotal { total, max_rows: MAX_ROWS_PER_RANK }
    }

    /// As [`per_rank_total`](Self::per_rank_total), over all ranks, and 65,536 rows at most: the same global batches for
    /// any world size. A rank's share may exceed its part of the total by one row.
    pub const fn global_total(total: f64) -> Self {
        Self::GlobalTotal { total, max_rows: MAX_ROWS_GLOBAL }
    }

    /// Rows that a total may gather at most, for each rank or over all as the total is. No change to a size in rows.
    #[must_use]
    pub const fn max_rows(self, rows: u64) -> Self {
        match self {
            Self::PerRankTotal { total, .. } => Self::PerRankTotal { total, max_rows: rows },
            Self::GlobalTotal { total, .. } => Self::GlobalTotal { total, max_rows: rows },
            Self::PerRank(_) | Self::Global(_) => self,
        }
    }

    /// The size of a step over all ranks; `None` if it exceeds 64 bits.
    pub(crate) fn over(self, rank: Rank) -> Option<StepSize> {
        let ranks = u64::from(rank.world_size);
        Some(match self {
            Self::PerRank(samples) => StepSize::Rows(samples.checked_mul(ranks)?),
            Self::Global(samples) => StepSize::Rows(samples),
            Self::PerRankTotal { total, max_rows } => {
                let total = total * f64::from(rank.world_size);
                StepSize::Total { total, max_rows: max_rows.checked_mul(ranks)?, ranks }
            }
            Self::GlobalTotal { total, max_rows } => StepSize::Total { total, max_rows, ranks: 1 },
        })
    }
}
