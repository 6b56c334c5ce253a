//! `add_noise`: mix in noise at a drawn signal-to-noise ratio.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::single;
use crate::audio::step::WaveOp;
use crate::audio::sums::energy;
use crate::check::{check_probability, check_range};
use crate::resources::{Needs, Noise};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The greatest ratio either way: beyond the range of 24-bit recordings.
const MAX_SNR_DB: f64 = 160.0;

/// Adds a stretch of a noise data set so that the audio clip's energy over the noise's is `snr_db`, as
/// `torchaudio.functional.add_noise`.
///
/// The noise is an audio clip of the data set, drawn uniformly, and so is the sample at which it starts: of a longer noise,
/// a stretch is added; a shorter one is repeated. The chain is compiled with the data set in its
/// [`Resources`](crate::Resources), decoded at the sample rate of the waveform, so a `resample` must come before. If the
/// audio clip or the stretch of noise is digital silence, no ratio exists, and the audio clip stays unchanged.
///
/// ```
/// use feedstock_ops::{ChainSpec, Need, Noise, Resources};
///
/// let spec: ChainSpec = "decode_audio,resample:16000,add_noise:'s3://b/noise':5..20".parse()?;
/// let uri = "s3://b/noise".to_owned();
/// assert_eq!(spec.needs(), [Need::Noise { uri, sample_rate: 16_000 }]);
/// let noise = Noise { sample_rate: 16_000, clips: vec![vec![0.1; 400]] };
/// spec.compile_with(&Resources::new().with_noise("s3://b/noise", noise))?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AddNoise {
    /// The noise data set's URI.
    pub noise: String,
    /// Least and greatest ratio, in decibels, drawn uniformly; one number is both. Default 5 … 20.
    #[serde(default = "default_snr_db", deserialize_with = "crate::check::range")]
    pub snr_db: [f64; 2],
    /// 0 … 1; default 1.
    #[serde(default = "one")]
    pub probability: f64,
}

fn default_snr_db() -> [f64; 2] {
    [5.0, 20.0]
}

fn one() -> f64 {
    1.0
}

impl AddNoise {
    /// Adds noise of the data set `noise` at a ratio within `snr_db`, `[least, greatest]`.
    pub fn new(noise: impl Into<String>, snr_db: [f64; 2]) -> Self {
        Self { noise: noise.into(), snr_db, probability: one() }
    }

    /// Sets the probability, 0 … 1.
    #[must_use]
    pub fn probability(self, probability: f64) -> Self {
        Self { probability, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_probability(self.probability)?;
        check_range("snr_db", self.snr_db, -MAX_SNR_DB, MAX_SNR_DB)
    }

    /// Checks the noise that was loaded, for a waveform of `sample_rate`.
    pub(crate) fn check_noise(&self, noise: &Noise, sample_rate: u32) -> Result<()> {
        if noise.sample_rate != sample_rate {
            return Err(Error::config(format!(
                "the noise {} was loaded at {} Hz, but the waveform has {sample_rate} Hz here; load it as \
                 ChainSpec::needs states",
                self.noise, noise.sample_rate
            )));
        }
        if noise.clips.is_empty() || noise.clips.iter().any(Vec::is_empty) {
            return Err(Error::config(format!(
                "the noise {} has no audio clips, or an empty one",
                self.noise
            )));
        }
        Ok(())
    }

    pub(crate) fn run(&self, wave: &mut [f32], noise: &Noise, generator: &mut Generator) {
        if !generator.chance(self.probability) {
            return;
        }
        let snr_db = generator.uniform(self.snr_db[0], self.snr_db[1]);
        let clip = generator.below(u32::try_from(noise.clips.len()).unwrap_or(u32::MAX));
        let Some(noise) = noise.clips.get(clip as usize) else { return };
        // A longer noise can start at any stretch, a shorter one at any phase of its repetition.
        let places = if noise.len() > wave.len() { noise.len() - wave.len() + 1 } else { noise.len() };
        let start = generator.below(u32::try_from(places).unwrap_or(u32::MAX)) as usize;
        let (signal, added) = (energy(wave), noise_energy(noise, start, wave.len()));
        let gain = (signal / added).sqrt() * libm::pow(10.0, -snr_db / 20.0);
        if signal <= 0.0 || added <= 0.0 || !gain.is_finite() {
            return;
        }
        let gain = single(gain);
        let mut at = start;
        let mut rest = wave;
        while !rest.is_empty() {
            let count = rest.len().min(noise.len() - at);
            let (now, later) = rest.split_at_mut(count);
            now.iter_mut().zip(&noise[at..]).for_each(|(x, n)| *x += gain * n);
            (rest, at) = (later, 0);
        }
    }
}

/// The energy of `length` samples of the repeated noise from `start`.
fn noise_energy(noise: &[f32], start: usize, length: usize) -> f64 {
    let first = length.min(noise.len() - start);
    let (turns, last) = ((length - first) / noise.len(), (length - first) % noise.len());
    let whole = if turns > 0 { turns as f64 * energy(noise) } else { 0.0 };
    energy(&noise[start..start + first]) + whole + energy(&noise[..last])
}

impl AudioOp for AddNoise {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        let rate = compiler.rate("the noise is loaded at the waveform's rate")?;
        let noise = compiler.resources().noise(&self.noise).ok_or_else(|| {
            Error::config(format!("the noise {} is not loaded; compile with its resources", self.noise))
        })?;
        self.check_noise(noise, rate)?;
        compiler.wave(Mix { op: self.clone(), noise: Arc::clone(noise) })
    }

    fn refer(&self, needs: &mut Needs) {
        needs.noise(&self.noise);
    }
}

/// [`AddNoise`] with its noise.
struct Mix {
    op: AddNoise,
    noise: Arc<Noise>,
}

impl WaveOp for Mix {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        self.op.run(clip.wave(), &self.noise, generator);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    fn wave(length: usize, step: f32) -> Vec<f32> {
        (0..length).map(|i| (i as f32 * step).sin()).collect()
    }

    fn noise(clips: Vec<Vec<f32>>) -> Noise {
        Noise { sample_rate: 16_000, clips }
    }

    #[test]
    fn the_ratio_is_the_one_asked_for_with_long_and_short_noise() {
        let clean = wave(5000, 0.1);
        for length in [1, 7, 4999, 5000, 5001, 90_000] {
            let noise = noise(vec![(0..length).map(|i| 0.01 + (i as f32 * 0.77).cos()).collect()]);
            for sample in 0..20 {
                let mut mixed = clean.clone();
                let seed = SampleSeed::new(3, 0, sample);
                AddNoise::new("n", [7.0, 7.0]).run(&mut mixed, &noise, &mut seed.op(4));
                let added: Vec<f32> = mixed.iter().zip(&clean).map(|(m, c)| m - c).collect();
                let snr = 10.0 * (energy(&clean) / energy(&added)).log10();
                assert!((snr - 7.0).abs() < 1e-3, "{length}: {snr}");
            }
        }
    }

    #[test]
    fn silence_on_either_side_changes_nothing() {
        let op = AddNoise::new("n", [0.0, 0.0]);
        let mut generator = SampleSeed::new(3, 0, 1).op(4);
        let mut silent = vec![0.0; 100];
        op.run(&mut silent, &noise(vec![wave(50, 0.3)]), &mut generator);
        assert_eq!(silent, [0.0; 100]);
        let mut heard = wave(100, 0.2);
        op.run(&mut heard, &noise(vec![vec![0.0; 500]]), &mut generator);
        assert_eq!(heard, wave(100, 0.2));
        op.probability(0.0).run(&mut heard, &noise(vec![wave(50, 0.3)]), &mut generator);
        assert_eq!(heard, wave(100, 0.2));
    }
}
