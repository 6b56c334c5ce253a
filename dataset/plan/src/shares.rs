//! A rank's share of a step of a mix, whose rows are sorted rather than counted.

use crate::base::RowKey;
use crate::order::EpochOrder;
use crate::step::StepShape;
use std::collections::BTreeMap;

/// Steps whose bounds are kept: a window of 16,384 samples is 64 steps of 256, and the blocks on its border reach into
/// the next; 4,096 take 256 KiB.
const STEPS_KEPT: usize = 1 << 12;

/// The first and the last row of a rank's share, by the start of the step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares {
    shape: Option<StepShape>,
    bounds: BTreeMap<u64, Option<(RowKey, RowKey)>>,
}

impl EpochOrder {
    /// The positions of the rank's share of the step `start..end`, by row key.
    pub(crate) fn sorted_share(&mut self, start: u64, end: u64, shape: &StepShape) -> Vec<u64> {
        let mut rows: Vec<(RowKey, u64)> =
            (start..end).map(|position| (self.base.row_key(position), position)).collect();
        rows.sort_unstable();
        let share = shape.share(end - start);
        let mine = rows.into_iter().map(|(_, position)| position);
        mine.skip(crate::step::narrow(share.start))
            .take(crate::step::narrow(share.end - share.start))
            .collect()
    }

    /// Whether `position`'s row of the step `start..end` is in the rank's share.
    pub(crate) fn in_sorted_share(&mut self, position: u64, start: u64, end: u64, shape: &StepShape) -> bool {
        if self.shares.shape != Some(*shape) {
            self.shares = Shares { shape: Some(*shape), bounds: BTreeMap::new() };
        }
        let bounds = match self.shares.bounds.get(&start) {
            Some(bounds) => *bounds,
            None => {
                let mine = self.sorted_share(start, end, shape);
                let ends = mine.first().copied().zip(mine.last().copied());
                let bounds = ends.map(|(first, last)| (self.base.row_key(first), self.base.row_key(last)));
                if self.shares.bounds.len() == STEPS_KEPT {
                    self.shares.bounds.pop_first();
                }
                self.shares.bounds.insert(start, bounds);
                bounds
            }
        };
        let key = self.base.row_key(position);
        bounds.is_some_and(|(first, last)| (first..=last).contains(&key))
    }
}
