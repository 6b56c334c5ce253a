//! `volume`: a random gain.

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::single;
use crate::audio::step::WaveOp;
use crate::check::check_range;
use crate::seed::Generator;
use feedstock_base::Result;

/// The strongest gain or attenuation: more than the range of 24-bit recordings.
const MAX_GAIN_DB: f64 = 160.0;

/// Multiplies the audio clip by a gain drawn uniformly, in decibels, from `gain_db`. Values are not limited to −1 … 1.
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
/// # fn f32s(bytes: &[u8]) -> Vec<f32> {
/// #     bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
/// # }
/// let chain = Chain::parse("decode_audio,volume:-20..-20")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[16_384; 4]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert!(f32s(row.bytes()).iter().all(|value| (value - 0.05).abs() < 1e-6)); // 0.5 less 20 dB
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Volume {
    /// Least and greatest gain; one number is both. Default −6 … 6.
    #[serde(default = "default_gain_db", deserialize_with = "crate::check::range")]
    pub gain_db: [f64; 2],
}

fn default_gain_db() -> [f64; 2] {
    [-6.0, 6.0]
}

impl Default for Volume {
    fn default() -> Self {
        Self::new(default_gain_db())
    }
}

impl Volume {
    /// Draws a gain within `gain_db`, `[least, greatest]`.
    pub fn new(gain_db: [f64; 2]) -> Self {
        Self { gain_db }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_range("gain_db", self.gain_db, -MAX_GAIN_DB, MAX_GAIN_DB)
    }

    pub(crate) fn run(&self, wave: &mut [f32], generator: &mut Generator) {
        let gain_db = generator.uniform(self.gain_db[0], self.gain_db[1]);
        let gain = single(libm::pow(10.0, gain_db / 20.0));
        wave.iter_mut().for_each(|x| *x *= gain);
    }
}

impl AudioOp for Volume {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        compiler.wave(self.clone())
    }
}

impl WaveOp for Volume {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        self.run(clip.wave(), generator);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn gains_are_decibels_of_amplitude() {
        let mut wave = [0.5, -1.0];
        Volume::new([20.0, 20.0]).run(&mut wave, &mut SampleSeed::new(1, 0, 0).op(1));
        assert_eq!(wave, [5.0, -10.0]);
        let draw = |id| {
            let mut wave = [1.0];
            Volume::default().run(&mut wave, &mut SampleSeed::new(1, 0, id).op(1));
            20.0 * f64::from(wave[0]).log10()
        };
        let drawn: Vec<f64> = (0..200).map(draw).collect();
        let (least, most) = drawn.iter().fold((9.0_f64, -9.0_f64), |(a, b), &x| (a.min(x), b.max(x)));
        assert!(least > -6.0001 && least < -5.5 && most < 6.0001 && most > 5.5, "{least} {most}");
    }
}
