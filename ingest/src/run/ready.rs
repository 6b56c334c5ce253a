//! Finished steps, handed out in step order, to a blocking caller or to a waker.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A queue that hands finished steps out in order. It has at most one item for each place that was lent.
///
/// ```
/// use std::time::Duration;
/// use feedstock_ingest::{Popped, Ready};
///
/// let ready = Ready::default();
/// ready.push(1, "step 1"); // it finished first
/// assert!(matches!(ready.pop(Duration::ZERO), Popped::TimedOut));
/// ready.push(0, "step 0");
/// ready.end(2);
/// assert!(matches!(ready.pop(Duration::ZERO), Popped::Item("step 0")));
/// assert!(matches!(ready.pop(Duration::ZERO), Popped::Item("step 1")));
/// assert!(matches!(ready.pop(Duration::ZERO), Popped::Ended));
/// ```
#[derive(Debug)]
pub struct Ready<T> {
    state: Mutex<ReadyState<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct ReadyState<T> {
    next: u64,
    items: BTreeMap<u64, T>,
    failed: Option<(u64, Error)>,
    end: Option<u64>,
    waker: Option<Waker>,
}

/// The result of [`Ready::pop`].
#[derive(Debug)]
pub enum Popped<T> {
    /// The next item in order.
    Item(T),
    /// The next step can never come.
    Failed(Error),
    /// There is no next step.
    Ended,
    /// The time-out passed first.
    TimedOut,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        let state = ReadyState { next: 0, items: BTreeMap::new(), failed: None, end: None, waker: None };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }
}

impl<T> Ready<T> {
    /// Adds the item of step `index`.
    pub fn push(&self, index: u64, item: T) {
        self.change(|state| {
            assert!(index >= state.next, "step {index} is delivered already");
            state.items.insert(index, item);
        });
    }

    /// Records that step `index` will not come. The earliest failure counts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use feedstock_ingest::{Error, Popped, Ready};
    ///
    /// let ready = Ready::default();
    /// ready.fail(1, Error::bad_sample("train.tar: 7.jpg is damaged"));
    /// ready.push(0, "step 0");
    /// assert!(matches!(ready.pop(Duration::ZERO), Popped::Item("step 0"))); // steps before it still come
    /// let Popped::Failed(error) = ready.pop(Duration::ZERO) else { panic!("step 1 failed") };
    /// assert_eq!(error.message(), "train.tar: 7.jpg is damaged");
    /// ```
    pub fn fail(&self, index: u64, error: Error) {
        self.change(|state| {
            if state.failed.as_ref().is_none_or(|(first, _)| index < *first) {
                state.failed = Some((index, error));
            }
        });
    }

    /// Records that there are `steps` steps in all.
    pub fn end(&self, steps: u64) {
        self.change(|state| state.end = Some(steps));
    }

    /// Returns the number of items that could be popped or wait for an earlier one.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next item in order; waits up to `timeout`.
    pub fn pop(&self, timeout: Duration) -> Popped<T> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(popped) = state.take() {
                return popped;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Popped::TimedOut;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the next item in order, or registers a wake-up for when it comes.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let mut state = self.lock();
        match state.take() {
            Some(Popped::Item(item)) => Poll::Ready(Some(Ok(item))),
            Some(Popped::Failed(error)) => Poll::Ready(Some(Err(error))),
            Some(Popped::Ended) => Poll::Ready(None),
            Some(Popped::TimedOut) | None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut ReadyState<T>)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.wake.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadyState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // each change is one insert or store
    }
}

impl<T> ReadyState<T> {
    fn take(&mut self) -> Option<Popped<T>> {
        if let Some(item) = self.items.remove(&self.next) {
            self.next += 1;
            return Some(Popped::Item(item));
        }
        if let Some((_, error)) = self.failed.as_ref().filter(|(index, _)| *index <= self.next) {
            return Some(Popped::Failed(error.clone()));
        }
        (self.end == Some(self.next)).then_some(Popped::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn items_come_in_order_then_the_failure() {
        let ready = Ready::default();
        ready.push(1, 'b');
        ready.fail(2, Error::new(ErrorKind::Gone, "no third"));
        ready.fail(5, Error::new(ErrorKind::Gone, "no sixth"));
        assert!(matches!(ready.pop(Duration::ZERO), Popped::TimedOut));
        ready.push(0, 'a');
        assert!(matches!(ready.pop(Duration::ZERO), Popped::Item('a')));
        assert!(matches!(ready.pop(Duration::ZERO), Popped::Item('b')));
        assert!(matches!(ready.pop(Duration::ZERO), Popped::Failed(e) if e.to_string() == "no third"));
    }

    #[test]
    fn a_sleeping_caller_is_woken() {
        let ready = std::sync::Arc::new(Ready::default());
        let pusher = std::thread::spawn({
            let ready = ready.clone();
            move || {
                std::thread::sleep(Duration::from_millis(20));
                ready.push(0, 1);
                ready.end(1);
            }
        });
        assert!(matches!(ready.pop(Duration::from_secs(20)), Popped::Item(1)));
        assert!(matches!(ready.pop(Duration::from_secs(20)), Popped::Ended));
        pusher.join().unwrap();
    }
}
