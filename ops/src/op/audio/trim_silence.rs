//! `trim_silence`: cut off quiet beginnings and ends.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::parameters::{check_seconds, samples};
use crate::audio::step::WaveOp;
use crate::audio::sums::energy;
use crate::audio::wave_memory::WaveMemory;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Root mean square below which a frame is silence in any audio clip: −100 dB of full scale, librosa's floor.
const SILENT_RMS: f64 = 1e-5;

/// The longest frame, in samples: over a second at the highest sample rate.
const MAX_FRAME: usize = 1 << 20;

/// Cuts off at both ends what is more than `top_db` below the loudest frame, as librosa's `effects.trim` does. The level of
/// a frame is the root mean square of `frame_length` samples around every `hop_length`-th sample; beyond the audio clip's
/// ends there is silence.
///
/// An audio clip that is silent throughout (no frame above −100 dB of full scale) keeps its first `silent_seconds`;
/// librosa keeps all of it. Where the only loud frame is one beyond the last whole hop, librosa keeps nothing; here the
/// last hop remains. No audio clip becomes empty.
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
/// let chain = Chain::parse("decode_audio,resample:16000,trim_silence:40:frame_length=512:hop_length=128")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[vec![0; 4_000], vec![9_000; 4_000], vec![0; 4_000]].concat());
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert!((4_000..5_000).contains(&row.length())); // the loud stretch, and parts of its frames
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TrimSilence {
    /// Decibels below the loudest frame that count as silence; default 60.
    #[serde(default = "default_top_db")]
    pub top_db: f64,
    /// Samples of a frame; default 2048.
    #[serde(default = "default_frame_length")]
    pub frame_length: usize,
    /// Samples from frame to frame; default 512.
    #[serde(default = "default_hop_length")]
    pub hop_length: usize,
    /// What an audio clip that is silent throughout keeps; default 0.1.
    #[serde(default = "default_silent_seconds")]
    pub silent_seconds: f64,
}

fn default_top_db() -> f64 {
    60.0
}

fn default_frame_length() -> usize {
    2048
}

fn default_hop_length() -> usize {
    512
}

fn default_silent_seconds() -> f64 {
    0.1
}

impl Default for TrimSilence {
    fn default() -> Self {
        Self::new(default_top_db())
    }
}

impl TrimSilence {
    /// Trims frames that are more than `top_db` below the loudest one.
    pub fn new(top_db: f64) -> Self {
        Self {
            top_db,
            frame_length: default_frame_length(),
            hop_length: default_hop_length(),
            silent_seconds: default_silent_seconds(),
        }
    }

    /// Samples of a frame and from frame to frame.
    #[must_use]
    pub fn frames(self, frame_length: usize, hop_length: usize) -> Self {
        Self { frame_length, hop_length, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_seconds(self.silent_seconds)?;
        if !(self.top_db > 0.0 && self.top_db.is_finite()) {
            return Err(Error::config(format!("top_db must be above 0; got {}", self.top_db)));
        }
        let sound = (1..=self.frame_length).contains(&self.hop_length) && self.frame_length <= MAX_FRAME;
        if sound {
            return Ok(());
        }
        Err(Error::config(format!(
            "hop_length must be 1 … frame_length, and that at most {MAX_FRAME} samples; got {} and {}",
            self.hop_length, self.frame_length
        )))
    }

    /// What remains of an audio clip.
    pub(crate) fn keep(&self, wave: &[f32], sample_rate: u32, levels: &mut Vec<f64>) -> Range<usize> {
        self.levels(wave, levels);
        let loudest = levels.iter().copied().fold(0.0, f64::max);
        if loudest <= SILENT_RMS * SILENT_RMS {
            return 0..samples(self.silent_seconds, sample_rate).min(wave.len());
        }
        // Frames below the floor count as the floor, as in librosa's amplitude_to_db.
        let least = loudest * libm::pow(10.0, -self.top_db / 10.0);
        let heard = |level: &f64| level.max(SILENT_RMS * SILENT_RMS) > least;
        let first = levels.iter().position(heard).unwrap_or(0);
        let last = levels.iter().rposition(heard).unwrap_or(levels.len().saturating_sub(1));
        let end = ((last + 1) * self.hop_length).min(wave.len());
        // The first loud frame can be centred on the audio clip's very end, and reach back into it.
        let last_hop = end.saturating_sub(1) / self.hop_length * self.hop_length;
        (first * self.hop_length).min(last_hop)..end
    }

    /// Computes the mean squares of the frames. If frames consist of whole hops, the energy of each hop is summed only once.
    fn levels(&self, wave: &[f32], levels: &mut Vec<f64>) {
        let (frame, hop, half) = (self.frame_length, self.hop_length, self.frame_length / 2);
        let frames = 1 + (wave.len() + 2 * half - frame) / hop;
        levels.clear();
        levels.reserve_exact(frames + frame / hop);
        // Frame i covers i·hop − half … i·hop − half + frame of the audio clip.
        let clipped = |start: usize, end: usize| {
            let (start, end) = (start.max(half) - half, end.max(half) - half);
            energy(&wave[start.min(wave.len())..end.min(wave.len())])
        };
        if frame % hop == 0 {
            let hops = frame / hop;
            let last = frames - 1 + hops;
            levels.extend((0..last).map(|i| clipped(i * hop, (i + 1) * hop)));
            for i in 0..frames {
                levels[i] = levels[i..i + hops].iter().sum();
            }
            levels.truncate(frames);
        } else {
            levels.extend((0..frames).map(|i| clipped(i * hop, i * hop + frame)));
        }
        levels.iter_mut().for_each(|level| *level /= frame as f64);
    }
}

impl AudioOp for TrimSilence {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        self.check()?;
        compiler.shortens();
        compiler.wave(self.clone())
    }
}

impl WaveOp for TrimSilence {
    fn run(&self, clip: &mut Clip<'_>, _: &mut Generator) -> Result<()> {
        let rate = clip.sample_rate();
        let (wave, levels) = clip.wave_and_sums();
        let kept = self.keep(wave, rate, levels);
        clip.narrow(kept);
        Ok(())
    }

    fn count(&self, memory: &mut WaveMemory) {
        // A level of 8 bytes for each hop, in a buffer that may be twice as large.
        memory.take(16 * (memory.length() / self.hop_length.max(1) as u64 + 16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(before: usize, length: usize, after: usize, amplitude: f32) -> Vec<f32> {
        let mut wave = vec![0.0; before];
        wave.extend((0..length).map(|i| amplitude * (i as f32 * 0.3).sin()));
        wave.resize(before + length + after, 0.0);
        wave
    }

    #[test]
    fn silence_before_and_after_goes() {
        let wave = tone(10_000, 8000, 20_000, 0.5);
        for op in [TrimSilence::default(), TrimSilence::new(60.0).frames(2000, 501)] {
            let kept = op.keep(&wave, 16_000, &mut Vec::new());
            let (reach, hop) = (op.frame_length / 2, op.hop_length);
            assert!(kept.start <= 10_000 && kept.start + reach + hop >= 10_000, "{kept:?}");
            assert!(kept.end >= 18_000 && kept.end <= 18_000 + reach + hop, "{kept:?}");
        }
    }

    #[test]
    fn a_silent_clip_keeps_a_little_and_none_becomes_empty() {
        let op = TrimSilence::default();
        assert_eq!(op.keep(&[0.0; 16_000], 16_000, &mut Vec::new()), 0..1600);
        assert_eq!(op.keep(&[0.0; 7], 16_000, &mut Vec::new()), 0..7);
        assert_eq!(op.keep(&[0.5], 16_000, &mut Vec::new()), 0..1);
        assert_eq!(op.keep(&tone(0, 300, 0, 1e-7), 16_000, &mut Vec::new()), 0..300);
        // A click at the very end.
        let mut click = vec![0.0; 5000];
        click[4999] = 1.0;
        let kept = op.keep(&click, 16_000, &mut Vec::new());
        assert!(kept.end == 5000 && kept.start <= 4999, "{kept:?}");
        // Only the frame around the audio clip's end contains it.
        let mut click = vec![0.0; 4096];
        click[4095] = 1.0;
        let wide = TrimSilence::default().frames(2048, 2048);
        assert_eq!(wide.keep(&click, 16_000, &mut Vec::new()), 2048..4096);
    }
}
