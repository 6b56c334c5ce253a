//! Which steps of an epoch are sampled.

use crate::size::StepSize;
use std::collections::BTreeSet;

/// Sampled steps: the standard error of a mean over them is an eighth of the steps' own spread.
const MAX_STEPS: u64 = 64;

/// Sampled steps if they are large.
const MIN_STEPS: u64 = 4;

/// Rows of all sampled steps, unless [`MIN_STEPS`] have more: 64 steps of 4,096 rows.
const MAX_ROWS: u64 = 1 << 18;

/// Positions that are sampled of an epoch without end.
pub(super) const ENDLESS_SPAN: u64 = 1 << 32;

/// 2⁶⁴ divided by the golden ratio: multiples of it, as fractions of 2⁶⁴, are spread evenly, and so is every prefix of them.
/// They keep no pace with windows, as equal distances could.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the first positions of the sampled steps, of about `rows` rows each, among `span` positions.
pub(super) fn starts(span: u64, rows: u64, size: StepSize) -> Vec<u64> {
    if span == 0 || rows == 0 {
        return Vec::new();
    }
    let (places, distance) = match size {
        StepSize::Rows(rows) => ((span / rows).max(1), rows),
        StepSize::Total { .. } => (span.saturating_sub(2 * rows) + 1, 1), // the step and the next one
    };
    let count = (MAX_ROWS / rows).clamp(MIN_STEPS, MAX_STEPS);
    if places <= count {
        return (0..places).map(|place| place * distance).collect();
    }
    let mut seen = BTreeSet::new();
    (1..=count)
        .map(|n| scaled(n.wrapping_mul(GOLDEN), places))
        .filter(|place| seen.insert(*place))
        .map(|place| place * distance)
        .collect()
}

/// Returns `fraction` of 2⁶⁴, times `places`.
fn scaled(fraction: u64, places: u64) -> u64 {
    ((u128::from(fraction) * u128::from(places)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn starts_are_whole_steps_and_each_is_sampled_once(span in 1u64..1 << 40, rows in 1u64..1 << 20) {
            let starts = starts(span, rows.min(span), StepSize::Rows(rows));
            prop_assert!(!starts.is_empty() && starts.len() <= 64);
            prop_assert!(starts.iter().all(|start| start % rows == 0 && (start + rows <= span || *start == 0)));
            prop_assert_eq!(starts.iter().collect::<BTreeSet<_>>().len(), starts.len());
        }

        #[test]
        fn every_prefix_is_spread(steps in 1_000u64..1 << 40, prefix in 4usize..64) {
            let starts = starts(steps * 16, 16, StepSize::Rows(16));
            let mut places: Vec<u64> = starts[..prefix].iter().map(|start| start / 16).collect();
            places.extend([0, steps]);
            places.sort_unstable();
            let widest = places.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            // Three-distance theorem: no gap exceeds φ² of the mean one.
            prop_assert!(widest as f64 <= 2.62 * steps as f64 / prefix as f64 + 2.0, "{widest} of {steps}");
        }
    }

    #[test]
    fn an_epoch_of_few_steps_is_sampled_whole() {
        assert_eq!(starts(1_050, 100, StepSize::Rows(100)), (0..10).map(|n| n * 100).collect::<Vec<_>>());
        assert_eq!(starts(70, 70, StepSize::Rows(100)), [0]); // fewer samples than a step
        assert!(starts(0, 0, StepSize::Rows(100)).is_empty());
        assert_eq!(starts(1 << 30, 1 << 17, StepSize::Rows(1 << 17)).len(), 4);
        let total = StepSize::Total { total: 8.0, max_rows: 64, ranks: 1 };
        assert!(starts(10_000, 8, total).iter().all(|start| *start <= 9_984));
    }
}
