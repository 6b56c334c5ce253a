//! Power spectra of overlapping frames, eight frames at a time.
//!
//! ```text
//! wave ─▶ frame × window ─▶ real FFT ─▶ |X|², stored [bin][frame of 8] ─▶ mel filters ─▶ log
//! ```
//! With eight adjacent frames, every later loop fills vector registers without changing the order of additions.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use serde::{Deserialize, Serialize};

use super::window::Window;
use feedstock_base::{Error, Result};

/// Adjacent frames: one AVX register of f32, two of SSE or NEON.
pub(crate) const LANES: usize = 8;

/// The samples beyond the audio clip's ends in the first and last frames.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PadMode {
    /// The mirrored audio clip, without repeating its end sample. An audio clip shorter than half a frame is mirrored
    /// repeatedly, as `numpy.pad` (and so librosa and transformers) does; torch rejects it. A single sample is repeated.
    #[default]
    Reflect,
    /// Zeros.
    Constant,
}

/// The frames of a short-time Fourier transform.
pub(crate) struct Frames {
    pub(crate) n_fft: usize,
    pub(crate) hop_length: usize,
    /// Whether frame i has its middle, instead of its start, at sample i · hop_length.
    pub(crate) center: bool,
    pub(crate) pad_mode: PadMode,
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
}

/// One thread's buffers for spectra.
#[derive(Default)]
pub(crate) struct SpectrumScratch {
    frame: Vec<f32>,
    bins: Vec<Complex<f32>>,
    fft: Vec<Complex<f32>>,
    pub(crate) power: Vec<[f32; LANES]>,
    pub(crate) mels: Vec<[f32; LANES]>,
}

impl Frames {
    /// Makes frames from checked parameters.
    pub(crate) fn new(
        (n_fft, win_length, hop_length): (usize, usize, usize),
        window: Window,
        center: bool,
        pad_mode: PadMode,
    ) -> Self {
        let fft = RealFftPlanner::new().plan_fft_forward(n_fft);
        Self { n_fft, hop_length, center, pad_mode, window: window.values(win_length, n_fft), fft }
    }

    /// Returns the bins of a spectrum.
    pub(crate) fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Returns the number of frames of an audio clip of `samples`, which may be 0.
    pub(crate) fn count(&self, samples: usize) -> usize {
        let padding = if self.center { 2 * (self.n_fft / 2) } else { 0 };
        match (samples, (samples + padding).checked_sub(self.n_fft)) {
            (0, _) | (_, None) => 0,
            (_, Some(rest)) => 1 + rest / self.hop_length,
        }
    }

    /// Writes |X| to the power of 2 or 1 of frames `first` … `first + count` (at most [`LANES`]) into `scratch.power`, whose
    /// other lanes become 0.
    pub(crate) fn power(
        &self,
        wave: &[f32],
        (first, count): (usize, usize),
        magnitude: bool,
        scratch: &mut SpectrumScratch,
    ) -> Result<()> {
        scratch.frame.resize(self.n_fft, 0.0);
        scratch.bins.resize(self.bins(), Complex::default());
        scratch.fft.resize(self.fft.get_scratch_len(), Complex::default());
        scratch.power.resize(self.bins(), [0.0; LANES]);
        if count < LANES {
            scratch.power.fill([0.0; LANES]);
        }
        for lane in 0..count {
            self.cut(wave, first + lane, &mut scratch.frame);
            self.fft.process_with_scratch(&mut scratch.frame, &mut scratch.bins, &mut scratch.fft).map_err(
                |error| Error::bug("a frame and its transform differ in length").with_source(error),
            )?;
            for (power, bin) in scratch.power.iter_mut().zip(&scratch.bins) {
                power[lane] = bin.re * bin.re + bin.im * bin.im;
            }
        }
        if magnitude {
            scratch.power.as_flattened_mut().iter_mut().for_each(|x| *x = x.sqrt());
        }
        Ok(())
    }

    /// Cuts out frame `index`, windowed.
    fn cut(&self, wave: &[f32], index: usize, frame: &mut [f32]) {
        let start = index * self.hop_length;
        let before = if self.center { self.n_fft / 2 } else { 0 };
        let inside = start.checked_sub(before).and_then(|start| wave.get(start..start + self.n_fft));
        if let Some(samples) = inside {
            for ((out, x), w) in frame.iter_mut().zip(samples).zip(&self.window) {
                *out = x * w;
            }
            return;
        }
        for (i, (out, w)) in frame.iter_mut().zip(&self.window).enumerate() {
            *out = self.padded(wave, start + i, before) * w;
        }
    }

    /// Returns sample `at` of the audio clip after `before` samples of padding.
    fn padded(&self, wave: &[f32], at: usize, before: usize) -> f32 {
        if let Some(x) = at.checked_sub(before).and_then(|at| wave.get(at)) {
            return *x;
        }
        if self.pad_mode == PadMode::Constant {
            return 0.0;
        }
        // Mirrored at both ends, the audio clip repeats after 2 (n − 1) samples.
        let period = 2 * (wave.len().max(2) - 1);
        let place = (at + period - before % period) % period;
        let place = if place < wave.len() { place } else { period - place };
        wave.get(place).or(wave.first()).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(n_fft: usize, hop: usize, center: bool, pad_mode: PadMode) -> Frames {
        Frames::new((n_fft, n_fft, hop), Window::Hann, center, pad_mode)
    }

    #[test]
    fn frames_are_counted_as_torch_does() {
        let centred = frames(400, 160, true, PadMode::Reflect);
        assert_eq!([0, 1, 159, 160, 16_000].map(|n| centred.count(n)), [0, 1, 1, 2, 101]);
        let plain = frames(400, 160, false, PadMode::Reflect);
        assert_eq!([0, 399, 400, 559, 560, 16_000].map(|n| plain.count(n)), [0, 0, 1, 1, 2, 98]);
        let odd = frames(401, 160, true, PadMode::Reflect);
        assert_eq!([1, 160, 161].map(|n| odd.count(n)), [1, 1, 2]);
    }

    #[test]
    fn padding_mirrors_as_numpy() {
        let wave = [1.0, 2.0, 3.0, 4.0];
        let read = |mode, wave: &[f32], before: usize, length: usize| -> Vec<f32> {
            let frames = frames(8, 4, true, mode);
            (0..length).map(|at| frames.padded(wave, at, before)).collect()
        };
        // np.pad([1, 2, 3, 4], (7, 4), mode="reflect")
        let expected = [2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0, 2.0];
        assert_eq!(read(PadMode::Reflect, &wave, 7, 15), expected);
        assert_eq!(read(PadMode::Reflect, &[5.0], 3, 6), [5.0; 6]);
        assert_eq!(read(PadMode::Constant, &wave, 1, 6), [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
    }

    #[test]
    fn spectra_equal_the_definition() {
        let wave: Vec<f32> = (0..300_u16).map(|i| (f32::from(i) * 0.37).sin() + f32::from(i % 5)).collect();
        for (n_fft, center) in [(64, true), (50, false), (33, true)] {
            let frames = frames(n_fft, 20, center, PadMode::Reflect);
            let mut scratch = SpectrumScratch::default();
            let (first, count) = (1, frames.count(wave.len()).min(5));
            frames.power(&wave, (first, count), false, &mut scratch).unwrap();
            for lane in 0..count {
                let mut frame = vec![0.0; n_fft];
                frames.cut(&wave, first + lane, &mut frame);
                for (bin, power) in scratch.power.iter().enumerate() {
                    let (mut re, mut im) = (0.0, 0.0);
                    for (n, &x) in frame.iter().enumerate() {
                        let angle = std::f64::consts::TAU * (bin * n) as f64 / n_fft as f64;
                        re += f64::from(x) * angle.cos();
                        im -= f64::from(x) * angle.sin();
                    }
                    let exact = re * re + im * im;
                    let error = (f64::from(power[lane]) - exact).abs();
                    assert!(error < 1e-5 * exact + 1e-3, "{n_fft} {lane} {bin}: {error} of {exact}");
                }
            }
            assert!(scratch.power.iter().all(|power| power[count..].iter().all(|&x| x == 0.0)));
        }
    }
}
