//! Durations of audio clips: a lognormal distribution limited to 1 … 12 s, as that of sentences read aloud.
//!
//! Audio clip i takes the quantile at frac(offset + i × golden ratio), a sequence that fills the unit interval evenly
//! (H. Weyl 1916). A few hundred audio clips therefore already have the requested mean within a few per cent.

use crate::draw::mix_seed;

/// Shortest and longest audio clip, in milliseconds.
pub(crate) const SHORTEST_MS: f64 = 1000.0;
pub(crate) const LONGEST_MS: f64 = 12_000.0;
/// Standard deviation of the logarithm. It is between that of Common Voice's English (0.35) and that of a corpus of
/// spontaneous speech (0.5 and more).
const SPREAD: f64 = 0.42;
/// The fractional part of the golden ratio.
const GOLDEN: f64 = 0.618_033_988_749_894_9;
/// Number of points of the mean's numeric integral: its error is below 0.1 %.
const POINTS: u32 = 2000;

/// The distribution of durations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Mean of the logarithm of milliseconds, before limiting.
    mean_log: f64,
    offset: f64,
}

impl Lengths {
    /// Returns durations whose mean, after limiting, is `mean_seconds` (1.5 … 9).
    pub(crate) fn new(seed: u64, mean_seconds: f64) -> Self {
        let (mut low, mut high) = (SHORTEST_MS.ln() - 2.0, LONGEST_MS.ln() + 2.0);
        // 60 halvings reach the last bit of a double.
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if mean_ms(middle) < mean_seconds * 1000.0 { low = middle } else { high = middle }
        }
        let offset = (mix_seed(seed, 0x6c65_6e67) >> 11) as f64 / (1_u64 << 53) as f64;
        Self { mean_log: low, offset }
    }

    /// Returns the duration of audio clip `index`, in milliseconds.
    pub(crate) fn ms(&self, index: u64) -> u32 {
        let share = (self.offset + index as f64 * GOLDEN).fract();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1000 and 12000")]
        let ms = clipped_ms(self.mean_log, share).round() as u32;
        ms
    }
}

fn clipped_ms(mean_log: f64, share: f64) -> f64 {
    (mean_log + SPREAD * normal_quantile(share)).exp().clamp(SHORTEST_MS, LONGEST_MS)
}

fn mean_ms(mean_log: f64) -> f64 {
    let share = |point: u32| (f64::from(point) + 0.5) / f64::from(POINTS);
    (0..POINTS).map(|point| clipped_ms(mean_log, share(point))).sum::<f64>() / f64::from(POINTS)
}

/// Returns a quantile of the standard normal distribution: formula 26.2.23 of Abramowitz and Stegun, error < 4.5e-4.
fn normal_quantile(share: f64) -> f64 {
    let tail = share.min(1.0 - share).max(1e-9);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + 0.802_853 * t + 0.010_328 * t * t;
    let below = 1.0 + 1.432_788 * t + 0.189_269 * t * t + 0.001_308 * t * t * t;
    let size = t - above / below;
    if share < 0.5 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_as_asked_and_the_lengths_spread() {
        for mean in [2.0, 5.0, 8.0] {
            for seed in [1, 2] {
                let lengths = Lengths::new(seed, mean);
                let all: Vec<u32> = (0..500).map(|index| lengths.ms(index)).collect();
                let found = all.iter().map(|&ms| f64::from(ms)).sum::<f64>() / 500_000.0;
                assert!((found / mean - 1.0).abs() < 0.02, "mean {found} for {mean}");
                assert!(all.iter().all(|ms| (1000..=12_000).contains(ms)));
            }
        }
        let mut all: Vec<u32> = (0..1000).map(|index| Lengths::new(1, 5.0).ms(index)).collect();
        all.sort_unstable();
        assert!(
            (2400..3300).contains(&all[100]) && (7000..8800).contains(&all[900]),
            "{} {}",
            all[100],
            all[900]
        );
    }

    #[test]
    fn quantiles_are_the_normal_distributions() {
        for (share, quantile) in [(0.5, 0.0), (0.841_344_7, 1.0), (0.022_750_1, -2.0), (0.998_650_1, 3.0)] {
            assert!((normal_quantile(share) - quantile).abs() < 1e-3, "{share}");
        }
    }
}
