//! What the order of a data set is computed from.

use crate::random;
use crate::selection::Selection;
use std::sync::Arc;

/// What a cursor knows of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHashes {
    /// What the data set is: layout, names, sizes, footers and headers. Equal for copies of it.
    pub identity: u64,
    /// How its samples are cut into blocks.
    pub blocks: u64,
    /// The one hash that cursors of releases before 0.2 have in place of both; other ETags or times change it.
    pub legacy: u64,
}

/// What a plan is computed from.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// Samples before each block, and their total last: one entry more than blocks.
    pub block_starts: Arc<[u64]>,
    /// The samples that take part; `None` for all.
    pub selection: Option<Selection>,
    /// What the data set is and how it was cut.
    pub data: DataHashes,
    /// The filter's text, for the fingerprint.
    pub filter: Option<String>,
    /// Encoded bytes of all blocks, from which the default window follows.
    pub encoded_bytes: u64,
}

impl PlanInput {
    /// A hash of the filter's text and of what it keeps; 0 without one.
    pub(crate) fn hash_filter(&self) -> u64 {
        match (&self.filter, &self.selection) {
            (None, None) => 0,
            (text, kept) => random::hash(&[
                random::hash_text(text.as_deref().unwrap_or_default()),
                kept.as_ref().map_or(0, Selection::hash),
            ]),
        }
    }
}
