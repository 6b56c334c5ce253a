//! Convolution of a waveform with an impulse response, by transforms of a bounded size (overlap-save).
//!
//! ```text
//! response ─▶ parts of n/2 samples ─▶ spectra H₀ H₁ …
//! wave     ─▶ blocks of n/2, each with the one before it ─▶ spectra X of the last blocks
//! Σ Hₚ · Xⱼ₋ₚ ─▶ inverse transform, second half ─▶ n/2 samples of the result
//! ```
//! n is a power of two by the response's length, 1,024 … 65,536, so a chain has at most 7 plans. The memory for responses that
//! are longer than half of the largest n is 16 bytes a sample.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

use feedstock_base::{Error, Result};

/// The smallest and the largest transform, as powers of two: 65,536 are 4 s at 16 kHz.
const SMALLEST: u32 = 10;
const LARGEST: u32 = 16;

/// One size's transforms.
#[derive(Clone)]
struct Transforms {
    forward: Arc<dyn RealToComplex<f32>>,
    inverse: Arc<dyn ComplexToReal<f32>>,
}

/// The transforms of all sizes that some responses take.
pub(crate) struct Convolver {
    sizes: Vec<Option<Transforms>>,
}

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct ConvolutionScratch {
    /// Spectra of the response's parts.
    response: Vec<Complex<f32>>,
    /// Spectra of the last blocks, one for each part of the response.
    blocks: Vec<Complex<f32>>,
    sum: Vec<Complex<f32>>,
    fft: Vec<Complex<f32>>,
    /// A block with the one before it.
    frame: Vec<f32>,
    before: Vec<f32>,
}

impl ConvolutionScratch {
    pub(super) fn kept_bytes(&self) -> usize {
        let complex: usize =
            [&self.response, &self.blocks, &self.sum, &self.fft].into_iter().map(Vec::capacity).sum();
        let real: usize = [&self.frame, &self.before].into_iter().map(Vec::capacity).sum();
        complex * size_of::<Complex<f32>>() + real * size_of::<f32>()
    }
}

/// The power of two of the transforms for a response of this length.
fn power(length: usize) -> u32 {
    (2 * length.max(1)).next_power_of_two().ilog2().clamp(SMALLEST, LARGEST)
}

/// Returns the bytes of the buffers for a response of this length.
pub(crate) fn working_bytes(length: usize) -> u64 {
    let half = 1_u64 << (power(length) - 1);
    let parts = (length as u64).div_ceil(half).max(1);
    // The two lists of spectra; a spectrum, the transform's own memory (at most as large as a frame), and the real buffers.
    16 * parts * (half + 1) + 8 * (half + 1) + 16 * (half + 1) + 12 * half
}

fn fill<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) {
    crate::buffer::fit(buffer, length);
    buffer.clear();
    buffer.resize(length, T::default());
}

impl Convolver {
    /// Plans the transforms for responses of these lengths.
    pub(crate) fn new(lengths: impl Iterator<Item = usize>) -> Self {
        let mut planner = RealFftPlanner::new();
        let mut sizes = vec![None; LARGEST as usize + 1];
        for power in lengths.map(power) {
            sizes[power as usize].get_or_insert_with(|| Transforms {
                forward: planner.plan_fft_forward(1 << power),
                inverse: planner.plan_fft_inverse(1 << power),
            });
        }
        Self { sizes }
    }

    /// Replaces `wave` by samples `first` … `first + wave.len()` of its convolution with `response`, of which `first` is a place.
    ///
    /// # Errors
    /// `Bug` only.
    pub(crate) fn run(
        &self,
        wave: &mut [f32],
        response: &[f32],
        first: usize,
        scratch: &mut ConvolutionScratch,
    ) -> Result<()> {
        let transforms = self.sizes[power(response.len()) as usize].as_ref();
        let transforms =
            transforms.ok_or_else(|| Error::bug("no transforms are planned for an impulse response"))?;
        // What is later than the waveform's end has no effect.
        let response = &response[..response.len().min(first + wave.len())];
        transforms.convolve(wave, response, first, scratch).map_err(|error| {
            Error::bug("a block of audio and its transform differ in length").with_source(error)
        })
    }
}

impl Transforms {
    fn convolve(
        &self,
        wave: &mut [f32],
        response: &[f32],
        first: usize,
        scratch: &mut ConvolutionScratch,
    ) -> std::result::Result<(), realfft::FftError> {
        let half = self.forward.len() / 2;
        let (bins, parts) = (half + 1, response.len().div_ceil(half).max(1));
        let ConvolutionScratch { response: spectra, blocks, sum, fft, frame, before } = scratch;
        fill(spectra, parts * bins);
        fill(blocks, parts * bins);
        fill(sum, bins);
        fill(fft, self.forward.get_scratch_len().max(self.inverse.get_scratch_len()));
        fill(frame, 2 * half);
        fill(before, half);
        for (part, spectrum) in response.chunks(half).zip(spectra.chunks_exact_mut(bins)) {
            frame[..part.len()].copy_from_slice(part);
            frame[part.len()..].fill(0.0);
            self.forward.process_with_scratch(frame, spectrum, fft)?;
        }
        let end = first + wave.len();
        let scale = 1.0 / (2 * half) as f32;
        for block in 0..end.div_ceil(half) {
            let start = block * half;
            // The block, zeros after the end of the waveform; its samples are read before they are overwritten.
            let (old, new) = frame.split_at_mut(half);
            old.copy_from_slice(before);
            let inside = start.min(wave.len())..(start + half).min(wave.len());
            new[..inside.len()].copy_from_slice(&wave[inside.clone()]);
            new[inside.len()..].fill(0.0);
            before.copy_from_slice(new);
            let newest = block % parts;
            let spectrum = &mut blocks[newest * bins..(newest + 1) * bins];
            self.forward.process_with_scratch(frame, spectrum, fft)?;
            sum.fill(Complex::default());
            for (part, spectrum) in spectra.chunks_exact(bins).enumerate() {
                let place = (newest + parts - part) % parts;
                let of_block = &blocks[place * bins..(place + 1) * bins];
                let products = spectrum.iter().zip(of_block);
                sum.iter_mut().zip(products).for_each(|(sum, (h, x))| *sum += h * x);
            }
            // Both are real; rounding may leave a rest, which the inverse transform refuses.
            sum[0].im = 0.0;
            sum[half].im = 0.0;
            self.inverse.process_with_scratch(sum, frame, fft)?;
            let made = start.max(first)..(start + half).min(end);
            if made.start < made.end {
                let from = half + made.start - start;
                let out = &mut wave[made.start - first..made.end - first];
                out.iter_mut().zip(&frame[from..]).for_each(|(out, value)| *out = value * scale);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn samples_are_those_of_the_definition_for_any_number_of_parts() {
        let mut planner = RealFftPlanner::new();
        let small =
            Transforms { forward: planner.plan_fft_forward(16), inverse: planner.plan_fft_inverse(16) };
        let mut scratch = ConvolutionScratch::default();
        for (length, taps, first) in
            [(100, 37, 9), (100, 37, 0), (5, 60, 40), (64, 8, 7), (1, 1, 0), (33, 9, 8), (40, 5, 4)]
        {
            let (wave, response) = (noise(length, 1), noise(taps, 2));
            let mut ours = wave.clone();
            let seen = &response[..taps.min(first + length)];
            small.convolve(&mut ours, seen, first, &mut scratch).unwrap();
            for (place, got) in (first..).zip(&ours) {
                let expected: f64 = response
                    .iter()
                    .enumerate()
                    .filter_map(|(tap, h)| {
                        Some(f64::from(*h) * f64::from(*wave.get(place.checked_sub(tap)?)?))
                    })
                    .sum();
                let error = (f64::from(*got) - expected).abs();
                assert!(error < 1e-5, "{length} with {taps} from {first} at {place}: {got}, {expected}");
            }
        }
    }

    #[test]
    fn the_smallest_transform_that_holds_a_response_is_planned() {
        assert_eq!([1, 512, 513, 32_768, 32_769, 1 << 24].map(power), [10, 10, 11, 16, 16, 16]);
    }
}
