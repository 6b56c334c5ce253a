//! What every layout has: a writer, and its cut into shards.

use crate::output::Written;
use crate::{Result, Sample};

/// Writes samples (pictures, unless said) one after another.
pub(crate) trait Writer<S = Sample> {
    /// Adds the next sample.
    fn add(&mut self, sample: S) -> Result<()>;
    /// Closes the last file.
    fn finish(self: Box<Self>) -> Result<Written>;
}

/// Samples cut into shards whose lengths differ by at most one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shards {
    samples: u64,
    pub(crate) count: u64,
}

impl Shards {
    pub(crate) fn new(samples: u64, samples_per_shard: u64) -> Self {
        Self { samples, count: samples.div_ceil(samples_per_shard) }
    }

    /// How many samples shard `shard` holds.
    pub(crate) fn len(self, shard: u64) -> u64 {
        self.samples / self.count + u64::from(shard < self.samples % self.count)
    }
}
