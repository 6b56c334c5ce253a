//! The transform to 8×8 samples on AVX2: products of 16 bits, two added at a time (`pmaddwd`), instead of products of
//! 32 bits, which take longer on most processors.
//!
//! ```text
//! pairs 01 23 45 67 ─ columns ─▶ eight rows of i32 ─ pack, transpose ─▶ pairs ─ rows ─▶ eight columns ─▶ bytes
//! ```

use std::arch::x86_64::*;

use super::arithmetic::{COLUMN_SHIFT, CONST_BITS, PASS1_BITS, ROW_SHIFT};
use super::pairs::{factors, load, pair};

/// Rows (or columns) 0 and 1, 2 and 3, 4 and 5, 6 and 7.
type Pairs = [__m256i; 4];

/// One dimension of the transform.
#[target_feature(enable = "avx2")]
#[inline]
fn pass<const SHIFT: i32>([p01, p23, p45, p67]: Pairs) -> [__m256i; 8] {
    let i26 = _mm256_unpacklo_epi16(p23, p67);
    let even2 = _mm256_madd_epi16(i26, factors(4433, 4433 - 15_137));
    let even3 = _mm256_madd_epi16(i26, factors(4433 + 6270, 4433));
    // i0 + i4 and i5 + i1; the former shifted up by way of the upper half of 32 bits. The rounding goes in here.
    let sums = _mm256_add_epi16(p01, p45);
    let up = |words| {
        let high = _mm256_unpacklo_epi16(_mm256_setzero_si256(), words);
        let scaled = _mm256_srai_epi32::<{ 16 - CONST_BITS }>(high);
        _mm256_add_epi32(scaled, _mm256_set1_epi32(1 << (SHIFT - 1)))
    };
    let (even0, even1) = (up(sums), up(_mm256_sub_epi16(p01, p45)));
    let (t10, t13) = (_mm256_add_epi32(even0, even3), _mm256_sub_epi32(even0, even3));
    let (t11, t12) = (_mm256_add_epi32(even1, even2), _mm256_sub_epi32(even1, even2));

    let z34 = _mm256_unpackhi_epi16(_mm256_add_epi16(p67, p23), sums);
    let z3 = _mm256_madd_epi16(z34, factors(9633 - 16_069, 9633));
    let z4 = _mm256_madd_epi16(z34, factors(9633, 9633 - 3196));
    let (i71, i53) = (_mm256_unpackhi_epi16(p67, p01), _mm256_unpackhi_epi16(p45, p23));
    let odd = |pair, first, second, z| _mm256_add_epi32(_mm256_madd_epi16(pair, factors(first, second)), z);
    let odd0 = odd(i71, 2446 - 7373, -7373, z3);
    let odd1 = odd(i53, 16_819 - 20_995, -20_995, z4);
    let odd2 = odd(i53, -20_995, 25_172 - 20_995, z3);
    let odd3 = odd(i71, -7373, 12_299 - 7373, z4);
    let plus = |a, b| _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(a, b));
    let minus = |a, b| _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(a, b));
    [
        plus(t10, odd3),
        plus(t11, odd2),
        plus(t12, odd1),
        plus(t13, odd0),
        minus(t13, odd0),
        minus(t12, odd1),
        minus(t11, odd2),
        minus(t10, odd3),
    ]
}

/// Eight rows, saturated to 16 bits, as pairs of columns.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose(r: [__m256i; 8]) -> Pairs {
    // Four by four within a lane: columns 0 … 3 in the low one, 4 … 7 in the high, first of four rows, then of four.
    // (Were rows 0 and 2 packed together and the second step one of 32 bits, LLVM would take the shuffles apart into
    // twice as many.)
    let quarter = |r0, r1, r2, r3| {
        let (r01, r23) = (_mm256_packs_epi32(r0, r1), _mm256_packs_epi32(r2, r3));
        let (r02, r13) = (_mm256_unpacklo_epi16(r01, r23), _mm256_unpackhi_epi16(r01, r23));
        (_mm256_unpacklo_epi16(r02, r13), _mm256_unpackhi_epi16(r02, r13))
    };
    let ((a01, a23), (b01, b23)) = (quarter(r[0], r[1], r[2], r[3]), quarter(r[4], r[5], r[6], r[7]));
    [
        _mm256_permute2x128_si256::<0x20>(a01, b01),
        _mm256_permute2x128_si256::<0x20>(a23, b23),
        _mm256_permute2x128_si256::<0x31>(a01, b01),
        _mm256_permute2x128_si256::<0x31>(a23, b23),
    ]
}

/// What [`transpose`] gives for a block that has only its first row: flat columns.
#[target_feature(enable = "avx2")]
#[inline]
fn flat_columns(row: __m128i) -> Pairs {
    let row = _mm256_broadcastsi128_si256(_mm_slli_epi16::<PASS1_BITS>(row));
    let (low, high) = (_mm256_unpacklo_epi16(row, row), _mm256_unpackhi_epi16(row, row));
    [
        _mm256_shuffle_epi32::<0b01_01_00_00>(low),
        _mm256_shuffle_epi32::<0b11_11_10_10>(low),
        _mm256_shuffle_epi32::<0b01_01_00_00>(high),
        _mm256_shuffle_epi32::<0b11_11_10_10>(high),
    ]
}

/// The transform to 8×8 samples.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn full(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let [r01, r23, r45, r67] = load(block);
    let rest = _mm256_or_si256(_mm256_or_si256(r23, r45), r67);
    let rest = _mm_or_si128(
        _mm256_extracti128_si256::<1>(r01),
        _mm_or_si128(_mm256_castsi256_si128(rest), _mm256_extracti128_si256::<1>(rest)),
    );
    let columns = if _mm_testz_si128(rest, rest) == 1 {
        flat_columns(_mm256_castsi256_si128(r01))
    } else {
        transpose(pass::<COLUMN_SHIFT>([pair(r01), pair(r23), pair(r45), pair(r67)]))
    };
    store(pass::<ROW_SHIFT>(columns), out, stride);
}

/// Eight columns, as samples in rows.
#[target_feature(enable = "avx2")]
#[inline]
fn store(c: [__m256i; 8], out: &mut [u8], stride: usize) {
    // In each lane four rows of columns 0 2 4 6 (and 1 3 5 7), then these columns of each row together.
    let four = |c0, c2, c4, c6| {
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(c0, c2), _mm256_packs_epi32(c4, c6));
        let rows =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        _mm256_add_epi8(_mm256_shuffle_epi8(bytes, rows), _mm256_set1_epi8(-128))
    };
    let (even, odd) = (four(c[0], c[2], c[4], c[6]), four(c[1], c[3], c[5], c[7]));
    let (r0145, r2367) = (_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd));
    let (r01, r23) = (_mm256_castsi256_si128(r0145), _mm256_castsi256_si128(r2367));
    let (r45, r67) = (_mm256_extracti128_si256::<1>(r0145), _mm256_extracti128_si256::<1>(r2367));
    let out = &mut out[..stride * 7 + 8];
    for (two, rows) in [r01, r23, r45, r67].into_iter().enumerate() {
        let start = two * 2 * stride;
        let (first, second) = (_mm_cvtsi128_si64(rows), _mm_extract_epi64::<1>(rows));
        out[start..start + 8].copy_from_slice(&first.to_le_bytes());
        out[start + stride..start + stride + 8].copy_from_slice(&second.to_le_bytes());
    }
}
