//! Global steps and their cut into ranks.

use super::order::EpochOrder;
use crate::{BlockId, Error, Position, Rank, Result, SampleId};
use serde::{Deserialize, Serialize};

/// What becomes of the last positions of an epoch that do not fill a global batch.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    /// Samples in a step over all ranks.
    pub global_batch: u64,
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
    /// Refuses shapes that can yield no step, or a step without rows for some rank.
    pub fn check(&self, samples: u64) -> Result<()> {
        let world_size = u64::from(self.rank.world_size);
        if self.rank.rank >= self.rank.world_size {
            return Err(Error::config(format!("rank {} is not below its world size", self.rank)));
        }
        if self.global_batch < world_size {
            return Err(Error::config(format!(
                "a global batch of {} leaves some of the {world_size} ranks without rows; use at least {world_size}",
                self.global_batch
            )));
        }
        if self.tail == Tail::Drop && samples < self.global_batch {
            return Err(Error::config(format!(
                "the data set has {samples} selected samples, fewer than one global batch of {}: with tail=drop an \
                 epoch would be empty; use a smaller batch or tail=pad",
                self.global_batch
            )));
        }
        Ok(())
    }

    /// How many steps an epoch has from `position` on.
    pub fn steps(&self, samples: u64, position: Position) -> u64 {
        let left = samples.saturating_sub(position.0);
        match self.tail {
            Tail::Drop => left / self.global_batch,
            Tail::Pad | Tail::Short => left.div_ceil(self.global_batch),
        }
    }

    /// The part of a step's `rows` that is this rank's: lengths differ by at most one.
    fn share(&self, rows: u64) -> std::ops::Range<u64> {
        let (rank, world_size) = (u64::from(self.rank.rank), u64::from(self.rank.world_size));
        let start = |r: u64| r * (rows / world_size) + r.min(rows % world_size);
        start(rank)..start(rank + 1)
    }

    /// The most rows that this rank's batches have.
    pub fn rows(&self) -> u64 {
        let share = self.share(self.global_batch);
        share.end - share.start
    }
}

impl EpochOrder {
    /// The rank's share of the step that starts at `position`; `None` at the epoch's end.
    pub fn step(&mut self, position: Position, shape: &StepShape) -> Option<Step> {
        if shape.steps(self.len(), position) == 0 {
            return None;
        }
        let end = position.0 + shape.global_batch;
        let places = match shape.tail {
            _ if end <= self.len() => self.whole(position.0, shape.global_batch, shape),
            Tail::Short => self.whole(position.0, self.len() - position.0, shape),
            Tail::Drop | Tail::Pad => self.padded(position.0, shape),
        };
        let rows = places
            .into_iter()
            .map(|(position, valid)| {
                let planned = self.sample_at(position);
                PlannedRow { position, sample: planned.sample, block: planned.block, row: planned.row, valid }
            })
            .collect();
        Some(Step { epoch: self.epoch(), position, next: Position(end.min(self.len())), rows })
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

    /// Starts of the steps, from the one at `from` on, in which this rank reads `block`; ascending, each once.
    ///
    /// The rows of a padded or short last step count for every rank: who gets them depends on the padding.
    pub fn steps_using(&mut self, block: BlockId, from: Position, shape: &StepShape) -> Vec<Position> {
        let whole_steps = (self.len() - from.0) / shape.global_batch;
        let share = shape.share(shape.global_batch);
        let lanes = self.plan.facts().lanes;
        let mut starts: Vec<Position> = Vec::new();
        for Position(p) in self.positions_of(block) {
            if p < from.0 {
                continue;
            }
            let index = (p - from.0) / shape.global_batch;
            let start = from.0 + index * shape.global_batch;
            let mine = if index < whole_steps {
                let before = lanes.rows_before_lane(p % lanes.lanes, start, start + shape.global_batch);
                let entries = lanes.entries(p % lanes.lanes, start, start + shape.global_batch);
                share.contains(&(before + p / lanes.lanes - entries.start))
            } else {
                shape.tail != Tail::Drop
            };
            if mine && starts.last() != Some(&Position(start)) {
                starts.push(Position(start));
            }
        }
        starts
    }

    /// The share's positions by lane, then entry, found without listing the other ranks' rows.
    fn whole(&self, from: u64, rows: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        let lanes = self.plan.facts().lanes;
        let share = shape.share(rows);
        let mut places = Vec::new();
        let mut before = 0; // rows on the lanes already passed
        for lane in 0..lanes.lanes {
            let entries = lanes.entries(lane, from, from + rows);
            let count = entries.end - entries.start;
            let first = share.start.clamp(before, before + count) - before;
            let last = share.end.clamp(before, before + count) - before;
            let mine = entries.start + first..entries.start + last;
            places.extend(mine.map(|entry| (Position(entry * lanes.lanes + lane), true)));
            before += count;
        }
        places
    }

    /// The last step of an epoch, filled from the epoch's start.
    fn padded(&self, from: u64, shape: &StepShape) -> Vec<(Position, bool)> {
        let lanes = self.plan.facts().lanes.lanes;
        let mut all: Vec<(Position, bool)> =
            (from..from + shape.global_batch).map(|p| (Position(p % self.len()), p < self.len())).collect();
        all.sort_by_key(|&(Position(p), valid)| (p % lanes, p / lanes, !valid));
        let share = shape.share(shape.global_batch);
        all.into_iter().skip(narrow(share.start)).take(narrow(share.end - share.start)).collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rows of one batch are held in memory")]
fn narrow(rows: u64) -> usize {
    rows as usize
}
