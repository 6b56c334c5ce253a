//! The inverse DCT of libjpeg's `jidctint.c` (islow: Loeffler, Ligtenberg, Moschytz 1989, 13-bit constants), twice:
//! over eight lanes of AVX2, and in plain Rust for other machines. Both give the same bits.

const CONST_BITS: i32 = 13;
const PASS1_BITS: i32 = 2;
/// What the passes over columns and rows shift out.
const COLUMN_SHIFT: i32 = CONST_BITS - PASS1_BITS;
const ROW_SHIFT: i32 = CONST_BITS + PASS1_BITS + 3;

/// One dimension of the transform on any type of lanes; the operations come from the caller's scope.
macro_rules! one_dimension {
    ($rows:expr, $shift:expr, $add:ident, $sub:ident, $mul:ident, $up:ident, $down:ident) => {{
        let [i0, i1, i2, i3, i4, i5, i6, i7] = $rows;
        let z1 = $mul($add(i2, i6), 4433);
        let even2 = $add(z1, $mul(i6, -15137));
        let even3 = $add(z1, $mul(i2, 6270));
        let (even0, even1) = ($up($add(i0, i4)), $up($sub(i0, i4)));
        let (t10, t13) = ($add(even0, even3), $sub(even0, even3));
        let (t11, t12) = ($add(even1, even2), $sub(even1, even2));

        let (z1, z2, z3, z4) = ($add(i7, i1), $add(i5, i3), $add(i7, i3), $add(i5, i1));
        let z5 = $mul($add(z3, z4), 9633);
        let (z1, z2) = ($mul(z1, -7373), $mul(z2, -20995));
        let (z3, z4) = ($add($mul(z3, -16069), z5), $add($mul(z4, -3196), z5));
        let odd0 = $add($mul(i7, 2446), $add(z1, z3));
        let odd1 = $add($mul(i5, 16819), $add(z2, z4));
        let odd2 = $add($mul(i3, 25172), $add(z2, z3));
        let odd3 = $add($mul(i1, 12299), $add(z1, z4));
        [
            $down($add(t10, odd3)),
            $down($add(t11, odd2)),
            $down($add(t12, odd1)),
            $down($add(t13, odd0)),
            $down($sub(t13, odd0)),
            $down($sub(t12, odd1)),
            $down($sub(t11, odd2)),
            $down($sub(t10, odd3)),
        ]
    }};
}

fn pass<const SHIFT: i32>(line: [i32; 8]) -> [i32; 8] {
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    fn sub(a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    fn mul(a: i32, b: i32) -> i32 {
        a.wrapping_mul(b)
    }
    let up = |a: i32| a << CONST_BITS;
    let down = |a: i32| a.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
    one_dimension!(line, SHIFT, add, sub, mul, up, down)
}

fn sample(value: i32) -> u8 {
    value.saturating_add(128).clamp(0, 255) as u8
}

/// Transforms a dequantised block (natural order) into eight rows of `out`, `stride` apart.
pub(super) fn full(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[0; 8]; 8];
    for (x, column) in columns.iter_mut().enumerate() {
        *column = pass::<COLUMN_SHIFT>(std::array::from_fn(|y| block[y * 8 + x].into()));
    }
    for y in 0..8 {
        let row = pass::<ROW_SHIFT>(std::array::from_fn(|x| columns[x][y]));
        for (out, value) in out[y * stride..y * stride + 8].iter_mut().zip(row) {
            *out = sample(value);
        }
    }
}

/// The same for a block that has only its DC coefficient.
#[inline(always)]
pub(super) fn flat(dc: i16, out: &mut [u8], stride: usize) {
    let value = sample((i32::from(dc) + 4) >> 3);
    for y in 0..8 {
        out[y * stride..y * stride + 8].fill(value);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::full as full_avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{COLUMN_SHIFT, CONST_BITS, ROW_SHIFT};

    #[target_feature(enable = "avx2")]
    #[inline]
    fn mul(a: __m256i, b: i32) -> __m256i {
        _mm256_mullo_epi32(a, _mm256_set1_epi32(b))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn up(a: __m256i) -> __m256i {
        _mm256_slli_epi32::<CONST_BITS>(a)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn columns(rows: [__m256i; 8]) -> [__m256i; 8] {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn down(a: __m256i) -> __m256i {
            _mm256_srai_epi32::<COLUMN_SHIFT>(_mm256_add_epi32(a, _mm256_set1_epi32(1 << (COLUMN_SHIFT - 1))))
        }
        one_dimension!(rows, COLUMN_SHIFT, _mm256_add_epi32, _mm256_sub_epi32, mul, up, down)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn rows(columns: [__m256i; 8]) -> [__m256i; 8] {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn down(a: __m256i) -> __m256i {
            _mm256_srai_epi32::<ROW_SHIFT>(_mm256_add_epi32(a, _mm256_set1_epi32(1 << (ROW_SHIFT - 1))))
        }
        one_dimension!(columns, ROW_SHIFT, _mm256_add_epi32, _mm256_sub_epi32, mul, up, down)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
        let pair = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let ((a0, a1), (a2, a3)) = (pair(r[0], r[1]), pair(r[2], r[3]));
        let ((a4, a5), (a6, a7)) = (pair(r[4], r[5]), pair(r[6], r[7]));
        let quad = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let ((b0, b1), (b2, b3)) = (quad(a0, a2), quad(a1, a3));
        let ((b4, b5), (b6, b7)) = (quad(a4, a6), quad(a5, a7));
        let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
        let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
        [
            low(b0, b4),
            low(b1, b5),
            low(b2, b6),
            low(b3, b7),
            high(b0, b4),
            high(b1, b5),
            high(b2, b6),
            high(b3, b7),
        ]
    }

    /// [`super::full`] on eight lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(in super::super) fn full(block: &[i16; 64], out: &mut [u8], stride: usize) {
        // SAFETY: the block holds eight rows of eight i16, 16 bytes each.
        let load = |y: usize| unsafe { _mm_loadu_si128(block.as_ptr().add(y * 8).cast()) };
        let wide = |y: usize| _mm256_cvtepi16_epi32(load(y));
        let block = [wide(0), wide(1), wide(2), wide(3), wide(4), wide(5), wide(6), wide(7)];
        let samples = transpose(rows(transpose(columns(block))));
        let out = &mut out[..stride * 7 + 8];
        for pair in 0..4 {
            // Two rows of eight: saturate to 16 bits, shift the level, saturate to bytes.
            let words = _mm256_packs_epi32(samples[pair * 2], samples[pair * 2 + 1]);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let words = _mm256_adds_epi16(words, _mm256_set1_epi16(128));
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let halves = [_mm_cvtsi128_si64(bytes), _mm_cvtsi128_si64(_mm_unpackhi_epi64(bytes, bytes))];
            for (half, value) in halves.into_iter().enumerate() {
                let start = (pair * 2 + half) * stride;
                out[start..start + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_block_is_what_the_full_transform_makes_of_it() {
        for dc in -1100..1100_i16 {
            let mut block = [0; 64];
            block[0] = dc;
            let (mut a, mut b) = ([0; 64], [0; 64]);
            full(&block, &mut a, 8);
            flat(dc, &mut b, 8);
            assert_eq!(a, b);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn lanes_give_the_bits_of_plain_rust() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let mut generator = crate::SampleSeed::new(1, 0, 0).op(0);
        for round in 0..2000 {
            let block: [i16; 64] = std::array::from_fn(|_| {
                let range = if round % 2 == 0 { 200 } else { 65_535 };
                i16::try_from(i64::from(generator.below(range)) - i64::from(range / 2)).unwrap()
            });
            let (mut a, mut b) = ([0; 64], [0; 64]);
            full(&block, &mut a, 8);
            // SAFETY: the feature is there.
            unsafe { full_avx2(&block, &mut b, 8) };
            assert_eq!(a, b);
        }
    }
}
