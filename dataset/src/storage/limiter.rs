//! The async shell around [`Aimd`]: it decides who may start a request, first come, first served.

use super::aimd::{Aimd, Event};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Issues permits to start requests, up to the adaptive limit at once.
pub(crate) struct Limiter {
    origin: Instant,
    state: Mutex<State>,
}

struct State {
    aimd: Aimd,
    under_way: usize,
    peak: usize,
    /// One entry per waiting caller; the prefetch budget limits the number of callers.
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// The right to have one request under way; dropping it returns it.
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    started: Duration,
    armed: bool,
}

impl Limiter {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let state = State { aimd: Aimd::new(max), under_way: 0, peak: 0, waiting: VecDeque::new() };
        Arc::new(Self { origin: Instant::now(), state: Mutex::new(state) })
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
        loop {
            let turn = {
                let mut state = self.lock();
                if state.waiting.is_empty() && state.under_way < state.aimd.limit() {
                    return self.issue(&mut state);
                }
                let (send, turn) = oneshot::channel();
                state.waiting.push_back(send);
                turn
            };
            if let Ok(mut permit) = turn.await {
                permit.started = self.origin.elapsed();
                return permit;
            }
        }
    }

    /// Returns a permit if one is free and no caller waits.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.lock();
        let is_free = state.waiting.is_empty() && state.under_way < state.aimd.limit();
        is_free.then(|| self.issue(&mut state))
    }

    fn issue(self: &Arc<Self>, state: &mut State) -> Permit {
        state.under_way += 1;
        state.peak = state.peak.max(state.under_way);
        Permit { limiter: Arc::clone(self), started: self.origin.elapsed(), armed: true }
    }

    /// Wakes waiting callers up to the limit. The permit of a caller that went away while waiting returns here at once.
    fn wake(self: &Arc<Self>, state: &mut State) {
        while state.under_way < state.aimd.limit() {
            let Some(next) = state.waiting.pop_front() else { return };
            let permit = self.issue(state);
            if let Err(mut unwanted) = next.send(permit) {
                unwanted.armed = false; // dropping it would lock the state, which is locked here
                state.under_way -= 1;
            }
        }
    }
}

impl Permit {
    /// Returns the permit and updates the limit with `event`.
    pub(crate) fn finish(self, event: Event) {
        let limiter = Arc::clone(&self.limiter);
        let mut state = limiter.lock();
        state.aimd.on_event(limiter.origin.elapsed(), self.started, event);
        drop(state);
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

    #[tokio::test]
    async fn never_more_than_the_limit_and_nobody_is_forgotten() {
        let limiter = Limiter::new(4);
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
                tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap();
            }
        }
        assert!(limiter.peak() <= 4);
        tokio::time::timeout(Duration::from_secs(1), limiter.acquire()).await.unwrap();
        assert_eq!(limiter.lock().under_way, 0);
    }

    #[tokio::test]
    async fn a_waiter_that_left_passes_its_turn_on() {
        let limiter = Limiter::new(1);
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
}
