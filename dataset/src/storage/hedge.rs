//! Hedged requests: if an answer is late, a second request goes out on another connection.
//!
//! ```text
//! request 1  ─────────────────────────── · · · ✕   lost, or slow: dropped once request 2 is answered
//! request 2           └ late ──▶ answer ▶ body      the same range of the same version
//! ```
//! A read is late if its first byte is, a HEAD request or a page of a listing if the whole answer is. [`Latencies`] learns from
//! the store's own answers when one is late. Of all requests, at most one in 50 is made twice, in addition to the first few. A
//! hedge waits for that allowance and for a permit, so the store's limit on concurrent requests holds. It has the next permit
//! that is free: the request that it replaces was first in line before. If a hedge is late too, or fails, another one follows
//! after twice the time, up to [`HEDGES_MAX`].
//!
//! The first good answer counts. So does the first failure that a retry cannot change, such as another version of the object. Of
//! other failures, the last one counts. Each answer that requests a lower rate lowers the limit on concurrent requests.
//!
//! Source: J. Dean, L. A. Barroso, The Tail at Scale, Communications of the ACM 56(2), 2013.

use super::aimd::Event;
use super::failure::{Fault, Verdict};
use super::latencies::{Kind, Latencies};
use super::limiter::{Limiter, Permit};
use super::observe::{Answer, note, observed};
use super::retry::Counters;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

/// Hundredths of a hedge that an answered request earns.
const EARNED: u32 = 2;
const HEDGE: u32 = 100;
/// Hedges that may be saved up, and that a new store begins with.
const SAVED: u32 = 4 * HEDGE;
/// Hedges of one request. With one request in 10,000 lost, all three are lost once in 10¹² requests.
const HEDGES_MAX: u32 = 2;

/// When requests to one store are made twice.
pub(crate) struct Hedging {
    is_on: bool,
    latencies: Mutex<Latencies>,
    /// Hundredths of a hedge that are left.
    left: Semaphore,
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
        let left = Semaphore::new(SAVED as usize);
        Arc::new(Self { is_on, latencies: Mutex::default(), left })
    }

    fn latencies(&self) -> MutexGuard<'_, Latencies> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner) // every change is a few stores of numbers
    }

    fn earn(&self) {
        if self.left.available_permits() < SAVED as usize {
            self.left.add_permits(EARNED as usize);
        }
    }

    /// Waits until a hedge is left and reserves it. It is spent if the caller forgets the result, else it is returned.
    async fn reserve(&self) -> SemaphorePermit<'_> {
        match self.left.acquire_many(HEDGE).await {
            Ok(reserved) => reserved,
            Err(_closed) => std::future::pending().await, // it is never closed
        }
    }
}

/// One of the requests for the same.
struct Entrant {
    began: Instant,
    /// When it began, on the limiter's clock.
    started: Duration,
    /// A hedge's own permit; the first request has that of the retry loop.
    permit: Option<Permit>,
}

/// A request that has ended.
struct Ended<T> {
    result: Result<T, Fault>,
    answer: Answer,
    entrant: Entrant,
}

impl Entrant {
    fn new(limiter: &Arc<Limiter>, permit: Option<Permit>) -> Self {
        Self { began: Instant::now(), started: limiter.now(), permit }
    }

    async fn run<T>(self, request: impl Future<Output = Result<T, Fault>>) -> Ended<T> {
        let (result, answer) = observed(request).await;
        Ended { result, answer, entrant: self }
    }
}

impl Hedged<'_> {
    /// Returns the first answer to `request`, which may be made several times.
    pub(super) async fn first<T, F>(&self, kind: Kind, request: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        if !self.hedging.is_on {
            return request().await;
        }
        let ended = self.race(kind, request).await;
        note(ended.answer);
        if ended.result.is_ok() {
            self.hedging.earn();
        }
        ended.result
    }

    async fn race<T, F>(&self, kind: Kind, request: impl Fn() -> F) -> Ended<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut wait = self.hedging.latencies().patience(kind);
        let mut racing = FuturesUnordered::new();
        let began = Instant::now();
        racing.push(Entrant::new(self.limiter, None).run(request()));
        let mut hedges = 0;
        loop {
            let permit = tokio::select! {
                biased;
                Some(ended) = racing.next() => {
                    if ended.result.is_ok() {
                        self.learn(kind, began, &ended.entrant);
                        return ended;
                    }
                    let is_last = racing.is_empty();
                    if self.ends_with(&ended, is_last) {
                        return ended;
                    }
                    wait = wait.max(ended.answer.retry_after.unwrap_or_default());
                    continue;
                }
                permit = self.turn(wait), if hedges < HEDGES_MAX => permit,
            };
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            self.counters.hedges.fetch_add(1, Ordering::Relaxed);
            racing.push(Entrant::new(self.limiter, Some(permit)).run(request()));
            hedges += 1;
            wait = wait.saturating_mul(2);
        }
    }

    /// Waits for `wait`, and then for the allowance and the permit of a hedge.
    async fn turn(&self, wait: Duration) -> Permit {
        sleep(wait).await;
        let reserved = self.hedging.reserve().await;
        let permit = self.limiter.acquire_urgently().await;
        reserved.forget();
        permit
    }

    /// Records the latency of the request that won. If that is a hedge, the first request took at least as long as until now.
    fn learn(&self, kind: Kind, began: Instant, winner: &Entrant) {
        let mut latencies = self.hedging.latencies();
        latencies.record(kind, winner.began.elapsed());
        if winner.permit.is_some() {
            latencies.record(kind, began.elapsed());
        }
    }

    /// Whether this failure is the result. If it is not, it is counted here, because the retry loop does not see it.
    fn ends_with<T>(&self, ended: &Ended<T>, is_last: bool) -> bool {
        let Err(fault) = &ended.result else { return true };
        let verdict = Verdict::of(fault, ended.answer);
        let ends = is_last || !verdict.retryable();
        if !ends && verdict == Verdict::Throttled {
            self.limiter.record(ended.entrant.started, Event::Throttled);
            self.counters.throttled.fetch_add(1, Ordering::Relaxed);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const BYTES: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);
    const LOST: Reply = Reply::After(Duration::from_secs(3600));

    /// What a request meets.
    #[derive(Debug, Clone, Copy)]
    enum Reply {
        After(Duration),
        /// A time-out after this time.
        Stalls(Duration),
        /// 503 after this time.
        Throttled(Duration),
        /// 412 after this time: the object is another one by now.
        Changed(Duration),
    }
    use Reply::{After, Changed, Stalls, Throttled};

    impl Reply {
        async fn come(self) -> Result<(), Fault> {
            let (After(time) | Stalls(time) | Throttled(time) | Changed(time)) = self;
            sleep(time).await;
            match self {
                After(_) => Ok(()),
                Stalls(time) => Err(Fault::Stalled(time)),
                Throttled(_) => {
                    let source = "<Error><Code>SlowDown</Code></Error>".into();
                    Err(Fault::Store(object_store::Error::Generic { store: "S3", source }))
                }
                Changed(_) => {
                    let (path, source) = ("x".into(), "412".into());
                    Err(Fault::Store(object_store::Error::Precondition { path, source }))
                }
            }
        }
    }

    struct Store {
        hedging: Arc<Hedging>,
        limiter: Arc<Limiter>,
        counters: Counters,
    }

    impl Store {
        fn new(is_on: bool, at_once: usize) -> Self {
            Self {
                hedging: Hedging::new(is_on),
                limiter: Limiter::new(at_once, at_once, Duration::ZERO),
                counters: Counters::default(),
            }
        }

        /// A store that answers after 30 ms so far.
        async fn known(at_once: usize) -> Self {
            let store = Self::new(true, at_once);
            for _ in 0..200 {
                assert_eq!(store.read(&[After(30 * MS)]).await.unwrap(), 0);
            }
            assert_eq!(store.hedges(), 0);
            store
        }

        /// Makes a read whose requests meet these replies, one after another. Returns the number of the request that won.
        async fn read(&self, replies: &[Reply]) -> Result<usize, Fault> {
            let hedged = Hedged { hedging: &self.hedging, limiter: &self.limiter, counters: &self.counters };
            let requests = Cell::new(0);
            let _permit = self.limiter.acquire().await;
            hedged
                .first(Kind::Range(BYTES), || {
                    let number = requests.replace(requests.get() + 1);
                    let reply = replies[number];
                    async move { reply.come().await.map(|()| number) }
                })
                .await
        }

        /// As [`read`](Self::read), and returns how long it took, too.
        async fn timed(&self, replies: &[Reply]) -> (Result<usize, Fault>, Duration) {
            let began = Instant::now();
            (self.read(replies).await, began.elapsed())
        }

        fn hedges(&self) -> u64 {
            self.counters.hedges.load(Ordering::Relaxed)
        }

        fn throttled(&self) -> u64 {
            self.counters.throttled.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_requested_a_second_time() {
        let store = Store::known(8).await;
        let (won, took) = store.timed(&[LOST, After(30 * MS)]).await;
        assert_eq!(won.unwrap(), 1);
        assert!(took < 150 * MS, "{took:?}");
        assert_eq!((store.hedges(), store.limiter.peak()), (1, 2));
        let faster = [After(100 * MS), After(70 * MS)];
        assert_eq!(store.read(&faster).await.unwrap(), 0, "the first one was faster");
        assert_eq!(
            store.read(&[After(100 * MS), Stalls(10 * MS)]).await.unwrap(),
            0,
            "the second one failed"
        );
        assert!(store.read(&[Stalls(10 * MS)]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_requested_twice_without_a_permit_or_when_it_is_off() {
        for store in [Store::new(true, 1), Store::new(false, 8)] {
            assert_eq!(store.read(&[After(Duration::from_secs(5))]).await.unwrap(), 0);
            assert_eq!(store.hedges(), 0);
        }
    }

    /// All permits are taken when the answer is late, and other reads wait for the next one.
    #[tokio::test(start_paused = true)]
    async fn a_late_read_is_hedged_once_a_permit_is_free() {
        let store = Store::known(2).await;
        let busy = async {
            for _ in 0..100 {
                store.read(&[After(45 * MS)]).await.unwrap();
            }
        };
        let late = async {
            let (won, took) = store.timed(&[LOST, After(30 * MS)]).await;
            assert_eq!(won.unwrap(), 1);
            assert!(took < 250 * MS, "{took:?}");
        };
        tokio::join!(late, busy, async {
            for _ in 0..100 {
                store.read(&[After(45 * MS)]).await.unwrap();
            }
        });
        assert_eq!((store.hedges(), store.limiter.peak()), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_read_is_hedged_once_the_allowance_is_earned() {
        let store = Store::known(8).await;
        for _ in 0..SAVED / HEDGE {
            store.hedging.reserve().await.forget();
        }
        let late = async {
            let (won, took) = store.timed(&[LOST, After(30 * MS)]).await;
            assert_eq!(won.unwrap(), 1);
            assert!((1500 * MS..1700 * MS).contains(&took), "50 reads of 30 ms, not {took:?}");
        };
        tokio::join!(late, async {
            for _ in 0..100 {
                store.read(&[After(30 * MS)]).await.unwrap();
            }
        });
        assert_eq!(store.hedges(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_ends_the_read_at_once() {
        let store = Store::known(8).await;
        let (result, took) = store.timed(&[LOST, Changed(30 * MS)]).await;
        assert_eq!(Verdict::of(&result.unwrap_err(), Answer::default()), Verdict::Changed);
        assert!(took < 150 * MS, "{took:?}");
        let (result, took) = store.timed(&[Changed(80 * MS), LOST]).await;
        assert_eq!(Verdict::of(&result.unwrap_err(), Answer::default()), Verdict::Changed);
        assert!(took < 150 * MS, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hedge_outlives_the_first_request() {
        let store = Store::known(8).await;
        assert_eq!(store.read(&[Stalls(60 * MS), After(30 * MS)]).await.unwrap(), 1);
        assert_eq!(store.read(&[Throttled(60 * MS), After(30 * MS)]).await.unwrap(), 1);
        assert_eq!(store.throttled(), 1);
        assert_eq!(store.limiter.limit(), 4, "the answer to the first request counts, too");
        let (result, took) = store.timed(&[Stalls(60 * MS), Stalls(90 * MS)]).await;
        assert!(matches!(result, Err(Fault::Stalled(time)) if time == 90 * MS));
        assert!(took < 200 * MS, "{took:?}");
    }

    /// 503 to a hedge lowers the limit, and the lost request is hedged again.
    #[tokio::test(start_paused = true)]
    async fn a_throttled_hedge_lowers_the_limit_and_is_repeated() {
        let store = Store::known(8).await;
        let (won, took) = store.timed(&[LOST, Throttled(10 * MS), After(30 * MS)]).await;
        assert_eq!(won.unwrap(), 2);
        assert!(took < 300 * MS, "{took:?}");
        assert_eq!((store.throttled(), store.limiter.limit(), store.hedges()), (1, 4, 2));
        let lost = [LOST, LOST, After(30 * MS)];
        assert_eq!(store.read(&lost).await.unwrap(), 2, "a hedge may be lost, too");
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
                return LOST;
            }
            let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
            After(Duration::from_secs_f64(0.027 * (0.62 * normal).exp()))
        };
        let reads = 30_000;
        let mut longest = Duration::ZERO;
        for read in 0..reads {
            let (won, took) = store.timed(&[latency(), latency(), latency()]).await;
            won.unwrap();
            if read > 1000 {
                longest = longest.max(took);
            }
        }
        let share = store.hedges() as f64 / f64::from(reads);
        assert!((0.002..0.02).contains(&share), "{share}");
        assert!(longest < 600 * MS, "{longest:?}");
    }

    #[test]
    fn hedges_are_earned() {
        let hedging = Hedging::new(true);
        let spend = || hedging.left.try_acquire_many(HEDGE).map(SemaphorePermit::forget).is_ok();
        assert_eq!((0..10).filter(|_| spend()).count(), 4);
        (0..50).for_each(|_| hedging.earn());
        assert!(spend() && !spend());
        (0..1_000).for_each(|_| hedging.earn());
        assert_eq!((0..10).filter(|_| spend()).count(), 4, "no more are saved up");
    }
}
