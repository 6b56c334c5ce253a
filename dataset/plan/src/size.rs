//! The size of a step: a number of samples, or the maximum that a total length allows.

use feedstock_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// The number of samples of a global step, over all ranks.
///
/// ```
/// # use feedstock_base::{Position, Rank};
/// # use feedstock_plan::{Lengths, Plan, Shuffle, StepShape, StepSize, Tail};
/// # use feedstock_plan::{Access, DataHashes, PlanInput};
/// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
/// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
/// let seconds = Lengths::new("duration", vec![2.0, 2.0, 2.0, 2.0, 2.0, 6.0, 6.0, 2.0]);
/// let plan = Plan::new(input, &Shuffle::none())?.with_lengths(&seconds)?;
/// let size = StepSize::Total { total: 12.0, max_rows: 64, ranks: 1 }; // 12 s, padding included
/// let shape = StepShape { size, rank: Rank::new(0, 1), tail: Tail::Drop };
/// let mut order = plan.epoch(0);
/// let rows: Vec<usize> = order.steps(Position(0), &shape).map(|step| step.rows.len()).collect();
/// assert_eq!(rows, [5, 2, 1]); // 5 × 2 s, 2 × 6 s, 1 × 2 s
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepSize {
    /// This number of samples, at least one for each rank.
    Rows(u64),
    /// The maximum number of samples that a bound on their padded size allows: rows × longest length ≤ `total`, and rows ≤
    /// `max_rows`. Padding counts, as in fairseq's `max_tokens`, so that the bound is one on memory; Lhotse's and NeMo's
    /// `max_duration` sum the samples alone.
    Total {
        /// The bound, in the unit of the lengths (seconds, frames, tokens), over all ranks; finite and above zero.
        /// Serialized as text, because JSON numbers may lose the last bit of a fraction.
        #[serde(with = "exact")]
        total: f64,
        /// Maximum rows, however short they are; at least one for each rank.
        max_rows: u64,
        /// Equal parts of the total that hold equal shares of the rows: the world size if the bound applies to each rank's
        /// batch, 1 if it applies to the global batch.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        ranks: u64,
    },
}

impl StepSize {
    /// Returns the maximum rows of a global step.
    pub fn max_rows(&self) -> u64 {
        match *self {
            Self::Rows(rows) => rows,
            Self::Total { max_rows, .. } => max_rows,
        }
    }

    /// Returns the maximum rows of a step whose longest sample has this length.
    pub(crate) fn rows_of(&self, longest: f32) -> u64 {
        match *self {
            Self::Rows(rows) => rows,
            Self::Total { total, max_rows, ranks } => {
                let longest = f64::from(longest);
                #[expect(clippy::cast_possible_truncation, reason = "the cast saturates, as it should here")]
                let quotient = (total / longest) as u64; // by zero: the maximum
                let rows = quotient.min(max_rows);
                // The quotient is rounded, so the product decides.
                let rows = if rows as f64 * longest > total { rows - 1 } else { rows };
                rows - rows % ranks // shares differ by a row, and none may exceed its part
            }
        }
    }

    /// Rejects sizes with which steps are empty.
    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            Self::Rows(0) => Err(Error::config("a step must have at least 1 row; got 0")),
            Self::Total { total, .. } if !total.is_finite() || total <= 0.0 => {
                Err(Error::config(format!("the batch total must be a finite number > 0; got {total}")))
            }
            Self::Total { max_rows: 0, .. } => Err(Error::config("max_rows must be at least 1; got 0")),
            Self::Total { ranks: 0, .. } => {
                Err(Error::config("the ranks of a batch total must be at least 1; got 0"))
            }
            Self::Rows(_) | Self::Total { .. } => Ok(()),
        }
    }
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(ranks: &u64) -> bool {
    *ranks == 1
}

/// A float as text: the shortest decimal that parses to the same bits.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_most_rows_are_the_most(total in 0.1f64..1e6, longest in 0.0f32..1e4, max_rows in 1u64..10_000) {
            let size = StepSize::Total { total, max_rows, ranks: 1 };
            let rows = size.rows_of(longest);
            let fits = |rows: u64| rows as f64 * f64::from(longest) <= total && rows <= max_rows;
            prop_assert!(fits(rows) && !fits(rows + 1), "{rows}");
        }

        #[test]
        fn no_ranks_share_is_over_its_part(part in 0.1f64..1e4, longest in 0.0f32..1e3, max_rows in 1u64..1000, ranks in 1u64..9) {
            let size = StepSize::Total { total: part * ranks as f64, max_rows: max_rows * ranks, ranks };
            let largest_share = size.rows_of(longest).div_ceil(ranks);
            prop_assert!(largest_share as f64 * f64::from(longest) <= part * (1.0 + 1e-15));
            prop_assert!(largest_share <= max_rows);
        }

        #[test]
        fn a_total_survives_json(bits: u64, max_rows: u64) {
            let size = StepSize::Total { total: f64::from_bits(bits >> 2), max_rows, ranks: 1 };
            let text = serde_json::to_string(&size).unwrap();
            prop_assert_eq!(serde_json::from_str::<StepSize>(&text).unwrap(), size);
        }
    }
}
