//! How a number is spread over the samples.

use serde::Serialize;
use std::collections::BTreeMap;

/// Minimum, median, 99th percentile and maximum of a number, and how many samples have one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Number of samples.
    pub samples: u64,
    /// The smallest value.
    pub min: f64,
    /// The value that half of the samples do not exceed.
    pub median: f64,
    /// The value that 99 % of the samples do not exceed.
    pub p99: f64,
    /// The largest value.
    pub max: f64,
}

/// Counts of values, in steps of `unit`.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    unit: f64,
    counts: BTreeMap<u64, u64>,
}

impl Tally {
    pub(super) fn new(unit: f64) -> Self {
        Self { unit, counts: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, value: u64) {
        *self.counts.entry(value).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (value, count) in other.counts {
            *self.counts.entry(value).or_default() += count;
        }
    }

    /// Returns the spread; `None` where nothing was counted.
    pub(super) fn spread(&self) -> Option<Spread> {
        let samples: u64 = self.counts.values().sum();
        let value = |value: &u64| *value as f64 * self.unit;
        let at = |share: f64| {
            let mut left = (samples as f64 * share).ceil();
            let found = self.counts.iter().find(|(_, count)| {
                left -= **count as f64;
                left <= 0.0
            });
            found.map_or(0.0, |(found, _)| value(found))
        };
        let (first, last) = self.counts.keys().next().zip(self.counts.keys().next_back())?;
        Some(Spread { samples, min: value(first), median: at(0.5), p99: at(0.99), max: value(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_nearest_ranks() {
        let mut tally = Tally::new(0.1);
        assert_eq!(tally.spread(), None);
        (1..=100).for_each(|value| tally.add(value));
        let found = tally.spread().unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(found.min, 0.1);
        close(found.median, 5.0);
        close(found.p99, 9.9);
        close(found.max, 10.0);
    }
}
