//! Rows of RGB pixels, 3 bytes each: copied, padded and flipped.

use super::fill::{Fill, PaddingMode};
use super::geometry::{Flips, Rect, Size};

/// Copies `view` of `pixels` (RGB, rows of `stride` pixels) densely into `out`.
pub(crate) fn copy_rows(pixels: &[u8], stride: usize, view: Rect, out: &mut [u8]) {
    let length = view.width as usize * 3;
    for (row, out) in out.chunks_exact_mut(length).enumerate() {
        let start = ((view.y as usize + row) * stride + view.x as usize) * 3;
        out.copy_from_slice(&pixels[start..start + length]);
    }
}

/// Copies `view` of `pixels` (RGB, rows of `stride` pixels) to row `y` and column `x` of `out`, which is dense and of `size`,
/// and writes the pixels around it.
pub(crate) fn pad_rows(
    pixels: &[u8],
    (stride, view): (usize, Rect),
    (out, size): (&mut [u8], Size),
    [y, x]: [u32; 2],
    (mode, fill): (PaddingMode, Fill),
) {
    let (x, width, length) = (x as usize, size.width as usize, view.width as usize);
    let row_of = |index: usize| {
        let start = ((view.y as usize + index) * stride + view.x as usize) * 3;
        &pixels[start..start + length * 3]
    };
    for (row, out) in out.chunks_exact_mut(width * 3).enumerate() {
        let Some(row) = mode.inside(row as i64 - i64::from(y), view.height).map(row_of) else {
            fill.write(out);
            continue;
        };
        let (before, rest) = out.split_at_mut(x * 3);
        let (inner, after) = rest.split_at_mut(length * 3);
        inner.copy_from_slice(row);
        let edges = (before.chunks_exact_mut(3).zip(-(x as i64)..))
            .chain(after.chunks_exact_mut(3).zip(length as i64..));
        for (out, column) in edges {
            match mode.inside(column, view.width) {
                Some(column) => out.copy_from_slice(&row[column * 3..column * 3 + 3]),
                None => out.copy_from_slice(&fill.0),
            }
        }
    }
}

/// Flips a dense RGB image in place.
pub(crate) fn flip_rgb(pixels: &mut [u8], width: usize, flips: Flips) {
    if flips.vertical {
        let (row, half) = (width * 3, pixels.len() / (width * 3) / 2 * width * 3);
        let (upper, lower) = pixels.split_at_mut(half);
        upper.chunks_exact_mut(row).zip(lower.rchunks_exact_mut(row)).for_each(|(a, b)| a.swap_with_slice(b));
    }
    if flips.horizontal {
        mirror(pixels, width);
    }
}

fn mirror(pixels: &mut [u8], width: usize) {
    for row in pixels.chunks_exact_mut(width * 3) {
        let (left, right) = row.split_at_mut(width / 2 * 3);
        let right = right.rchunks_exact_mut(3);
        for (a, b) in left.chunks_exact_mut(3).zip(right) {
            let pixel = [a[0], a[1], a[2]];
            a.copy_from_slice(b);
            b.copy_from_slice(&pixel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flips_odd_and_even_widths() {
        for width in 1..40_u8 {
            let row: Vec<u8> = (0..width * 3).collect();
            let mut pixels = [row.clone(), row.clone()].concat();
            flip_rgb(&mut pixels, usize::from(width), Flips { horizontal: true, vertical: false });
            let expected: Vec<u8> = row.rchunks_exact(3).flatten().copied().collect();
            assert_eq!(pixels, [expected.clone(), expected].concat());
        }
    }

    #[test]
    fn flips_odd_and_even_heights() {
        for height in 1..9_u8 {
            let pixels: Vec<u8> = (0..height * 6).collect();
            let mut turned = pixels.clone();
            flip_rgb(&mut turned, 2, Flips { horizontal: false, vertical: true });
            assert_eq!(turned, pixels.rchunks_exact(6).flatten().copied().collect::<Vec<u8>>());
            flip_rgb(&mut turned, 2, Flips { horizontal: true, vertical: true });
            let mirrored: Vec<u8> =
                pixels.chunks_exact(6).flat_map(|row| [&row[3..], &row[..3]].concat()).collect();
            assert_eq!(turned, mirrored);
        }
    }
}
