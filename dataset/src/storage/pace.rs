//! The minimum rate of one attempt: a connection that trickles is replaced by another one.
//!
//! A pure state machine: times are arguments. Bytes are counted in windows; an attempt that brings less than
//! [`LEAST_BYTES_PER_S`] over a whole window is slow. The window is 10 s with the default options. It is at most half of
//! `stall_timeout` and a sixth of `deadline`, so that even a short deadline leaves time for several attempts.

use super::progress::LEAST_BYTES_PER_S;
use std::time::Duration;
use tokio::time::Instant;

/// The longest window: after a lost packet, TCP pauses for about a second.
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// The shortest window: shorter ones would cut attempts when this machine is busy.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// A window that is checked this part of it after its end is not judged: 2.5 s of 10 s, 250 ms of 1 s. The wait for bytes ends
/// with the window, so this process was stopped meanwhile (a debugger, a frozen container).
const LATE_PART: u32 = 4;

/// Time limits of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Time until the head of an answer.
    pub(crate) stall: Duration,
    /// The window in which a body must bring its minimum.
    pub(crate) window: Duration,
}

impl Limits {
    /// Returns the limits for these options of a storage.
    pub(crate) fn new(deadline: Duration, stall: Duration) -> Self {
        let stall = stall.min(deadline / 3);
        let window = WINDOW_MAX.min(stall / 2).min(deadline / 6);
        Self { stall, window: window.max(WINDOW_MIN).min(stall) }
    }
}

/// The bytes that arrived in the current window.
#[derive(Debug)]
pub(crate) struct Pace {
    window: Duration,
    began: Instant,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(window: Duration, now: Instant) -> Self {
        Self { window, began: now, bytes: 0 }
    }

    /// Counts `bytes` more.
    pub(crate) fn on_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns the time left in the window, or, as an error, the bytes of one that brought too little.
    pub(crate) fn check(&mut self, now: Instant) -> Result<Duration, u64> {
        let left = (self.began + self.window).saturating_duration_since(now);
        if !left.is_zero() {
            return Ok(left);
        }
        let took = now.saturating_duration_since(self.began);
        if took > self.window + self.window / LATE_PART {
            *self = Self::new(self.window, now); // this process was stopped, not the connection
            return Ok(self.window);
        }
        let took = took.as_millis();
        if u128::from(self.bytes) * 1_000 < u128::from(LEAST_BYTES_PER_S) * took {
            return Err(self.bytes);
        }
        *self = Self::new(self.window, now);
        Ok(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn short_deadlines_leave_time_for_several_attempts() {
        let limits = |deadline: u32, stall: u32| Limits::new(S * deadline, S * stall);
        assert_eq!(limits(120, 20), Limits { stall: S * 20, window: S * 10 });
        assert_eq!(limits(6, 20), Limits { stall: S * 2, window: S });
        assert_eq!(limits(120, 1), Limits { stall: S, window: S });
        let millis = Duration::from_millis(300);
        assert_eq!(Limits::new(millis, S * 20), Limits { stall: millis / 3, window: millis / 3 });
    }

    #[test]
    fn a_window_below_the_least_rate_is_slow_and_one_above_begins_the_next() {
        let began = Instant::now();
        let mut pace = Pace::new(S * 10, began);
        pace.on_bytes(LEAST_BYTES_PER_S * 10);
        assert_eq!(pace.check(began + S * 4), Ok(S * 6));
        assert_eq!(pace.check(began + S * 10), Ok(S * 10));
        pace.on_bytes(LEAST_BYTES_PER_S * 10 - 1);
        assert_eq!(pace.check(began + S * 19), Ok(S));
        assert_eq!(pace.check(began + S * 20), Err(LEAST_BYTES_PER_S * 10 - 1));
        assert_eq!(Pace::new(S, began).check(began + S), Err(0));
    }

    #[test]
    fn a_process_that_stood_still_cuts_nothing() {
        let began = Instant::now();
        let mut pace = Pace::new(S * 10, began);
        pace.on_bytes(100);
        assert_eq!(pace.check(began + S * 60), Ok(S * 10));
        assert_eq!(pace.check(began + S * 70), Err(0), "the next window counts");
    }
}
