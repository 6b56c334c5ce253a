//! `resample`: another sample rate.

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::resample::resampled_length;
use crate::audio::step::WaveOp;
use crate::audio::wave_memory::WaveMemory;
use crate::resources::Needs;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The highest rate that can be asked for, as [`DecodeAudio`](crate::audio::DecodeAudio)'s.
const MAX_SAMPLE_RATE: u32 = 384_000;

/// Resamples to `sample_rate`; audio clips that have it already stay unchanged.
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
/// let chain = Chain::parse("decode_audio,resample:8000")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 1_600]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row.length(), 800); // 0.1 s
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Resample {
    /// Samples per second of the result, in Hz, 1 … 384,000. Speech models expect 16,000.
    pub sample_rate: u32,
}

impl Resample {
    /// Resamples to `sample_rate`, in Hz.
    pub fn new(sample_rate: u32) -> Self {
        Self { sample_rate }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if (1..=MAX_SAMPLE_RATE).contains(&self.sample_rate) {
            return Ok(());
        }
        Err(Error::config(format!("sample_rate must be 1 … {MAX_SAMPLE_RATE} Hz; got {}", self.sample_rate)))
    }
}

impl AudioOp for Resample {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        compiler.resample(self.sample_rate);
        compiler.wave(self.clone())
    }

    fn refer(&self, needs: &mut Needs) {
        needs.set_sample_rate(self.sample_rate);
    }
}

impl WaveOp for Resample {
    fn run(&self, clip: &mut Clip<'_>, _: &mut Generator) -> Result<()> {
        let from = clip.set_sample_rate(self.sample_rate);
        clip.resample(from, self.sample_rate).map_err(|error| error.context("resample"))
    }

    fn count(&self, memory: &mut WaveMemory) {
        let from = memory.set_sample_rate(self.sample_rate).max(1);
        let length = resampled_length(memory.length(), from, self.sample_rate);
        memory.resampled(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn resamples_to(&self) -> Option<u32> {
        Some(self.sample_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_out_of_bounds_are_refused() {
        assert!(Resample::new(0).check().is_err() && Resample::new(400_000).check().is_err());
    }
}
