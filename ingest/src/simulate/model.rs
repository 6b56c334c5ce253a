//! What a dry run is asked for: the machine, the store and the steps.

use crate::{Error, Result};
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
    /// Batches before the one at which the counting begins.
    pub warm_up: u64,
    /// Batches after that one, at most.
    pub counted: u64,
}

/// Checks that the machine can be simulated.
pub(super) fn check(rank: &SimulatedRank, steps: SimulatedSteps) -> Result<()> {
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
