//! The input from which the order of a data set is computed.

use crate::access::Access;
use crate::random;
use crate::selection::Selection;
use std::sync::Arc;

/// What a cursor stores of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHashes {
    /// The identity of the data set: layout, names, sizes, footers and headers. Equal for copies of it.
    pub identity: u64,
    /// How its samples are cut into blocks.
    pub blocks: u64,
    /// The one hash that cursors of releases before 0.2 have in place of both; it depends on ETags and times.
    pub legacy: u64,
}

/// The input of a plan.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// Samples before each block, and their total last: one entry more than blocks.
    pub block_starts: Arc<[u64]>,
    /// The samples that take part; `None` for all.
    pub selection: Option<Selection>,
    /// The identity of the data set, and its cut into blocks.
    pub data: DataHashes,
    /// The text of the filter or of all steps that select samples, for the fingerprint.
    pub filter: Option<String>,
    /// Encoded bytes of all blocks, which determine the default window.
    pub encoded_bytes: u64,
    /// What reading a few samples takes, which determines the default unit.
    pub access: Access,
}

impl PlanInput {
    /// Returns a hash of the filter's text and of the samples that it keeps; 0 without a filter.
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
