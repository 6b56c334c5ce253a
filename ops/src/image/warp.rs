//! Affine and perspective warps exactly as Pillow's `Image.transform`, and torchvision's coefficients for it.

use serde::{Deserialize, Serialize};

use super::fill::Fill;
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
    /// The sixteen pixels around the point.
    Bicubic,
}

/// How warps read and what they leave in place of moved pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WarpStyle {
    pub(crate) interpolation: Interpolation,
    pub(crate) fill: Fill,
}

/// Which place of the source each pixel of the result shows; pixel centres are at halves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mapping {
    /// (x, y) → (a·x + b·y + c, d·x + e·y + f)
    Affine([f64; 6]),
    /// (x, y) → the same over (g·x + h·y + 1)
    Perspective([f64; 8]),
}

impl Mapping {
    pub(crate) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        match *self {
            Self::Affine([a, b, c, d, e, f]) => (a * x + b * y + c, d * x + e * y + f),
            Self::Perspective([a, b, c, d, e, f, g, h]) => {
                let depth = g * x + h * y + 1.0;
                ((a * x + b * y + c) / depth, (d * x + e * y + f) / depth)
            }
        }
    }
}

/// torchvision's `_get_inverse_affine_matrix` for a shear around the origin, given as tangents.
pub(crate) fn shear(x: f64, y: f64) -> Mapping {
    Mapping::Affine([1.0, x, 0.0, y, 1.0, 0.0])
}

/// Moves the image by whole pixels to the right and down.
pub(crate) fn translate(x: f64, y: f64) -> Mapping {
    Mapping::Affine([1.0, 0.0, -x, 0.0, 1.0, -y])
}

/// The middle of an image, `[x, y]`.
pub(crate) fn middle(size: Size) -> [f64; 2] {
    [f64::from(size.width) / 2.0, f64::from(size.height) / 2.0]
}

/// Pillow's `Image.rotate`: counter-clockwise by `degrees` around a centre.
pub(crate) fn rotate(degrees: f64, [x, y]: [f64; 2]) -> Mapping {
    let angle = -(degrees.rem_euclid(360.0)).to_radians();
    let round = |value: f64| (value * 1e15).round_ties_even() / 1e15;
    let (sin, cos) = (libm::sin(angle), libm::cos(angle));
    let [a, b, d, e] = [round(cos), round(sin), round(-sin), round(cos)];
    Mapping::Affine([a, b, a * -x + b * -y + x, d, e, d * -x + e * -y + y])
}

/// Pillow's `Image.rotate` with `expand`: the whole image, turned, is in the middle of the result, whose size is returned too.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most twice a u32 side, which is checked later"
)]
pub(crate) fn rotate_expanded(degrees: f64, size: Size) -> (Mapping, Size) {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let mapping = rotate(degrees, middle(size));
    // Quarter turns exchange the sides. Rounding of corners at halves would add a pixel.
    let quarters = degrees.rem_euclid(360.0) / 90.0;
    let to = if quarters % 2.0 == 0.0 {
        size
    } else if quarters % 1.0 == 0.0 {
        Size { height: size.width, width: size.height }
    } else {
        let corners =
            [[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]].map(|[x, y]| mapping.at(x, y));
        let length = |sides: [f64; 4]| {
            let [least, most] = [
                sides.iter().copied().fold(f64::MAX, f64::min),
                sides.iter().copied().fold(f64::MIN, f64::max),
            ];
            (most.ceil() - least.floor()) as u32
        };
        Size { height: length(corners.map(|(_, y)| y)), width: length(corners.map(|(x, _)| x)) }
    };
    let Mapping::Affine([a, b, _, d, e, _]) = mapping else { return (mapping, to) };
    let (c, f) = mapping.at((width - f64::from(to.width)) / 2.0, (height - f64::from(to.height)) / 2.0);
    (Mapping::Affine([a, b, c, d, e, f]), to)
}

/// A rotation with scale, shear and translation around a centre, as torchvision's `affine`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Move {
    /// In degrees, clockwise.
    pub(crate) angle: f64,
    /// In pixels, to the right and down.
    pub(crate) translate: [f64; 2],
    pub(crate) scale: f64,
    /// In degrees, along x and y.
    pub(crate) shear: [f64; 2],
}

/// Inverts translate · centre · rotate · scale · shear y · shear x · centre⁻¹.
pub(crate) fn affine(moved: Move, [x, y]: [f64; 2]) -> Mapping {
    let Move { angle, translate, scale, shear } = moved;
    let (turn, shear) = (angle.to_radians(), shear.map(f64::to_radians));
    let (cos, tan) = (libm::cos(shear[1]), libm::tan(shear[0]));
    let forward = [
        libm::cos(turn - shear[1]) / cos,
        -libm::cos(turn - shear[1]) * tan / cos - libm::sin(turn),
        libm::sin(turn - shear[1]) / cos,
        -libm::sin(turn - shear[1]) * tan / cos + libm::cos(turn),
    ];
    // The determinant of the rotation and of the shears is 1.
    let [a, b, d, e] = [forward[3], -forward[1], -forward[2], forward[0]].map(|value| value / scale);
    let (from_x, from_y) = (x + translate[0], y + translate[1]);
    Mapping::Affine([a, b, x - a * from_x - b * from_y, d, e, y - d * from_x - e * from_y])
}

/// The perspective that shows at `corners` what was in the corners of an image of `size`; both clockwise from the top left,
/// `[x, y]`. In single precision, as torchvision rounds the coefficients.
pub(crate) fn perspective(size: Size, corners: [[f64; 2]; 4]) -> Option<Mapping> {
    let (right, bottom) = (f64::from(size.width) - 1.0, f64::from(size.height) - 1.0);
    let sources = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
    let mut rows = [[0.0; 9]; 8];
    for (pair, ([x, y], [to_x, to_y])) in
        rows.as_chunks_mut::<2>().0.iter_mut().zip(corners.into_iter().zip(sources))
    {
        pair[0] = [x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y, to_x];
        pair[1] = [0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y, to_y];
    }
    let solution = solve(rows)?;
    #[expect(clippy::cast_possible_truncation, reason = "single precision is meant")]
    Some(Mapping::Perspective(solution.map(|value| f64::from(value as f32))))
}

/// Solves eight linear equations, each with its right side last, by elimination with the largest pivots. `None` if they have no
/// single solution.
fn solve(mut rows: [[f64; 9]; 8]) -> Option<[f64; 8]> {
    for column in 0..8 {
        let pivot = (column..8).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let row = rows[column];
        if row[column].abs() < 1e-9 {
            return None;
        }
        for (_, other) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = other[column] / row[column];
            other.iter_mut().zip(row).for_each(|(value, of_pivot)| *value -= factor * of_pivot);
        }
    }
    Some(std::array::from_fn(|index| rows[index][8] / rows[index][index]))
}

/// Warps `source` into `out`, both dense RGB with their sizes; pixels from outside the source become the fill.
pub(crate) fn warp(
    (source, size): (&[u8], Size),
    (out, to): (&mut [u8], Size),
    mapping: Mapping,
    style: WarpStyle,
) {
    let fill = style.fill.0;
    match (style.interpolation, mapping) {
        (Interpolation::Nearest, Mapping::Affine([a, 0.0, c, 0.0, e, f])) => {
            nearest_scaled((source, size), [a, c, e, f], fill, (out, to));
        }
        (Interpolation::Nearest, Mapping::Affine(matrix)) => {
            nearest((source, size), matrix, fill, (out, to));
        }
        (Interpolation::Nearest, Mapping::Perspective(_)) => {
            let (width, height) = (f64::from(size.width), f64::from(size.height));
            places(out, to, mapping).for_each(|(out, (x, y))| {
                let is_inside = x >= 0.0 && x < width && y >= 0.0 && y < height;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "within the image"
                )]
                let pixel = is_inside.then(|| (y as usize * size.width as usize + x as usize) * 3);
                out.copy_from_slice(pixel.map_or(&fill, |at| &source[at..at + 3]));
            });
        }
        (Interpolation::Bilinear, _) => bilinear((source, size), mapping, fill, (out, to)),
        (Interpolation::Bicubic, _) => bicubic((source, size), mapping, fill, (out, to)),
    }
}

/// Returns each pixel of a result of this size with the place that it shows.
fn places(out: &mut [u8], size: Size, mapping: Mapping) -> impl Iterator<Item = (&mut [u8], (f64, f64))> {
    let rows = out.chunks_exact_mut(size.width as usize * 3).enumerate();
    rows.flat_map(move |(row, out)| {
        let pixels = out.chunks_exact_mut(3).enumerate();
        pixels.map(move |(column, out)| (out, mapping.at(column as f64 + 0.5, row as f64 + 0.5)))
    })
}

/// Pillow's `ImagingScaleAffine`: positions are summed step by step, because the rounding decides ties.
fn nearest_scaled(
    (source, size): (&[u8], Size),
    [a, c, e, f]: [f64; 4],
    fill: [u8; 3],
    (out, to): (&mut [u8], Size),
) {
    let positions = |start: f64, step: f64, side: u32, count: u32| {
        let mut at = start + step * 0.5;
        (0..count).map(move |_| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the image")]
            let position = (at >= 0.0 && at < f64::from(side)).then_some(at as usize);
            at += step;
            position
        })
    };
    let width = size.width as usize;
    let columns: Vec<Option<usize>> = positions(c, a, size.width, to.width).collect();
    let rows = positions(f, e, size.height, to.height);
    for (row, out) in rows.zip(out.chunks_exact_mut(to.width as usize * 3)) {
        for (column, out) in columns.iter().zip(out.chunks_exact_mut(3)) {
            let at = row.zip(*column).map(|(row, column)| (row * width + column) * 3);
            out.copy_from_slice(at.map_or(&fill, |at| &source[at..at + 3]));
        }
    }
}

/// Pillow's `affine_fixed`: 16.16 fixed point, stepping along the row. Sides stay under 32,768 by `MAX_SIDE`.
fn nearest((source, size): (&[u8], Size), matrix: [f64; 6], fill: [u8; 3], (out, to): (&mut [u8], Size)) {
    #[expect(clippy::cast_possible_truncation, reason = "a warp of an image stays within 2⁴⁷")]
    let fix = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
    let [a, b, c, d, e, f] = matrix;
    let (step_x, step_y) = (fix(a), fix(d));
    let (mut row_x, mut row_y) = (fix(c + a * 0.5 + b * 0.5), fix(f + d * 0.5 + e * 0.5));
    let width = size.width as usize;
    for row in out.chunks_exact_mut(to.width as usize * 3) {
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
fn bilinear((source, size): (&[u8], Size), mapping: Mapping, fill: [u8; 3], (out, to): (&mut [u8], Size)) {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let clamp = |value: f64, limit: u32| value.clamp(0.0, f64::from(limit - 1)) as usize;
    places(out, to, mapping).for_each(|(out, (x, y))| {
        let is_inside = x >= 0.0 && x < width && y >= 0.0 && y < height;
        if !is_inside {
            return out.copy_from_slice(&fill);
        }
        let (x, y) = (x - 0.5, y - 0.5);
        let (left, top) = (floor(x), floor(y));
        let (dx, dy) = (x - left, y - top);
        let columns = [clamp(left, size.width), clamp(left + 1.0, size.width)];
        let upper = clamp(top, size.height) * size.width as usize;
        // Pillow repeats the upper row below the last one.
        let lower =
            if top + 1.0 < height { clamp(top + 1.0, size.height) * size.width as usize } else { upper };
        let corners = [upper + columns[0], upper + columns[1], lower + columns[0], lower + columns[1]];
        let [a, b, c, d] = corners.map(|at| &source[at * 3..at * 3 + 3]);
        let mix = |from: f64, to: f64, share: f64| from + share * (to - from);
        for (channel, out) in out.iter_mut().enumerate() {
            let [a, b, c, d] = [a, b, c, d].map(|pixel| f64::from(pixel[channel]));
            // Pillow truncates.
            *out = mix(mix(a, b, dx), mix(c, d, dx), dy) as u8;
        }
    });
}

/// The integer below, without a call, which `f64::floor` is on the oldest x86-64.
fn floor(value: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "a place in or near an image")]
    let toward_zero = value as i64 as f64;
    if toward_zero > value { toward_zero - 1.0 } else { toward_zero }
}

/// Pillow's generic transform with its bicubic filter (a = −1), in double precision. Rows and columns beyond the edges repeat
/// the outermost.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped, or saturation is meant"
)]
fn bicubic((source, size): (&[u8], Size), mapping: Mapping, fill: [u8; 3], (out, to): (&mut [u8], Size)) {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let four = |first: f64, limit: u32| -> [usize; 4] {
        [-1.0, 0.0, 1.0, 2.0].map(|step| (first + step).clamp(0.0, f64::from(limit - 1)) as usize)
    };
    let cubic = |[a, b, c, d]: [f64; 4], at: f64| {
        let (linear, square, cube) = (c - a, 2.0 * (a - b) + c - d, b - a - c + d);
        b + at * (linear + at * (square + at * cube))
    };
    places(out, to, mapping).for_each(|(out, (x, y))| {
        if !(x >= 0.0 && x < width && y >= 0.0 && y < height) {
            return out.copy_from_slice(&fill);
        }
        let (x, y) = (x - 0.5, y - 0.5);
        let (left, top) = (floor(x), floor(y));
        let columns = four(left, size.width);
        let rows = four(top, size.height).map(|row| row * size.width as usize);
        for (channel, out) in out.iter_mut().enumerate() {
            let of_row = |row: usize| {
                cubic(columns.map(|column| f64::from(source[(row + column) * 3 + channel])), x - left)
            };
            // Pillow truncates, and limits to 0 … 255.
            *out = cubic(rows.map(of_row), y - top) as u8;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::image::{DecodeImage, decode_rgb};

    fn assert_close(got: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(got.len(), expected.len());
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(got.iter().zip(expected).all(is_close), "{got:?}, {expected:?}");
    }

    #[test]
    fn matrices_are_torchvisions() {
        for case in golden::references()["warps"]["moves"].as_array().unwrap() {
            let pair = |name: &str| -> [f64; 2] { serde_json::from_value(case[name].clone()).unwrap() };
            let number = |name: &str| case[name].as_f64().unwrap();
            let moved = Move {
                angle: number("angle"),
                translate: pair("translate"),
                scale: number("scale"),
                shear: pair("shear"),
            };
            let Mapping::Affine(matrix) = affine(moved, pair("center")) else { panic!("not affine") };
            let expected: Vec<f64> = serde_json::from_value(case["matrix"].clone()).unwrap();
            assert_close(&matrix, &expected, 1e-12);
        }
    }

    #[test]
    fn perspectives_are_torchvisions() {
        let read =
            |name| decode_rgb(&std::fs::read(golden::path(name)).unwrap(), &DecodeImage::new()).unwrap();
        let (_, scene) = read("scene.png");
        let (_, outcomes) = read("perspective.png");
        let size = Size { height: 48, width: 64 };
        let rows = scene.chunks_exact(96 * 3).skip(16).take(48);
        let input: Vec<u8> = rows.flat_map(|row| &row[16 * 3..80 * 3]).copied().collect();
        let cases = golden::references()["warps"]["sides"].as_array().unwrap().clone();
        assert_eq!(outcomes.len(), cases.len() * input.len());
        for (case, expected) in cases.iter().zip(outcomes.chunks_exact(input.len())) {
            let mapping = perspective(size, serde_json::from_value(case["corners"].clone()).unwrap());
            let Some(Mapping::Perspective(got)) = mapping else { panic!("no perspective: {case}") };
            let coefficients: [f64; 8] = serde_json::from_value(case["coefficients"].clone()).unwrap();
            assert_close(&got, &coefficients, 1e-5);
            let interpolation = serde_json::from_value(case["interpolation"].clone()).unwrap();
            let style = WarpStyle { interpolation, fill: [10, 200, 30].into() };
            let mut pixels = vec![0; input.len()];
            warp((&input, size), (&mut pixels, size), Mapping::Perspective(coefficients), style);
            golden::assert_warped(&pixels, expected, interpolation, case);
        }
    }

    #[test]
    fn corners_on_one_line_have_no_perspective() {
        let corners = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]];
        assert!(perspective(Size { height: 4, width: 4 }, corners).is_none());
    }
}
