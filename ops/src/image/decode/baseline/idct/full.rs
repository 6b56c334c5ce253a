//! The transform to 8×8 samples in plain Rust.

use super::arithmetic::{COLUMN_SHIFT, CONST_BITS, PASS1_BITS, ROW_SHIFT, down, mul, sample, word};

/// One dimension of the transform.
fn pass<const SHIFT: i32>([i0, i1, i2, i3, i4, i5, i6, i7]: [i16; 8]) -> [i32; 8] {
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
    [
        down::<SHIFT>(t10.wrapping_add(odd3)),
        down::<SHIFT>(t11.wrapping_add(odd2)),
        down::<SHIFT>(t12.wrapping_add(odd1)),
        down::<SHIFT>(t13.wrapping_add(odd0)),
        down::<SHIFT>(t13.wrapping_sub(odd0)),
        down::<SHIFT>(t12.wrapping_sub(odd1)),
        down::<SHIFT>(t11.wrapping_sub(odd2)),
        down::<SHIFT>(t10.wrapping_sub(odd3)),
    ]
}

/// Transforms a dequantised block into eight rows of `out`.
pub(super) fn full(block: &[i16; 64], out: &mut [u8], stride: usize) {
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
pub(super) fn flat(dc: i16) -> u8 {
    const BITS: i32 = PASS1_BITS + 3;
    sample((i32::from(dc << PASS1_BITS) + (1 << (BITS - 1))) >> BITS)
}
