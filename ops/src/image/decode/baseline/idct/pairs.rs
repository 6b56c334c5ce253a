//! How both transforms on AVX2 hold rows, so that one instruction multiplies two of them (`pmaddwd`).
//!
//! A *pair* is two rows of eight coefficients, the first halves of both in the low lane and the second in the high:
//! interleaving two pairs then gives, for each of the eight columns, the two factors that `pmaddwd` wants.

use std::arch::x86_64::*;

/// Factors for the two values of each interleaved pair.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn factors(first: i16, second: i16) -> __m256i {
    _mm256_unpacklo_epi16(_mm256_set1_epi16(first), _mm256_set1_epi16(second))
}

/// Two rows, as they are stored, as a pair.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn pair(two: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(two)
}

/// Rows 0 and 1, 2 and 3, 4 and 5, 6 and 7 of a block.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(block: &[i16; 64]) -> [__m256i; 4] {
    let (rows, _) = block.as_chunks::<16>();
    // SAFETY: 32 bytes are read from an array of 16 i16.
    let load = |two: &[i16; 16]| unsafe { _mm256_loadu_si256(two.as_ptr().cast()) };
    [load(&rows[0]), load(&rows[1]), load(&rows[2]), load(&rows[3])]
}
