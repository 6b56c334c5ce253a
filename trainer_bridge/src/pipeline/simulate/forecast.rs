//! What a dry run finds.

use super::options::Prices;
use super::sampling::Sampling;
use feedstock_ingest::{Busy, Simulated};
use serde::Serialize;
use std::fmt;

/// A trainer that waits for less than this share of the time is the limit itself.
const WAITING_SHARE: f64 = 0.02;

/// A step that takes no time, since neither the CPU nor the trainer takes any.
const MIN_STEP_S: f64 = 1e-6;

/// Something that is busy for this share of the time is the limit.
const BUSY_SHARE: f64 = 0.9;

/// What limits a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Batches are ready before the trainer takes them.
    Trainer,
    /// The CPU threads are busy.
    Cpu,
    /// The store's limit on requests per second.
    Requests,
    /// The network, or the rate of the connections, of which all are in use.
    Bandwidth,
    /// All connections wait for first bytes.
    Latency,
    /// The memory budget is full, so nothing can be read ahead.
    Budget,
    /// Nothing is busy all the time; the reads ahead are too few for slow answers.
    Prefetch,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trainer => "trainer",
            Self::Cpu => "cpu",
            Self::Requests => "requests",
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
            Self::Budget => "budget",
            Self::Prefetch => "prefetch",
        })
    }
}

impl Bottleneck {
    fn of(busy: &Busy, waiting_share: f64) -> Self {
        if waiting_share < WAITING_SHARE {
            return Self::Trainer;
        }
        let by_body = if busy.first_byte < 0.5 { Self::Bandwidth } else { Self::Latency };
        let shares = [
            (busy.threads, Self::Cpu),
            (busy.request_rate, Self::Requests),
            (busy.network, Self::Bandwidth),
            (busy.connections, by_body),
        ];
        let busiest = shares.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        match busiest.filter(|(share, _)| *share >= BUSY_SHARE) {
            Some((_, what)) => what,
            None if busy.budget >= 0.1 => Self::Budget,
            None => Self::Prefetch,
        }
    }
}

/// What a job does with certain settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// Samples per second of all ranks together, once the first batch is there. Ranks wait for each other at each step.
    pub samples_per_s: f64,
    /// The share of the time that the trainer waits for batches.
    pub waiting_share: f64,
    /// Seconds until the first batch, after the data set is open.
    pub first_batch_s: f64,
    /// Seconds of the epoch.
    pub epoch_s: f64,
    /// Requests of all ranks in the epoch, without hedges and retries.
    pub requests: u64,
    /// Bytes that all ranks read in the epoch.
    pub bytes: u64,
    /// The peak of what is in memory of blocks, of each rank.
    pub resident_peak_bytes: u64,
    /// The same and the slots. Rows of variable length are left out.
    pub memory_bytes: u64,
    /// What the requests and bytes cost.
    pub dollars: f64,
    /// What limits the rate.
    pub bottleneck: Bottleneck,
    /// How busy everything was in the slowest rank.
    pub busy: Busy,
}

/// A change of the settings, and what it gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// What differs: `threads × 2`, `shuffle_bytes ÷ 2` …
    pub change: String,
    /// What it gives; `None` if the job cannot run with it, since a batch exceeds the budget.
    pub forecast: Option<Forecast>,
}

/// The result of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Simulation {
    /// The epoch.
    pub epoch: u64,
    /// The number of ranks.
    pub world_size: u32,
    /// Samples of the epoch.
    pub samples: u64,
    /// Steps of the epoch.
    pub steps: u64,
    /// Ranks that were simulated.
    pub simulated_ranks: usize,
    /// Steps of each that were simulated.
    pub simulated_steps: u64,
    /// The settings as given.
    pub forecast: Forecast,
    /// The same with one setting changed.
    pub alternatives: Vec<Alternative>,
}

impl Forecast {
    /// Joins the runs of ranks; `None` without any. `slots_bytes` are the bytes of a rank's slots.
    pub(super) fn new(
        runs: &[Simulated],
        sampling: &Sampling,
        slots_bytes: u64,
        prices: &Prices,
    ) -> Option<Self> {
        let step_s = |run: &Simulated| run.seconds / run.steps.max(1) as f64;
        let slower = |a: Simulated, b: Simulated| if step_s(&b) > step_s(&a) { b } else { a };
        let slowest = runs.iter().copied().reduce(slower)?;
        let step_s = step_s(&slowest).max(MIN_STEP_S);
        let (ranks, world_size) = (runs.len() as f64, f64::from(sampling.world_size));
        let steps = runs.iter().map(|run| run.steps).sum::<u64>() as f64;
        let rows = match steps > 0.0 {
            true => runs.iter().map(|run| run.samples).sum::<u64>() as f64 / steps,
            false => sampling.rank_rows() as f64,
        };
        // Per epoch: what was counted of the epoch's steps, or as much for each step as in the counted ones.
        let scale = match runs.iter().all(|run| run.is_whole) {
            true => world_size / ranks,
            false => world_size * sampling.epoch_steps as f64 / steps.max(1.0),
        };
        let requests = rounded(runs.iter().map(|run| run.requests).sum::<u64>() as f64 * scale);
        let bytes = rounded(runs.iter().map(|run| run.bytes).sum::<u64>() as f64 * scale);
        let resident = runs.iter().map(|run| run.resident_peak_bytes).max().unwrap_or(0);
        let waiting_share = if slowest.seconds > 0.0 { slowest.waited_s / slowest.seconds } else { 1.0 };
        let first_batch_s = runs.iter().map(|run| run.first_batch_s).fold(0.0, f64::max);
        Some(Self {
            samples_per_s: rows * world_size / step_s,
            waiting_share,
            first_batch_s,
            epoch_s: first_batch_s + step_s * sampling.epoch_steps as f64,
            requests,
            bytes,
            resident_peak_bytes: resident,
            memory_bytes: resident.saturating_add(slots_bytes),
            dollars: requests as f64 / 1e3 * prices.per_1000_requests + bytes as f64 / 1e9 * prices.per_gb,
            bottleneck: Bottleneck::of(&slowest.busy, waiting_share),
            busy: slowest.busy,
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate that is not negative"
)]
fn rounded(estimate: f64) -> u64 {
    estimate.round() as u64
}
