//! How long a trainer waits for each batch.

use serde_json::{Value, json};
use std::time::Duration;

/// The waits for batches, each in turn.
#[derive(Debug, Default)]
pub(super) struct Waits(Vec<Duration>);

impl Waits {
    pub(super) fn add(&mut self, wait: Duration) {
        self.0.push(wait);
    }

    /// Returns the quantiles; `None` if there was no wait.
    pub(super) fn quantiles(&self) -> Option<Quantiles> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        // The smallest wait that is at least as long as `share` of all.
        let at = |thousandths: usize| sorted[(sorted.len() * thousandths).div_ceil(1000) - 1];
        Some(Quantiles { p50: at(500), p99: at(990), p999: at(999), longest: sorted[last] })
    }
}

/// Quantiles of the waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantiles {
    p50: Duration,
    p99: Duration,
    p999: Duration,
    longest: Duration,
}

impl Quantiles {
    pub(super) fn json(self) -> Value {
        let ms = |wait: Duration| 1000.0 * wait.as_secs_f64();
        json!({"p50": ms(self.p50), "p99": ms(self.p99), "p99_9": ms(self.p999), "max": ms(self.longest)})
    }

    pub(super) fn text(self) -> String {
        let ms = |wait: Duration| format!("{:.1} ms", 1000.0 * wait.as_secs_f64());
        let (p50, p99, p999, longest) = (ms(self.p50), ms(self.p99), ms(self.p999), ms(self.longest));
        format!("median {p50}, p99 {p99}, p99.9 {p999}, longest {longest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(waits: impl IntoIterator<Item = u64>) -> Option<Quantiles> {
        Waits(waits.into_iter().map(Duration::from_millis).collect()).quantiles()
    }

    #[test]
    fn a_run_of_one_batch_has_no_waits() {
        assert_eq!(of([]), None);
    }

    #[test]
    fn quantiles_are_waits_that_happened() {
        let ms = Duration::from_millis;
        let (p50, p99, p999, longest) = (ms(500), ms(990), ms(999), ms(1000));
        assert_eq!(of((1..=1000).rev()), Some(Quantiles { p50, p99, p999, longest }));
        let only = ms(7);
        assert_eq!(of([7]), Some(Quantiles { p50: only, p99: only, p999: only, longest: only }));
    }
}
