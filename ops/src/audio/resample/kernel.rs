//! Sums of products in eight lanes. Lane i takes taps i, i + 8, …; then lanes are added as (i) + (i + 4), (i) + (i + 2), and
//! the last two. Products and sums are rounded separately, so that every implementation gives the same bits.

use super::filter::LANES;

/// Outputs that are computed together, each with its taps and the same coefficients. Eight sums, one register of coefficients
/// and one of products fit in the sixteen registers.
pub(super) const TOGETHER: usize = 8;

/// Returns the sum of the products of `coefficients` and the taps at `input[step · j ..]`, for each j of [`TOGETHER`].
///
/// # Panics
/// If the input is shorter than the last output's taps, which is a defect of the caller.
pub(super) fn dots(coefficients: &[f32], input: &[f32], step: usize) -> [f32; TOGETHER] {
    assert!(coefficients.len().is_multiple_of(LANES));
    assert!(input.len() >= step * (TOGETHER - 1) + coefficients.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and the lengths were asserted.
        return unsafe { avx2::dots(coefficients, input, step) };
    }
    dots_portable(coefficients, input, step)
}

fn dots_portable(coefficients: &[f32], input: &[f32], step: usize) -> [f32; TOGETHER] {
    std::array::from_fn(|j| dot(coefficients, &input[step * j..]))
}

/// Returns one sum.
pub(super) fn dot(coefficients: &[f32], taps: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for (coefficients, taps) in coefficients.chunks_exact(LANES).zip(taps.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += coefficients[lane] * taps[lane];
        }
    }
    let half: [f32; 4] = std::array::from_fn(|lane| sums[lane] + sums[lane + 4]);
    (half[0] + half[2]) + (half[1] + half[3])
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps,
        _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_setzero_ps,
    };

    use crate::audio::resample::filter::LANES;
    use crate::audio::resample::kernel::TOGETHER;

    /// # Safety
    /// `coefficients` is a multiple of [`LANES`] long, and `input` at least `step` · ([`TOGETHER`] − 1) longer.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn dots(coefficients: &[f32], input: &[f32], step: usize) -> [f32; TOGETHER] {
        let mut sums = [_mm256_setzero_ps(); TOGETHER];
        let (coefficient, tap) = (coefficients.as_ptr(), input.as_ptr());
        let mut at = 0;
        while at < coefficients.len() {
            // SAFETY: `at` + 8 ≤ the coefficients' length, and the caller guarantees the taps.
            unsafe {
                let these = _mm256_loadu_ps(coefficient.add(at));
                for (j, sum) in sums.iter_mut().enumerate() {
                    let taps = _mm256_loadu_ps(tap.add(step * j + at));
                    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(these, taps));
                }
            }
            at += LANES;
        }
        sums.map(|sum| across(sum))
    }

    #[target_feature(enable = "avx2")]
    fn across(sum: __m256) -> f32 {
        let half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps::<1>(quarter, quarter)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_implementation_gives_the_same_bits() {
        let noise = |seed: u32| {
            let mut state = seed;
            move || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            }
        };
        for (taps, step) in [(8, 1), (88, 1), (256, 3), (240, 441)] {
            let (mut coefficient, mut value) = (noise(1), noise(2));
            let coefficients: Vec<f32> = (0..taps).map(|_| coefficient()).collect();
            let input: Vec<f32> = (0..step * (TOGETHER - 1) + taps).map(|_| value()).collect();
            let fast = dots(&coefficients, &input, step).map(f32::to_bits);
            assert_eq!(fast, dots_portable(&coefficients, &input, step).map(f32::to_bits));
        }
    }
}
