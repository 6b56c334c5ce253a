//! How the processes of a job begin to read: together with few requests, not all at the same moment.
//!
//! Without this, 1,000 processes would begin with 128,000 requests; S3 serves about 5,500 a second for each prefix and answers 503
//! to all others. A process begins with its share of [`REQUESTS`] after a random part of a millisecond for each process:
//!
//! | processes | requests at first | delay |
//! |---|---|---|
//! | 1 | 128 (`max_concurrency` of a bucket) | none |
//! | 8 | 32 | up to 7 ms |
//! | 64 | 4 | up to 63 ms |
//! | 1,000 | 1 | up to 1 s |
//!
//! The limit then doubles with each round trip until the store throttles ([`Aimd`](super::aimd::Aimd)).

use super::options::StorageOptions;
use std::time::Duration;

/// Requests with which all processes begin: at 30 ms each, 8,500 a second, which is 1.5 times what S3 serves for a prefix.
const REQUESTS: usize = 256;
/// Each process adds this to the time in which all of them begin.
const SPREAD: Duration = Duration::from_millis(1);
/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// The number of processes, as torchrun and other launchers set it.
const WORLD_SIZE: &str = "WORLD_SIZE";

/// How one process begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// The first limit on concurrent requests.
    pub(super) limit: usize,
    /// The delay before the first request.
    pub(super) delay: Duration,
}

impl Start {
    /// Returns the start of one of `readers` processes; `random` is uniform in [0, 1).
    pub(super) fn new(readers: usize, max_concurrency: usize, random: f64) -> Self {
        let readers = readers.max(1);
        let others = u32::try_from(readers - 1).unwrap_or(u32::MAX);
        let delay = SPREAD.saturating_mul(others).min(DELAY_MAX).mul_f64(random.clamp(0.0, 1.0));
        Self { limit: (REQUESTS / readers).clamp(1, max_concurrency.max(1)), delay }
    }
}

/// Returns the number of processes that read at the same time: the option, else the environment's `WORLD_SIZE`, else 1.
pub(super) fn readers(options: &StorageOptions) -> usize {
    let from_environment = || std::env::var(WORLD_SIZE).ok()?.trim().parse().ok();
    options.readers.map(Into::into).or_else(from_environment).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_processes_begin_with_a_thousand_requests_in_a_second() {
        let start = |readers, random| Start::new(readers, 32, random);
        assert_eq!(start(1, 0.9), Start { limit: 32, delay: Duration::ZERO });
        assert_eq!(start(0, 0.9), start(1, 0.9));
        assert_eq!(start(64, 0.5), Start { limit: 4, delay: Duration::from_micros(31_500) });
        assert_eq!(start(1_000, 1.0), Start { limit: 1, delay: Duration::from_millis(999) });
        assert_eq!(start(usize::MAX, 1.0), Start { limit: 1, delay: DELAY_MAX });
    }
}
