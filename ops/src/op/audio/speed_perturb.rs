//! `speed_perturb`: an audio clip played faster or slower (Ko et al., Interspeech 2015).

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters;
use crate::audio::step::WaveOp;
use crate::audio::wave_memory::WaveMemory;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Slowest and fastest speed.
const SPEEDS: [f64; 2] = [0.5, 2.0];

/// Steps of a speed: thousandths, so that the resampling ratio is one of small numbers.
const STEPS: u32 = 1000;

/// Limit on the speeds of one op; each needs a filter in every thread.
const MAX_FACTORS: usize = 32;

/// Plays the audio clip at a speed drawn from `factors`, all equally likely, as `torchaudio.transforms.SpeedPerturbation`
/// does. Tempo and pitch change together, and the sample rate stays the same. n samples become ceil(n / factor).
///
/// ```
/// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
///
/// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
/// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
/// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
/// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
/// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
/// # }
/// let chain = Chain::parse("decode_audio,resample:16000,speed_perturb:0.5/2")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 1_600]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert!([800, 3_200].contains(&row.length())); // twice as fast, or half
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SpeedPerturb {
    /// Speeds of 0.5 … 2 in steps of 0.001; default 0.9, 1.0, 1.1, the paper's.
    #[serde(default = "default_factors", deserialize_with = "parameters::list")]
    pub factors: Vec<f64>,
}

fn default_factors() -> Vec<f64> {
    vec![0.9, 1.0, 1.1]
}

impl Default for SpeedPerturb {
    fn default() -> Self {
        Self::new(default_factors())
    }
}

impl SpeedPerturb {
    /// Draws from these speeds, each 0.5 … 2 in steps of 0.001.
    pub fn new(factors: impl Into<Vec<f64>>) -> Self {
        Self { factors: factors.into() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.factors.is_empty() || self.factors.len() > MAX_FACTORS {
            let given = self.factors.len();
            return Err(Error::config(format!("factors: {given} of them; give 1 … {MAX_FACTORS}")));
        }
        let fits = |factor: f64| {
            let steps = factor * f64::from(STEPS);
            (SPEEDS[0]..=SPEEDS[1]).contains(&factor) && (steps - steps.round()).abs() < 1e-6
        };
        match self.factors.iter().find(|&&factor| !fits(factor)) {
            None => Ok(()),
            Some(factor) => Err(Error::config(format!(
                "a factor must be within {} … {} and a multiple of 0.001; got {factor}",
                SPEEDS[0], SPEEDS[1]
            ))),
        }
    }

    /// The rates to resample between, (from, to): their ratio is the speed. Equal where nothing changes.
    pub(crate) fn draw(&self, generator: &mut Generator) -> (u32, u32) {
        let count = u32::try_from(self.factors.len()).unwrap_or(u32::MAX);
        let factor = self.factors.get(generator.below(count) as usize).copied().unwrap_or(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: 500 … 2000")]
        let from = (factor * f64::from(STEPS)).round() as u32;
        (from, STEPS)
    }

    /// The longest result of an audio clip of `length` samples.
    pub(crate) fn longest(&self, length: usize) -> Option<usize> {
        let slowest = self.factors.iter().copied().fold(SPEEDS[1], f64::min);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: 500 … 2000")]
        let from = (slowest * f64::from(STEPS)).round() as usize;
        Some(length.checked_mul(STEPS as usize)?.div_ceil(from))
    }
}

impl AudioOp for SpeedPerturb {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        compiler.stretches(|most| self.longest(most));
        compiler.wave(self.clone())
    }
}

impl WaveOp for SpeedPerturb {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        let (from, to) = self.draw(generator);
        clip.resample(from, to).map_err(|error| error.context("speed_perturb"))
    }

    fn count(&self, memory: &mut WaveMemory) {
        let length = usize::try_from(memory.length()).unwrap_or(usize::MAX);
        memory.resampled(self.longest(length).map_or(u64::MAX, |samples| samples as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn every_speed_is_drawn() {
        let op = SpeedPerturb::default();
        let drawn: std::collections::BTreeSet<_> =
            (0..60).map(|id| op.draw(&mut SampleSeed::new(1, 0, id).op(1))).collect();
        assert_eq!(Vec::from_iter(drawn), [(900, 1000), (1000, 1000), (1100, 1000)]);
        assert_eq!(op.longest(900), Some(1000));
    }

    #[test]
    fn speeds_out_of_bounds_are_refused() {
        for factors in [vec![], vec![0.4], vec![1.0, 2.5], vec![0.91234], vec![f64::NAN]] {
            assert!(SpeedPerturb::new(factors).check().is_err());
        }
        assert!(SpeedPerturb::default().check().is_ok());
    }
}
