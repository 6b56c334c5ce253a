//! The starts of steps that were walked.

use crate::size::StepSize;
use std::collections::VecDeque;

/// Walks remembered: one from the epoch's start, and one from where a run continued with another shape, whose steps may never
/// meet the first's again.
const WALKS_KEPT: usize = 2;

/// All walks so far, the most recently used one last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walks(VecDeque<Walk>);

/// The starts of steps under one shape, from some position on; the last entry is the end of the last step.
#[derive(Debug, Clone)]
struct Walk {
    shape: (StepSize, u32),
    starts: Vec<u64>,
}

impl Walks {
    /// Returns the index of `from` among the starts of a walk under this shape, and makes it the most recently used one. A new
    /// walk begins at `from` if none has it.
    pub(crate) fn known(&mut self, shape: (StepSize, u32), from: u64) -> usize {
        let known = self.0.iter().enumerate().rev().find_map(|(walk, known)| {
            let at = if known.shape == shape { known.starts.binary_search(&from).ok() } else { None };
            Some((walk, at?))
        });
        let Some((walk, at)) = known else {
            if self.0.len() == WALKS_KEPT {
                self.0.pop_front();
            }
            self.0.push_back(Walk { shape, starts: vec![from] });
            return 0;
        };
        let last = self.0.len() - 1;
        self.0.swap(walk, last);
        at
    }

    /// Returns the starts of the most recently used walk.
    pub(crate) fn starts(&mut self) -> &mut Vec<u64> {
        let Some(walk) = self.0.back_mut() else { unreachable!("called only after a walk") };
        &mut walk.starts
    }
}
