//! The starts of steps that were walked.

use crate::size::StepSize;
use std::collections::VecDeque;

/// Walks remembered: from the epoch's start, and from where a run went on with another shape, whose steps need not meet
/// the first's again.
const WALKS_KEPT: usize = 2;

/// What was walked so far, the walk asked about last at the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walks(VecDeque<Walk>);

/// The starts of steps under one shape, from some position on; the end of the last one is the last.
#[derive(Debug, Clone)]
struct Walk {
    shape: (StepSize, u32),
    starts: Vec<u64>,
}

impl Walks {
    /// The place of `from` among the starts of a walk under this shape, which becomes the one asked about last; it begins at
    /// `from` if none has it.
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

    /// The walk asked about last.
    pub(crate) fn starts(&mut self) -> &mut Vec<u64> {
        let Some(walk) = self.0.back_mut() else { unreachable!("asked about after a walk only") };
        &mut walk.starts
    }
}
