//! The retry loop: permits, attempts, backoff, deadline. object_store's own retries are turned off.
//!
//! The deadline counts time without progress; [`Progress`] has the bound on the whole.

use super::aimd::Event;
use super::backoff::Backoff;
use super::failure::{Failure, Fault, Verdict};
use super::limiter::Limiter;
use super::observe::observed;
use super::pace::Limits;
use super::progress::{Progress, Spent};
use super::secret::Cleaner;
use crate::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Attempts to reach the machine's metadata service before "no credentials" is trusted.
const CREDENTIAL_ATTEMPTS: u32 = 3;

/// Counts what storage has done so far; see [`StorageStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// What storage has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// Requests sent, retries and hedges included.
    pub requests: u64,
    /// Requests that were sent again after a fault.
    pub retries: u64,
    /// Requests that were sent in addition to one whose answer was late.
    pub hedges: u64,
    /// Answers that requested a lower rate (503, 429).
    pub throttled: u64,
    /// Operations that ended in an error.
    pub failed: u64,
    /// Bytes of objects handed to callers.
    pub read_bytes: u64,
    /// Bytes of objects written.
    pub written_bytes: u64,
    /// The smallest limit on concurrent requests among the open stores; 0 if none is open.
    pub concurrency_limit: usize,
    /// The maximum number of requests under way at once in any one store.
    pub concurrency_peak: usize,
}

/// What every store of one `Storage` shares.
pub(crate) struct Shared {
    pub(crate) deadline: Duration,
    pub(crate) limits: Limits,
    pub(crate) cleaner: Cleaner,
    pub(crate) counters: Counters,
    /// Whether any request has succeeded.
    has_succeeded: AtomicBool,
    jitter: RandomState, // jitter must differ between processes, so it is the one ambient draw
    draws: AtomicU64,
}

impl Shared {
    pub(crate) fn new(deadline: Duration, stall: Duration, cleaner: Cleaner) -> Self {
        Self {
            deadline,
            limits: Limits::new(deadline, stall),
            cleaner,
            counters: Counters::default(),
            has_succeeded: AtomicBool::new(false),
            jitter: RandomState::new(),
            draws: AtomicU64::new(0),
        }
    }

    /// Returns a number uniform in [0, 1).
    pub(super) fn random(&self) -> f64 {
        let draw = self.jitter.hash_one(self.draws.fetch_add(1, Ordering::Relaxed));
        f64::from(u32::try_from(draw >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
    }
}

/// A failed operation.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) failure: Failure,
    /// The number of the attempt that failed, from 1.
    pub(crate) attempts: u32,
    elapsed: Duration,
    deadline: Duration,
    /// What was done so far, for the message.
    done: Option<String>,
}

impl Ended {
    /// Returns the error about `what`, an object or a listing.
    pub(crate) fn into_error(self, what: &str) -> Error {
        let plural = if self.attempts == 1 { "" } else { "s" };
        let done = self.done.map_or(String::new(), |done| format!(" {done};"));
        let tries = format!(
            "gave up after {} attempt{plural} in {:.1} s (deadline {:.0} s; raise it with `deadline`);{done} the last \
             attempt failed because",
            self.attempts,
            self.elapsed.as_secs_f64(),
            self.deadline.as_secs_f64()
        );
        self.failure.into_error(what, Some(tries))
    }
}

/// Runs `attempt` until it succeeds, fails permanently, or the deadline passes without `progress`. Each attempt holds one
/// permit of `limiter`; waits for permits do not count, because feedstock causes them.
pub(crate) async fn until_done<T, F, Fut>(
    shared: &Shared,
    limiter: &Arc<Limiter>,
    progress: &Progress,
    attempt: F,
) -> Result<T, Ended>
where
    F: Fn(u32) -> Fut,
    Fut: Future<Output = Result<T, Fault>>,
{
    let deadline = progress.deadline(shared.deadline);
    let mut backoff = Backoff::default();
    let mut spent = Spent::default();
    let mut before: Option<String> = None;
    loop {
        let permit = limiter.acquire().await;
        let began = Instant::now();
        shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (number, best) = (backoff.attempts() + 1, progress.best());
        let spent_now = || spent.with_attempt(began, Instant::now(), progress.last());
        let left = || spent_now().left(deadline, progress.earned());
        let (result, answer) = observed(while_left(attempt(number), left)).await;
        let fault = match result {
            Ok(value) => {
                permit.finish(Event::Success);
                shared.has_succeeded.store(true, Ordering::Relaxed);
                return Ok(value);
            }
            Err(fault) => fault,
        };
        let is_unfinished = matches!(fault, Fault::Unfinished(_));
        let is_slow = matches!(fault, Fault::Slow { .. });
        let mut failure = Failure::judge(&fault, answer, &shared.cleaner);
        if failure.verdict == Verdict::Unconnected && shared.has_succeeded.load(Ordering::Relaxed) {
            failure.verdict = Verdict::Transient; // one server of several, or while it restarts
        }
        match before.take().filter(|_| is_unfinished) {
            // That the time was over is little information.
            Some(before) => failure.cause.push_str(&format!("; the one before it failed because {before}")),
            None => before = Some(failure.cause.clone()),
        }
        match failure.verdict {
            Verdict::Throttled => {
                shared.counters.throttled.fetch_add(1, Ordering::Relaxed);
                permit.finish(Event::Throttled);
            }
            _ if is_slow => permit.finish(Event::Slow),
            _ => drop(permit),
        }
        spent = spent_now();
        // An attempt that repeats lost work does not show progress of the store.
        if progress.best() > best {
            backoff.on_progress();
        }
        let may_renew = answer.for_credentials && number < CREDENTIAL_ATTEMPTS;
        let again = failure.verdict.retryable() || (failure.verdict == Verdict::NoCredentials && may_renew);
        let left = spent.left(deadline, progress.earned());
        let wait = backoff.on_failure(left, shared.random(), failure.retry_after).filter(|_| again);
        let Some(wait) = wait else {
            shared.counters.failed.fetch_add(1, Ordering::Relaxed);
            if let Some(asked) = failure.retry_after.filter(|asked| *asked >= left) {
                failure.cause.push_str(&format!("; it requests a wait of {} s", asked.as_secs()));
            }
            let (elapsed, done) = (spent.elapsed, progress.describe());
            return Err(Ended { failure, attempts: number, elapsed, deadline, done });
        };
        if failure.retry_after.is_some() && failure.verdict == Verdict::Throttled {
            limiter.rest(wait);
        }
        tracing::debug!(attempt = number, wait_s = wait.as_secs_f64(), cause = %failure.cause, "storage: trying again");
        shared.counters.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(wait).await;
        spent = spent.with_wait(wait);
    }
}

/// Runs an attempt while time is `left`, which progress prolongs.
async fn while_left<T>(
    attempt: impl Future<Output = Result<T, Fault>>,
    left: impl Fn() -> Duration,
) -> Result<T, Fault> {
    let began = Instant::now();
    let mut attempt = std::pin::pin!(attempt);
    loop {
        let left = left();
        if left.is_zero() {
            return Err(Fault::Unfinished(began.elapsed()));
        }
        if let Ok(result) = tokio::time::timeout(left, &mut attempt).await {
            return result;
        }
    }
}

/// Runs `future`, which is a whole answer, and cuts it off after `limit`.
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

#[cfg(test)]
mod tests {
    use super::super::observe::{Answer, note};
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Runs an operation with a deadline of 10 s. Its one attempt makes progress every `every`, `times` times, and then ends or
    /// stalls.
    async fn run(
        progress: Progress,
        every: Duration,
        times: u32,
        units: u64,
        ends: bool,
    ) -> Result<(), Ended> {
        let shared = Shared::new(S * 10, S * 20, Cleaner::default());
        let (progress, limiter) = (&progress, limiter(1));
        until_done(&shared, &limiter, progress, |_| async move {
            for _ in 0..times {
                tokio::time::sleep(every).await;
                progress.add(units);
            }
            if !ends {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_counts_time_without_progress() {
        let began = Instant::now();
        run(Progress::bytes(1 << 30), S * 9, 20, 1 << 20, true).await.unwrap();
        assert_eq!(began.elapsed(), S * 180);
        let began = Instant::now();
        let ended = run(Progress::bytes(1 << 30), S * 9, 20, 1 << 20, false).await.unwrap_err();
        let took = began.elapsed();
        assert!(took >= S * 190 && took < S * 191, "{took:?}");
        let error = ended.into_error("x");
        assert!(error.message().contains("20971520 of 1073741824 bytes had arrived"), "{error}");
    }

    /// A walk of 30 s with a deadline of 10 s loses its handle once (`ESTALE`), after the deadline, and starts again.
    #[tokio::test(start_paused = true)]
    async fn what_outlasted_the_deadline_is_tried_again() {
        let shared = Shared::new(S * 10, S * 20, Cleaner::default());
        let (progress, limiter, began) = (&Progress::files(), limiter(1), Instant::now());
        until_done(&shared, &limiter, progress, |number| {
            progress.lose();
            async move {
                for second in 0..30 {
                    tokio::time::sleep(S).await;
                    progress.add(1_000);
                    if number == 1 && second == 28 {
                        return Err(std::io::Error::from_raw_os_error(116).into());
                    }
                }
                Ok(())
            }
        })
        .await
        .unwrap();
        assert!(began.elapsed() >= S * 59, "{:?}", began.elapsed());
        assert_eq!(progress.done(), 30_000);
    }

    #[tokio::test(start_paused = true)]
    async fn one_answer_may_take_the_patience_that_it_was_given() {
        let shared = Shared::new(S * 10, S * 3, Cleaner::default());
        let ask = |progress: Progress, limit: Duration| {
            let shared = &shared;
            async move {
                until_done(shared, &limiter(1), &progress, |_| {
                    within(limit, async {
                        tokio::time::sleep(S * 25).await;
                        Ok::<_, Fault>(())
                    })
                })
                .await
            }
        };
        ask(Progress::patient(S * 30), S * 30).await.unwrap();
        ask(Progress::patient(S * 20), S * 20).await.unwrap_err();
    }

    /// The first bytes are lost each time, so that no attempt gets further than the first one: the waits double.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_are_lost_each_time_do_not_end_the_backoff() {
        let shared = Shared::new(S * 60, S * 20, Cleaner::default());
        let (progress, limiter) = (&Progress::bytes(1 << 20), limiter(1));
        let ended = until_done(&shared, &limiter, progress, |_| async move {
            progress.lose();
            progress.add(100);
            Err::<(), _>(Fault::Length { expected: 1 << 20, got: 100 })
        })
        .await
        .unwrap_err();
        assert!(ended.attempts < 60, "{} attempts in a minute", ended.attempts);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_below_the_least_rate_ends_too() {
        let began = Instant::now();
        run(Progress::bytes(1 << 30), S, 1_000, 100, true).await.unwrap_err();
        let took = began.elapsed();
        assert!(took >= S * 10 && took < S * 12, "{took:?}");
        let began = Instant::now();
        run(Progress::whole(), S * 9, 2, 0, true).await.unwrap_err();
        assert!(began.elapsed() < S * 20);
    }

    /// 503 for a minute, as in an outage; reads are hedged or not, and no request is made more often than the backoff allows.
    #[tokio::test(start_paused = true)]
    async fn an_outage_of_a_minute_is_outlasted() {
        let shared = Shared::new(S * 120, S * 20, Cleaner::default());
        let (limiter, began) = (limiter(32), Instant::now());
        until_done(&shared, &limiter, &Progress::whole(), |_| async move {
            match began.elapsed() < S * 60 {
                true => Err(throttled(None)),
                false => Ok(()),
            }
        })
        .await
        .unwrap();
        assert!(began.elapsed() < S * 71, "{:?}", began.elapsed());
        assert!(shared.counters.retries.load(Ordering::Relaxed) < 60);
        assert!(limiter.limit() <= 2);
    }

    /// An hour is beyond the deadline: the store is tried again within it, and then the error states what it requested.
    #[tokio::test(start_paused = true)]
    async fn a_retry_after_of_an_hour_ends_with_the_deadline() {
        let shared = Shared::new(S * 120, S * 20, Cleaner::default());
        let (limiter, began) = (limiter(32), Instant::now());
        let ended = until_done(&shared, &limiter, &Progress::whole(), |_| async {
            Err::<(), _>(throttled(Some(S * 3600)))
        })
        .await
        .unwrap_err();
        assert_eq!((ended.attempts, began.elapsed().as_secs()), (4, 105));
        let error = ended.into_error("x");
        assert!(error.message().contains("it requests a wait of 3600 s"), "{error}");
    }

    fn throttled(retry_after: Option<Duration>) -> Fault {
        note(Answer { status: Some(503), retry_after, ..Answer::default() });
        Fault::Store(object_store::Error::Generic { store: "S3", source: "injected".into() })
    }

    fn limiter(max: usize) -> Arc<Limiter> {
        Limiter::new(max, max, Duration::ZERO)
    }

    /// While one request waits as the store requested, no other one starts.
    #[tokio::test(start_paused = true)]
    async fn a_retry_after_holds_all_requests_of_the_store_back() {
        let shared = Shared::new(S * 120, S * 20, Cleaner::default());
        let (limiter, sent) = (limiter(4), AtomicU64::new(0));
        let read = || async {
            until_done(&shared, &limiter, &Progress::whole(), |_| async {
                tokio::time::sleep(S / 10).await;
                match sent.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(throttled(Some(S * 7))),
                    _ => Ok(()),
                }
            })
            .await
            .unwrap();
        };
        let began = Instant::now();
        let watch = async {
            tokio::time::sleep(S * 7).await;
            assert_eq!(sent.load(Ordering::Relaxed), 4, "those that were under way");
        };
        tokio::join!(futures::future::join_all((0..20).map(|_| read())), watch);
        assert_eq!(sent.load(Ordering::Relaxed), 21);
        assert!((S * 7..S * 9).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
