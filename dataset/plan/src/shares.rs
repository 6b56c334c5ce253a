//! A rank's share of a step of a mix, whose rows are sorted rather than counted.

use crate::order::EpochOrder;
use crate::planned::RowKey;
use crate::step::{StepShape, narrow};

impl EpochOrder {
    /// Returns the positions of the rank's share of the step `start..end`, by row key.
    pub(crate) fn sorted_share(&mut self, start: u64, end: u64, shape: &StepShape) -> Vec<u64> {
        let mut rows: Vec<(RowKey, u64)> =
            (start..end).map(|position| (self.base.row_key(position), position)).collect();
        rows.sort_unstable();
        let share = shape.share(end - start);
        let mine = rows.into_iter().map(|(_, position)| position);
        mine.skip(narrow(share.start)).take(narrow(share.end - share.start)).collect()
    }

    /// Whether `position`'s row of the step `start..end` is in the rank's share.
    pub(crate) fn in_sorted_share(&mut self, position: u64, start: u64, end: u64, shape: &StepShape) -> bool {
        let bounds = match self.share_bounds.known(start, shape) {
            Some(bounds) => bounds,
            None => {
                let mine = self.sorted_share(start, end, shape);
                let ends = mine.first().copied().zip(mine.last().copied());
                let bounds = ends.map(|(first, last)| (self.base.row_key(first), self.base.row_key(last)));
                self.share_bounds.keep(start, bounds);
                bounds
            }
        };
        let key = self.base.row_key(position);
        bounds.is_some_and(|(first, last)| (first..=last).contains(&key))
    }
}
