//! What a dry run counts.

use super::requests::{RequestsBusy, seconds};
use super::spans::Nanos;
use serde::Serialize;

/// What a dry run of some steps gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// Batches after the one at which the counting began: the first, or the one after the warm-up.
    pub steps: u64,
    /// Samples of those batches.
    pub samples: u64,
    /// Seconds from that batch to the last one.
    pub seconds: f64,
    /// Seconds of these that the trainer waited for batches.
    pub waited_s: f64,
    /// Seconds from the start to the first batch.
    pub first_batch_s: f64,
    /// Requests that were sent, from the start; after a warm-up, those since then.
    pub requests: u64,
    /// Bytes that they read.
    pub bytes: u64,
    /// The peak of what is in memory of blocks, in bytes.
    pub resident_peak_bytes: u64,
    /// Whether the steps are the whole rest of the epoch, without a warm-up.
    pub is_whole: bool,
    /// How busy everything was.
    pub busy: Busy,
}

/// Shares of the time in which something was busy, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Busy {
    /// The CPU threads, on average.
    pub threads: f64,
    /// The permits of requests, on average.
    pub connections: f64,
    /// Of the time of a request, the part until the first byte.
    pub first_byte: f64,
    /// The store's limit on requests per second.
    pub request_rate: f64,
    /// The network.
    pub network: f64,
    /// The time in which nothing could be fetched, because the budget was full.
    pub budget: f64,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) waited: Nanos,
    pub(super) requests: u64,
    pub(super) bytes: f64,
    pub(super) threads_busy: Nanos,
    pub(super) budget_full: Nanos,
    pub(super) requests_busy: RequestsBusy,
}

impl Tally {
    /// Returns the shares of `elapsed` nanoseconds since `before`.
    pub(super) fn busy(&self, before: &Self, elapsed: Nanos, threads: usize, connections: usize) -> Busy {
        let elapsed = seconds(elapsed).max(1e-9);
        let share = |now: Nanos, then: Nanos, of: usize| {
            (seconds(now.saturating_sub(then)) / (elapsed * of as f64)).min(1.0)
        };
        let (now, then) = (&self.requests_busy, &before.requests_busy);
        let under_way = seconds(now.under_way - then.under_way).max(1e-9);
        Busy {
            threads: share(self.threads_busy, before.threads_busy, threads),
            connections: share(now.under_way, then.under_way, connections),
            first_byte: (seconds(now.first_byte - then.first_byte) / under_way).min(1.0),
            request_rate: share(now.rate, then.rate, 1),
            network: share(now.network, then.network, 1),
            budget: share(self.budget_full, before.budget_full, 1),
        }
    }
}
