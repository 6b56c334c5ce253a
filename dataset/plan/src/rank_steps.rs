//! The steps of one rank, and when the rank needs a block.

use crate::base::BaseOrder;
use crate::extent::Extent;
use crate::order::EpochOrder;
use crate::planned::PlannedSample;
use crate::size::StepSize;
use crate::step::{PlannedRow, Step, StepShape, Tail, narrow};
use feedstock_base::Position;

/// Positions that are walked ahead, with steps under a total, to predict when a block is needed: four default windows of audio
/// clips of 40 KB, at 0.2 µs each.
const FORETOLD: u64 = 1 << 16;

impl EpochOrder {
    /// Returns the rank's share of the step that starts at `position`; `None` at the epoch's end.
    ///
    /// ```
    /// # use feedstock_base::{Position, Rank, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mut order = Plan::new(input, &Shuffle::none())?.epoch(0);
    /// let shape = StepShape { size: StepSize::Rows(6), rank: Rank::new(1, 2), tail: Tail::Drop };
    /// let step = order.step(Position(0), &shape).unwrap();
    /// let samples: Vec<SampleId> = step.rows.iter().map(|row| row.sample).collect();
    /// assert_eq!(samples, [SampleId(3), SampleId(4), SampleId(5)]); // rank 0 has samples 0 to 2
    /// assert_eq!(order.step(step.next, &shape), None); // two samples do not fill a step of six
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn step(&mut self, position: Position, shape: &StepShape) -> Option<Step> {
        if !shape.has_step(self.len(), position) {
            return None;
        }
        let end = self.step_end(position.0, shape);
        let rows = self
            .places(position.0, end, shape)
            .into_iter()
            .map(|(position, valid)| {
                let planned = self.sample_at(position);
                let PlannedSample { sample, block, row, pass, lane, turn } = planned;
                PlannedRow { position, sample, block, row, pass, lane, turn, valid }
            })
            .collect();
        Some(Step { epoch: self.epoch(), position, next: Position(end), rows })
    }

    /// Returns the rank's positions of the step `from..end`, and whether they are its own or padding.
    pub(crate) fn places(&mut self, from: u64, end: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        match shape.tail {
            Tail::Pad if end - from < shape.least_rows() => self.padded(from, shape),
            _ => self.whole(from, end - from, shape),
        }
    }

    /// Returns every step of one rank from `position` on.
    ///
    /// Global batches are the same for every world size:
    ///
    /// ```
    /// # use feedstock_base::{Position, Rank, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?;
    /// let second_batch = |world_size| -> Vec<SampleId> {
    ///     let ranks = (0..world_size).map(|rank| Rank::new(rank, world_size));
    ///     let rows = ranks.flat_map(|rank| {
    ///         let shape = StepShape { size: StepSize::Rows(4), rank, tail: Tail::Drop };
    ///         plan.epoch(0).steps(Position(0), &shape).nth(1).unwrap().rows
    ///     });
    ///     rows.map(|row| row.sample).collect()
    /// };
    /// assert_eq!(second_batch(1), second_batch(4));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn steps<'a>(
        &'a mut self,
        position: Position,
        shape: &'a StepShape,
    ) -> impl Iterator<Item = Step> + 'a {
        let mut next = position;
        std::iter::from_fn(move || {
            let step = self.step(next, shape)?;
            next = step.next;
            Some(step)
        })
    }

    /// Returns the starts of the steps, from the one at `from` on, in which this rank reads the extent; ascending, each once. In a
    /// mix whose parts repeat, these are in the first pass over its part from `from` on, and in all passes that begin
    /// in the step at `from`; call it again from a later step for later ones.
    ///
    /// The rows of a padded last step count for every rank, because the padding decides which rank gets them.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, Position, Rank};
    /// # use feedstock_plan::{Extent, Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mut order = Plan::new(input, &Shuffle::none())?.epoch(0);
    /// let shape = StepShape { size: StepSize::Rows(2), rank: Rank::new(0, 1), tail: Tail::Drop };
    /// assert_eq!(order.steps_using(Extent::new(BlockId(1), 4..8), Position(0), &shape), [Position(4), Position(6)]);
    /// assert_eq!(order.steps_using(Extent::new(BlockId(0), 0..4), Position(4), &shape), []); // already read
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn steps_using(&mut self, extent: Extent, from: Position, shape: &StepShape) -> Vec<Position> {
        self.foretell(extent, from, u64::MAX, shape).0
    }

    /// As [`steps_using`](Self::steps_using), but only as far ahead as is cheap. Also returns a place no later than the first
    /// at which any rank may need the extent beyond that.
    ///
    /// If steps are bounded by a total, finding the step of a far position walks all steps up to it, and an extent on the border
    /// of two lanes is needed at both ends of the epoch. So only the next 65,536 positions are searched: 13 ms at most, once.
    /// Steps of a number of rows need one division, and are searched to the end.
    pub fn steps_using_soon(
        &mut self,
        extent: Extent,
        from: Position,
        shape: &StepShape,
    ) -> (Vec<Position>, Option<Position>) {
        let horizon = match shape.size {
            StepSize::Rows(_) => u64::MAX,
            StepSize::Total { .. } => from.0.saturating_add(FORETOLD),
        };
        self.foretell(extent, from, horizon, shape)
    }

    fn foretell(
        &mut self,
        extent: Extent,
        from: Position,
        horizon: u64,
        shape: &StepShape,
    ) -> (Vec<Position>, Option<Position>) {
        let mut starts: Vec<Position> = Vec::new();
        if !shape.has_step(self.len(), from) {
            return (starts, None);
        }
        let first_end = self.step_end(from.0, shape);
        let (positions, beyond) = self.positions_from(extent, from.0, first_end, horizon);
        for p in positions {
            let start = self.step_start(p, from.0, shape);
            if starts.last() == Some(&Position(start)) || !shape.has_step(self.len(), Position(start)) {
                continue;
            }
            let end = self.step_end(start, shape);
            let padded = shape.tail == Tail::Pad && end - start < shape.least_rows();
            if padded || self.in_share(p, start, end, shape) {
                starts.push(Position(start));
            }
        }
        (starts, beyond.map(Position))
    }

    /// Whether `position`'s row of the step `start..end` belongs to the rank.
    fn in_share(&mut self, position: u64, start: u64, end: u64, shape: &StepShape) -> bool {
        let share = shape.share(end - start);
        match &self.base {
            _ if self.buckets.is_some() => share.contains(&(position - start)),
            BaseOrder::Plain(order) => {
                let lanes = order.facts.lanes;
                let lane = position % lanes.lanes;
                let before = lanes.rows_before_lane(lane, start, end);
                share.contains(&(before + position / lanes.lanes - lanes.entries(lane, start, end).start))
            }
            BaseOrder::Mixed(_) | BaseOrder::Rest(_) => self.in_sorted_share(position, start, end, shape),
        }
    }

    /// Returns the share's positions: in a bucketed order as they come, otherwise by lane and entry, without listing the other
    /// ranks' rows if lanes can be counted.
    fn whole(&mut self, from: u64, rows: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        let share = shape.share(rows);
        let own = |position| (Position(position), true);
        let lanes = match &self.base {
            _ if self.buckets.is_some() => return (from + share.start..from + share.end).map(own).collect(),
            BaseOrder::Plain(order) => order.facts.lanes,
            BaseOrder::Mixed(_) | BaseOrder::Rest(_) => {
                return self.sorted_share(from, from + rows, shape).into_iter().map(own).collect();
            }
        };
        let mut places = Vec::new();
        let mut before = 0; // rows on earlier lanes
        for lane in 0..lanes.lanes {
            let entries = lanes.entries(lane, from, from + rows);
            let count = entries.end - entries.start;
            let first = share.start.clamp(before, before + count) - before;
            let last = share.end.clamp(before, before + count) - before;
            let mine = entries.start + first..entries.start + last;
            places.extend(mine.map(|entry| own(entry * lanes.lanes + lane)));
            before += count;
        }
        places
    }

    /// Returns the last step of an epoch, filled from the epoch's start.
    fn padded(&mut self, from: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        let (len, rows) = (self.len(), shape.least_rows());
        let mut all: Vec<(Position, bool)> =
            (from..from + rows).map(|p| (Position(p % len), p < len)).collect();
        if self.buckets.is_none() {
            let base = &mut self.base;
            all.sort_by_cached_key(|&(Position(p), valid)| (base.row_key(p), !valid));
        }
        let share = shape.share(rows);
        all.into_iter().skip(narrow(share.start)).take(narrow(share.end - share.start)).collect()
    }
}
