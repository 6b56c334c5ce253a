//! `utterance_mvn`: each clip to mean 0 and variance 1.

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::single;
use crate::audio::step::{FeatureOp, WaveOp};
use crate::audio::sums::{squared_deviation, sum};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Subtracts the audio clip's mean and divides by √(variance + epsilon).
///
/// On a waveform over its samples, as transformers' `Wav2Vec2FeatureExtractor`; on features over the frames, for
/// each feature, as `Speech2TextFeatureExtractor` (which adds no epsilon). The variance is the population's (divided
/// by n). Put it before `pad_seconds`; otherwise the padding counts too.
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
/// let chain = Chain::parse("decode_audio,resample:16000,utterance_mvn")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[1_000, 3_000]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// let values = f32s(row.bytes());
/// assert!((values[0] + 1.0).abs() < 1e-3 && (values[1] - 1.0).abs() < 1e-3);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UtteranceMvn {
    /// Divide by the standard deviation; default true.
    #[serde(default = "yes")]
    pub normalize_vars: bool,
    /// Added to the variance, so that silence stays finite; default 1e-7.
    #[serde(default = "default_epsilon")]
    pub epsilon: f64,
}

fn yes() -> bool {
    true
}

fn default_epsilon() -> f64 {
    1e-7
}

impl Default for UtteranceMvn {
    fn default() -> Self {
        Self { normalize_vars: yes(), epsilon: default_epsilon() }
    }
}

impl UtteranceMvn {
    /// Creates the op with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to divide by the standard deviation.
    #[must_use]
    pub fn normalize_vars(self, normalize_vars: bool) -> Self {
        Self { normalize_vars, ..self }
    }

    /// Added to the variance.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `BadConfig` for an epsilon that is not positive.
    pub fn check(&self) -> Result<()> {
        if self.epsilon >= 1e-30 && self.epsilon.is_finite() {
            return Ok(());
        }
        Err(Error::config(format!("epsilon must be at least 1e-30; got {:e}", self.epsilon)))
    }

    fn scale(&self, squares: f64, count: f64) -> f64 {
        if self.normalize_vars { 1.0 / (squares / count + self.epsilon).sqrt() } else { 1.0 }
    }

    /// Works on a waveform.
    pub(crate) fn run_wave(&self, wave: &mut [f32]) {
        let count = wave.len() as f64;
        let mean = sum(wave) / count;
        let scale = self.scale(squared_deviation(wave, mean), count);
        wave.iter_mut().for_each(|x| *x = single((f64::from(*x) - mean) * scale));
    }

    /// Works on frames of `width` features.
    pub(crate) fn run_features(&self, features: &mut [f32], width: usize, sums: &mut Vec<f64>) {
        let count = (features.len() / width) as f64;
        sums.clear();
        sums.resize(2 * width, 0.0);
        let (means, scales) = sums.split_at_mut(width);
        for frame in features.chunks_exact(width) {
            means.iter_mut().zip(frame).for_each(|(mean, &x)| *mean += f64::from(x));
        }
        means.iter_mut().for_each(|mean| *mean /= count);
        for frame in features.chunks_exact(width) {
            for ((scale, mean), &x) in scales.iter_mut().zip(&*means).zip(frame) {
                *scale += (f64::from(x) - mean) * (f64::from(x) - mean);
            }
        }
        scales.iter_mut().for_each(|scale| *scale = self.scale(*scale, count));
        for frame in features.chunks_exact_mut(width) {
            for ((x, mean), scale) in frame.iter_mut().zip(&*means).zip(&*scales) {
                *x = single((f64::from(*x) - mean) * scale);
            }
        }
    }
}

impl AudioOp for UtteranceMvn {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        if compiler.has_features() {
            return compiler.feature(|_| Ok(self.clone()));
        }
        compiler.wave(self.clone())
    }
}

impl WaveOp for UtteranceMvn {
    fn run(&self, clip: &mut Clip<'_>, _: &mut Generator) -> Result<()> {
        self.run_wave(clip.wave());
        Ok(())
    }
}

impl FeatureOp for UtteranceMvn {
    fn run(&self, features: &mut [f32], width: usize, _: &mut Generator, sums: &mut Vec<f64>) {
        self.run_features(features, width, sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_0_and_variance_1_and_silence_stays_0() {
        let op = UtteranceMvn::default();
        let mut wave: Vec<f32> = (0..999_u16).map(|i| 3.0 + f32::from(i % 7)).collect();
        op.run_wave(&mut wave);
        assert!(sum(&wave).abs() < 1e-3);
        assert!((squared_deviation(&wave, 0.0) / 999.0 - 1.0).abs() < 1e-5);
        let mut constant = vec![0.25; 50];
        op.run_wave(&mut constant);
        assert_eq!(constant, [0.0; 50]);
    }

    #[test]
    fn each_feature_has_its_own_statistics() {
        let mut features: Vec<f32> =
            (0..40_u8).flat_map(|t| [f32::from(t), -5.0, f32::from(t % 2)]).collect();
        UtteranceMvn::default().run_features(&mut features, 3, &mut Vec::new());
        for feature in 0..3 {
            let column: Vec<f32> = features.iter().skip(feature).step_by(3).copied().collect();
            assert!(sum(&column).abs() < 1e-4);
            let variance = squared_deviation(&column, 0.0) / 40.0;
            assert!((variance - f64::from(u8::from(feature != 1))).abs() < 1e-4, "{feature}: {variance}");
        }
        let mut features = vec![1.0, 5.0, 3.0, 9.0];
        UtteranceMvn::new().normalize_vars(false).run_features(&mut features, 2, &mut Vec::new());
        assert_eq!(features, [-1.0, -2.0, 1.0, 2.0]);
    }
}
