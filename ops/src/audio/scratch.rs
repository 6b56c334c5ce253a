//! The buffers that a thread keeps between audio clips.

use super::convolution::ConvolutionScratch;
use super::decode::AudioDecoder;
use super::resample::Resampler;
use super::step::FeatureScratch;
use crate::scratch::Part;

/// A thread's decoder and buffers.
#[derive(Default)]
pub(super) struct AudioScratch {
    pub(super) decoder: AudioDecoder,
    pub(super) resampler: Resampler,
    pub(super) wave: Vec<f32>,
    pub(super) other: Vec<f32>,
    pub(super) features: Vec<f32>,
    pub(super) extraction: FeatureScratch,
    pub(super) sums: Vec<f64>,
    pub(super) convolution: ConvolutionScratch,
}

impl Part for AudioScratch {
    fn kept_bytes(&self) -> usize {
        let waves: usize = [&self.wave, &self.other, &self.features, &self.extraction.mels]
            .into_iter()
            .map(Vec::capacity)
            .sum();
        waves * size_of::<f32>()
            + self.sums.capacity() * size_of::<f64>()
            + self.decoder.kept_bytes()
            + self.resampler.kept_bytes()
            + self.convolution.kept_bytes()
    }
}
