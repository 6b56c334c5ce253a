//! The inverse DCT to 4×4, 2×2 and 1×1 samples, as libjpeg's `jidctred.c` has it: the transform of eight points (Loeffler,
//! Ligtenberg, Moschytz 1989) with neighbouring outputs averaged, which leaves fewer products.
//!
//! 4×4 needs no coefficient of row or column 4, 2×2 only those of 0 and of odd numbers, 1×1 only the DC coefficient. Beyond
//! the usual range the sums wrap and saturate as in libjpeg-turbo's SIMD code, which is different for each size.

use super::arithmetic::{
    CONST_BITS, HALF_COLUMN_SHIFT, HALF_ROW_SHIFT, PASS1_BITS, QUARTER_COLUMN_SHIFT, QUARTER_ROW_SHIFT,
    sample, word,
};
use super::full;

fn mul(a: i16, b: i32) -> i32 {
    i32::from(a) * b
}

fn down<const SHIFT: i32>(value: i32) -> i32 {
    value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_block_is_what_the_full_transform_makes_of_it() {
        for dc in i16::MIN..=i16::MAX {
            let mut block = [0; 64];
            block[0] = dc;
            let (mut four, mut two) = ([0; 16], [0; 4]);
            half(&block, &mut four, 4);
            quarter(&block, &mut two, 2);
            assert_eq!((four, two), ([flat(4, dc); 16], [flat(2, dc); 4]));
        }
    }

    /// A reduced block is close to the means of the full one, if that is smooth.
    #[test]
    fn reduced_blocks_are_means_of_full_ones() {
        let mut generator = crate::SampleSeed::new(3, 0, 0).op(0);
        for _round in 0..2000 {
            let mut block = [0; 64];
            for (at, largest) in [(0, 400), (1, 100), (8, 100), (9, 50), (2, 40), (16, 40)] {
                block[at] =
                    i16::try_from(generator.below(2 * largest)).unwrap() - i16::try_from(largest).unwrap();
            }
            let mut full = [0; 64];
            full::full(&block, &mut full, 8);
            let (mut four, mut two) = ([0; 16], [0; 4]);
            half(&block, &mut four, 4);
            quarter(&block, &mut two, 2);
            let one = [flat(1, block[0])];
            for (side, reduced) in [(4, &four[..]), (2, &two), (1, &one)] {
                let step = 8 / side;
                for (at, value) in reduced.iter().enumerate() {
                    let (x, y) = (at % side * step, at / side * step);
                    let sum: u32 = (y..y + step)
                        .flat_map(|y| full[y * 8 + x..][..step].iter())
                        .map(|one| u32::from(*one))
                        .sum();
                    let mean = f64::from(sum) / (step * step) as f64;
                    assert!((mean - f64::from(*value)).abs() <= 1.5, "{side}: {value} {mean}");
                }
            }
        }
    }
}
