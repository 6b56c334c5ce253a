//! A sample of the order, and the place of its row in a step.

use feedstock_base::{BlockId, Lane, SampleId};

/// A selected sample, and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSample {
    /// Its index in the catalog.
    pub sample: SampleId,
    /// The block that holds it.
    pub block: BlockId,
    /// Its row in that block.
    pub row: u32,
    /// How often the epoch has drawn the sample before: 0 except with weights, and in a mix, whose parts may repeat whole.
    pub pass: u64,
    /// Its lane; in a mix, lanes are counted through the parts.
    pub lane: Lane,
    /// The place of its block in the order of blocks; under a full shuffle, of the sample itself. Strands take turns.
    pub turn: u64,
}

/// The sort key of a row among the rows of a step: by lane, then by part, then by entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowKey {
    /// In a mix, a fraction of the part's lanes, × 2³².
    pub(crate) lane: u64,
    pub(crate) part: usize,
    pub(crate) entry: u64,
}
