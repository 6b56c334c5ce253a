//! Samples that run for unusually long, by name.
//!
//! What a sample may cost is bounded by counts of work, which all ranks and workers agree on (`feedstock_ops`' limits). Time
//! bounds nothing: a loaded machine is slow with every sample. But a sample that runs for [`STUCK_AFTER`] is worth a look, so
//! the run's driver names it in a warning, once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A sample that has run for so long is reported: a hundred times what a large image takes, and more than any file within
/// the default limits needs on an idle core.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often running samples are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The rows of a step that are at work.
#[derive(Default)]
pub(crate) struct AtWork(Mutex<BTreeMap<usize, Begun>>);

struct Begun {
    at: Instant,
    is_reported: bool,
}

impl AtWork {
    /// The row's sample has begun.
    pub(crate) fn begin(&self, row: usize, at: Instant) {
        self.rows().insert(row, Begun { at, is_reported: false });
    }

    /// The row's sample has ended. Returns how long it ran if it was reported.
    pub(crate) fn end(&self, row: usize, now: Instant) -> Option<Duration> {
        let begun = self.rows().remove(&row)?;
        begun.is_reported.then(|| now.duration_since(begun.at))
    }

    /// The rows whose samples have run for [`STUCK_AFTER`] and were not returned before, with their time so far.
    pub(crate) fn stuck(&self, now: Instant) -> Vec<(usize, Duration)> {
        let mut rows = self.rows();
        let stuck = rows.iter_mut().filter_map(|(row, begun)| {
            let ran = now.duration_since(begun.at);
            let is_new = ran >= STUCK_AFTER && !std::mem::replace(&mut begun.is_reported, ran >= STUCK_AFTER);
            is_new.then_some((*row, ran))
        });
        stuck.collect()
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // every change is a single insert or remove
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_reported_once_after_ten_seconds() {
        let (rows, start) = (AtWork::default(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        rows.begin(3, start);
        rows.begin(5, after(2));
        assert_eq!(rows.stuck(after(9)), []);
        assert_eq!(rows.stuck(after(10)), [(3, Duration::from_secs(10))]);
        assert_eq!(rows.stuck(after(11)), []);
        assert_eq!(rows.stuck(after(14)), [(5, Duration::from_secs(12))]);
        assert_eq!(rows.end(3, after(15)), Some(Duration::from_secs(15)));
        // The row's memory may serve another sample.
        rows.begin(3, after(15));
        assert_eq!(rows.stuck(after(20)), []);
        assert_eq!(rows.end(3, after(21)), None);
    }
}
