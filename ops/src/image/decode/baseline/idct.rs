//! The inverse DCT of libjpeg's `jidctint.c` (islow: Loeffler, Ligtenberg, Moschytz 1989, 13-bit constants), twice:
//! over lanes of AVX2, some 150 instructions a block, and in plain Rust for other machines. Both give the same bits.
//!
//! Coefficients of an image keep far from the ends of 16 bits, damaged ones do not. There libjpeg-turbo's SIMD code,
//! our reference, adds pairs modulo 2¹⁶ before it multiplies, and saturates what the columns give to 16 bits; so do
//! both of ours. `reduced` has the transforms to fewer samples.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod reduced;

use reduced::{half, quarter};

const CONST_BITS: i32 = 13;
const PASS1_BITS: i32 = 2;
/// What the passes over columns and rows shift out.
const COLUMN_SHIFT: i32 = CONST_BITS - PASS1_BITS;
const ROW_SHIFT: i32 = CONST_BITS + PASS1_BITS + 3;

/// A way to compute the transforms.
pub(super) trait Transform: Copy {
    /// Transforms a dequantised block (natural order) into `SIDE` rows of as many samples, 8, 4 or 2, `stride` apart.
    fn block<const SIDE: usize>(self, block: &[i16; 64], out: &mut [u8], stride: usize);
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Transform for Plain {
    fn block<const SIDE: usize>(self, block: &[i16; 64], out: &mut [u8], stride: usize) {
        match SIDE {
            8 => full(block, out, stride),
            4 => half(block, out, stride),
            _ => quarter(block, out, stride),
        }
    }
}

/// Proof that there is AVX2: where it is not known, none can be made.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Lanes(());

#[cfg(target_arch = "x86_64")]
impl Lanes {
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Transform for Lanes {
    #[inline(always)]
    fn block<const SIDE: usize>(self, block: &[i16; 64], out: &mut [u8], stride: usize) {
        // SAFETY: the feature is there, or this were not.
        unsafe {
            match SIDE {
                8 => avx2::full(block, out, stride),
                4 => reduced::half_avx2(block, out, stride),
                _ => reduced::quarter_avx2(block, out, stride),
            }
        }
    }
}

/// One dimension of the transform.
fn pass<const SHIFT: i32>([i0, i1, i2, i3, i4, i5, i6, i7]: [i16; 8]) -> [i32; 8] {
    let mul = |a: i16, b: i32| i32::from(a) * b;
    let up = |a: i16| i32::from(a) << CONST_BITS;
    let even2 = mul(i2, 4433) + mul(i6, 4433 - 15_137);
    let even3 = mul(i2, 4433 + 6270) + mul(i6, 4433);
    let (even0, even1) = (up(i0.wrapping_add(i4)), up(i0.wrapping_sub(i4)));
    let (t10, t13) = (even0.wrapping_add(even3), even0.wrapping_sub(even3));
    let (t11, t12) = (even1.wrapping_add(even2), even1.wrapping_sub(even2));

    let (z3, z4) = (i7.wrapping_add(i3), i5.wrapping_add(i1));
    let (z3, z4) = (mul(z3, 9633 - 16_069) + mul(z4, 9633), mul(z3, 9633) + mul(z4, 9633 - 3196));
    let odd0 = (mul(i7, 2446 - 7373) + mul(i1, -7373)).wrapping_add(z3);
    let odd1 = (mul(i5, 16_819 - 20_995) + mul(i3, -20_995)).wrapping_add(z4);
    let odd2 = (mul(i5, -20_995) + mul(i3, 25_172 - 20_995)).wrapping_add(z3);
    let odd3 = (mul(i7, -7373) + mul(i1, 12_299 - 7373)).wrapping_add(z4);
    let down = |a: i32| a.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
    [
        down(t10.wrapping_add(odd3)),
        down(t11.wrapping_add(odd2)),
        down(t12.wrapping_add(odd1)),
        down(t13.wrapping_add(odd0)),
        down(t13.wrapping_sub(odd0)),
        down(t12.wrapping_sub(odd1)),
        down(t11.wrapping_sub(odd2)),
        down(t10.wrapping_sub(odd3)),
    ]
}

#[expect(clippy::cast_possible_truncation, reason = "clamped")]
fn word(value: i32) -> i16 {
    value.clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

fn sample(value: i32) -> u8 {
    value.saturating_add(128).clamp(0, 255) as u8
}

/// Transforms a dequantised block into eight rows of `out`.
fn full(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[0; 8]; 8];
    // The columns of a block that has only its first row are flat; libjpeg-turbo takes a short cut there that wraps.
    let flat = block[8..].iter().all(|coefficient| *coefficient == 0);
    for (x, column) in columns.iter_mut().enumerate() {
        *column = if flat {
            [block[x] << PASS1_BITS; 8]
        } else {
            pass::<COLUMN_SHIFT>(std::array::from_fn(|y| block[y * 8 + x])).map(word)
        };
    }
    for y in 0..8 {
        let row = pass::<ROW_SHIFT>(std::array::from_fn(|x| columns[x][y]));
        for (out, value) in out[y * stride..y * stride + 8].iter_mut().zip(row) {
            *out = sample(value);
        }
    }
}

/// The samples of a block that has only its DC coefficient.
#[inline(always)]
fn flat_sample(dc: i16) -> u8 {
    const BITS: i32 = PASS1_BITS + 3;
    sample((i32::from(dc << PASS1_BITS) + (1 << (BITS - 1))) >> BITS)
}

/// Writes a block that has only its DC coefficient, or of which only that counts, as `SIDE` rows of samples.
#[inline(always)]
pub(super) fn flat<const SIDE: usize>(dc: i16, out: &mut [u8], stride: usize) {
    let value = if SIDE == 8 { flat_sample(dc) } else { reduced::flat(SIDE, dc) };
    for y in 0..SIDE {
        out[y * stride..y * stride + SIDE].copy_from_slice(&[value; SIDE]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_block_is_what_the_full_transform_makes_of_it() {
        for dc in i16::MIN..=i16::MAX {
            let mut block = [0; 64];
            block[0] = dc;
            let (mut a, mut b) = ([0; 64], [0; 64]);
            full(&block, &mut a, 8);
            flat::<8>(dc, &mut b, 8);
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
        for round in 0..8000_usize {
            // Small and full range; all, or the first row and column, or the first row alone.
            let range = if round % 2 == 0 { 200 } else { 65_536 };
            let last = [64, 32, 8][round / 2 % 3];
            let mut block: [i16; 64] = std::array::from_fn(|_| {
                i16::try_from(i64::from(generator.below(range)) - i64::from(range / 2)).unwrap()
            });
            block[last..].fill(0);
            let (mut a, mut b) = ([0; 64], [0; 64]);
            full(&block, &mut a, 8);
            // SAFETY: the feature is there.
            unsafe { avx2::full(&block, &mut b, 8) };
            assert_eq!(a, b);
        }
    }
}
