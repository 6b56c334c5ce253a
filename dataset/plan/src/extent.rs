//! What is fetched at once.

use feedstock_base::{BlockId, SampleId};
use std::ops::Range;

/// Consecutive samples that are fetched at once: a whole block, or the samples of a piece. Those of a piece are in one block, or in
/// two consecutive blocks that one request can read over.
///
/// ```
/// use feedstock_base::{BlockId, SampleId};
/// use feedstock_plan::Extent;
///
/// let extent = Extent::new(BlockId(2), 40..44);
/// assert_eq!(extent.row_of(SampleId(41)), Some(1));
/// assert_eq!(extent.row_of(SampleId(44)), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The block of the first sample.
    pub block: BlockId,
    /// The first sample.
    pub first: SampleId,
    /// The number of samples; those that a filter leaves out count, too.
    pub samples: u32,
}

impl Extent {
    /// Makes the extent of these samples, the first of which is in `block`.
    pub fn new(block: BlockId, samples: Range<u64>) -> Self {
        let count = u32::try_from(samples.end - samples.start).unwrap_or(u32::MAX); // blocks count their samples in u32
        Self { block, first: SampleId(samples.start), samples: count }
    }

    /// Returns the ids of its samples.
    pub fn range(&self) -> Range<u64> {
        self.first.0..self.first.0 + u64::from(self.samples)
    }

    /// Returns the place of `sample` among its samples; `None` if it has no such sample.
    pub fn row_of(&self, sample: SampleId) -> Option<usize> {
        let row = sample.0.checked_sub(self.first.0).filter(|row| *row < u64::from(self.samples))?;
        usize::try_from(row).ok()
    }

    /// Returns the same samples, with ids that begin `blocks` and `samples` later: in a mix, ids continue from part to part.
    pub(crate) fn later_by(self, blocks: u32, samples: u64) -> Self {
        Self { block: BlockId(self.block.0 + blocks), first: SampleId(self.first.0 + samples), ..self }
    }

    /// The inverse of [`later_by`](Self::later_by).
    pub(crate) fn earlier_by(self, blocks: u32, samples: u64) -> Self {
        Self { block: BlockId(self.block.0 - blocks), first: SampleId(self.first.0 - samples), ..self }
    }
}
