//! Progress of writing.

/// Reported after every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples written.
    pub done: u64,
    /// Samples in all.
    pub total: u64,
    /// Encoded bytes written, in images or audio only.
    pub bytes: u64,
}

/// What [`Progress`] is reported to.
pub type ProgressFn<'a> = dyn FnMut(Progress) + 'a;
