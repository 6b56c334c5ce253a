//! Affine warps exactly as Pillow's `Image.transform(…, AFFINE)` and torchvision's matrices for it.

use serde::{Deserialize, Serialize};

use super::geometry::Size;

/// How a warp interpolates between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Interpolation {
    /// The pixel under the point: torchvision's default for its augmentation policies.
    #[default]
    Nearest,
    /// The four pixels around the point.
    Bilinear,
}

/// Result (x, y) → source (a·x + b·y + c, d·x + e·y + f), pixel centres at halves.
pub(crate) type Matrix = [f64; 6];

/// torchvision's `_get_inverse_affine_matrix` for a shear around the origin, given as tangents.
pub(crate) fn shear(x: f64, y: f64) -> Matrix {
    [1.0, x, 0.0, y, 1.0, 0.0]
}

/// Moves the image by whole pixels to the right and down.
pub(crate) fn translate(x: f64, y: f64) -> Matrix {
    [1.0, 0.0, -x, 0.0, 1.0, -y]
}

/// Pillow's `Image.rotate`: counter-clockwise by `degrees` around the centre.
pub(crate) fn rotate(degrees: f64, size: Size) -> Matrix {
    let angle = -(degrees.rem_euclid(360.0)).to_radians();
    let round = |value: f64| (value * 1e15).round_ties_even() / 1e15;
    let (sin, cos) = (libm::sin(angle), libm::cos(angle));
    let [a, b, d, e] = [round(cos), round(sin), round(-sin), round(cos)];
    let (x, y) = (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
    [a, b, a * -x + b * -y + x, d, e, d * -x + e * -y + y]
}

/// Warps `source` into `out` (both dense RGB of `size`); pixels from outside the source become `fill`.
pub(crate) fn affine(
    source: &[u8],
    size: Size,
    matrix: Matrix,
    interpolation: Interpolation,
    fill: [u8; 3],
    out: &mut [u8],
) {
    match interpolation {
        Interpolation::Nearest => nearest(source, size, matrix, fill, out),
        Interpolation::Bilinear => bilinear(source, size, matrix, fill, out),
    }
}

/// Pillow's `affine_fixed`: 16.16 fixed point, stepping along the row. Sides stay under 32,768 by `MAX_SIDE`.
fn nearest(source: &[u8], size: Size, matrix: Matrix, fill: [u8; 3], out: &mut [u8]) {
    #[expect(clippy::cast_possible_truncation, reason = "a warp of an image stays within 2⁴⁷")]
    let fix = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
    let [a, b, c, d, e, f] = matrix;
    let (step_x, step_y) = (fix(a), fix(d));
    let (mut row_x, mut row_y) = (fix(c + a * 0.5 + b * 0.5), fix(f + d * 0.5 + e * 0.5));
    let width = size.width as usize;
    for row in out.chunks_exact_mut(width * 3) {
        let (mut x, mut y) = (row_x, row_y);
        for out in row.chunks_exact_mut(3) {
            let inside = u32::try_from(x >> 16)
                .ok()
                .filter(|&x| x < size.width)
                .zip(u32::try_from(y >> 16).ok().filter(|&y| y < size.height));
            match inside {
                Some((x, y)) => {
                    let at = (y as usize * width + x as usize) * 3;
                    out.copy_from_slice(&source[at..at + 3]);
                }
                None => out.copy_from_slice(&fill),
            }
            x += step_x;
            y += step_y;
        }
        row_x += fix(b);
        row_y += fix(e);
    }
}

/// Pillow's generic transform with its bilinear filter, in double precision.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped or range-checked")]
fn bilinear(source: &[u8], size: Size, matrix: Matrix, fill: [u8; 3], out: &mut [u8]) {
    let [a, b, c, d, e, f] = matrix;
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let clamp = |value: f64, limit: u32| value.clamp(0.0, f64::from(limit - 1)) as usize;
    for (row, out) in out.chunks_exact_mut(size.width as usize * 3).enumerate() {
        for (column, out) in out.chunks_exact_mut(3).enumerate() {
            let (x, y) = (column as f64 + 0.5, row as f64 + 0.5);
            let (x, y) = (a * x + b * y + c, d * x + e * y + f);
            if x < 0.0 || x >= width || y < 0.0 || y >= height {
                out.copy_from_slice(&fill);
                continue;
            }
            let (x, y) = (x - 0.5, y - 0.5);
            let (left, top) = (x.floor(), y.floor());
            let (dx, dy) = (x - left, y - top);
            let columns = [clamp(left, size.width), clamp(left + 1.0, size.width)];
            let rows = [clamp(top, size.height), clamp(top + 1.0, size.height)];
            for (channel, out) in out.iter_mut().enumerate() {
                let value = |row: usize, column: usize| {
                    f64::from(source[(rows[row] * size.width as usize + columns[column]) * 3 + channel])
                };
                let mix = |from: f64, to: f64, share: f64| from + share * (to - from);
                let upper = mix(value(0, 0), value(0, 1), dx);
                // Pillow repeats the upper row below the last one.
                let lower = if top + 1.0 < height { mix(value(1, 0), value(1, 1), dx) } else { upper };
                // Pillow truncates.
                *out = mix(upper, lower, dy) as u8;
            }
        }
    }
}
