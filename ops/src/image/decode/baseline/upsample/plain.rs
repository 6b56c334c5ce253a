//! Rows of pixels in plain Rust.

use super::arithmetic::{Arithmetic, Row, SUMS_PADDING, Sums, low, plain_sum};

/// Plain Rust.
pub(super) struct Plain<'a> {
    /// Upsampled chroma.
    pub(super) wide: &'a mut [Vec<u8>; 2],
}

impl Arithmetic for Plain<'_> {
    fn sum(&self, near: &[u8], far: Option<&[u8]>, sums: &mut [u16]) {
        plain_sum(near, far, sums);
    }

    fn write(&mut self, row: Row<'_>, out: &mut [u8]) {
        let [wide_cb, wide_cr] = &mut *self.wide;
        match row {
            Row::Grey { luma } => {
                for (out, value) in out.chunks_exact_mut(3).zip(luma) {
                    out.fill(*value);
                }
            }
            Row::Full { luma, cb, cr } => to_rgb(luma, cb, cr, out),
            Row::Halved { luma, cb, cr, sums } => {
                to_rgb(luma, widen(cb, sums, wide_cb), widen(cr, sums, wide_cr), out);
            }
        }
    }
}

/// Two chroma samples for each that has a neighbour on both sides.
fn widen<'a>(row: &[u16], sums: Sums, out: &'a mut Vec<u8>) -> &'a [u8] {
    let count = row.len() - 2 - SUMS_PADDING;
    out.resize((count * 2).max(out.len()), 0);
    let (before, here, after) = (&row[..count], &row[1..=count], &row[2..]);
    let pairs = out.chunks_exact_mut(2).zip(before).zip(here).zip(after);
    if sums.of_two_rows {
        for (((out, before), here), after) in pairs {
            out[0] = low((here * 3 + before + 8) >> 4);
            out[1] = low((here * 3 + after + 7) >> 4);
        }
    } else {
        for (((out, before), here), after) in pairs {
            out[0] = low((here * 3 + before + 1) >> 2);
            out[1] = low((here * 3 + after + 2) >> 2);
        }
    }
    &out[usize::from(sums.odd)..count * 2]
}

/// JFIF's YCbCr → RGB.
pub(super) fn to_rgb(luma: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((out, y), cb), cr) in out.chunks_exact_mut(3).zip(luma).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
        out[0] = byte(y + ((91_881 * cr + 32_768) >> 16));
        out[1] = byte(y + ((-22_554 * cb - 46_802 * cr + 32_768) >> 16));
        out[2] = byte(y + ((116_130 * cb + 32_768) >> 16));
    }
}

fn byte(value: i32) -> u8 {
    value.clamp(0, 255) as u8
}
