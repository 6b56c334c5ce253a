//! The starts and the number of steps, and the share of padding in them.
//!
//! Steps of a number of rows need one division. Steps bounded by a total are walked, and their starts are remembered: 8 bytes
//! a step, about 0.2 s for 10⁶ samples.

use crate::order::EpochOrder;
use crate::size::StepSize;
use crate::step::{StepShape, Tail};
use feedstock_base::Position;

/// Starts remembered after the requested position in an epoch without end: 1 MiB.
const STARTS_KEPT: usize = 1 << 17;

impl EpochOrder {
    /// Returns how many steps are left in the epoch from `position` on. If steps are bounded by a total, the number may
    /// differ between epochs.
    ///
    /// In that case, the first call in an epoch walks the epoch: about 0.2 µs a sample. In a mix without end that walk would
    /// not end; there the result is the least number that the bound's `max_rows` allows.
    ///
    /// ```
    /// # use feedstock_base::{Position, Rank};
    /// # use feedstock_plan::{Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mut order = Plan::new(input, &Shuffle::seeded(7))?.epoch(0);
    /// let mut shape = StepShape { size: StepSize::Rows(3), rank: Rank::new(0, 1), tail: Tail::Drop };
    /// assert_eq!(order.steps_left(Position(0), &shape), 2);
    /// shape.tail = Tail::Pad;
    /// assert_eq!((order.steps_left(Position(0), &shape), order.steps_left(Position(3), &shape)), (3, 2));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn steps_left(&mut self, position: Position, shape: &StepShape) -> u64 {
        let left = self.len().saturating_sub(position.0);
        let StepSize::Total { max_rows, .. } = shape.size else {
            return match shape.tail {
                Tail::Drop => left / shape.least_rows(),
                Tail::Pad | Tail::Short => left.div_ceil(shape.least_rows()),
            };
        };
        if self.facts.is_endless() {
            return left / max_rows;
        }
        if left == 0 {
            return 0;
        }
        let at = self.walk(position.0, self.len() - 1, shape);
        let starts = self.walks.starts();
        let (steps, last_start) = ((starts.len() - 1 - at) as u64, starts[starts.len() - 2]);
        let last = self.len() - last_start;
        // Only an epoch's last step may have fewer rows than ranks.
        steps - u64::from(shape.tail == Tail::Drop && last < shape.least_rows())
    }

    /// Returns the planned share of padding, 0 … 1. Of the cells of all batches (rows × the longest row of the rank's batch,
    /// which is what is allocated and computed), it is the part that holds nothing of a sample.
    ///
    /// Rows repeated by [`Tail::Pad`] count as padding. `None` for a plan without lengths and for one without end.
    /// Walks the epoch: about 0.3 µs a sample.
    ///
    /// ```
    /// # use feedstock_base::Rank;
    /// # use feedstock_plan::{Lengths, Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let seconds = Lengths::new("duration", vec![1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0]);
    /// let shape = StepShape { size: StepSize::Rows(4), rank: Rank::new(0, 1), tail: Tail::Drop };
    /// let plan = Plan::new(input, &Shuffle::none())?.with_lengths(&seconds)?;
    /// let share = plan.epoch(0).padding_share(&shape).unwrap();
    /// assert!((share - 16.0 / 36.0).abs() < 1e-9); // two rows of each four have 8 s of padding
    ///
    /// let plan = plan.bucketed(&seconds, Some(8), shape.size)?;
    /// assert_eq!(plan.epoch(0).padding_share(&shape), Some(0.0));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn padding_share(&mut self, shape: &StepShape) -> Option<f64> {
        let lengths = self.facts.lengths.as_ref()?.lengths.values().clone();
        if self.facts.is_endless() {
            return None;
        }
        let (mut cells, mut filled) = (0.0, 0.0);
        let mut position = Position(0);
        while shape.has_step(self.len(), position) {
            let end = self.step_end(position.0, shape);
            for rank in 0..shape.rank.world_size {
                let shape = StepShape { rank: feedstock_base::Rank { rank, ..shape.rank }, ..*shape };
                let (mut longest, mut rows) = (0f32, 0u64);
                for (place, valid) in self.places(position.0, end, &shape) {
                    #[expect(clippy::cast_possible_truncation, reason = "an index of a table in memory")]
                    let length = lengths[self.sample_at(place).sample.0 as usize];
                    longest = longest.max(length);
                    rows += 1;
                    filled += if valid { f64::from(length) } else { 0.0 };
                }
                cells += rows as f64 * f64::from(longest);
            }
            position = Position(end);
        }
        Some(if cells > 0.0 { 1.0 - filled / cells } else { 0.0 })
    }

    /// Returns the end of the step that starts at `from`, which must exist.
    pub(crate) fn step_end(&mut self, from: u64, shape: &StepShape) -> u64 {
        match shape.size {
            StepSize::Rows(rows) => from.saturating_add(rows).min(self.len()),
            StepSize::Total { .. } => {
                let at = self.walk(from, from, shape);
                self.walks.starts()[at + 1]
            }
        }
    }

    /// Returns the start of the step that holds `position`, where steps start at `from`, no later.
    pub(crate) fn step_start(&mut self, position: u64, from: u64, shape: &StepShape) -> u64 {
        match shape.size {
            StepSize::Rows(rows) => position - (position - from) % rows,
            StepSize::Total { .. } => {
                self.walk(from, position, shape);
                let starts = self.walks.starts();
                starts[starts.partition_point(|&start| start <= position) - 1]
            }
        }
    }

    /// Walks the steps from the one that starts at `from` to the one that holds `to`, and returns the index of the first.
    fn walk(&mut self, from: u64, to: u64, shape: &StepShape) -> usize {
        let key = (shape.size, shape.rank.world_size);
        let mut at = self.walks.known(key, from);
        if at > STARTS_KEPT && self.facts.is_endless() {
            self.walks.starts().drain(..at);
            at = 0;
        }
        while let Some(&last) = self.walks.starts().last()
            && last <= to
        {
            let end = self.cut(last, shape);
            self.walks.starts().push(end);
        }
        at
    }

    /// Returns the end of the step under a total that starts at `from`.
    fn cut(&mut self, from: u64, shape: &StepShape) -> u64 {
        match self.buckets {
            Some(_) => self.cut_groups(from, shape),
            None => self.cut_plain(from, shape),
        }
    }

    /// Cuts the maximum number of samples that the bound allows.
    fn cut_plain(&mut self, from: u64, shape: &StepShape) -> u64 {
        let facts = self.facts.clone();
        let Some(known) = &facts.lengths else {
            unreachable!("a shape with a total is checked to have lengths")
        };
        let (mut end, mut longest) = (from, 0f32);
        while end < self.len() {
            let sample = self.base.sample_at(end).sample;
            #[expect(clippy::cast_possible_truncation, reason = "an index of a table in memory")]
            let length = known.lengths.values()[sample.0 as usize];
            longest = longest.max(length);
            // The first sample fits: the shape is checked against the longest.
            if end > from && end - from + 1 > shape.size.rows_of(longest) {
                break;
            }
            end += 1;
        }
        end
    }

    /// Cuts the rest of the group into the fewest steps that the bound allows, of equal size. If it has fewer rows than ranks,
    /// the following groups are added: every rank has a row as long as the epoch has enough.
    fn cut_groups(&mut self, from: u64, shape: &StepShape) -> u64 {
        let (len, world_size) = (self.len(), u64::from(shape.rank.world_size));
        let Some(buckets) = &mut self.buckets else { unreachable!("only bucketed orders have groups") };
        let mut run = buckets.group_at(&mut self.base, from);
        while run.end - from < world_size && run.end < len {
            let next = buckets.group_at(&mut self.base, run.end);
            run.end = next.end;
            run.longest = run.longest.max(next.longest);
        }
        // Groups of another size, in a run that continued with new batches: the maximum number of whole groups that fit.
        while shape.size != buckets.group() && run.end < len {
            let next = buckets.group_at(&mut self.base, run.end);
            let longest = run.longest.max(next.longest);
            if next.end - from > shape.size.rows_of(longest) {
                break;
            }
            (run.end, run.longest) = (next.end, longest);
        }
        let rows = run.end - from;
        // The bound leaves a row for each rank: the shape is checked against the longest sample.
        let most = shape.size.rows_of(run.longest).max(1);
        let even = rows.div_ceil(rows.div_ceil(most));
        from + even.max(world_size).min(most).min(rows)
    }
}
