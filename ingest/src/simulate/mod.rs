//! A dry run of one rank's run: the real plan and the real residency, with a model of the store and of the CPU threads under
//! a virtual clock. It reads no data, and has no threads and no clock.

mod clock;
mod store;

pub use store::StoreModel;

use crate::run::job::Job;
use crate::{Error, Result};
use clock::Clock;

/// The machine, the trainer and the store of a dry run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulateOptions {
    /// CPU threads of the rank.
    pub threads: usize,
    /// Slots: batches that are decoded, ready or with the trainer.
    pub slots: usize,
    /// Seconds that one core takes for a sample.
    pub decode_s: f64,
    /// Seconds that the trainer takes for a step.
    pub step_s: f64,
    /// The store.
    pub store: StoreModel,
    /// Seed of the request times.
    pub seed: u64,
    /// Steps after which the dry run ends.
    pub steps: u64,
}

/// What a dry run of some steps gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// Steps that the trainer finished.
    pub steps: u64,
    /// Samples of those steps.
    pub samples: u64,
    /// Seconds from the start to the end of the last step.
    pub seconds: f64,
    /// Seconds that the trainer waited for batches after the first.
    pub waited_s: f64,
    /// Seconds until the first batch.
    pub first_batch_s: f64,
    /// Requests that were sent, also for steps ahead of the last.
    pub requests: u64,
    /// Encoded bytes that they read.
    pub bytes: u64,
    /// The peak of what is in memory of blocks, in bytes.
    pub resident_peak_bytes: u64,
}

/// Runs the first steps of `job` under a virtual clock.
///
/// The store's requests are those of [`Dataset::shuffle_quality`](feedstock_dataset::Dataset::shuffle_quality): retries, hedges,
/// merged reads, columns that are stored apart and the cache on disk are left out, and so are samples that take much working memory.
///
/// # Errors
/// `BadConfig` for options that cannot be simulated, and for a step that exceeds the job's budget.
pub fn simulate(job: &Job, options: &SimulateOptions) -> Result<Simulated> {
    let times = [options.decode_s, options.step_s];
    if !times.iter().all(|time| time.is_finite() && *time >= 0.0) || !options.store.is_valid() {
        return Err(Error::config(format!(
            "times must be finite and ≥ 0, rates and concurrency > 0; got {options:?}"
        )));
    }
    if options.threads == 0 || options.slots == 0 {
        return Err(Error::config(format!("threads and slots must be at least 1; got {options:?}")));
    }
    job.check()?;
    Clock::new(job, options).run()
}
