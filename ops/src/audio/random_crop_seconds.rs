//! `random_crop_seconds`: a random stretch of a longer clip.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::parameters::samples;
use crate::chain::Op;
use crate::seed::Generator;

/// Cuts a stretch of `seconds` out of a uniformly drawn place; shorter clips stay as they are.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomCropSeconds {
    /// The longest result, rounded to samples at the rate that the clip has there.
    pub seconds: f64,
}

impl RandomCropSeconds {
    /// At most `seconds`.
    pub fn new(seconds: f64) -> Self {
        Self { seconds }
    }

    /// What remains of a clip of `length` samples.
    pub(crate) fn keep(&self, length: usize, sample_rate: u32, generator: &mut Generator) -> Range<usize> {
        let kept = samples(self.seconds, sample_rate).min(length);
        let places = u32::try_from(length - kept + 1).unwrap_or(u32::MAX);
        let start = generator.below(places) as usize;
        start..start + kept
    }
}

impl From<RandomCropSeconds> for Op {
    fn from(op: RandomCropSeconds) -> Self {
        Self::RandomCropSeconds(op)
    }
}

/// [`RandomCropSeconds`] of at most `seconds`.
pub fn random_crop_seconds(seconds: f64) -> Op {
    RandomCropSeconds::new(seconds).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn every_place_is_drawn_and_short_clips_stay() {
        let op = RandomCropSeconds::new(0.5);
        let mut starts = [0; 4];
        for sample in 0..400 {
            let kept = op.keep(11, 16, &mut SampleSeed::new(1, 0, sample).op(2));
            assert_eq!(kept.len(), 8);
            starts[kept.start] += 1;
        }
        // 100 expected each, σ ≈ 8.7: five σ.
        assert!(starts.iter().all(|&n: &u32| n.abs_diff(100) < 44), "{starts:?}");
        assert_eq!(op.keep(5, 16, &mut SampleSeed::new(1, 0, 0).op(2)), 0..5);
    }
}
