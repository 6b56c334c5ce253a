//! A dry run of one rank: the real plan and the real rules of the driver, with a model of the store, of the CPU threads and of
//! the trainer under a virtual clock. It reads no data, and has no threads and no clock.
//!
//! ```text
//! plan ─▶ planner ─▶ residency ─▶ requests ─▶ tasks ─▶ batches ─▶ trainer
//!         real       real         model       model    slots      model
//! ```
//! The model leaves out retries, the cache on disk, samples that take much working memory, and a limit on requests that
//! adapts: [`StoreModel::concurrency`] is constant.

mod clock;
mod requests;
mod tally;

pub use tally::{Busy, Simulated};

use crate::run::job::Job;
use crate::{Error, Result};
use clock::Clock;
use feedstock_base::StoreProfile;

/// What a rank runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedRank {
    /// CPU threads of the rank.
    pub threads: usize,
    /// Batches that are decoded, ready or with the trainer.
    pub slots: usize,
    /// Seconds that one thread takes for a sample.
    pub decode_s: f64,
    /// Seconds that the trainer takes for a step.
    pub step_s: f64,
    /// The store.
    pub store: StoreModel,
}

/// A store as one rank sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreModel {
    /// How it answers. Its limit on requests per second is the rank's share of the store's.
    pub profile: StoreProfile,
    /// Bytes per second of the rank's network; infinite without a limit.
    pub bytes_per_s: f64,
    /// Requests that are under way at once.
    pub concurrency: usize,
    /// Seed of the request times.
    pub seed: u64,
}

/// Which steps are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedSteps {
    /// Steps before the counting begins.
    pub warm_up: u64,
    /// Steps that are counted, at most.
    pub counted: u64,
}

/// Runs steps of `job` under a virtual clock, from its position to the end of its epoch at most.
///
/// # Errors
/// `BadConfig` for a machine that cannot be simulated, and for a step that exceeds the job's budget.
pub fn simulate(job: &Job, rank: &SimulatedRank, steps: SimulatedSteps) -> Result<Simulated> {
    check(rank, steps)?;
    job.check()?;
    Clock::new(job, rank, steps)?.run()
}

fn check(rank: &SimulatedRank, steps: SimulatedSteps) -> Result<()> {
    let times = [("decode time", rank.decode_s), ("step time", rank.step_s)];
    if let Some((name, time)) = times.iter().find(|(_, time)| !time.is_finite() || *time < 0.0) {
        return Err(Error::config(format!("the {name} must be finite and at least 0; got {time} s")));
    }
    let profile = &rank.store.profile;
    let rates = [
        ("bytes per second of a connection", profile.bytes_per_s),
        ("requests per second", profile.requests_per_s),
        ("bytes per second of the network", rank.store.bytes_per_s),
    ];
    if let Some((name, rate)) = rates.iter().find(|(_, rate)| rate.is_nan() || *rate <= 0.0) {
        return Err(Error::config(format!("the {name} must be above 0; got {rate}")));
    }
    let counts = [
        ("threads", rank.threads as u64),
        ("slots", rank.slots as u64),
        ("concurrent requests", rank.store.concurrency as u64),
        ("counted steps", steps.counted),
    ];
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((name, _)) => Err(Error::config(format!("{name} must be at least 1; got 0"))),
        None => Ok(()),
    }
}
