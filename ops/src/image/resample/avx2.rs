//! The two passes in AVX2: products of two taps at a time in 16 bits, sums in 32.

use std::arch::x86_64::*;

use super::rows::{ROW_PADDING, RowTaps, Rows};
use super::weights::{Taps, Weights};

/// Bytes of a row that are summed at once.
pub(super) const BYTES: usize = 32;
/// Bytes of four pixels.
const GROUP: usize = 12;

#[target_feature(enable = "avx2")]
#[inline]
fn precision(bits: u32) -> (__m256i, __m128i) {
    (_mm256_set1_epi32(1 << (bits - 1)), _mm_cvtsi32_si128(bits.cast_signed()))
}

/// [`super::down`], for rows of 32 bytes or more.
#[target_feature(enable = "avx2")]
pub(super) fn down(rows: Rows<'_>, taps: RowTaps<'_>, out: &mut [u8]) {
    match taps.count {
        1 | 2 => down_pairs::<1>(rows, taps, out),
        3 | 4 => down_pairs::<2>(rows, taps, out),
        _ => down_pairs::<0>(rows, taps, out),
    }
}

/// [`down`] for `PAIRS` pairs of rows; 0 stands for any number.
#[target_feature(enable = "avx2")]
#[inline]
fn down_pairs<const PAIRS: usize>(rows: Rows<'_>, taps: RowTaps<'_>, out: &mut [u8]) {
    let RowTaps { first, count, pairs: weights, precision: bits } = taps;
    let (half, bits) = precision(bits);
    let pairs = if PAIRS == 0 { count.div_ceil(2) } else { PAIRS };
    let weights = &weights[..pairs];
    let length = out.len();
    assert!(length >= BYTES && count > 0 && (first + count - 1) * rows.pitch + length <= rows.pixels.len());
    let mut at = 0;
    loop {
        let mut sums = [half; 4];
        for pair in 0..pairs {
            // With an odd count, the last row is paired with itself, at weight zero.
            let rows_of_pair = [pair * 2, (pair * 2 + 1).min(count - 1)];
            // SAFETY: rows `first` … `first + count` have `length` bytes each within the pixels, as asserted, and
            // `at` is at most `length - BYTES`.
            let load = |row: usize| unsafe {
                _mm256_loadu_si256(rows.pixels.as_ptr().add((first + row) * rows.pitch + at).cast())
            };
            let (a, b) = (load(rows_of_pair[0]), load(rows_of_pair[1]));
            let weights = _mm256_set1_epi32(weights[pair]);
            let zero = _mm256_setzero_si256();
            let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            let add = |sum, words| _mm256_add_epi32(sum, _mm256_madd_epi16(words, weights));
            sums = [
                add(sums[0], _mm256_unpacklo_epi8(low, zero)),
                add(sums[1], _mm256_unpackhi_epi8(low, zero)),
                add(sums[2], _mm256_unpacklo_epi8(high, zero)),
                add(sums[3], _mm256_unpackhi_epi8(high, zero)),
            ];
        }
        let down = |sum| _mm256_sra_epi32(sum, bits);
        let low = _mm256_packs_epi32(down(sums[0]), down(sums[1]));
        let high = _mm256_packs_epi32(down(sums[2]), down(sums[3]));
        // SAFETY: `at` is at most `length - BYTES`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), _mm256_packus_epi16(low, high)) };
        if at == length - BYTES {
            return;
        }
        // The last block overlaps the one before.
        at = (at + BYTES).min(length - BYTES);
    }
}

/// [`super::across`], with one of the two rows in each half of a register.
#[target_feature(enable = "avx2")]
pub(super) fn across(rows: [&[u8]; 2], weights: &Weights, out: [&mut [u8]; 2]) {
    match weights.stride {
        1 => across_pairs::<1>(rows, weights, out),
        2 => across_pairs::<2>(rows, weights, out),
        4 => across_pairs::<4>(rows, weights, out),
        _ => across_pairs::<0>(rows, weights, out),
    }
}

/// [`across`] for `PAIRS` pairs of taps; 0 stands for any even number.
#[target_feature(enable = "avx2")]
#[inline]
fn across_pairs<const PAIRS: usize>(rows: [&[u8]; 2], weights: &Weights, out: [&mut [u8]; 2]) {
    let stride = if PAIRS == 0 { weights.stride } else { PAIRS };
    let [upper, lower] = out;
    let (groups, _) = weights.taps.as_chunks::<4>();
    let mut groups = groups.iter().zip(weights.pairs.chunks_exact(stride * 4));
    let four = Four::<PAIRS>::new(rows, weights);
    let mut at = 0;
    // Stores 16 bytes at a time while there is room; the next store overwrites the last four.
    let room = upper.len().min(lower.len()).saturating_sub(16 - GROUP);
    for (taps, pairs) in groups.by_ref().take(room / GROUP) {
        // SAFETY: taps and pairs belong to the weights that `four` was made with.
        let pixels = unsafe { four.pixels(taps, pairs) };
        let [upper, lower] = [&mut upper[at..at + 16], &mut lower[at..at + 16]];
        // SAFETY: there is room for 16 bytes in both rows.
        unsafe {
            _mm_storeu_si128(upper.as_mut_ptr().cast(), _mm256_castsi256_si128(pixels));
            _mm_storeu_si128(lower.as_mut_ptr().cast(), _mm256_extracti128_si256::<1>(pixels));
        }
        at += GROUP;
    }
    for (taps, pairs) in groups {
        let mut pixels = [0_u8; 32];
        // SAFETY: the buffer has 32 bytes; taps and pairs as above.
        unsafe { _mm256_storeu_si256(pixels.as_mut_ptr().cast(), four.pixels(taps, pairs)) };
        for (row, pixels) in [&mut *upper, &mut *lower].into_iter().zip(pixels.chunks_exact(16)) {
            for (out, value) in row[at..].iter_mut().zip(&pixels[..GROUP]) {
                *out = *value;
            }
        }
        at += GROUP;
    }
}

/// Computes four pixels of two rows at a time.
struct Four<'a, const PAIRS: usize> {
    rows: [&'a [u8]; 2],
    half: __m256i,
    bits: __m128i,
}

impl<'a, const PAIRS: usize> Four<'a, PAIRS> {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new(rows: [&'a [u8]; 2], weights: &Weights) -> Self {
        assert!(rows.iter().all(|row| row.len() >= weights.readable * 3 + ROW_PADDING));
        let (half, bits) = precision(weights.precision);
        Self { rows, half, bits }
    }

    /// Returns the pixels of four results.
    ///
    /// # Safety
    /// `taps` and `pairs` must belong to the weights given to `new`.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn pixels(&self, taps: &[Taps; 4], pairs: &[i32]) -> __m256i {
        let mut sums = [self.half; 4];
        let stride = if PAIRS == 0 { pairs.len() / 4 } else { PAIRS };
        for ((sum, taps), pairs) in sums.iter_mut().zip(taps).zip(pairs.chunks_exact(stride)) {
            let mut byte = taps.first as usize * 3;
            for pairs in pairs.chunks(2) {
                // SAFETY: the rows are readable for `stride` pairs from any tap's first pixel, plus the padding.
                let load = |row: usize| unsafe { _mm_loadu_si128(self.rows[row].as_ptr().add(byte).cast()) };
                let pixels = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(0)), load(1));
                let words = _mm256_shuffle_epi8(pixels, words_of_pair::<0>());
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, _mm256_set1_epi32(pairs[0])));
                if PAIRS != 1 {
                    let words = _mm256_shuffle_epi8(pixels, words_of_pair::<6>());
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, _mm256_set1_epi32(pairs[1])));
                }
                byte += 12;
            }
            *sum = _mm256_sra_epi32(*sum, self.bits);
        }
        let words = [_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3])];
        _mm256_shuffle_epi8(_mm256_packus_epi16(words[0], words[1]), without_fourths())
    }
}

/// Returns the shuffle of the two pixels at byte `AT` into words: both reds, both greens, both blues, zeros.
#[target_feature(enable = "avx2")]
#[inline]
fn words_of_pair<const AT: i8>() -> __m256i {
    #[rustfmt::skip]
    let half = _mm_setr_epi8(
        AT, -1, AT + 3, -1, AT + 1, -1, AT + 4, -1, AT + 2, -1, AT + 5, -1, -1, -1, -1, -1,
    );
    _mm256_broadcastsi128_si256(half)
}

/// Returns the shuffle of four pixels of four bytes into pixels of three.
#[target_feature(enable = "avx2")]
#[inline]
fn without_fourths() -> __m256i {
    _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1))
}
