//! `spec_augment`: mask stretches of frequency and time (Park et al., Interspeech 2019).

use serde::{Deserialize, Serialize};

use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::single;
use crate::audio::step::FeatureOp;
use crate::audio::sums::sum;
use crate::seed::Generator;
use feedstock_base::{Error, Result};
use std::ops::Range;

/// The most masks of one kind: more would hide any audio clip.
const MAX_MASKS: u32 = 100;

/// Overwrites `freq_masks` bands of features and `time_masks` stretches of frames.
///
/// Each band's width is uniform in 0 … `freq_width` and each stretch's in 0 … min(`time_width`, `time_share` ×
/// frames), both ends included; its place is uniform among those where it fits. Frequency masks are drawn first. The
/// defaults are the paper's LibriSpeech double policy (LD) without time warping, which has the least effect by the paper.
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
/// let mask = "spec_augment:freq_masks=0:time_masks=1:time_width=20:value=9";
/// let chain = Chain::parse(&format!("decode_audio,resample:16000,log_mel:80,{mask}"))?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 16_000]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// let masked = f32s(row.bytes()).iter().filter(|value| **value == 9.0).count();
/// assert!(masked % 80 == 0 && masked / 80 <= 20); // whole frames
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SpecAugment {
    /// Bands of features; default 2.
    #[serde(default = "two")]
    pub freq_masks: u32,
    /// The widest band, in features (F); default 27.
    #[serde(default = "default_freq_width")]
    pub freq_width: u32,
    /// Stretches of frames; default 2.
    #[serde(default = "two")]
    pub time_masks: u32,
    /// The longest stretch, in frames (T); default 100.
    #[serde(default = "default_time_width")]
    pub time_width: u32,
    /// The longest stretch, as a share of the audio clip (p), 0 … 1; default 1.
    #[serde(default = "one")]
    pub time_share: f64,
    /// What masks are filled with; default the audio clip's mean.
    #[serde(default)]
    pub value: MaskValue,
}

/// What [`SpecAugment`] writes; in JSON a number, or `"mean"`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(untagged, expecting = "expected a number, or mean")]
pub enum MaskValue {
    /// One value, in the units of the features.
    Constant(f32),
    /// The mean of the audio clip's features before masking, which is the paper's 0 of normalised features.
    Mean(Mean),
}

/// The word `mean`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Mean {
    /// The mean of the audio clip's features.
    Mean,
}

impl Default for MaskValue {
    fn default() -> Self {
        Self::Mean(Mean::Mean)
    }
}

fn two() -> u32 {
    2
}

fn default_freq_width() -> u32 {
    27
}

fn default_time_width() -> u32 {
    100
}

fn one() -> f64 {
    1.0
}

impl Default for SpecAugment {
    fn default() -> Self {
        Self {
            freq_masks: two(),
            freq_width: default_freq_width(),
            time_masks: two(),
            time_width: default_time_width(),
            time_share: one(),
            value: MaskValue::default(),
        }
    }
}

impl SpecAugment {
    /// Returns the paper's LibriSpeech double policy.
    pub fn new() -> Self {
        Self::default()
    }

    /// `masks` bands of at most `width` features.
    #[must_use]
    pub fn freq(self, masks: u32, width: u32) -> Self {
        Self { freq_masks: masks, freq_width: width, ..self }
    }

    /// `masks` stretches of at most `width` frames and `share` of the audio clip.
    #[must_use]
    pub fn time(self, masks: u32, width: u32, share: f64) -> Self {
        Self { time_masks: masks, time_width: width, time_share: share, ..self }
    }

    /// What masks are filled with.
    #[must_use]
    pub fn value(self, value: MaskValue) -> Self {
        Self { value, ..self }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `BadConfig` for more than 100 masks of a kind, a share outside of 0 … 1, or a value that is not finite.
    pub fn check(&self) -> Result<()> {
        if self.freq_masks > MAX_MASKS || self.time_masks > MAX_MASKS {
            return Err(Error::config(format!(
                "freq_masks and time_masks must be at most {MAX_MASKS}; got {} and {}",
                self.freq_masks, self.time_masks
            )));
        }
        if !(0.0..=1.0).contains(&self.time_share) {
            return Err(Error::config(format!("time_share must be 0 … 1; got {}", self.time_share)));
        }
        match self.value {
            MaskValue::Constant(value) if !value.is_finite() => {
                Err(Error::config(format!("value must be finite; got {value}")))
            }
            _ => Ok(()),
        }
    }

    /// The masks of an audio clip, each as `mask(is_time, range)`: `freq_masks` ranges of features, then `time_masks`
    /// of frames.
    pub fn draw(
        &self,
        frames: usize,
        features: usize,
        generator: &mut Generator,
        mut mask: impl FnMut(bool, Range<usize>),
    ) {
        for _ in 0..self.freq_masks {
            mask(false, draw(self.freq_width as usize, features, generator));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the frames")]
        let share = (frames as f64 * self.time_share) as usize;
        for _ in 0..self.time_masks {
            mask(true, draw((self.time_width as usize).min(share), frames, generator));
        }
    }

    /// Works on frames of `width` features.
    pub(crate) fn run(&self, features: &mut [f32], width: usize, generator: &mut Generator) {
        let value = match self.value {
            MaskValue::Constant(value) => value,
            MaskValue::Mean(_) => single(sum(features) / features.len() as f64),
        };
        let frames = features.len() / width;
        self.draw(frames, width, generator, |is_time, range| match is_time {
            true => features[range.start * width..range.end * width].fill(value),
            false => features.chunks_exact_mut(width).for_each(|frame| frame[range.clone()].fill(value)),
        });
    }
}

/// A mask of at most `most` among `length`.
fn draw(most: usize, length: usize, generator: &mut Generator) -> Range<usize> {
    let mut below = |bound: usize| generator.below(u32::try_from(bound).unwrap_or(u32::MAX)) as usize;
    let count = below(most.min(length) + 1);
    let start = below(length - count + 1);
    start..start + count
}

impl AudioOp for SpecAugment {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        compiler.feature(|_| Ok(self.clone()))
    }
}

impl FeatureOp for SpecAugment {
    fn run(&self, features: &mut [f32], width: usize, generator: &mut Generator, _: &mut Vec<f64>) {
        self.run(features, width, generator);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    const FRAMES: usize = 50;
    const WIDTH: usize = 20;

    /// Masked columns and rows.
    fn masked(op: &SpecAugment, sample: u64) -> (usize, usize) {
        let mut features: Vec<f32> = (0..FRAMES * WIDTH).map(|i| i as f32 + 1.0).collect();
        op.run(&mut features, WIDTH, &mut SampleSeed::new(5, 0, sample).op(3));
        let at = |t: usize, f: usize| features[t * WIDTH + f] == 0.0;
        let columns = (0..WIDTH).filter(|&f| (0..FRAMES).all(|t| at(t, f))).count();
        let rows = (0..FRAMES).filter(|&t| (0..WIDTH).all(|f| at(t, f))).count();
        let all = features.iter().filter(|&&x| x == 0.0).count();
        assert_eq!(all, columns * FRAMES + rows * WIDTH - columns * rows, "whole bands and stretches only");
        (columns, rows)
    }

    #[test]
    fn widths_are_uniform_up_to_their_bounds() {
        let op = SpecAugment::new().freq(1, 5).time(1, 40, 0.2).value(MaskValue::Constant(0.0));
        let (mut columns, mut rows) = ([0_u32; 6], [0_u32; 11]);
        for sample in 0..3300 {
            let (c, r) = masked(&op, sample);
            columns[c] += 1;
            rows[r] += 1;
        }
        // 550 and 300 expected; five σ.
        assert!(columns.iter().all(|n| n.abs_diff(550) < 110), "{columns:?}");
        assert!(rows.iter().all(|n| n.abs_diff(300) < 85), "{rows:?}");
    }

    #[test]
    fn the_mean_stands_in_and_small_clips_are_no_trouble() {
        let mut features = vec![2.0, 4.0];
        SpecAugment::new().time(1, 100, 1.0).run(&mut features, 2, &mut SampleSeed::new(5, 0, 1).op(3));
        assert!(features.iter().all(|x| [2.0, 3.0, 4.0].contains(x)), "{features:?}");
        let mut changed = vec![1.0, 2.0, 3.0, 6.0];
        SpecAugment::new().freq(100, 2).run(&mut changed, 2, &mut SampleSeed::new(5, 0, 1).op(3));
        assert_eq!(changed, [3.0; 4]);
    }
}
