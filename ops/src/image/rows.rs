//! Rows of RGB pixels, 3 bytes each: copied and mirrored.

use super::geometry::Rect;

/// Copies `view` of `pixels` (RGB, rows of `stride` pixels) densely into `out`.
pub(crate) fn copy_rows(pixels: &[u8], stride: usize, view: Rect, out: &mut [u8]) {
    let length = view.width as usize * 3;
    for (row, out) in out.chunks_exact_mut(length).enumerate() {
        let start = ((view.y as usize + row) * stride + view.x as usize) * 3;
        out.copy_from_slice(&pixels[start..start + length]);
    }
}

/// Mirrors a dense RGB image in place.
pub(crate) fn flip_rgb(pixels: &mut [u8], width: usize) {
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
            flip_rgb(&mut pixels, usize::from(width));
            let expected: Vec<u8> = row.rchunks_exact(3).flatten().copied().collect();
            assert_eq!(pixels, [expected.clone(), expected].concat());
        }
    }
}
