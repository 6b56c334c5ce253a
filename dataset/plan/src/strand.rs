//! Strands: the shares of the order that the workers of a fleet serve.

use crate::plan::Plan;
use crate::step::PlannedRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Minimum parts of an order.
const LEAST_PARTS: u32 = 64;

/// Maximum strands of an order of at most that many lanes. 1,000 workers then have 16 or 17 each: the largest share is 1.04 × the
/// mean. With 4,096 strands it would be 1.22 ×.
const MOST_STRANDS: u32 = 1 << 14;

/// How an order is cut into strands.
///
/// ```text
/// order ─▶ lanes ─▶ parts: a lane's blocks in turn, 64 of all lanes or more ─▶ strands: a part's blocks in turn, some 16,384
/// ```
/// A part is a lane. An order may have fewer than 64 lanes (small data sets; without a shuffle there is one). Then a lane's
/// blocks are dealt out in turn to several parts, because its window spans few blocks, and a hash would share them out
/// unevenly. A part has nearly the same number of rows of each step, so workers are given whole parts first. The blocks of each part
/// are dealt out to strands, so that what is left can be shared by any number of workers. Except at lanes' borders, a block belongs
/// to one strand, so one worker fetches it. With a full shuffle, where samples are fetched one by one, the samples are dealt out in
/// the same way.
///
/// ```
/// # use feedstock_plan::{Plan, Shuffle};
/// # use feedstock_plan::{Access, DataHashes, PlanInput};
/// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
/// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
/// let strands = |shuffle| Plan::new(input.clone(), &shuffle).map(|plan| plan.strands());
/// let unshuffled = strands(Shuffle::none())?; // its one lane is dealt out to 64 parts
/// assert_eq!((unshuffled.parts(), unshuffled.count()), (64, 16_384));
/// let of_lanes = strands(Shuffle::seeded(7).lanes(3))?; // 22 parts a lane, of 248 strands each
/// assert_eq!((of_lanes.parts(), of_lanes.count()), (66, 16_368));
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strands {
    lanes: u32,
    parts_of_lane: u32,
    of_part: u32,
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
    fn of_lanes(lanes: u32) -> Self {
        let lanes = lanes.max(1);
        let parts_of_lane = LEAST_PARTS.div_ceil(lanes);
        let of_part = (MOST_STRANDS / lanes.saturating_mul(parts_of_lane)).max(1);
        Self { lanes, parts_of_lane, of_part }
    }

    /// Returns the number of strands.
    pub fn count(&self) -> u32 {
        self.parts().saturating_mul(self.of_part)
    }

    /// Returns the number of parts: 64 to 126, or the number of lanes if that is larger.
    pub fn parts(&self) -> u32 {
        self.lanes.saturating_mul(self.parts_of_lane)
    }

    /// Returns the strand that a row belongs to, below [`count`](Self::count).
    pub fn of(&self, row: &PlannedRow) -> u32 {
        let of_lane = self.parts_of_lane * self.of_part;
        #[expect(clippy::cast_possible_truncation, reason = "a remainder by a u32")]
        let turn = (row.turn % u64::from(of_lane)) as u32;
        row.lane.0 * of_lane + turn
    }

    /// Returns the part that a strand belongs to, below [`parts`](Self::parts).
    pub fn part_of(&self, strand: u32) -> u32 {
        let of_lane = self.parts_of_lane * self.of_part;
        strand / of_lane * self.parts_of_lane + strand % of_lane % self.parts_of_lane
    }

    /// Returns the strands of a part.
    pub fn of_part(&self, part: u32) -> StrandSet {
        (0..self.count()).filter(|strand| self.part_of(*strand) == part).collect()
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
        Strands::of_lanes(self.fingerprint().lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_equally_many_strands() {
        for lanes in [1, 2, 7, 8, 63, 64, 65, 100, 4096, 5000] {
            let strands = Strands::of_lanes(lanes);
            assert!(strands.count() <= MOST_STRANDS.max(lanes), "{strands:?}");
            assert!(strands.count() > MOST_STRANDS / 2, "{strands:?}");
            assert!(strands.parts() >= LEAST_PARTS && strands.parts() < LEAST_PARTS + lanes, "{strands:?}");
            let mut of_parts = vec![0; strands.parts() as usize];
            (0..strands.count()).for_each(|strand| of_parts[strands.part_of(strand) as usize] += 1);
            assert!(of_parts.iter().all(|count| *count == strands.of_part), "{strands:?}");
            let part = strands.of_part(5);
            assert_eq!(part.len(), strands.of_part as usize);
            assert!(part.iter().all(|strand| strands.part_of(strand) == 5));
        }
    }
}
