//! `pad_seconds`: make shorter audio clips longer.

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::{MAX_ELEMENTS, check_seconds, samples};
use crate::audio::step::WaveOp;
use crate::audio::wave_memory::WaveMemory;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Adds `value` at the end of audio clips shorter than `seconds`.
///
/// With `truncate`, or after a `random_crop_seconds` no longer than this, every audio clip has the same length, and the
/// chain's output a fixed shape.
///
/// ```
/// use feedstock_ops::Chain;
///
/// let chain = Chain::parse("decode_audio,resample:16000,pad_seconds:30:truncate=true")?;
/// assert_eq!(chain.output().shape, [480_000]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PadSeconds {
    /// The least length, rounded to samples at the audio clip's rate at this point of the chain.
    pub seconds: f64,
    /// What is added; default 0, silence.
    #[serde(default)]
    pub value: f32,
    /// Whether to cut longer audio clips to `seconds`, as Whisper's feature extractor does; default false.
    #[serde(default)]
    pub truncate: bool,
}

impl PadSeconds {
    /// Pads with silence to at least `seconds`.
    pub fn new(seconds: f64) -> Self {
        Self { seconds, value: 0.0, truncate: false }
    }

    /// What is added.
    #[must_use]
    pub fn value(self, value: f32) -> Self {
        Self { value, ..self }
    }

    /// Whether to cut longer audio clips as well.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_seconds(self.seconds)?;
        if self.value.is_finite() {
            return Ok(());
        }
        Err(Error::config(format!("value must be finite; got {}", self.value)))
    }

    pub(crate) fn run(&self, wave: &mut Vec<f32>, sample_rate: u32) {
        let length = samples(self.seconds, sample_rate);
        if wave.len() < length || self.truncate {
            wave.reserve_exact(length.saturating_sub(wave.len()));
            wave.resize(length, self.value);
        }
    }
}

impl AudioOp for PadSeconds {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        let samples = compiler.samples(self.seconds)?;
        compiler.crop_or_pad(samples, self.truncate, true);
        compiler.wave(self.clone())
    }
}

impl WaveOp for PadSeconds {
    fn run(&self, clip: &mut Clip<'_>, _: &mut Generator) -> Result<()> {
        let rate = clip.sample_rate();
        if samples(self.seconds, rate) > MAX_ELEMENTS {
            return Err(Error::bad_sample(format!(
                "pad_seconds: {} s at {rate} Hz are over {MAX_ELEMENTS} samples; resample first",
                self.seconds
            )));
        }
        clip.rewrite(|wave| self.run(wave, rate));
        Ok(())
    }

    fn count(&self, memory: &mut WaveMemory) {
        memory.padded(samples(self.seconds, memory.sample_rate()) as u64, self.truncate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_clips_grow_and_long_ones_are_cut_if_asked() {
        let run = |op: &PadSeconds, samples: usize| {
            let mut wave = vec![1.0; samples];
            op.run(&mut wave, 8);
            wave
        };
        let op = PadSeconds::new(0.5).value(-2.0);
        assert_eq!(run(&op, 3), [1.0, 1.0, 1.0, -2.0]);
        assert_eq!(run(&op, 5), [1.0; 5]);
        assert_eq!(run(&op.truncate(true), 5), [1.0; 4]);
    }
}
