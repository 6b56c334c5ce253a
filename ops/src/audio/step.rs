//! The kinds of steps that ops on audio become. A plan knows these kinds; it does not know the ops.

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

    /// Counts the working memory, and the length of what is left. An op that keeps the length and takes no memory does
    /// nothing.
    fn count(&self, _: &mut WaveMemory) {}

    /// Returns the sample rate that the op converts to: a decoder may decode less for it.
    fn resamples_to(&self) -> Option<u32> {
        None
    }
}

/// An op on features, `[frames, width]`, in place.
pub(crate) trait FeatureOp: Send + Sync {
    /// `sums` is a buffer for statistics.
    fn run(&self, features: &mut [f32], width: usize, generator: &mut Generator, sums: &mut Vec<f64>);
}

/// The op that makes features of a waveform, for one sample rate.
pub(crate) trait Extractor: Send + Sync {
    /// Features of a frame.
    fn width(&self) -> usize;

    /// Frames of an audio clip of `samples`; 0 where it has none.
    fn count(&self, samples: usize) -> usize;

    /// The samples that the first frame takes.
    fn least_samples(&self) -> usize;

    /// Writes all frames of `wave` into `out`.
    ///
    /// # Errors
    /// `Bug` only.
    fn run(&self, wave: &[f32], out: &mut [f32], scratch: &mut FeatureScratch) -> Result<()>;

    /// Elements of [`FeatureScratch::mels`] for that number of frames.
    fn between(&self, _frames: u64) -> u64 {
        0
    }
}

/// What a thread keeps for extractors.
#[derive(Default)]
pub(crate) struct FeatureScratch {
    /// Features that others are made of.
    pub(crate) mels: Vec<f32>,
    pub(crate) spectrum: SpectrumScratch,
}
