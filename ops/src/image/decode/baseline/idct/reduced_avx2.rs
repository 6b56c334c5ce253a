//! The transforms to 4×4 and 2×2 samples on AVX2, with pairs of rows as in the transform to 8×8.

use std::arch::x86_64::*;

use super::arithmetic::{
    CONST_BITS, HALF_COLUMN_SHIFT, HALF_ROW_SHIFT, PASS1_BITS, QUARTER_COLUMN_SHIFT, QUARTER_ROW_SHIFT,
};
use super::pairs::{factors, load, pair};

/// What the transform of one dimension multiplies: coefficient 0 in the upper half of 32 bits, and pairs 2 6, 7 1 and 5 3.
type Factors = [__m256i; 4];

#[target_feature(enable = "avx2")]
#[inline]
fn rounding(shift: i32) -> __m256i {
    _mm256_set1_epi32(1 << (shift - 1))
}

/// One dimension of the transform to four samples.
#[target_feature(enable = "avx2")]
#[inline]
fn four<const SHIFT: i32>([i0, i26, i71, i53]: Factors) -> [__m256i; 4] {
    let even = _mm256_add_epi32(_mm256_srai_epi32::<{ 16 - CONST_BITS - 1 }>(i0), rounding(SHIFT));
    let turned = _mm256_madd_epi16(i26, factors(15_137, -6270));
    let (outer, inner) = (_mm256_add_epi32(even, turned), _mm256_sub_epi32(even, turned));
    let odd = |of71, of53| _mm256_add_epi32(_mm256_madd_epi16(i71, of71), _mm256_madd_epi16(i53, of53));
    let odd_inner = odd(factors(-1730, 8697), factors(11_893, -17_799));
    let odd_outer = odd(factors(-4176, 20_995), factors(-4926, 7373));
    [
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(outer, odd_outer)),
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(inner, odd_inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(inner, odd_inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(outer, odd_outer)),
    ]
}

/// The transform to 4×4 samples.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn half(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let [r01, r23, r45, r67] = load(block);
    let zero = _mm256_setzero_si256();
    // Rows 1 and 5 are in upper halves, row 4, which does not count, is in a lower one.
    let upper = _mm256_extracti128_si256::<1>(_mm256_or_si256(r01, r45));
    let rest = _mm256_or_si256(r23, r67);
    let rest =
        _mm_or_si128(upper, _mm_or_si128(_mm256_castsi256_si128(rest), _mm256_extracti128_si256::<1>(rest)));
    // Columns 0 1 and 2 3 in the low lane, 4 5 and 6 7 in the high one, of four rows each.
    let (even, odd) = if _mm_testz_si128(rest, rest) == 1 {
        let row = _mm_slli_epi16::<PASS1_BITS>(_mm256_castsi256_si128(r01));
        let (low, high) = (_mm_unpacklo_epi16(row, row), _mm_unpackhi_epi16(row, row));
        let twice = _mm256_set_m128i(high, low);
        (_mm256_shuffle_epi32::<0b01_01_00_00>(twice), _mm256_shuffle_epi32::<0b11_11_10_10>(twice))
    } else {
        let [p01, p23, p45, p67] = [pair(r01), pair(r23), pair(r45), pair(r67)];
        let rows = four::<HALF_COLUMN_SHIFT>([
            _mm256_unpacklo_epi16(zero, p01),
            _mm256_unpacklo_epi16(p23, p67),
            _mm256_unpackhi_epi16(p67, p01),
            _mm256_unpackhi_epi16(p45, p23),
        ]);
        let (r01, r23) = (_mm256_packs_epi32(rows[0], rows[1]), _mm256_packs_epi32(rows[2], rows[3]));
        let (r02, r13) = (_mm256_unpacklo_epi16(r01, r23), _mm256_unpackhi_epi16(r01, r23));
        (_mm256_unpacklo_epi16(r02, r13), _mm256_unpackhi_epi16(r02, r13))
    };
    let low = |value| _mm256_zextsi128_si256(_mm256_castsi256_si128(value));
    let high = |value| _mm256_zextsi128_si256(_mm256_extracti128_si256::<1>(value));
    let (c01, c23, c45, c67) = (low(even), low(odd), high(even), high(odd));
    let columns = four::<HALF_ROW_SHIFT>([
        _mm256_unpacklo_epi16(zero, c01),
        _mm256_unpacklo_epi16(c23, c67),
        _mm256_unpackhi_epi16(c67, c01),
        _mm256_unpackhi_epi16(c45, c23),
    ])
    .map(|column| _mm256_castsi256_si128(column));
    let words = [_mm_packs_epi32(columns[0], columns[1]), _mm_packs_epi32(columns[2], columns[3])];
    let bytes = _mm_packs_epi16(words[0], words[1]);
    let rows = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let rows = _mm_add_epi8(rows, _mm_set1_epi8(-128));
    let out = &mut out[..stride * 3 + 4];
    let rows = [
        _mm_cvtsi128_si32(rows),
        _mm_extract_epi32::<1>(rows),
        _mm_extract_epi32::<2>(rows),
        _mm_extract_epi32::<3>(rows),
    ];
    for (y, row) in rows.into_iter().enumerate() {
        out[y * stride..y * stride + 4].copy_from_slice(&row.to_le_bytes());
    }
}

/// The transform to 2×2 samples.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn quarter(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let [p01, p23, p45, p67] = load(block).map(|two| pair(two));
    let even = _mm256_unpacklo_epi16(_mm256_setzero_si256(), p01);
    let even =
        _mm256_add_epi32(_mm256_srai_epi32::<{ 16 - CONST_BITS - 2 }>(even), rounding(QUARTER_COLUMN_SHIFT));
    let odd = _mm256_add_epi32(
        _mm256_madd_epi16(_mm256_unpackhi_epi16(p67, p01), factors(-5906, 29_692)),
        _mm256_madd_epi16(_mm256_unpackhi_epi16(p45, p23), factors(6967, -10_426)),
    );
    let upper = _mm256_srai_epi32::<QUARTER_COLUMN_SHIFT>(_mm256_add_epi32(even, odd));
    let lower = _mm256_srai_epi32::<QUARTER_COLUMN_SHIFT>(_mm256_sub_epi32(even, odd));
    // Columns 0 … 3 of both rows in the low lane, 4 … 7 in the high one; the even ones do not count.
    let weights =
        _mm256_setr_epi16(0, 29_692, 0, -10_426, 0, 29_692, 0, -10_426, 0, 6967, 0, -5906, 0, 6967, 0, -5906);
    let products = _mm256_madd_epi16(_mm256_packs_epi32(upper, lower), weights);
    let sums = _mm_add_epi32(_mm256_castsi256_si128(products), _mm256_extracti128_si256::<1>(products));
    // The upper row's odd part twice, then the lower row's.
    let odd = _mm_hadd_epi32(sums, sums);
    let odd = _mm_shuffle_epi32::<0b01_01_00_00>(odd);
    let even = _mm_unpacklo_epi32(_mm256_castsi256_si128(upper), _mm256_castsi256_si128(lower));
    let even = _mm_slli_epi32::<{ CONST_BITS + 2 }>(_mm_shuffle_epi32::<0b01_01_00_00>(even));
    let signs = _mm_setr_epi32(1, -1, 1, -1);
    let rounded = _mm_add_epi32(even, _mm_set1_epi32(1 << (QUARTER_ROW_SHIFT - 1)));
    let samples = _mm_srai_epi32::<QUARTER_ROW_SHIFT>(_mm_add_epi32(rounded, _mm_sign_epi32(odd, signs)));
    let words = _mm_packs_epi32(samples, samples);
    let bytes = _mm_add_epi8(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
    let [a, b, c, d] = _mm_cvtsi128_si32(bytes).to_le_bytes();
    out[..2].copy_from_slice(&[a, b]);
    out[stride..stride + 2].copy_from_slice(&[c, d]);
}
