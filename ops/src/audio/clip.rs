//! One audio clip while it passes through the ops on waveforms.

use std::ops::Range;

use super::convolution::ConvolutionScratch;
use super::parameters::MAX_ELEMENTS;
use super::resample::Resampler;
use feedstock_base::{Error, Result};

/// A decoded audio clip. `view` is the remaining part.
pub(crate) struct Clip<'a> {
    wave: &'a mut Vec<f32>,
    view: Range<usize>,
    sample_rate: u32,
    buffers: Buffers<'a>,
}

/// Buffers that ops may use in addition to the waveform.
pub(super) struct Buffers<'a> {
    pub(super) resampler: &'a mut Resampler,
    /// Takes the place of the waveform when it is resampled.
    pub(super) other: &'a mut Vec<f32>,
    pub(super) sums: &'a mut Vec<f64>,
    pub(super) convolution: &'a mut ConvolutionScratch,
}

impl<'a> Clip<'a> {
    pub(super) fn new(wave: &'a mut Vec<f32>, sample_rate: u32, buffers: Buffers<'a>) -> Self {
        let view = 0..wave.len();
        Self { wave, view, sample_rate, buffers }
    }

    /// Returns the remaining part, as a range of the waveform.
    pub(super) fn into_view(self) -> Range<usize> {
        self.view
    }

    /// Returns the number of remaining samples.
    pub(crate) fn len(&self) -> usize {
        self.view.len()
    }

    /// Returns the samples per second.
    pub(crate) fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Sets another sample rate, and returns the previous one. The samples stay the same.
    pub(crate) fn set_sample_rate(&mut self, sample_rate: u32) -> u32 {
        std::mem::replace(&mut self.sample_rate, sample_rate)
    }

    /// Returns the remaining samples.
    pub(crate) fn wave(&mut self) -> &mut [f32] {
        &mut self.wave[self.view.clone()]
    }

    /// Returns the remaining samples, and a buffer for statistics.
    pub(crate) fn wave_and_sums(&mut self) -> (&[f32], &mut Vec<f64>) {
        (&self.wave[self.view.clone()], self.buffers.sums)
    }

    /// Returns the remaining samples, and the buffers of a convolution.
    pub(crate) fn wave_and_convolution(&mut self) -> (&mut [f32], &mut ConvolutionScratch) {
        (&mut self.wave[self.view.clone()], self.buffers.convolution)
    }

    /// Keeps at most the first `samples`.
    pub(super) fn shorten(&mut self, samples: u128) {
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        self.narrow(0..self.view.len().min(samples));
    }

    /// Keeps a part of the remaining samples.
    pub(crate) fn narrow(&mut self, kept: Range<usize>) {
        self.view = self.view.start + kept.start..self.view.start + kept.end;
    }

    /// Resamples the remaining samples from one rate to another. Only the ratio counts; the stored sample rate stays.
    ///
    /// # Errors
    /// `BadSample` for a result that is too long, and for rates that differ too much.
    pub(crate) fn resample(&mut self, from: u32, to: u32) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let most = MAX_ELEMENTS as u128 * u128::from(from) / u128::from(to);
        if self.view.len() as u128 > most {
            return Err(Error::bad_sample(format!(
                "{} samples from {from} to {to} Hz are over {MAX_ELEMENTS} samples",
                self.view.len()
            )));
        }
        let Buffers { resampler, other, .. } = &mut self.buffers;
        resampler.run(&self.wave[self.view.clone()], from, to, other)?;
        std::mem::swap(self.wave, *other);
        self.view = 0..self.wave.len();
        Ok(())
    }

    /// Lets `change` lengthen or shorten the remaining samples.
    pub(crate) fn rewrite(&mut self, change: impl FnOnce(&mut Vec<f32>)) {
        self.wave.truncate(self.view.end);
        if self.view.start > 0 {
            self.wave.drain(..self.view.start);
        }
        change(self.wave);
        self.view = 0..self.wave.len();
    }
}
