//! Progress of writing.

/// Progress, reported after every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of samples written.
    pub done: u64,
    /// Total number of samples.
    pub total: u64,
    /// Encoded bytes of images or audio written.
    pub bytes: u64,
}

/// The function that receives [`Progress`].
pub type ProgressFn<'a> = dyn FnMut(Progress) + 'a;
