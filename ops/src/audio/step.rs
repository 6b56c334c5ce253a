//! The kinds of steps to which ops on audio are compiled. A plan knows these kinds, not the ops.

use super::clip::Clip;
use super::spectrum::SpectrumScratch;
use super::wave_memory::WaveMemory;
use crate::seed::Generator;
use feedstock_base::Result;

/// An op on the waveform.
pub(crate) trait WaveOp: Send + Sync {
    /// Changes the waveform, its rate, or the part of it that later ops see.
    ///
    /// # Errors
    /// `BadSample` for an audio clip that the op cannot work on.
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()>;

    /// Counts the working memory, and the length of the remaining samples. An op that keeps the length and takes no memory
    /// does nothing.
    fn count(&self, _: &mut WaveMemory) {}

    /// Returns the sample rate to which the op converts. A decoder may decode less for it.
    fn resamples_to(&self) -> Option<u32> {
        None
    }
}

/// An op on features, `[frames, width]`, in place.
pub(crate) trait FeatureOp: Send + Sync {
    /// `sums` is a buffer for statistics.
    fn run(&self, features: &mut [f32], width: usize, generator: &mut Generator, sums: &mut Vec<f64>);
}

/// The op that makes features from a waveform, for one sample rate.
pub(crate) trait Extractor: Send + Sync {
    /// Returns the features of a frame.
    fn width(&self) -> usize;

    /// Returns the number of frames of an audio clip of `samples`, which may be 0.
    fn count(&self, samples: usize) -> usize;

    /// Returns the samples that the first frame takes.
    fn least_samples(&self) -> usize;

    /// Writes all frames of `wave` into `out`.
    ///
    /// # Errors
    /// `Bug` only.
    fn run(&self, wave: &[f32], out: &mut [f32], scratch: &mut FeatureScratch) -> Result<()>;

    /// Returns the elements of [`FeatureScratch::mels`] for a number of frames.
    fn between(&self, _frames: u64) -> u64 {
        0
    }
}

/// The buffers that a thread keeps for extractors.
#[derive(Default)]
pub(crate) struct FeatureScratch {
    /// Features from which others are made.
    pub(crate) mels: Vec<f32>,
    pub(crate) spectrum: SpectrumScratch,
}
