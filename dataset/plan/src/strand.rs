//! Strands: the shares of the order that the workers of a fleet serve.

use crate::plan::Plan;
use crate::step::PlannedRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Minimum strands of an order, so that a handful of workers can have nearly equal shares: 64 over 5 are 13 or 12.
const LEAST_STRANDS: u32 = 64;

/// How an order is cut into strands.
///
/// A strand is a lane. An order may have fewer than 64 lanes (small data sets; without a shuffle there is one). Then a lane's
/// blocks are dealt out in turn to several strands, because its window spans few blocks, and a hash would share them out
/// unevenly. Either way, except at lanes' borders, a block belongs to one strand, so one worker fetches it. With a full
/// shuffle, where samples are fetched one by one, the samples are dealt out in the same way.
///
/// ```
/// # use feedstock_plan::{Plan, Shuffle};
/// # use feedstock_plan::{Access, DataHashes, PlanInput};
/// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
/// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
/// let strands = |shuffle| Plan::new(input.clone(), &shuffle).map(|plan| plan.strands().count());
/// assert_eq!(strands(Shuffle::none())?, 64); // the one lane is dealt out to 64 strands
/// assert_eq!(strands(Shuffle::seeded(7).lanes(8))?, 64); // 8 strands a lane
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strands {
    lanes: u32,
    of_lane: u32,
}

/// Some strands of an order.
///
/// ```
/// use feedstock_plan::StrandSet;
///
/// let own: StrandSet = (0..64).filter(|strand| strand % 5 == 2).collect(); // of the third of five workers
/// assert_eq!(own.len(), 13);
/// assert!(own.contains(7) && !own.contains(8));
/// assert_eq!(serde_json::to_string(&[1, 4].into_iter().collect::<StrandSet>()).unwrap(), "[1,4]");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StrandSet(BTreeSet<u32>);

impl Strands {
    /// Returns the number of strands.
    pub fn count(&self) -> u32 {
        self.lanes.saturating_mul(self.of_lane)
    }

    /// Returns the strand that a row belongs to, below [`count`](Self::count).
    pub fn of(&self, row: &PlannedRow) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder by a u32")]
        let turn = (row.turn % u64::from(self.of_lane)) as u32;
        row.lane.0 * self.of_lane + turn
    }
}

impl StrandSet {
    /// Whether the set has this strand.
    pub fn contains(&self, strand: u32) -> bool {
        self.0.contains(&strand)
    }

    /// Returns the number of strands.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each strand, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for StrandSet {
    fn from_iter<I: IntoIterator<Item = u32>>(strands: I) -> Self {
        Self(strands.into_iter().collect())
    }
}

impl Plan {
    /// Returns how this order is cut into strands.
    pub fn strands(&self) -> Strands {
        let lanes = self.fingerprint().lanes.max(1);
        let of_lane = LEAST_STRANDS.div_ceil(lanes);
        Strands { lanes, of_lane }
    }
}
