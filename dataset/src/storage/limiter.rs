//! The async shell around [`Aimd`]: it decides who may start a request, first come, first served. Requests for answers that are
//! late come before all others. No request starts while the limiter rests: at the beginning, and when the store requests a wait.
//! A store that has refused requests also gets fewer of them each second ([`RequestRate`]).

use super::aimd::{Aimd, Event};
use super::request_rate::RequestRate;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// Issues permits to start requests, up to the adaptive limit at once.
pub(crate) struct Limiter {
    origin: Instant,
    state: Mutex<State>,
    /// Held by the caller that waits for the next turn of the rate; the others wait for it in the order of their calls.
    turns: tokio::sync::Mutex<()>,
}

struct State {
    aimd: Aimd,
    rate: RequestRate,
    under_way: usize,
    peak: usize,
    /// One entry per waiting caller; the prefetch budget limits the number of callers.
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Callers whose turn is before that of all others.
    urgent: VecDeque<oneshot::Sender<Permit>>,
    /// Urgent callers that have a permit and wait for a turn.
    urgent_turns: usize,
    rest: Rest,
}

/// When requests may start.
enum Rest {
    /// This long after the first caller came.
    AfterFirst(Duration),
    Until(Instant),
}

impl State {
    /// Whether a permit is free that no caller waits for.
    fn is_free(&self) -> bool {
        self.waiting.is_empty() && self.urgent.is_empty() && self.under_way < self.aimd.limit()
    }
}

/// The right to have one request under way; dropping it returns it.
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    started: Duration,
    armed: bool,
}

impl Limiter {
    /// Starts with `start` permits, `delay` after the first caller comes.
    pub(crate) fn new(start: usize, max: usize, delay: Duration) -> Arc<Self> {
        let (waiting, urgent, rest) = (VecDeque::new(), VecDeque::new(), Rest::AfterFirst(delay));
        let (aimd, rate) = (Aimd::new(start, max), RequestRate::default());
        let state = State { aimd, rate, under_way: 0, peak: 0, waiting, urgent, urgent_turns: 0, rest };
        let turns = tokio::sync::Mutex::new(());
        Arc::new(Self { origin: Instant::now(), state: Mutex::new(state), turns })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current limit.
    pub(crate) fn limit(&self) -> usize {
        self.lock().aimd.limit()
    }

    /// Returns the maximum number of requests that were ever under way at once.
    pub(crate) fn peak(&self) -> usize {
        self.lock().peak
    }

    /// Waits for its turn.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Permit {
        self.acquire_as(false).await
    }

    /// Waits for the next permit that is free, before all callers of [`acquire`](Self::acquire).
    pub(crate) async fn acquire_urgently(self: &Arc<Self>) -> Permit {
        self.acquire_as(true).await
    }

    async fn acquire_as(self: &Arc<Self>, is_urgent: bool) -> Permit {
        let mut permit = loop {
            let turn = {
                let mut state = self.lock();
                if state.is_free() {
                    break self.issue(&mut state);
                }
                let (send, turn) = oneshot::channel();
                let queue = if is_urgent { &mut state.urgent } else { &mut state.waiting };
                queue.push_back(send);
                turn
            };
            if let Ok(permit) = turn.await {
                break permit;
            }
        };
        self.turn(is_urgent).await;
        permit.started = self.now();
        permit
    }

    /// Waits until the limiter does not rest, and the rate that the store allows has a turn for one more request. One caller at a time
    /// waits for a turn, so that none is taken in advance at a rate that is too high by then; urgent ones do not wait for the others.
    /// A future that waits here must be polled until it is done or dropped, since others wait for it.
    async fn turn(&self, is_urgent: bool) {
        let is_limited = self.lock().rate.is_limited();
        let _others_wait = match is_limited && !is_urgent {
            true => Some(self.turns.lock().await),
            false => None,
        };
        let _goes_first = is_urgent.then(|| Urgent::new(self));
        loop {
            while let Some(until) = self.rests_until() {
                sleep_until(until).await;
            }
            match self.take_turn(is_urgent) {
                Ok(()) => return,
                Err(turn) => sleep_until(self.origin + turn).await,
            }
        }
    }

    /// Takes a turn, or returns when to ask again. The next one is that of urgent callers, if some wait.
    fn take_turn(&self, is_urgent: bool) -> Result<(), Duration> {
        let now = self.now();
        let mut state = self.lock();
        let others_first = !is_urgent && state.urgent_turns > 0;
        match others_first.then(|| state.rate.turn_after_next(now)).flatten() {
            Some(turn) => Err(turn),
            None => state.rate.take_turn(now),
        }
    }

    /// Returns when requests may start, if that is later than now.
    fn rests_until(&self) -> Option<Instant> {
        let (mut state, now) = (self.lock(), Instant::now());
        let until = match state.rest {
            Rest::AfterFirst(delay) => now + delay,
            Rest::Until(until) => until,
        };
        state.rest = Rest::Until(until);
        (until > now).then_some(until)
    }

    /// Starts no request for `time`, which the store requested.
    pub(crate) fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.lock();
        state.rest = match state.rest {
            Rest::Until(other) => Rest::Until(other.max(until)),
            Rest::AfterFirst(_) => Rest::Until(until),
        };
    }

    /// Returns the time of this limiter's clock, for [`record`](Self::record).
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Updates the limit with `event`, which ends a request that started at `started`.
    pub(crate) fn record(self: &Arc<Self>, started: Duration, event: Event) {
        let now = self.now();
        let mut state = self.lock();
        state.aimd.on_event(now, started, event);
        match event {
            Event::Success => state.rate.on_answer(now),
            Event::Throttled => state.rate.on_refusal(now, started),
            Event::Slow => {}
        }
        self.wake(&mut state);
    }

    fn issue(self: &Arc<Self>, state: &mut State) -> Permit {
        state.under_way += 1;
        state.peak = state.peak.max(state.under_way);
        Permit { limiter: Arc::clone(self), started: self.now(), armed: true }
    }

    /// Wakes waiting callers up to the limit. The permit of a caller that went away while waiting returns here at once.
    fn wake(self: &Arc<Self>, state: &mut State) {
        while state.under_way < state.aimd.limit() {
            let Some(next) = state.urgent.pop_front().or_else(|| state.waiting.pop_front()) else { return };
            let permit = self.issue(state);
            if let Err(mut unwanted) = next.send(permit) {
                unwanted.armed = false; // dropping it would lock the state, which is locked here
                state.under_way -= 1;
            }
        }
    }
}

/// An urgent caller that waits for a turn.
struct Urgent<'a>(&'a Limiter);

impl<'a> Urgent<'a> {
    fn new(limiter: &'a Limiter) -> Self {
        limiter.lock().urgent_turns += 1;
        Self(limiter)
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.lock().urgent_turns -= 1;
    }
}

impl Permit {
    /// Returns the permit and updates the limit with `event`.
    pub(crate) fn finish(self, event: Event) {
        self.limiter.record(self.started, event);
        drop(self);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.armed {
            let mut state = self.limiter.lock();
            assert!(state.under_way > 0, "a permit was returned twice");
            state.under_way -= 1;
            self.limiter.wake(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(max: usize) -> Arc<Limiter> {
        Limiter::new(max, max, Duration::ZERO)
    }

    #[tokio::test(start_paused = true)]
    async fn never_more_than_the_limit_and_nobody_is_forgotten() {
        let limiter = self::limiter(4);
        let mut tasks = Vec::new();
        for i in 0..200_u32 {
            let limiter = Arc::clone(&limiter);
            tasks.push(tokio::spawn(async move {
                let permit = limiter.acquire().await;
                tokio::task::yield_now().await;
                let event = if i % 10 == 0 { Event::Throttled } else { Event::Success };
                permit.finish(event);
            }));
        }
        for (i, task) in tasks.into_iter().enumerate() {
            if i % 7 == 3 {
                task.abort(); // waiters that go away must not take a permit with them
            } else {
                tokio::time::timeout(Duration::from_secs(600), task).await.unwrap().unwrap();
            }
        }
        assert!(limiter.peak() <= 4);
        tokio::time::timeout(Duration::from_secs(10), limiter.acquire()).await.unwrap();
        assert_eq!(limiter.lock().under_way, 0);
    }

    #[tokio::test]
    async fn a_waiter_that_left_passes_its_turn_on() {
        let limiter = self::limiter(1);
        let held = limiter.acquire().await;
        let left = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { drop(limiter.acquire().await) }
        });
        tokio::task::yield_now().await;
        left.abort();
        let next = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move { drop(limiter.acquire().await) }
        });
        tokio::task::yield_now().await;
        drop(held);
        tokio::time::timeout(Duration::from_secs(1), next).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn urgent_callers_come_first() {
        let limiter = self::limiter(1);
        let held = limiter.acquire().await;
        let (send, mut turns) = tokio::sync::mpsc::unbounded_channel();
        for is_urgent in [false, false, true] {
            let (limiter, send) = (Arc::clone(&limiter), send.clone());
            tokio::spawn(async move {
                let _permit = match is_urgent {
                    true => limiter.acquire_urgently().await,
                    false => limiter.acquire().await,
                };
                send.send(is_urgent).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop(held);
        for expected in [true, false, false] {
            assert_eq!(turns.recv().await, Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_start_after_the_delay_and_after_a_rest() {
        let (second, began) = (Duration::from_secs(1), Instant::now());
        let limiter = Limiter::new(2, 8, second);
        assert_eq!(limiter.limit(), 2);
        tokio::join!(limiter.acquire(), limiter.acquire());
        assert_eq!(began.elapsed().as_millis(), 1_000, "one delay for all");
        drop(limiter.acquire().await);
        let held = limiter.acquire().await;
        limiter.rest(7 * second);
        limiter.rest(second); // shorter than the other
        assert_eq!(began.elapsed().as_millis(), 1_000);
        tokio::join!(limiter.acquire(), limiter.acquire_urgently(), async { drop(held) });
        assert_eq!(began.elapsed().as_millis(), 8_000);
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_callers_wait_for_a_turn_or_two_and_all_for_a_rest() {
        let (limiter, second) = (self::limiter(256), Duration::from_secs(1));
        limiter.record(limiter.now(), Event::Throttled); // 90 a second remain
        let began = Instant::now();
        let others = futures::future::join_all((0..90).map(|_| async { drop(limiter.acquire().await) }));
        let urgent = async {
            tokio::time::sleep(second / 10).await;
            drop(limiter.acquire_urgently().await);
            let urgent = began.elapsed();
            assert!(urgent < second / 10 + 3 * second / 90, "{urgent:?}");
            limiter.rest(7 * second); // for all that wait for turns, too
        };
        tokio::join!(others, urgent);
        assert!((75 * second / 10..82 * second / 10).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    /// No caller has taken a turn in advance at the old rate.
    #[tokio::test(start_paused = true)]
    async fn a_lower_rate_applies_to_callers_that_wait_already() {
        let (limiter, second) = (self::limiter(256), Duration::from_secs(1));
        limiter.record(limiter.now(), Event::Throttled); // 90 a second remain
        let began = Instant::now();
        let callers = futures::future::join_all((0..90).map(|_| async { drop(limiter.acquire().await) }));
        tokio::join!(callers, async {
            for _ in 0..7 {
                limiter.record(limiter.now(), Event::Throttled); // 43 a second remain
            }
        });
        assert!((17 * second / 10..21 * second / 10).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
