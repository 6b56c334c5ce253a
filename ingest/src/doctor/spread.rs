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

/// Counts of values, in steps of 1 / `steps`.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    steps: f64,
    counts: BTreeMap<u64, u64>,
}

impl Tally {
    pub(super) fn new(steps: f64) -> Self {
        Self { steps, counts: BTreeMap::new() }
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
        let value = |value: &u64| *value as f64 / self.steps;
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
        let mut tally = Tally::new(100.0);
        assert_eq!(tally.spread(), None);
        (1..=300).for_each(|value| tally.add(value));
        let found = tally.spread().unwrap();
        // The nearest numbers: 201 × 0.01 would be 2.0100000000000002.
        assert_eq!((found.min, found.median, found.p99, found.max), (0.01, 1.5, 2.97, 3.0));
        (301..=402).for_each(|value| tally.add(value));
        assert_eq!(tally.spread().unwrap().median, 2.01);
    }
}
