//! `global_mvn`: normalises features by the mean and standard deviation of a data set.

use serde::{Deserialize, Serialize};

use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::{self, single};
use crate::audio::step::FeatureOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Computes (feature − mean) / std with the statistics of the whole training set: one per feature, or one for all.
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
/// let chain = Chain::parse("decode_audio,resample:16000,log_mel:80,global_mvn:-0.5:0.5")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 1_600]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// // Whisper's value for silence is (log10(1e-10) + 4) / 4 = -1.5.
/// assert!(f32s(row.bytes()).iter().all(|value| (value + 2.0).abs() < 1e-5));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GlobalMvn {
    /// Means: one number, or one per feature.
    #[serde(deserialize_with = "parameters::list")]
    pub mean: Vec<f64>,
    /// Standard deviations: one number, or one per feature.
    #[serde(deserialize_with = "parameters::list")]
    pub std: Vec<f64>,
}

impl GlobalMvn {
    /// Normalizes with these statistics: each is one number, or one per feature.
    pub fn new(mean: impl Into<Vec<f64>>, std: impl Into<Vec<f64>>) -> Self {
        Self { mean: mean.into(), std: std.into() }
    }

    /// Returns (scale, bias) for each of `width` features: value · scale + bias.
    ///
    /// # Errors
    /// `BadConfig` if there are neither 1 nor `width` numbers, or if some are out of range.
    pub fn scales(&self, width: usize) -> Result<Vec<(f32, f32)>> {
        for (name, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.len() != 1 && values.len() != width {
                let given = values.len();
                return Err(Error::config(format!(
                    "{name} has {given} values for {width} features; give 1 or {width}"
                )));
            }
        }
        if self.mean.iter().any(|x| !x.is_finite()) || self.std.iter().any(|x| !(*x > 0.0 && x.is_finite())) {
            return Err(Error::config(format!(
                "mean must be finite and std above 0; got {:?} and {:?}",
                self.mean, self.std
            )));
        }
        let at = |values: &[f64], i: usize| values.get(i).or(values.first()).copied().unwrap_or(1.0);
        Ok((0..width)
            .map(|i| (1.0 / at(&self.std, i), at(&self.mean, i)))
            .map(|(scale, mean)| (single(scale), single(-mean * scale)))
            .collect())
    }

    /// Works on frames with as many features as there are `scales`.
    pub(crate) fn run(scales: &[(f32, f32)], features: &mut [f32]) {
        for frame in features.chunks_exact_mut(scales.len()) {
            for (x, (scale, bias)) in frame.iter_mut().zip(scales) {
                *x = *x * scale + bias;
            }
        }
    }
}

impl AudioOp for GlobalMvn {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        compiler.feature(|width| self.scales(width).map(Scales))
    }
}

/// [`GlobalMvn`] for the width of a chain's features: a scale and a bias for each.
struct Scales(Vec<(f32, f32)>);

impl FeatureOp for Scales {
    fn run(&self, features: &mut [f32], _: usize, _: &mut Generator, _: &mut Vec<f64>) {
        GlobalMvn::run(&self.0, features);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_scaled_each_by_its_own() {
        let scales = GlobalMvn::new([1.0, 3.0], [2.0]).scales(2).unwrap();
        let mut features = [1.0, 3.0, 5.0, -1.0];
        GlobalMvn::run(&scales, &mut features);
        assert_eq!(features, [0.0, 0.0, 2.0, -2.0]);
        for op in
            [GlobalMvn::new([0.0; 3], [1.0]), GlobalMvn::new([0.0], [0.0]), GlobalMvn::new([f64::NAN], [1.0])]
        {
            assert!(op.scales(2).is_err());
        }
    }
}
