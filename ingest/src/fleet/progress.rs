//! How fast a stream's bytes come: counted where they are read, measured at every tick of the run.

use crate::wire::{Capacity, garbage};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A rate is measured over the last half second in which the stream owed rows: ten ticks of the run.
const WINDOW: Duration = Duration::from_millis(500);

/// What a stream's task counts. The run reads it at every tick.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes: AtomicU64,
    /// The number of bytes at which the frame under way is whole; 0 between frames.
    whole_at: AtomicU64,
    waits: AtomicBool,
    capacity: Mutex<Published>,
}

/// What a worker has published on its stream.
#[derive(Debug, Default)]
struct Published {
    /// The last capacity, until the run takes it.
    news: Option<Capacity>,
    generation: u64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes received since the stream was opened.
    pub(crate) bytes: u64,
    /// Bytes that the frame under way still lacks; `None` between frames.
    pub(crate) lacks: Option<u64>,
    /// The stream's rows are here, but another stream is writing the same ones.
    pub(crate) waits: bool,
}

impl Counters {
    /// Counts bytes that were received.
    pub(super) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets what the frame under way lacks: `bytes`, of which `here` are received already.
    pub(super) fn expect(&self, bytes: u64, here: usize) {
        let whole_at = self.bytes.load(Ordering::Relaxed).saturating_sub(here as u64).saturating_add(bytes);
        self.whole_at.store(whole_at, Ordering::Relaxed);
    }

    /// The frame is whole.
    pub(super) fn whole(&self) {
        self.whole_at.store(0, Ordering::Relaxed);
    }

    /// Another stream writes the rows, or does no more.
    pub(super) fn wait(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Keeps a capacity that the worker published, until the run looks. Only the last one counts.
    ///
    /// # Errors
    /// For a generation that is not higher than the one before.
    pub(super) fn publish(&self, capacity: Capacity) -> io::Result<()> {
        let mut published = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        if capacity.generation <= published.generation {
            let (next, last) = (capacity.generation, published.generation);
            return Err(garbage(format!("a capacity of generation {next} after one of {last}")));
        }
        *published = Published { news: Some(capacity), generation: capacity.generation };
        Ok(())
    }

    /// Takes the capacity that was published last, if it was not taken yet.
    pub(super) fn take_capacity(&self) -> Option<Capacity> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner).news.take()
    }

    pub(super) fn progress(&self) -> Progress {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let whole_at = self.whole_at.load(Ordering::Relaxed);
        let lacks = (whole_at > 0).then(|| whole_at.saturating_sub(bytes));
        Progress { bytes, lacks, waits: self.waits.load(Ordering::Relaxed) }
    }
}

/// Measures one stream. Time in which it owes nothing does not count, so a stream that has brought all its rows keeps the
/// rate at which it brought them.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// When it was looked at last, and the bytes then.
    last: Option<(Duration, u64)>,
    /// Spans of time in which rows were owed, with the bytes that came in each.
    spans: VecDeque<(Duration, u64)>,
}

impl Meter {
    /// Takes the number of bytes received by `now`; `owes` states whether rows are owed.
    pub(super) fn look(&mut self, now: Duration, bytes: u64, owes: bool) {
        let Some((at, before)) = self.last.replace((now, bytes)) else { return };
        let (time, came) = (now.saturating_sub(at), bytes.saturating_sub(before));
        if time.is_zero() || !owes && came == 0 {
            return;
        }
        self.spans.push_back((time, came));
        while self.spans.front().is_some_and(|(first, _)| self.time() >= WINDOW + *first) {
            self.spans.pop_front();
        }
    }

    /// Bytes a second; `None` where nothing was owed yet.
    pub(super) fn rate(&self) -> Option<f64> {
        let time = self.time();
        let bytes: u64 = self.spans.iter().map(|(_, bytes)| bytes).sum();
        (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64())
    }

    fn time(&self) -> Duration {
        self.spans.iter().map(|(time, _)| *time).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_rate_is_that_of_the_last_half_second_in_which_rows_were_owed() {
        let mut meter = Meter::default();
        meter.look(at(0), 0, true);
        assert_eq!(meter.rate(), None);
        (1..=10).for_each(|tick| meter.look(at(tick * 50), tick * 100, true));
        assert_eq!(meter.rate(), Some(2000.0));
        (11..=200).for_each(|tick| meter.look(at(tick * 50), 1000, false));
        assert_eq!(meter.rate(), Some(2000.0), "an idle stream is not a slow one");
        (201..=205).for_each(|tick| meter.look(at(tick * 50), 1000, true));
        assert_eq!(meter.rate(), Some(1000.0), "the older half of the window is left");
        (206..=210).for_each(|tick| meter.look(at(tick * 50), 1000, true));
        assert_eq!(meter.rate(), Some(0.0));
    }

    #[test]
    fn only_the_last_capacity_is_kept_and_generations_rise() {
        let counters = Counters::default();
        let capacity = |units, generation| Capacity { units, generation };
        assert_eq!(counters.take_capacity(), None);
        for generation in 1..=1000 {
            counters.publish(capacity(8, generation)).unwrap();
        }
        assert_eq!(counters.take_capacity(), Some(capacity(8, 1000)));
        assert_eq!(counters.take_capacity(), None);
        for generation in [0, 999, 1000] {
            let error = counters.publish(capacity(4, generation)).unwrap_err();
            assert_eq!(error.to_string(), format!("a capacity of generation {generation} after one of 1000"));
        }
    }

    #[test]
    fn what_a_frame_lacks_counts_from_what_was_read_of_it() {
        let counters = Counters::default();
        counters.received(100);
        assert_eq!(counters.progress(), Progress { bytes: 100, lacks: None, waits: false });
        counters.expect(300, 40);
        assert_eq!(counters.progress().lacks, Some(260));
        counters.received(1000); // the next frame's bytes are among them
        counters.wait(true);
        assert_eq!(counters.progress(), Progress { bytes: 1100, lacks: Some(0), waits: true });
        counters.whole();
        assert_eq!(counters.progress().lacks, None);
    }
}
