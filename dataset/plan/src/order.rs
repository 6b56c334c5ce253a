//! The order of one epoch: which sample is at which position, and back.

use crate::base::BaseOrder;
use crate::bucket::Buckets;
use crate::digest::Digest;
use crate::extent::Extent;
use crate::facts::Facts;
use crate::planned::PlannedSample;
use crate::random::hash;
use crate::rest::RestOrder;
use crate::share_bounds::ShareBounds;
use crate::walks::Walks;
use feedstock_base::Position;
use std::sync::Arc;

/// The order of one epoch: a permutation of all selected samples, or a mix of several.
///
/// Building it takes O(blocks): 13 bytes and about 30 ns a block. After that any position is found in O(log blocks), plus the
/// shuffle of its window once. Clones share the block tables.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    pub(crate) facts: Arc<Facts>,
    epoch: u64,
    pub(crate) base: BaseOrder,
    pub(crate) buckets: Option<Buckets>,
    pub(crate) walks: Walks,
    pub(crate) share_bounds: ShareBounds,
}

impl EpochOrder {
    pub(crate) fn new(facts: Arc<Facts>, epoch: u64) -> Self {
        let rest = facts.rest.as_ref().filter(|facts| facts.rest().epoch() == epoch);
        let base = match rest {
            Some(rest) => BaseOrder::Rest(RestOrder(rest.clone())),
            None => facts.base.epoch(epoch),
        };
        let seed = hash(&[facts.fingerprint.seed, epoch]);
        let bucketing = facts.bucketing.as_ref().filter(|_| rest.is_none()); // a rest is listed in bucketed order
        let buckets = bucketing.map(|bucketing| Buckets::new(bucketing.clone(), seed));
        Self { facts, epoch, base, buckets, walks: Walks::default(), share_bounds: ShareBounds::default() }
    }

    /// Returns the number of this epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the positions in the epoch: the number of selected samples, or of those that were left when the data changed.
    pub fn len(&self) -> u64 {
        self.facts.len_of(self.epoch)
    }

    /// Whether it has no positions: nothing was left when the data changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample at `position`.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, Position, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let planned = Plan::new(input, &Shuffle::none())?.epoch(0).sample_at(Position(6));
    /// assert_eq!((planned.sample, planned.block, planned.row), (SampleId(6), BlockId(1), 2));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the position is not below [`EpochOrder::len`].
    pub fn sample_at(&mut self, position: Position) -> PlannedSample {
        assert!(position.0 < self.len(), "position {position} of {}", self.len());
        let base = match &mut self.buckets {
            None => position.0,
            Some(buckets) => buckets.base_of(&mut self.base, position.0),
        };
        self.base.sample_at(base)
    }

    /// Returns all positions of an extent's selected samples, ascending. In a mix whose parts repeat these are the positions of
    /// all passes; in one without end, of the first pass.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, Position};
    /// # use feedstock_plan::{Extent, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mut order = Plan::new(input, &Shuffle::seeded(7))?.epoch(0);
    /// let positions = order.positions_of(Extent::new(BlockId(1), 4..8));
    /// assert_eq!(positions.len(), 4);
    /// assert!(positions.iter().all(|position| order.sample_at(*position).block == BlockId(1)));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn positions_of(&mut self, extent: Extent) -> Vec<Position> {
        let passes = if self.facts.is_endless() { 1 } else { u64::MAX };
        let mut positions = Vec::new();
        for pass in 0..passes {
            let Some((more, _)) = self.positions_in_pass(extent, pass, u64::MAX) else { break };
            positions.extend(more);
        }
        positions.sort_unstable();
        positions.into_iter().map(Position).collect()
    }

    /// Returns about when the extent is first needed: no later than its first position, and less than a window early (or at
    /// the start of a lane that it reaches into). `None` if none of its samples is selected.
    pub fn earliest_position(&mut self, extent: Extent) -> Option<Position> {
        self.earliest_in_pass(extent, 0)
    }

    /// Returns about when the extent is needed again in this epoch, after all its samples in the pass at `position`: no later
    /// than the first of the next pass. `None` except in a mix whose parts repeat.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, Position};
    /// # use feedstock_plan::{Extent, Plan, Shuffle, Stop};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let long = PlanInput { block_starts: [0, 64].into(), ..input.clone() };
    /// let mix = Plan::mixed(vec![(input.clone(), 1.0), (long, 1.0)], Stop::AllExhausted, &Shuffle::none())?;
    /// let again = mix.epoch(0).next_pass(Extent::new(BlockId(0), 0..8), Position(0)).unwrap();
    /// assert_eq!(mix.epoch(0).sample_at(again).pass, 1); // the part of 8 samples begins anew
    /// assert_eq!(Plan::new(input, &Shuffle::none())?.epoch(0).next_pass(Extent::new(BlockId(0), 0..4), Position(0)), None);
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn next_pass(&mut self, extent: Extent, position: Position) -> Option<Position> {
        if position.0 >= self.len() {
            return None;
        }
        let from = self.base_floor(position.0);
        let pass = self.base.pass_at(extent, from);
        self.earliest_in_pass(extent, pass + 1)
    }

    /// Returns the positions at or after `from`, ascending: those in the first pass over its data set that has some, and
    /// in later passes that begin before `until`. There are no gaps up to where the next pass may begin.
    ///
    /// Positions from about `horizon` on are left out; the second value is no later than the first of them.
    pub(crate) fn positions_from(
        &mut self,
        extent: Extent,
        from: u64,
        until: u64,
        horizon: u64,
    ) -> (Vec<u64>, Option<u64>) {
        let (mut found, mut beyond) = (Vec::new(), None);
        if from >= self.len() || self.facts.base.selected_of(extent) == 0 {
            return (found, beyond);
        }
        let floor = self.base_floor(from);
        let mut pass = self.base.pass_at(extent, floor);
        while let Some((mut positions, left_out)) = self.positions_in_pass(extent, pass, horizon) {
            positions.retain(|position| *position >= from);
            found.append(&mut positions);
            if left_out.is_some() {
                beyond = left_out; // and so are all later passes
                break;
            }
            pass += 1;
            let next = self.earliest_in_pass(extent, pass).map_or(u64::MAX, |next| next.0);
            if next >= until && found.iter().any(|position| *position < next) {
                found.retain(|position| *position < next);
                break;
            }
        }
        found.sort_unstable();
        (found, beyond)
    }

    /// Returns the positions in one pass, ascending, except those from about `horizon` on; and a place no later than the first
    /// of these, if there are any. `None` if the epoch ends before the pass.
    pub(crate) fn positions_in_pass(
        &mut self,
        extent: Extent,
        pass: u64,
        horizon: u64,
    ) -> Option<(Vec<u64>, Option<u64>)> {
        let mut positions = self.base.positions_in_pass(extent, pass)?;
        // Floors rise with positions. Sorting a bucketed window beyond the horizon is not worth its cost.
        let near = positions.partition_point(|&position| self.base_floor(position) < horizon);
        let beyond = positions.get(near).map(|&position| self.base_floor(position));
        positions.truncate(near);
        if let Some(buckets) = &mut self.buckets {
            for position in &mut positions {
                *position = buckets.position_of(&mut self.base, *position);
            }
            positions.sort_unstable();
        }
        Some((positions, beyond))
    }

    fn earliest_in_pass(&mut self, extent: Extent, pass: u64) -> Option<Position> {
        let base = self.base.earliest_in_pass(extent, pass)?;
        Some(Position(self.base_floor(base)))
    }

    /// Returns a position at which the base order and the bucketed one have delivered the same samples.
    fn base_floor(&self, position: u64) -> u64 {
        self.buckets.as_ref().map_or(position, |buckets| buckets.window_start(position))
    }

    /// Returns the digest of the samples at these positions. For the whole epoch of one data set it is computed from the
    /// selection alone, so that it also proves the order to be a permutation.
    ///
    /// ```
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mut order = Plan::new(input, &Shuffle::none())?.epoch(0);
    /// let first = order.digest(0..4);
    /// assert_eq!(first.samples, 4);
    /// assert_ne!(first, order.digest(4..8)); // other samples
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn digest(&mut self, positions: std::ops::Range<u64>) -> Digest {
        if positions == (0..self.len()) && matches!(self.base, BaseOrder::Plain(_)) {
            return self.facts.digest();
        }
        positions.map(|p| self.sample_at(Position(p)).sample).collect()
    }
}
