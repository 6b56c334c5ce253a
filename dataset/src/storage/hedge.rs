//! Hedged reads: if the first byte of an answer is late, a second request goes out on another connection.
//!
//! ```text
//! request 1  ─────────────────────────── · · · ✕   lost, or slow: dropped once request 2 is answered
//! request 2           └ late ──▶ answer ▶ body      the same range of the same version
//! ```
//! [`Latencies`] learns from the store's own answers when one is late. At most one request in 50 is made twice, in addition to the
//! first few. A second request never waits for a permit, so the store's limit on concurrent requests holds. If it fails, the
//! first one counts.
//!
//! Source: J. Dean, L. A. Barroso, The Tail at Scale, Communications of the ACM 56(2), 2013.

use super::failure::Fault;
use super::latencies::Latencies;
use super::limiter::Limiter;
use super::observe::{note, observed};
use super::retry::Counters;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, timeout};

/// Hundredths of a hedge that an answered read earns.
const EARNED: u32 = 2;
const HEDGE: u32 = 100;
/// Hedges that may be saved up, and that a new store begins with.
const SAVED: u32 = 4 * HEDGE;

/// When reads of one store are made twice.
pub(crate) struct Hedging {
    is_on: bool,
    state: Mutex<State>,
}

struct State {
    latencies: Latencies,
    /// Hundredths of a hedge that are left.
    left: u32,
}

/// What a hedge needs of its store.
#[derive(Clone, Copy)]
pub(super) struct Hedged<'a> {
    pub(super) hedging: &'a Hedging,
    pub(super) limiter: &'a Arc<Limiter>,
    pub(super) counters: &'a Counters,
}

impl Hedging {
    pub(crate) fn new(is_on: bool) -> Arc<Self> {
        let state = State { latencies: Latencies::default(), left: SAVED };
        Arc::new(Self { is_on, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // every change is a few stores of numbers
    }

    fn earn(&self) {
        let state = &mut *self.lock();
        state.left = (state.left + EARNED).min(SAVED);
    }

    /// Takes a hedge, if one is left.
    fn spend(&self) -> bool {
        let state = &mut *self.lock();
        let left = state.left.checked_sub(HEDGE);
        state.left = left.unwrap_or(state.left);
        left.is_some()
    }

    fn record(&self, bytes: u64, began: Instant) {
        self.lock().latencies.record(bytes, began.elapsed());
    }
}

impl Hedged<'_> {
    /// Returns the first answer to `request`, which asks for `bytes` bytes and may be made twice.
    pub(super) async fn first<T, F>(&self, bytes: u64, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        if !self.hedging.is_on {
            return request().await;
        }
        let answer = self.race(bytes, request).await?;
        self.hedging.earn();
        Ok(answer)
    }

    async fn race<T, F>(&self, bytes: u64, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let patience = self.hedging.lock().latencies.patience(bytes);
        let began = Instant::now();
        let mut first = pin!(request());
        if let Ok(result) = timeout(patience, &mut first).await {
            return self.recorded(result, bytes, began);
        }
        let permit = self.limiter.try_acquire().filter(|_| self.hedging.spend());
        let Some(_permit) = permit else {
            let result = first.await;
            return self.recorded(result, bytes, began);
        };
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.hedges.fetch_add(1, Ordering::Relaxed);
        let began_again = Instant::now();
        let mut second = pin!(observed(request()));
        let result = tokio::select! {
            result = &mut first => result,
            (result, answer) = &mut second => match result {
                Ok(value) => {
                    note(answer);
                    self.hedging.record(bytes, began_again);
                    Ok(value) // the first one took at least as long as until now
                }
                Err(_) => first.await,
            },
        };
        self.recorded(result, bytes, began)
    }

    fn recorded<T>(&self, result: Result<T, Fault>, bytes: u64, began: Instant) -> Result<T, Fault> {
        if result.is_ok() {
            self.hedging.record(bytes, began);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::time::Duration;
    use tokio::time::sleep;

    const BYTES: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    struct Store {
        hedging: Arc<Hedging>,
        limiter: Arc<Limiter>,
        counters: Counters,
    }

    impl Store {
        fn new(is_on: bool, at_once: usize) -> Self {
            Self {
                hedging: Hedging::new(is_on),
                limiter: Limiter::new(at_once),
                counters: Counters::default(),
            }
        }

        /// Makes a read whose requests take these times, one after another; `None` fails after 10 ms.
        async fn read(&self, times: &[Option<Duration>]) -> Result<usize, Fault> {
            let hedged = Hedged { hedging: &self.hedging, limiter: &self.limiter, counters: &self.counters };
            let requests = Cell::new(0);
            let _permit = self.limiter.acquire().await;
            hedged
                .first(BYTES, || {
                    let number = requests.replace(requests.get() + 1);
                    let time = times[number];
                    async move {
                        sleep(time.unwrap_or(10 * MS)).await;
                        time.map(|_| number).ok_or(Fault::Stalled(MS))
                    }
                })
                .await
        }

        fn hedges(&self) -> u64 {
            self.counters.hedges.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_requested_a_second_time() {
        let store = Store::new(true, 8);
        for _ in 0..200 {
            assert_eq!(store.read(&[Some(30 * MS)]).await.unwrap(), 0);
        }
        assert_eq!(store.hedges(), 0);
        let began = Instant::now();
        let lost = Some(Duration::from_secs(3600));
        assert_eq!(store.read(&[lost, Some(30 * MS)]).await.unwrap(), 1);
        assert!(began.elapsed() < 150 * MS, "{:?}", began.elapsed());
        assert_eq!((store.hedges(), store.limiter.peak()), (1, 2));
        assert_eq!(
            store.read(&[Some(100 * MS), Some(70 * MS)]).await.unwrap(),
            0,
            "the first one was faster"
        );
        assert_eq!(store.read(&[Some(100 * MS), None]).await.unwrap(), 0, "the second one failed");
        assert!(store.read(&[None]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_requested_twice_without_a_permit_or_when_it_is_off() {
        for store in [Store::new(true, 1), Store::new(false, 8)] {
            assert_eq!(store.read(&[Some(Duration::from_secs(5))]).await.unwrap(), 0);
            assert_eq!(store.hedges(), 0);
        }
    }

    /// Published latencies of S3: median 27 ms, σ 0.62, and one request in 10,000 that is never answered.
    #[tokio::test(start_paused = true)]
    async fn at_most_one_request_in_fifty_is_made_twice_and_lost_ones_cost_little() {
        let store = Store::new(true, 8);
        let state = RefCell::new(7u64);
        let uniform = || {
            let state = &mut *state.borrow_mut();
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((*state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let latency = || {
            if uniform() < 1e-4 {
                return Some(Duration::from_secs(3600));
            }
            let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
            Some(Duration::from_secs_f64(0.027 * (0.62 * normal).exp()))
        };
        let reads = 30_000;
        let mut longest = Duration::ZERO;
        for read in 0..reads {
            let began = Instant::now();
            store.read(&[latency(), latency()]).await.unwrap();
            if read > 1000 {
                longest = longest.max(began.elapsed());
            }
        }
        let share = store.hedges() as f64 / f64::from(reads);
        assert!((0.002..0.02).contains(&share), "{share}");
        assert!(longest < 600 * MS, "{longest:?}");
    }

    #[test]
    fn hedges_are_earned() {
        let hedging = Hedging::new(true);
        assert_eq!((0..10).filter(|_| hedging.spend()).count(), 4);
        (0..50).for_each(|_| hedging.earn());
        assert!(hedging.spend() && !hedging.spend());
    }
}
