//! The one retry loop: permits, attempts, backoff, deadline. object_store's own retries are turned off.

use super::aimd::Event;
use super::backoff::Backoff;
use super::failure::{Failure, Fault, Verdict};
use super::limiter::Limiter;
use super::observe::observed;
use super::secret::Cleaner;
use crate::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Attempts to reach the machine's metadata service before "no credentials" is believed.
const CREDENTIAL_ATTEMPTS: u32 = 3;

/// What storage did so far; see [`StorageStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// What storage did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// Requests sent, retries included.
    pub requests: u64,
    /// Requests that were sent again after a fault.
    pub retries: u64,
    /// Answers that asked for fewer requests (503, 429).
    pub throttled: u64,
    /// Operations that ended in an error.
    pub failed: u64,
    /// Bytes of objects handed to callers.
    pub read_bytes: u64,
    /// Bytes of objects written.
    pub written_bytes: u64,
    /// The smallest limit on concurrent requests among the open stores; 0 when none is open.
    pub concurrency_limit: usize,
    /// The most requests under way at once in any one store.
    pub concurrency_peak: usize,
}

/// What every store of one `Storage` shares.
pub(crate) struct Shared {
    pub(crate) deadline: Duration,
    pub(crate) stall: Duration,
    pub(crate) cleaner: Cleaner,
    pub(crate) counters: Counters,
    jitter: RandomState, // jitter exists to tell processes apart, so it is the one ambient draw
    draws: AtomicU64,
}

impl Shared {
    pub(crate) fn new(deadline: Duration, stall: Duration, cleaner: Cleaner) -> Self {
        Self {
            deadline,
            stall,
            cleaner,
            counters: Counters::default(),
            jitter: RandomState::new(),
            draws: AtomicU64::new(0),
        }
    }

    /// Uniform in [0, 1).
    fn random(&self) -> f64 {
        let draw = self.jitter.hash_one(self.draws.fetch_add(1, Ordering::Relaxed));
        f64::from(u32::try_from(draw >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
    }
}

/// How an operation ended when it did not succeed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) failure: Failure,
    /// The attempt that met the failure, from 1.
    pub(crate) attempts: u32,
    elapsed: Duration,
    deadline: Duration,
}

impl Ended {
    /// The error about `what`, an object or a listing.
    pub(crate) fn into_error(self, what: &str) -> Error {
        let tries = format!(
            "gave up after {} attempts in {:.1} s (deadline {:.0} s; raise it with `deadline`), the last because",
            self.attempts,
            self.elapsed.as_secs_f64(),
            self.deadline.as_secs_f64()
        );
        self.failure.into_error(what, Some(tries))
    }
}

/// Runs `attempt` until it succeeds, fails for good or the deadline passes. Each attempt holds one permit
/// of `limiter`; the time spent waiting for permits does not count, for it is our own doing.
pub(crate) async fn until_done<T, F, Fut>(
    shared: &Shared,
    limiter: &Arc<Limiter>,
    attempt: F,
) -> Result<T, Ended>
where
    F: Fn(u32) -> Fut,
    Fut: Future<Output = Result<T, Fault>>,
{
    let mut backoff = Backoff::new(shared.deadline);
    let mut elapsed = Duration::ZERO;
    loop {
        let permit = limiter.acquire().await;
        let began = Instant::now();
        shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        let number = backoff.attempts() + 1;
        let left = shared.deadline.saturating_sub(elapsed);
        let cut = tokio::time::timeout(left, attempt(number));
        let (result, answer) = observed(async { cut.await.unwrap_or(Err(Fault::Stalled(left))) }).await;
        let fault = match result {
            Ok(value) => {
                permit.finish(Event::Success);
                return Ok(value);
            }
            Err(fault) => fault,
        };
        let failure = Failure::judge(fault, answer, &shared.cleaner);
        if failure.verdict == Verdict::Throttled {
            shared.counters.throttled.fetch_add(1, Ordering::Relaxed);
            permit.finish(Event::Throttled);
        } else {
            drop(permit);
        }
        elapsed += began.elapsed();
        let again = failure.verdict.retryable()
            || (failure.verdict == Verdict::NoCredentials
                && answer.for_credentials
                && number < CREDENTIAL_ATTEMPTS);
        let wait = backoff.on_failure(elapsed, shared.random(), failure.retry_after).filter(|_| again);
        let Some(wait) = wait else {
            shared.counters.failed.fetch_add(1, Ordering::Relaxed);
            return Err(Ended { failure, attempts: number, elapsed, deadline: shared.deadline });
        };
        tracing::debug!(attempt = number, wait_s = wait.as_secs_f64(), cause = %failure.cause, "storage: trying again");
        shared.counters.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(wait).await;
        elapsed += wait;
    }
}

/// `future`, cut off when it takes longer than `limit`.
pub(crate) async fn within<T, E>(
    limit: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault>
where
    Fault: From<E>,
{
    match tokio::time::timeout(limit, future).await {
        Ok(result) => result.map_err(Fault::from),
        Err(_) => Err(Fault::Stalled(limit)),
    }
}
