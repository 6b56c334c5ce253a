//! The inverse DCT of libjpeg's `jidctint.c` (islow: Loeffler, Ligtenberg, Moschytz 1989, 13-bit constants), twice:
//! over lanes of AVX2, some 150 instructions a block, and in plain Rust for other machines. Both give the same bits.
//!
//! Coefficients of an image keep far from the ends of 16 bits, damaged ones do not. There libjpeg-turbo's SIMD code,
//! our reference, adds pairs modulo 2¹⁶ before it multiplies, and saturates what the columns give to 16 bits; so do
//! both of ours. `reduced` has the transforms to fewer samples.

mod arithmetic;
mod full;
#[cfg(target_arch = "x86_64")]
mod full_avx2;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod reduced;
#[cfg(target_arch = "x86_64")]
mod reduced_avx2;
#[cfg(test)]
mod tests;

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
            8 => full::full(block, out, stride),
            4 => reduced::half(block, out, stride),
            _ => reduced::quarter(block, out, stride),
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
                8 => full_avx2::full(block, out, stride),
                4 => reduced_avx2::half(block, out, stride),
                _ => reduced_avx2::quarter(block, out, stride),
            }
        }
    }
}

/// Writes a block that has only its DC coefficient, or of which only that counts, as `SIDE` rows of samples.
#[inline(always)]
pub(super) fn flat<const SIDE: usize>(dc: i16, out: &mut [u8], stride: usize) {
    let value = if SIDE == 8 { full::flat(dc) } else { reduced::flat(SIDE, dc) };
    for y in 0..SIDE {
        out[y * stride..y * stride + SIDE].copy_from_slice(&[value; SIDE]);
    }
}
