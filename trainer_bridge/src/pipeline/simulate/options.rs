//! What a dry run is asked for.

use crate::{Error, Result};
use feedstock_base::StoreProfile;
use feedstock_ingest::{SimulatedRank, StoreModel, default_threads};

/// Requests under way at once: the default of the storage options for buckets.
const CONCURRENCY: usize = 128;

/// Decoding a JPEG of 500 × 375 pixels to a random crop of 224 × 224 takes a core about this long.
const DECODE_S: f64 = 0.003;

/// The machine, the store and the prices of a dry run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulateOptions {
    /// Number of ranks. Default 1.
    pub world_size: u32,
    /// The epoch. Default 0.
    pub epoch: u64,
    /// CPU threads of each rank. Default: the pipeline's.
    pub threads: Option<usize>,
    /// Seconds that one thread takes for a sample. Default 3 ms, a photograph.
    pub decode_s: f64,
    /// Seconds that the trainer takes for a step. Default 0: it takes batches as fast as they come.
    pub step_s: f64,
    /// How the store answers. Default: as local files, or as Amazon S3 if the data is not local.
    pub store: Option<StoreProfile>,
    /// Bytes per second of each rank's network. Default: no limit.
    pub network_bytes_per_s: Option<f64>,
    /// Requests of a rank that are under way at once. Default 128, as for buckets.
    pub concurrency: usize,
    /// Workers that decode for the ranks. Default: none, the ranks decode.
    pub workers: Option<SimulatedWorkers>,
    /// What the store costs.
    pub prices: Prices,
    /// Seed of the request times. Default 0.
    pub seed: u64,
}

/// Workers of a fleet, whose threads and requests are shared equally by all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedWorkers {
    /// Number of workers.
    pub workers: usize,
    /// CPU threads of each.
    pub threads: usize,
}

/// Prices of a store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Dollars for 1,000 GET requests. Default 0.0004, Amazon S3's standard class.
    pub per_1000_requests: f64,
    /// Dollars for 10⁹ bytes read. Default 0: within one region, reading is free.
    pub per_gb: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { per_1000_requests: 0.0004, per_gb: 0.0 }
    }
}

impl Default for SimulateOptions {
    fn default() -> Self {
        Self {
            world_size: 1,
            epoch: 0,
            threads: None,
            decode_s: DECODE_S,
            step_s: 0.0,
            store: None,
            network_bytes_per_s: None,
            concurrency: CONCURRENCY,
            workers: None,
            prices: Prices::default(),
            seed: 0,
        }
    }
}

impl SimulateOptions {
    /// Checks the numbers that the dry run of a rank does not check.
    pub(super) fn check(&self) -> Result<()> {
        let workers =
            self.workers.map(|fleet| [("workers", fleet.workers), ("worker_threads", fleet.threads)]);
        let counts = [("world_size", self.world_size as usize), ("threads", self.threads.unwrap_or(1))];
        let mut counts = counts.into_iter().chain(workers.into_iter().flatten());
        if let Some((name, _)) = counts.find(|(_, count)| *count == 0) {
            return Err(Error::config(format!("{name} must be at least 1; got 0")));
        }
        let prices = [
            ("the price of 1,000 requests", self.prices.per_1000_requests),
            ("the price of a GB", self.prices.per_gb),
        ];
        match prices.iter().find(|(_, price)| !price.is_finite() || *price < 0.0) {
            Some((name, price)) => {
                Err(Error::config(format!("{name} must be finite and at least 0; got {price}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the share of the machines that one rank has.
    pub(super) fn rank(&self, threads: Option<usize>, slots: usize, is_local: bool) -> SimulatedRank {
        let ranks = self.world_size as usize;
        let own_threads = || self.threads.or(threads).unwrap_or_else(default_threads);
        let (threads, decode_s, concurrency) = match self.workers {
            None => (own_threads(), self.decode_s, self.concurrency),
            Some(fleet) => {
                // A fraction of a thread is a slower one.
                let all = fleet.workers.saturating_mul(fleet.threads);
                let threads = (all / ranks).max(1);
                let decode_s = self.decode_s * (threads * ranks) as f64 / all as f64;
                (threads, decode_s, (self.concurrency.saturating_mul(fleet.workers) / ranks).max(1))
            }
        };
        let default = if is_local { StoreProfile::LOCAL } else { StoreProfile::S3 };
        let mut profile = self.store.clone().unwrap_or(default);
        profile.requests_per_s /= f64::from(self.world_size);
        let store = StoreModel {
            profile,
            bytes_per_s: self.network_bytes_per_s.unwrap_or(f64::INFINITY),
            concurrency,
            seed: self.seed,
        };
        SimulatedRank { threads, slots, decode_s, step_s: self.step_s, store }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_shared_equally_by_the_ranks() {
        let of = |workers, threads, world_size| {
            let workers = Some(SimulatedWorkers { workers, threads });
            let options =
                SimulateOptions { workers, world_size, decode_s: 0.004, ..SimulateOptions::default() };
            let rank = options.rank(None, 4, false);
            (rank.threads, (rank.decode_s * 1e6).round() as u64, rank.store.concurrency)
        };
        assert_eq!(of(4, 16, 8), (8, 4_000, 64));
        assert_eq!(of(1, 3, 2), (1, 2_667, 64), "a rank has a thread and a half");
        assert_eq!(of(1, 1, 4), (1, 16_000, 32), "a quarter of a thread");
    }
}
