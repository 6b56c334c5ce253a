//! Unusual samples that are nevertheless delivered.

use feedstock_dataset::SampleId;
use feedstock_ops::{Warning, Warnings};
use std::collections::{BTreeMap, HashSet};

/// The samples that a report lists. Further ones are only counted (8,192 × 24 bytes = 192 KiB).
const LISTED: usize = 8192;

/// A sample that was delivered, and what is unusual about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warned {
    /// The sample.
    pub sample: SampleId,
    /// The epoch.
    pub epoch: u64,
    /// The decoders' warnings.
    pub warnings: Warnings,
}

/// The decoders' warnings about the samples that a rank has delivered so far. Padding and skipped samples do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarningReport {
    /// The number of samples by kind of warning. Kinds that did not occur are absent. A sample counts in each of its epochs.
    pub counts: BTreeMap<Warning, u64>,
    /// The first 8,192 of the samples, in delivery order.
    pub samples: Vec<Warned>,
}

impl WarningReport {
    pub(crate) fn add(&mut self, warned: Vec<Warned>) {
        for warning in warned.iter().flat_map(|one| one.warnings.iter()) {
            *self.counts.entry(warning).or_default() += 1;
        }
        let room = LISTED - self.samples.len();
        self.samples.extend(warned.into_iter().take(room));
    }

    /// Adds the samples that a later run of the same loader delivered. Samples in both count once.
    pub(crate) fn merge(&mut self, later: Self) {
        let known: HashSet<(u64, SampleId)> = self.samples.iter().map(|s| (s.epoch, s.sample)).collect();
        let (again, new): (Vec<_>, Vec<_>) =
            later.samples.into_iter().partition(|one| known.contains(&(one.epoch, one.sample)));
        let mut counts = later.counts;
        for warning in again.iter().chain(&new).flat_map(|one| one.warnings.iter()) {
            if let Some(unlisted) = counts.get_mut(&warning) {
                *unlisted -= 1;
            }
        }
        self.add(new);
        for (warning, unlisted) in counts.into_iter().filter(|(_, unlisted)| *unlisted > 0) {
            *self.counts.entry(warning).or_default() += unlisted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(samples: std::ops::Range<u64>) -> Vec<Warned> {
        let warnings = [Warning::EndUnknown].into_iter().collect();
        samples.map(|sample| Warned { sample: SampleId(sample), epoch: 0, warnings }).collect()
    }

    fn report(samples: std::ops::Range<u64>) -> WarningReport {
        let mut report = WarningReport::default();
        report.add(warned(samples));
        report
    }

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let report = report(0..LISTED as u64 + 5);
        assert_eq!(report.counts[&Warning::EndUnknown], LISTED as u64 + 5);
        assert_eq!(report.samples, warned(0..LISTED as u64));
    }

    #[test]
    fn samples_that_come_again_count_once() {
        let mut first = report(0..10);
        first.merge(report(8..13));
        assert_eq!(first, report(0..13));
        let long = LISTED as u64 + 5;
        first.merge(report(13..13 + long));
        assert_eq!(first.counts[&Warning::EndUnknown], 13 + long, "those that a full list cannot name, too");
    }
}
