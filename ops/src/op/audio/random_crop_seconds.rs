//! `random_crop_seconds`: a random stretch of a longer audio clip.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::{check_seconds, samples};
use crate::audio::step::WaveOp;
use crate::audio::wave_memory::WaveMemory;
use crate::seed::Generator;
use feedstock_base::Result;

/// Cuts a stretch of `seconds` at a uniformly drawn place; shorter audio clips stay unchanged.
///
/// ```
/// use feedstock_ops::Chain;
///
/// let chain = Chain::parse("decode_audio,resample:16000,pad_seconds:2,random_crop_seconds:1")?;
/// assert_eq!(chain.output().shape, [16_000]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomCropSeconds {
    /// The longest result, rounded to samples at the audio clip's rate at this point of the chain.
    pub seconds: f64,
}

impl RandomCropSeconds {
    /// Crops to at most `seconds`.
    pub fn new(seconds: f64) -> Self {
        Self { seconds }
    }

    /// What remains of an audio clip of `length` samples.
    pub(crate) fn keep(&self, length: usize, sample_rate: u32, generator: &mut Generator) -> Range<usize> {
        let kept = samples(self.seconds, sample_rate).min(length);
        let places = u32::try_from(length - kept + 1).unwrap_or(u32::MAX);
        let start = generator.below(places) as usize;
        start..start + kept
    }
}

impl AudioOp for RandomCropSeconds {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        check_seconds(self.seconds)?;
        let samples = compiler.samples(self.seconds)?;
        compiler.crop_or_pad(samples, true, false);
        compiler.wave(self.clone())
    }
}

impl WaveOp for RandomCropSeconds {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        let kept = self.keep(clip.len(), clip.sample_rate(), generator);
        clip.narrow(kept);
        Ok(())
    }

    fn count(&self, memory: &mut WaveMemory) {
        memory.cropped(samples(self.seconds, memory.sample_rate()) as u64);
    }
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
