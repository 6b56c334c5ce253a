//! The first and the last rows of ranks' shares that were already sorted.

use crate::planned::RowKey;
use crate::step::StepShape;
use std::collections::BTreeMap;

/// The first and the last row of a rank's share; `None` for an empty one.
type Bounds = Option<(RowKey, RowKey)>;

/// Steps whose bounds are kept: a window of 16,384 samples is 64 steps of 256, and the blocks on its border reach into
/// the next; 4,096 take 256 KiB.
const STEPS_KEPT: usize = 1 << 12;

/// The first and the last row of a rank's share, by the start of the step.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShareBounds {
    shape: Option<StepShape>,
    bounds: BTreeMap<u64, Bounds>,
}

impl ShareBounds {
    /// Returns what was kept of the step at `start` under this shape; drops the bounds under another shape.
    pub(crate) fn known(&mut self, start: u64, shape: &StepShape) -> Option<Bounds> {
        if self.shape != Some(*shape) {
            *self = Self { shape: Some(*shape), bounds: BTreeMap::new() };
        }
        self.bounds.get(&start).copied()
    }

    pub(crate) fn keep(&mut self, start: u64, bounds: Bounds) {
        if self.bounds.len() == STEPS_KEPT {
            self.bounds.pop_first();
        }
        self.bounds.insert(start, bounds);
    }
}
