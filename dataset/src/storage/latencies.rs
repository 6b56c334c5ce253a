//! Learns from a store's own latencies when an answer is late.
//!
//! A pure state machine: times are arguments. Latencies until the first byte are counted in buckets whose bounds grow by 19 %,
//! separately for each size class of ranges: stores behind proxies read the whole range before they answer. HEAD requests and
//! pages of listings have separate classes; their latencies last until the whole answer. Counts are halved from time to time,
//! so that old latencies are forgotten.

use std::time::Duration;

/// Classes of sizes, each four times the one before it. The last one holds 16 MiB and more.
const SIZES: usize = 13;
const HEAD: usize = SIZES;
const PAGE: usize = SIZES + 1;
const CLASSES: usize = SIZES + 2;
/// Buckets of latencies: 64 of them reach from 1 ms to 65 s.
const BUCKETS: usize = 64;
const BUCKETS_PER_DOUBLING: f64 = 4.0;
const SHORTEST: Duration = Duration::from_millis(1);
/// The share of answers that are not late.
const QUANTILE: f64 = 0.99;
/// Observations of a class before its quantile counts: at fewer, the 99th percentile is the maximum.
const LEAST_SEEN: u32 = 100;
/// Observations after which counts are halved.
const HALVED_AT: u32 = 4096;
/// The patience for a class that is not known.
const UNKNOWN: Duration = Duration::from_secs(1);
/// The least patience: this machine may be busy for as long.
const LEAST: Duration = Duration::from_millis(50);

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A range of this many bytes.
    Range(u64),
    /// Size and version of an object.
    Head,
    /// A page of a listing. A store takes longer for it than for a range.
    Page,
}

impl Kind {
    fn class(self) -> usize {
        match self {
            Self::Range(bytes) => (bytes.max(1).ilog2() as usize / 2).min(SIZES - 1),
            Self::Head => HEAD,
            Self::Page => PAGE,
        }
    }
}

/// Latencies of one store.
#[derive(Debug)]
pub(crate) struct Latencies([Class; CLASSES]);

#[derive(Debug, Clone, Copy)]
struct Class {
    counts: [u32; BUCKETS],
    seen: u32,
}

impl Default for Latencies {
    fn default() -> Self {
        Self([Class { counts: [0; BUCKETS], seen: 0 }; CLASSES])
    }
}

impl Latencies {
    /// Records the latency of an answer, or of one that took at least as long.
    pub(crate) fn record(&mut self, kind: Kind, latency: Duration) {
        let class = &mut self.0[kind.class()];
        class.counts[bucket(latency)] += 1;
        class.seen += 1;
        if class.seen >= HALVED_AT {
            class.counts.iter_mut().for_each(|count| *count /= 2);
            class.seen = class.counts.iter().sum();
        }
    }

    /// Returns the time after which an answer is late.
    pub(crate) fn patience(&self, kind: Kind) -> Duration {
        let class = &self.0[kind.class()];
        if class.seen < LEAST_SEEN {
            return UNKNOWN;
        }
        let mut left = f64::from(class.seen) * QUANTILE;
        let within = class.counts.iter().position(|count| {
            left -= f64::from(*count);
            left <= 0.0
        });
        bound(within.unwrap_or(BUCKETS - 1)).max(LEAST)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number that is not negative"
)]
fn bucket(latency: Duration) -> usize {
    let ratio = latency.as_secs_f64() / SHORTEST.as_secs_f64();
    let bucket = (ratio.max(1.0).log2() * BUCKETS_PER_DOUBLING).ceil();
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the longest latency of a bucket.
fn bound(bucket: usize) -> Duration {
    SHORTEST.mul_f64(2f64.powf(bucket as f64 / BUCKETS_PER_DOUBLING))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_class_that_is_not_known_waits_for_a_second() {
        let mut latencies = Latencies::default();
        (0..LEAST_SEEN - 1).for_each(|_| latencies.record(Kind::Range(100_000), LEAST));
        assert_eq!(latencies.patience(Kind::Range(100_000)), UNKNOWN);
        latencies.record(Kind::Range(100_000), LEAST);
        assert!(latencies.patience(Kind::Range(100_000)) < UNKNOWN);
        for other in [Kind::Range(64 << 20), Kind::Head, Kind::Page] {
            assert_eq!(latencies.patience(other), UNKNOWN, "{other:?}");
        }
    }

    #[test]
    fn slow_answers_of_long_ago_are_forgotten() {
        let (mut latencies, second) = (Latencies::default(), Duration::from_secs(1));
        (0..200).for_each(|_| latencies.record(Kind::Range(1 << 20), 3 * second));
        assert!(latencies.patience(Kind::Range(1 << 20)) >= 3 * second);
        (0..8 * HALVED_AT).for_each(|_| latencies.record(Kind::Range(1 << 20), second / 100));
        assert_eq!(latencies.patience(Kind::Range(1 << 20)), LEAST);
    }

    proptest! {
        #[test]
        fn patience_is_the_percentile_within_a_fifth(
            millis in prop::collection::vec(60.0f64..20_000.0, LEAST_SEEN as usize..2_000),
            bytes in 0u64..1 << 30,
        ) {
            let mut latencies = Latencies::default();
            millis.iter().for_each(|millis| latencies.record(Kind::Range(bytes), Duration::from_secs_f64(millis / 1e3)));
            let mut sorted = millis.clone();
            sorted.sort_by(f64::total_cmp);
            let rank = (sorted.len() as f64 * QUANTILE).ceil() as usize;
            let exact = sorted[rank - 1] / 1e3;
            let patience = latencies.patience(Kind::Range(bytes)).as_secs_f64();
            prop_assert!(exact <= patience * 1.0001 && patience <= exact * 1.2, "{exact} {patience}");
        }
    }
}
