//! The common parts of all layouts: the writer trait and the division into shards.

use crate::output::Written;
use crate::{Result, Sample};

/// Writes samples (images by default) one after another.
pub(crate) trait Writer<S = Sample> {
    /// Adds the next sample.
    fn add(&mut self, sample: S) -> Result<()>;
    /// Closes the last file.
    fn finish(self: Box<Self>) -> Result<Written>;
}

/// Samples divided into shards whose lengths differ by at most one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shards {
    samples: u64,
    pub(crate) count: u64,
}

impl Shards {
    pub(crate) fn new(samples: u64, samples_per_shard: u64) -> Self {
        Self { samples, count: samples.div_ceil(samples_per_shard) }
    }

    /// Returns the number of samples of a shard.
    pub(crate) fn len(self, shard: u64) -> u64 {
        self.samples / self.count + u64::from(shard < self.samples % self.count)
    }
}
