//! Runs one audio clip through a compiled chain of ops on audio.
//!
//! ```text
//! decode ─▶ waveform, its rate ─▶ resample, trim, crop, pad, speed, volume, noise ─▶ row
//!                                                     └─▶ log_mel or mfcc ─▶ masks, normalisation ─▶ row
//! ```
//! Trims and crops only narrow the range that later ops see. The op that makes features writes into the caller's row, where
//! later ops work in place. `feature_major` transposes features while they are written to the row. A thread keeps two
//! waveforms, the decoder's and the resampler's, and one audio clip's features if they are not made in the row: 1.3 MB for
//! 5 s at 48 kHz.

use std::ops::Range;
use std::sync::Arc;

use super::clip::{Buffers, Clip};
use super::compile::{self, AudioOp};
use super::decode::Decoded;
use super::parameters::MAX_ELEMENTS;
use super::resample::resampled_length;
use super::row::write;
use super::scratch::AudioScratch;
use super::stages::Stages;
use super::step::Extractor;
use super::transpose::transpose;
use super::working::within_memory;
use crate::buffer::fit;
use crate::plan::{Named, Plan, Row};
use crate::resources::Resources;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// Compiles a chain that starts with `decode_audio`.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(ops: &[Named<'_, dyn AudioOp>], resources: &Resources) -> Result<Arc<dyn Plan>> {
    Ok(Arc::new(compile::stages(ops, resources)?))
}

impl Plan for Stages {
    fn output(&self) -> &TensorSpec {
        &self.output
    }

    fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: Row<'_>,
    ) -> Result<Warnings> {
        let options = within_memory(self, encoded, scratch)?;
        let scratch = scratch.part::<AudioScratch>();
        let to = self.waves.first().and_then(|(_, op)| op.resamples_to());
        let decoded = scratch.decoder.decode(&options, encoded, to, &mut scratch.wave)?;
        if scratch.wave.is_empty() || decoded.sample_rate == 0 {
            return Err(Error::bad_sample("decode_audio: the audio clip has no samples"));
        }
        let AudioScratch { resampler, wave, other, features, extraction, sums, convolution, .. } = scratch;
        let buffers = Buffers { resampler, other: &mut *other, sums: &mut *sums, convolution };
        let view = self.waves(decoded, wave, buffers, seed)?;
        let wave = &wave[view];
        let Some(extractor) = &self.extractor else {
            write(row, wave.len(), wave.len(), other, |out| {
                out.copy_from_slice(wave);
                Ok(())
            })?;
            return Ok(decoded.warnings);
        };
        let (frames, width) = (frames(&**extractor, wave.len())?, extractor.width());
        let mut fill = |out: &mut [f32]| {
            extractor.run(wave, out, extraction)?;
            for (index, op) in &self.features {
                op.run(out, width, &mut seed.op(*index), sums);
            }
            Ok(())
        };
        if !self.feature_major {
            write(row, frames, frames * width, other, fill)?;
            return Ok(decoded.warnings);
        }
        fit(features, frames * width);
        features.resize(frames * width, 0.0);
        fill(features)?;
        write(row, frames, frames * width, other, |out| {
            transpose(features, width, out);
            Ok(())
        })?;
        Ok(decoded.warnings)
    }
}

impl Stages {
    /// Runs the ops on the waveform, and returns the remaining part of it.
    fn waves(
        &self,
        decoded: Decoded,
        wave: &mut Vec<f32>,
        buffers: Buffers<'_>,
        seed: SampleSeed,
    ) -> Result<Range<usize>> {
        let Decoded { sample_rate, mut halved, .. } = decoded;
        let decoded_rate = if halved.is_some() { sample_rate / 2 } else { sample_rate };
        let mut clip = Clip::new(wave, decoded_rate, buffers);
        for (index, op) in &self.waves {
            op.run(&mut clip, &mut seed.op(*index))?;
            if let (Some(to), Some(samples)) = (op.resamples_to(), halved.take()) {
                // Half of an odd number of samples is rounded up, so the result may be too long.
                clip.shorten(resampled_length(samples, sample_rate, to));
            }
        }
        Ok(clip.into_view())
    }
}

/// Returns the number of frames of an audio clip of `samples`, at least one.
fn frames(extractor: &dyn Extractor, samples: usize) -> Result<usize> {
    let frames = extractor.count(samples);
    if frames == 0 {
        return Err(Error::bad_sample(format!(
            "the audio clip is {samples} samples long where features are made of it, too short for a frame: one takes {}; \
             drop short audio clips with a filter on duration, or lengthen them with pad_seconds",
            extractor.least_samples()
        )));
    }
    if frames.checked_mul(extractor.width()).is_none_or(|elements| elements > MAX_ELEMENTS) {
        return Err(Error::bad_sample(format!(
            "the audio clip makes {frames} frames of {} features, over {MAX_ELEMENTS} elements; crop it or lengthen \
             hop_length",
            extractor.width()
        )));
    }
    Ok(frames)
}
