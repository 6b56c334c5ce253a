//! Global steps and their cut into ranks.

use crate::base::BaseOrder;
use crate::order::EpochOrder;
use crate::plain::PlannedSample;
use crate::plan::Plan;
use crate::size::StepSize;
use feedstock_base::{BlockId, Error, Lane, Position, Rank, Result, SampleId};
use serde::{Deserialize, Serialize};

/// Positions ahead that steps under a total are walked to foretell when a block is needed: four default windows of clips
/// of 40 KB, at 0.2 µs each.
const FORETOLD: u64 = 1 << 16;

/// What becomes of the last positions of an epoch that do not fill a global batch: with [`StepSize::Rows`] fewer than
/// its rows, with [`StepSize::Total`] fewer than one for each rank (a smaller last step is a step like any other).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// They are left out (training).
    #[default]
    Drop,
    /// The batch is filled with samples from the epoch's start, marked `valid = false` (evaluation).
    Pad,
    /// The last batch is shorter, and some ranks may have none of it: for reading, never for training.
    Short,
}

/// How an epoch is cut: not part of the order, and free to change between steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepShape {
    /// Samples in a step over all ranks.
    pub size: StepSize,
    /// Whose share.
    pub rank: Rank,
    /// The epoch's end.
    pub tail: Tail,
}

/// One row of a rank's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRow {
    /// Its place in the order; of padding, the place that it repeats.
    pub position: Position,
    /// The sample.
    pub sample: SampleId,
    /// The block that holds it.
    pub block: BlockId,
    /// Its row in that block.
    pub row: u32,
    /// How often the epoch has drawn its data set whole before: ops must not repeat themselves with it.
    pub pass: u64,
    /// The lane that it stands on.
    pub lane: Lane,
    /// Strands of a lane take turns by it; see [`PlannedSample::turn`].
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
    /// Refuses shapes that can yield no step of `plan`, or a step without rows for some rank. `name` is what an error
    /// calls a sample.
    ///
    /// # Errors
    /// `BadConfig` for: a rank outside its world, a batch below a row for each rank, an epoch without a step, a total
    /// without lengths, and a sample that leaves some rank without a row under the total, which is named.
    pub fn check(&self, plan: &Plan, name: &dyn Fn(SampleId) -> String) -> Result<()> {
        let (world_size, samples) = (u64::from(self.rank.world_size), plan.len());
        if self.rank.rank >= self.rank.world_size {
            return Err(Error::config(format!("rank {} is not below its world size", self.rank)));
        }
        self.size.check()?;
        if self.size.max_rows() < world_size {
            return Err(Error::config(format!(
                "a global batch of {} leaves some of the {world_size} ranks without rows; use at least {world_size}",
                self.size.max_rows()
            )));
        }
        self.check_total(plan, name)?;
        if self.tail == Tail::Drop && samples < self.least_rows() {
            return Err(Error::config(format!(
                "the data set has {samples} selected samples, fewer than one global batch of {}: with tail=drop an \
                 epoch would be empty; use a smaller batch or tail=pad",
                self.least_rows()
            )));
        }
        Ok(())
    }

    fn check_total(&self, plan: &Plan, name: &dyn Fn(SampleId) -> String) -> Result<()> {
        let StepSize::Total { total, .. } = self.size else { return Ok(()) };
        let world_size = u64::from(self.rank.world_size);
        let Some((column, sample, longest)) = plan.longest() else {
            return Err(Error::config(format!(
                "a batch total of {total} needs the samples' lengths: name the column that holds them"
            )));
        };
        if self.size.rows_of(longest) >= world_size {
            return Ok(());
        }
        let who = name(sample);
        Err(Error::config(match f64::from(longest) > total {
            true => format!(
                "{who}: its {column} of {longest} alone exceeds the batch total of {total}; filter longer samples out \
                 (`{column} <= {total}`) or raise the total"
            ),
            false => format!(
                "{who}: its {column} of {longest} on each of {world_size} ranks makes {}, over the batch total of \
                 {total} over all ranks; filter longer samples out or raise the total",
                f64::from(longest) * f64::from(self.rank.world_size)
            ),
        }))
    }

    /// Whether a step starts at `position` of an epoch of `samples`.
    pub fn has_step(&self, samples: u64, position: Position) -> bool {
        let left = samples.saturating_sub(position.0);
        left > 0 && (self.tail != Tail::Drop || left >= self.least_rows())
    }

    /// What a step has at least, or its tail is dropped or padded.
    pub(crate) fn least_rows(&self) -> u64 {
        match self.size {
            StepSize::Rows(rows) => rows,
            StepSize::Total { .. } => u64::from(self.rank.world_size),
        }
    }

    /// The part of a step's `rows` that is this rank's: lengths differ by at most one.
    pub(crate) fn share(&self, rows: u64) -> std::ops::Range<u64> {
        let (rank, world_size) = (u64::from(self.rank.rank), u64::from(self.rank.world_size));
        let start = |r: u64| r * (rows / world_size) + r.min(rows % world_size);
        start(rank)..start(rank + 1)
    }

    /// Rows that this rank has in an epoch, about: exactly with [`StepSize::Rows`], its equal share with a total.
    pub fn rows_per_epoch(&self, samples: u64) -> u64 {
        match self.size {
            StepSize::Total { .. } => samples.div_ceil(u64::from(self.rank.world_size)),
            StepSize::Rows(rows) => match self.tail {
                Tail::Drop => self.rows() * (samples / rows),
                Tail::Pad | Tail::Short => self.rows() * samples.div_ceil(rows),
            },
        }
    }

    /// The most rows that this rank's batches have.
    pub fn rows(&self) -> u64 {
        let share = self.share(self.size.max_rows());
        share.end - share.start
    }
}

impl EpochOrder {
    /// The rank's share of the step that starts at `position`; `None` at the epoch's end.
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

    /// The rank's positions of the step `from..end`, and whether they are its own or padding.
    pub(crate) fn places(&mut self, from: u64, end: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        match shape.tail {
            Tail::Pad if end - from < shape.least_rows() => self.padded(from, shape),
            _ => self.whole(from, end - from, shape),
        }
    }

    /// Every step of one rank from `position` on.
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

    /// Starts of the steps, from the one at `from` on, in which this rank reads `block`; ascending, each once. In a mix
    /// whose parts repeat, those of the first pass over the block's part from `from` on, and of all that begin in the
    /// step at `from`: ask again from a later step for later ones.
    ///
    /// The rows of a padded last step count for every rank: who gets them depends on the padding.
    pub fn steps_using(&mut self, block: BlockId, from: Position, shape: &StepShape) -> Vec<Position> {
        self.foretell(block, from, u64::MAX, shape).0
    }

    /// As [`steps_using`](Self::steps_using), as far ahead as costs little, and a place no later than the first at
    /// which any rank may need the block beyond that.
    ///
    /// Where steps are bounded by a total, finding the step of a far position walks all steps up to it, and a block on
    /// the border of two lanes is needed at both ends of the epoch. So it is asked about the next 65,536 positions
    /// alone: 13 ms at most, once. Steps of a number of rows are a division, and looked at to the end.
    pub fn steps_using_soon(
        &mut self,
        block: BlockId,
        from: Position,
        shape: &StepShape,
    ) -> (Vec<Position>, Option<Position>) {
        let horizon = match shape.size {
            StepSize::Rows(_) => u64::MAX,
            StepSize::Total { .. } => from.0.saturating_add(FORETOLD),
        };
        self.foretell(block, from, horizon, shape)
    }

    fn foretell(
        &mut self,
        block: BlockId,
        from: Position,
        horizon: u64,
        shape: &StepShape,
    ) -> (Vec<Position>, Option<Position>) {
        let mut starts: Vec<Position> = Vec::new();
        if !shape.has_step(self.len(), from) {
            return (starts, None);
        }
        let first_end = self.step_end(from.0, shape);
        let (positions, beyond) = self.positions_from(block, from.0, first_end, horizon);
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

    /// Whether `position`'s row of the step `start..end` is the rank's.
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

    /// The share's positions: of a bucketed order as they stand, else by lane and entry, found without listing the
    /// other ranks' rows where lanes can be counted.
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
        let mut before = 0; // rows on the lanes already passed
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

    /// The last step of an epoch, filled from the epoch's start.
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

#[expect(clippy::cast_possible_truncation, reason = "rows of one batch are held in memory")]
pub(crate) fn narrow(rows: u64) -> usize {
    rows as usize
}
