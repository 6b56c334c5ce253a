//! Strands: the shares of the order that the workers of a fleet serve.

use crate::plan::Plan;
use crate::step::PlannedRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Strands of an order at least, so that a handful of workers can have nearly equal shares: 64 over 5 are 13 or 12.
const LEAST_STRANDS: u32 = 64;

/// How an order is cut into strands.
///
/// A strand is a lane. Where an order has fewer than 64 of them (small data sets; no shuffle has one), a lane's blocks
/// are dealt out in turn, so that it becomes several: its window spans few blocks, which a hash would share out unevenly.
/// Either way a block is, but for lanes' borders, one strand's, and so fetched by one worker. Under a full shuffle, where
/// samples are fetched one by one, they are dealt out likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strands {
    lanes: u32,
    of_lane: u32,
}

/// Some strands of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StrandSet(BTreeSet<u32>);

impl Strands {
    /// How many there are.
    pub fn count(&self) -> u32 {
        self.lanes.saturating_mul(self.of_lane)
    }

    /// The strand that a row belongs to, below [`count`](Self::count).
    pub fn of(&self, row: &PlannedRow) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder by a u32")]
        let turn = (row.turn % u64::from(self.of_lane)) as u32;
        row.lane.0 * self.of_lane + turn
    }
}

impl StrandSet {
    /// Whether it is one of them.
    pub fn contains(&self, strand: u32) -> bool {
        self.0.contains(&strand)
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether they are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, rising.
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
    /// How this order is cut into strands.
    pub fn strands(&self) -> Strands {
        let lanes = self.fingerprint().lanes.max(1);
        let of_lane = LEAST_STRANDS.div_ceil(lanes);
        Strands { lanes, of_lane }
    }
}
