//! The working memory of one sample: what a chain allocates while it runs, predicted from the sample's header before anything
//! is allocated for it.
//!
//! Working memory is the decoder's buffers, the decoded image or waveform, and what ops make between the decoder and the
//! row. The encoded bytes and the row belong to the caller. A prediction assumes that all of it is alive at once, so it is
//! an upper bound; `tests/working_memory.rs` compares it with measurements.

use feedstock_base::Error;

/// What a prediction assumes about a sample's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The header is correct and the data are intact. A decoder that finds otherwise stops with [`exceeds`] before it
    /// allocates more.
    Stated,
    /// The most that the op's limits allow for such a header.
    Most,
}

#[derive(Debug)]
struct Exceeded;

impl std::error::Error for Exceeded {}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("more working memory than predicted")
    }
}

/// The error of a decoder that needs more than [`Scope::Stated`] predicts.
pub(crate) fn exceeds() -> Error {
    Error::bad_sample("the sample needs more working memory than its header states").with_source(Exceeded)
}

/// Returns true for [`exceeds`].
pub(crate) fn is_exceeded(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Exceeded>())
}
