//! `g711`: the quantization of a telephone call (ITU-T G.711).

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::step::WaveOp;
use crate::check::check_probability;
use crate::seed::Generator;
use feedstock_base::Result;

/// Encodes the audio clip to 8 bits a sample by ITU-T G.711, and decodes it again.
///
/// These are the standard's segments and steps, as in telephony and in WAV files, and not the continuous formula of
/// `torchaudio.functional.mu_law_encoding`. Samples are rounded to 16 bits and limited to −1 … 1 before. Telephones have a sample
/// rate of 8 kHz: put `resample:8000` before it.
///
/// ```
/// use feedstock_ops::audio::{G711, Law};
/// use feedstock_ops::{ChainSpec, decode_audio, resample};
///
/// let call = [decode_audio(), resample(8000), G711::new(Law::ALaw).into(), resample(16_000)];
/// let text = "decode_audio,resample:8000,g711:a_law,resample:16000";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from(call));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct G711 {
    /// The law; default mu_law.
    #[serde(default)]
    pub law: Law,
    /// 0 … 1; default 1.
    #[serde(default = "one")]
    pub probability: f64,
}

/// A law of G.711.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Law {
    /// μ-law: North America and Japan.
    #[default]
    MuLaw,
    /// A-law: Europe and most other countries.
    ALaw,
}

fn one() -> f64 {
    1.0
}

impl Default for G711 {
    fn default() -> Self {
        Self::new(Law::default())
    }
}

impl G711 {
    /// Quantizes by `law`.
    pub fn new(law: Law) -> Self {
        Self { law, probability: one() }
    }

    /// Sets the probability, 0 … 1.
    #[must_use]
    pub fn probability(self, probability: f64) -> Self {
        Self { probability, ..self }
    }
}

impl AudioOp for G711 {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        check_probability(self.probability)?;
        compiler.wave(self.clone())
    }
}

impl WaveOp for G711 {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        if !generator.chance(self.probability) {
            return Ok(());
        }
        let quantize = match self.law {
            Law::MuLaw => mu_law,
            Law::ALaw => a_law,
        };
        for sample in clip.wave() {
            #[expect(clippy::cast_possible_truncation, reason = "saturation is meant")]
            let rounded = (*sample * 32768.0).round_ties_even() as i16;
            *sample = f32::from(quantize(rounded)) / 32768.0;
        }
        Ok(())
    }
}

/// The segment of a magnitude of at least 32: 0 for 32 … 63, and one more for each doubling.
fn segment(magnitude: i16) -> u32 {
    magnitude.ilog2() - 5
}

/// Quantizes by μ-law, which has magnitudes of 13 bits: 16 steps in each of 8 segments.
fn mu_law(sample: i16) -> i16 {
    const BIAS: i16 = 33;
    let quarter = sample >> 2;
    let magnitude = (quarter.abs() + BIAS).min(8191);
    let segment = segment(magnitude);
    let step = (magnitude >> (segment + 1)) & 15;
    let decoded = (((step << 3) + 4 * BIAS) << segment) - 4 * BIAS;
    if quarter < 0 { -decoded } else { decoded }
}

/// Quantizes by A-law, which has magnitudes of 12 bits: 16 steps in each of 8 segments, of which two have equal steps.
fn a_law(sample: i16) -> i16 {
    let eighth = sample >> 3;
    let magnitude = if eighth < 0 { -eighth - 1 } else { eighth };
    let shift = if magnitude < 32 { 1 } else { segment(magnitude) + 1 };
    // The middle of a step.
    let decoded = (((magnitude >> shift) << shift) << 3) + (4 << shift);
    if eighth < 0 { -decoded } else { decoded }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded value of every code, computed by Python's `audioop`, from the smallest sample on: `[first sample, value]`.
    #[test]
    fn all_samples_are_those_of_audioop() {
        let text = std::fs::read("tests/golden/speech/g711.json").unwrap();
        let laws: serde_json::Value = serde_json::from_slice(&text).unwrap();
        for (name, quantize) in [("mu_law", mu_law as fn(i16) -> i16), ("a_law", a_law)] {
            let runs: Vec<[i16; 2]> = serde_json::from_value(laws[name].clone()).unwrap();
            assert!(runs.len() >= 255, "{name}: {}", runs.len());
            let mut next = runs.iter().peekable();
            let mut value = 0;
            for sample in i16::MIN..=i16::MAX {
                if let Some([_, decoded]) = next.next_if(|[first, _]| *first == sample) {
                    value = *decoded;
                }
                assert_eq!(quantize(sample), value, "{name} of {sample}");
            }
        }
    }
}
