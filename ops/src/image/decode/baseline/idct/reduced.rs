//! The inverse DCT to 4×4, 2×2 and 1×1 samples, as libjpeg's `jidctred.c` has it: the transform of eight points (Loeffler,
//! Ligtenberg, Moschytz 1989) with neighbouring outputs averaged, which leaves fewer products.
//!
//! 4×4 needs no coefficient of row or column 4, 2×2 only those of 0 and of odd numbers, 1×1 only the DC coefficient. Beyond
//! the usual range the sums wrap and saturate as in libjpeg-turbo's SIMD code, which is different for each size.

use super::arithmetic::{
    CONST_BITS, HALF_COLUMN_SHIFT, HALF_ROW_SHIFT, PASS1_BITS, QUARTER_COLUMN_SHIFT, QUARTER_ROW_SHIFT, down,
    mul, sample, word,
};
use super::full;

/// One dimension of the transform to four samples, from coefficients 0 1 2 3 5 6 7.
fn four<const SHIFT: i32>([i0, i1, i2, i3, i5, i6, i7]: [i16; 7]) -> [i32; 4] {
    let even = i32::from(i0) << (CONST_BITS + 1);
    let turned = mul(i2, 15_137) + mul(i6, -6270);
    let (outer, inner) = (even.wrapping_add(turned), even.wrapping_sub(turned));
    let odd_inner = (mul(i7, -1730) + mul(i1, 8697)).wrapping_add(mul(i5, 11_893) + mul(i3, -17_799));
    let odd_outer = (mul(i7, -4176) + mul(i1, 20_995)).wrapping_add(mul(i5, -4926) + mul(i3, 7373));
    [
        down::<SHIFT>(outer.wrapping_add(odd_outer)),
        down::<SHIFT>(inner.wrapping_add(odd_inner)),
        down::<SHIFT>(inner.wrapping_sub(odd_inner)),
        down::<SHIFT>(outer.wrapping_sub(odd_outer)),
    ]
}

/// Transforms a dequantised block (natural order) into four rows of `out`, `stride` apart.
pub(super) fn half(block: &[i16; 64], out: &mut [u8], stride: usize) {
    const USED: [usize; 7] = [0, 1, 2, 3, 5, 6, 7];
    // As in the transform to 8×8, columns of only a first row take a short cut that wraps.
    let is_flat =
        USED[1..].iter().all(|y| block[y * 8..y * 8 + 8].iter().all(|coefficient| *coefficient == 0));
    let columns: [[i16; 4]; 7] = USED.map(|x| {
        if is_flat {
            [block[x] << PASS1_BITS; 4]
        } else {
            four::<HALF_COLUMN_SHIFT>(USED.map(|y| block[y * 8 + x])).map(word)
        }
    });
    for y in 0..4 {
        let row = four::<HALF_ROW_SHIFT>(columns.map(|column| column[y]));
        for (out, value) in out[y * stride..y * stride + 4].iter_mut().zip(row) {
            *out = sample(value);
        }
    }
}

/// The odd part of the transform to two samples.
fn odd_of_two(i1: i16, i3: i16, i5: i16, i7: i16) -> i32 {
    (mul(i1, 29_692) + mul(i3, -10_426)).wrapping_add(mul(i5, 6967) + mul(i7, -5906))
}

/// Transforms a block into two rows of `out`.
pub(super) fn quarter(block: &[i16; 64], out: &mut [u8], stride: usize) {
    let column = |x: usize| {
        let even = i32::from(block[x]) << (CONST_BITS + 2);
        let odd = odd_of_two(block[8 + x], block[24 + x], block[40 + x], block[56 + x]);
        [even.wrapping_add(odd), even.wrapping_sub(odd)].map(down::<QUARTER_COLUMN_SHIFT>)
    };
    // The first column is not saturated.
    let first = column(0);
    let [c1, c3, c5, c7] = [1, 3, 5, 7].map(|x| column(x).map(word));
    for y in 0..2 {
        let even = first[y] << (CONST_BITS + 2);
        let odd = odd_of_two(c1[y], c3[y], c5[y], c7[y]);
        out[y * stride] = sample(down::<QUARTER_ROW_SHIFT>(even.wrapping_add(odd)));
        out[y * stride + 1] = sample(down::<QUARTER_ROW_SHIFT>(even.wrapping_sub(odd)));
    }
}

/// The sample of a block of which only the DC coefficient is there, or only that counts: `side` is 4, 2 or 1.
#[inline(always)]
pub(super) fn flat(side: usize, dc: i16) -> u8 {
    match side {
        1 => {
            // libjpeg looks the sample up by the lowest ten bits.
            const UNUSED: i32 = 32 - 10;
            sample(((i32::from(dc) + 4) >> 3) << UNUSED >> UNUSED)
        }
        2 => sample(down::<QUARTER_ROW_SHIFT>(i32::from(dc) << (PASS1_BITS + CONST_BITS + 2))),
        _ => full::flat(dc),
    }
}
