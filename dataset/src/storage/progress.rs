//! How long one operation may go on: a deadline without progress, and a bound on the whole.
//!
//! An operation that reports nothing ends after the deadline. Bytes that arrive and files that are found restart the deadline.
//! Each second's worth of them at the minimum rate ([`LEAST_BYTES_PER_S`], [`LEAST_FILES_PER_S`]) also extends the whole by a
//! second. An attempt that repeats an earlier one's work earns no more time, and no less. So a large read on a slow line
//! succeeds, but a store that trickles cannot hold a trainer for ever: 32 MiB end after at most 120 s + 512 s with the default
//! deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The minimum rate of a transfer. Slower attempts are cut, see [`Pace`](super::pace::Pace).
pub(crate) const LEAST_BYTES_PER_S: u64 = 64 << 10;
/// The minimum rate of a walk through folders: network file systems answer 1,000 `stat` calls a second to one thread.
pub(crate) const LEAST_FILES_PER_S: u64 = 100;

/// The unit in which progress is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Nothing is counted: the operation succeeds as a whole or not at all.
    Whole,
    Bytes {
        of: u64,
    },
    Files,
}

/// What one operation has done so far, over all of its attempts. Shared with the threads that do it.
#[derive(Debug)]
pub(crate) struct Progress {
    unit: Unit,
    extra: Duration,
    origin: Instant,
    done: AtomicU64,
    /// The maximum that was done at any time: losing it costs none of the time that it earned.
    best: AtomicU64,
    /// Nanoseconds from `origin` to the last progress; 0 if there was none.
    last: AtomicU64,
}

impl Progress {
    fn new(unit: Unit, extra: Duration) -> Self {
        Self {
            unit,
            extra,
            origin: Instant::now(),
            done: AtomicU64::new(0),
            best: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// For an operation that succeeds as a whole or not at all.
    pub(crate) fn whole() -> Self {
        Self::new(Unit::Whole, Duration::ZERO)
    }

    /// For a request that sends `bytes`. Its progress is not visible, so the deadline is longer by their time at the minimum
    /// rate.
    pub(crate) fn upload(bytes: usize) -> Self {
        Self::new(Unit::Whole, Duration::from_secs(bytes as u64 / LEAST_BYTES_PER_S))
    }

    /// For a request whose one answer may take `patience`: the deadline is longer by that.
    pub(crate) fn patient(patience: Duration) -> Self {
        Self::new(Unit::Whole, patience)
    }

    /// For a read of `of` bytes.
    pub(crate) fn bytes(of: u64) -> Self {
        Self::new(Unit::Bytes { of }, Duration::ZERO)
    }

    /// For a walk that finds files.
    pub(crate) fn files() -> Self {
        Self::new(Unit::Files, Duration::ZERO)
    }

    /// Counts `n` more.
    pub(crate) fn add(&self, n: u64) {
        let nanos = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let done = self.done.fetch_add(n, Ordering::Relaxed).saturating_add(n);
        self.best.fetch_max(done, Ordering::Relaxed);
        self.last.fetch_max(nanos.max(1), Ordering::Relaxed);
    }

    /// Resets the count, because the work was thrown away. The time that it earned stays: the next attempt, which does the same
    /// work, needs it.
    pub(crate) fn lose(&self) {
        self.done.store(0, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the maximum that was done in any attempt.
    pub(crate) fn best(&self) -> u64 {
        self.best.load(Ordering::Relaxed)
    }

    /// Returns when something was done last.
    pub(crate) fn last(&self) -> Option<Instant> {
        let nanos = self.last.load(Ordering::Relaxed);
        (nanos > 0).then(|| self.origin + Duration::from_nanos(nanos))
    }

    /// Returns the operation's deadline, given that of the storage.
    pub(crate) fn deadline(&self, deadline: Duration) -> Duration {
        deadline.saturating_add(self.extra)
    }

    /// Returns the time that the maximum that was done takes at the minimum rate.
    pub(crate) fn earned(&self) -> Duration {
        let per_s = match self.unit {
            Unit::Whole => return Duration::ZERO,
            Unit::Bytes { .. } => LEAST_BYTES_PER_S,
            Unit::Files => LEAST_FILES_PER_S,
        };
        Duration::from_millis(self.best().saturating_mul(1_000) / per_s)
    }

    /// Returns what an error states about it.
    pub(crate) fn describe(&self) -> Option<String> {
        let (done, best) = (self.done(), self.best());
        match self.unit {
            Unit::Whole => None,
            Unit::Bytes { of } if done < best => Some(format!(
                "{done} of {of} bytes had arrived, {best} in an attempt whose bytes were not kept"
            )),
            Unit::Bytes { of } => Some(format!("{done} of {of} bytes had arrived")),
            Unit::Files => Some(format!("{done} names of files had been read")),
        }
    }
}

/// The time that an operation took so far, without waits for permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) elapsed: Duration,
    /// The time in it since the last progress.
    idle: Duration,
}

impl Spent {
    /// Adds an attempt that began at `began` and runs until `now`, with the last progress at `last`.
    pub(crate) fn with_attempt(self, began: Instant, now: Instant, last: Option<Instant>) -> Self {
        let ran = now.saturating_duration_since(began);
        let idle = match last.filter(|last| *last >= began) {
            Some(last) => now.saturating_duration_since(last),
            None => self.idle.saturating_add(ran),
        };
        Self { elapsed: self.elapsed.saturating_add(ran), idle }
    }

    /// Adds a wait between attempts.
    pub(crate) fn with_wait(self, wait: Duration) -> Self {
        Self { elapsed: self.elapsed.saturating_add(wait), idle: self.idle.saturating_add(wait) }
    }

    /// Returns how long the operation may still go on.
    pub(crate) fn left(self, deadline: Duration, earned: Duration) -> Duration {
        let without_progress = deadline.saturating_sub(self.idle);
        without_progress.min(deadline.saturating_add(earned).saturating_sub(self.elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn progress_begins_the_deadline_anew_and_extends_the_whole_by_what_it_is_worth() {
        let began = Instant::now();
        let spent = |ran: u32, last: Option<u32>| {
            Spent::default().with_attempt(began, began + S * ran, last.map(|last| began + S * last))
        };
        assert_eq!(spent(4, None).left(S * 10, Duration::ZERO), S * 6);
        assert_eq!(spent(12, None).left(S * 10, Duration::ZERO), Duration::ZERO);
        assert_eq!(spent(12, Some(11)).left(S * 10, S * 30), S * 9, "the deadline restarts");
        assert_eq!(spent(12, Some(11)).left(S * 10, S * 5), S * 3, "the whole is bounded");
        let next = spent(4, Some(1)).with_wait(S).with_attempt(began + S * 9, began + S * 11, None);
        assert_eq!(next, Spent { elapsed: S * 7, idle: S * 6 });
    }

    #[test]
    fn what_was_done_is_worth_its_time_at_the_least_rate() {
        let read = Progress::bytes(10 << 20);
        assert_eq!((read.earned(), read.last()), (Duration::ZERO, None));
        read.add(LEAST_BYTES_PER_S * 3);
        assert_eq!(read.earned(), S * 3);
        assert!(read.last().is_some());
        assert_eq!(read.describe().unwrap(), "196608 of 10485760 bytes had arrived");
        read.lose();
        let text = "0 of 10485760 bytes had arrived, 196608 in an attempt whose bytes were not kept";
        assert_eq!(read.describe().unwrap(), text);
        assert_eq!(
            (read.done(), read.earned()),
            (0, S * 3),
            "the next attempt has the time that the best one had"
        );
        read.add(LEAST_BYTES_PER_S);
        assert_eq!(read.earned(), S * 3, "repeated work earns nothing");
        assert_eq!(Progress::patient(S * 200).deadline(S * 120), S * 320);
        let walk = Progress::files();
        walk.add(250);
        assert_eq!(walk.earned(), Duration::from_millis(2_500));
        assert_eq!(Progress::upload(8 << 20).deadline(S * 120), S * 248);
    }
}
