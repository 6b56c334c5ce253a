//! Fancy upsampling (`jdsample.c`: triangle filter, 3/4 and 1/4) and YCbCr → RGB (`jdcolor.c`: 16-bit fixed point),
//! a row at a time and only for the region's pixels.
//!
//! ```text
//! chroma planes ─ two rows weighed, or one widened ─▶ sums, or whole rows ─┐
//! luma plane ──────────────────────────────────────────────────────────────┴─ Row ─▶ plain or avx2.rs ─▶ RGB
//! ```
//! A row's buffers stay in the first-level cache. The plain way is for other machines than AVX2's, and gives the same
//! bits.

mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod plain;

use arithmetic::{Arithmetic, Row, SUMS_PADDING, Sums, low};
use plain::Plain;

use super::frame::{Frame, Window};
use crate::image::buffer::Buffer;
use crate::image::geometry::Rect;

/// Row buffers.
#[derive(Default)]
pub(super) struct Rows {
    chroma: [ChromaRow; 2],
    /// Upsampled chroma of the plain way.
    wide: [Vec<u8>; 2],
}

/// What the two sampled rows next to a row of pixels come to.
#[derive(Default)]
struct ChromaRow {
    /// With half the columns: sums with one sample of context on each side, and padding.
    sums: Vec<u16>,
    /// With all columns.
    samples: Vec<u8>,
}

/// A component's decoded window: samples from (x, y) on.
struct Plane<'a> {
    samples: &'a [u8],
    stride: usize,
    x: usize,
    y: usize,
    /// The component's true size; beyond it stand padding samples that must not be seen.
    width: usize,
    height: usize,
}

impl<'a> Plane<'a> {
    fn new(frame: &Frame, window: Window, index: usize, plane: &'a Buffer) -> Self {
        let component = &frame.components[index];
        Self {
            samples: plane.bytes(),
            stride: window.columns() * component.h * component.side,
            x: window.first_column * component.h * component.side,
            y: window.first_row * component.v * component.side,
            width: component.width,
            height: component.height,
        }
    }

    /// Samples `x` … `x + length` of row `y`, in the image's coordinates.
    #[inline(always)]
    fn row(&self, y: usize, x: usize, length: usize) -> &'a [u8] {
        let start = (y - self.y) * self.stride + x - self.x;
        &self.samples[start..start + length]
    }

    /// With half the rows: the sampled rows nearest and next to row `y` of pixels.
    #[inline(always)]
    fn near_and_far(&self, y: usize) -> (usize, usize) {
        let near = y / 2;
        (near, if y % 2 == 1 { (near + 1).min(self.height - 1) } else { near.saturating_sub(1) })
    }
}

/// Writes `region` as dense RGB.
pub(super) fn convert(
    frame: &Frame,
    window: Window,
    region: Rect,
    planes: &[Buffer; 3],
    rows: &mut Rows,
    out: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there.
        return unsafe { convert_avx2(frame, window, region, planes, rows, out) };
    }
    convert_plain(frame, window, region, planes, rows, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn convert_avx2(
    frame: &Frame,
    window: Window,
    region: Rect,
    planes: &[Buffer; 3],
    rows: &mut Rows,
    out: &mut [u8],
) {
    convert_with(frame, window, region, planes, &mut rows.chroma, out, avx2::Lanes::new());
}

fn convert_plain(
    frame: &Frame,
    window: Window,
    region: Rect,
    planes: &[Buffer; 3],
    rows: &mut Rows,
    out: &mut [u8],
) {
    let Rows { chroma, wide } = rows;
    convert_with(frame, window, region, planes, chroma, out, Plain { wide });
}

#[inline(always)]
fn convert_with(
    frame: &Frame,
    window: Window,
    region: Rect,
    planes: &[Buffer; 3],
    [cb_row, cr_row]: &mut [ChromaRow; 2],
    out: &mut [u8],
    mut arithmetic: impl Arithmetic,
) {
    let (x, width) = (region.x as usize, region.width as usize);
    let [luma, cb, cr] = [0, 1, 2].map(|index| Plane::new(frame, window, index, &planes[index]));
    let of_two_rows = frame.chroma.1 == 2;
    for (y, out) in (region.y as usize..).zip(out.chunks_exact_mut(width * 3)) {
        let luma = luma.row(y, x, width);
        let row = if frame.count == 1 {
            Row::Grey { luma }
        } else if !frame.interpolates && frame.chroma != (1, 1) {
            let cb = repeated(&cb, (x, y, width), frame.chroma, cb_row);
            let cr = repeated(&cr, (x, y, width), frame.chroma, cr_row);
            Row::Full { luma, cb, cr }
        } else if frame.chroma.0 == 1 {
            let cb = full(&cb, (x, y, width), of_two_rows, cb_row);
            let cr = full(&cr, (x, y, width), of_two_rows, cr_row);
            Row::Full { luma, cb, cr }
        } else {
            let cb = sums(&cb, (x, y, width), of_two_rows, cb_row, &arithmetic);
            let cr = sums(&cr, (x, y, width), of_two_rows, cr_row, &arithmetic);
            Row::Halved { luma, cb, cr, sums: Sums { odd: x % 2 == 1, of_two_rows } }
        };
        arithmetic.write(row, out);
    }
}

/// The chroma samples of pixels `x` … `x + width` of row `y`, where a plane has all columns.
#[inline(always)]
fn full<'a>(
    plane: &Plane<'a>,
    (x, y, width): (usize, usize, usize),
    of_two_rows: bool,
    row: &'a mut ChromaRow,
) -> &'a [u8] {
    if !of_two_rows {
        return plane.row(y, x, width);
    }
    let (near, far) = plane.near_and_far(y);
    let bias = if y % 2 == 0 { 1 } else { 2 };
    let out = &mut row.samples;
    out.resize(width.max(out.len()), 0);
    for ((out, near), far) in out.iter_mut().zip(plane.row(near, x, width)).zip(plane.row(far, x, width)) {
        *out = low((u16::from(*near) * 3 + u16::from(*far) + bias) >> 2);
    }
    &out[..width]
}

/// The chroma samples of pixels `x` … `x + width` of row `y`, each repeated for its `pixels` across and down.
#[inline(always)]
fn repeated<'a>(
    plane: &Plane<'a>,
    (x, y, width): (usize, usize, usize),
    pixels: (usize, usize),
    row: &'a mut ChromaRow,
) -> &'a [u8] {
    let first = x / pixels.0;
    let samples = plane.row(y / pixels.1, first, (x + width - 1) / pixels.0 - first + 1);
    if pixels.0 == 1 {
        return samples;
    }
    let out = &mut row.samples;
    out.resize(width.max(out.len()), 0);
    for (at, out) in (x..).zip(&mut out[..width]) {
        *out = samples[at / pixels.0 - first];
    }
    &out[..width]
}

/// The sums for pixels `x` … `x + width` of row `y`, where a plane has half the columns: those of the samples, and one
/// on each side.
#[inline(always)]
fn sums<'a>(
    plane: &Plane<'_>,
    (x, y, width): (usize, usize, usize),
    of_two_rows: bool,
    row: &'a mut ChromaRow,
    arithmetic: &impl Arithmetic,
) -> &'a [u16] {
    let (first, last) = (x / 2, (x + width - 1) / 2);
    let (left, right) = (first.saturating_sub(1), (last + 1).min(plane.width - 1));
    let (count, found) = (last - first + 1, right - left + 1);
    let length = count + 2 + SUMS_PADDING;
    row.sums.resize(length.max(row.sums.len()), 0);
    let sums = &mut row.sums[..length];
    let inner = &mut sums[left + 1 - first..][..found];
    if of_two_rows {
        let (near, far) = plane.near_and_far(y);
        arithmetic.sum(plane.row(near, left, found), Some(plane.row(far, left, found)), inner);
    } else {
        arithmetic.sum(plane.row(y, left, found), None, inner);
    }
    // At the image's edges the outermost sample replaces its missing neighbour.
    if left == first {
        sums[0] = sums[1];
    }
    if right == last {
        sums[count + 1] = sums[count];
    }
    sums
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::super::frame::Component;
    use super::plain::to_rgb;
    use super::*;
    use crate::seed::Generator;

    fn below(generator: &mut Generator, bound: usize) -> usize {
        generator.below(u32::try_from(bound).unwrap()) as usize
    }

    fn frame((width, height): (usize, usize), count: usize, (h_max, v_max): (usize, usize)) -> Frame {
        let component = |h: usize, v: usize| {
            let (width, height) = ((width * h).div_ceil(h_max), (height * v).div_ceil(v_max));
            Component { h, v, width, height, ..Component::NONE }
        };
        Frame {
            components: [component(h_max, v_max), component(1, 1), component(1, 1)],
            count,
            chroma: (h_max, v_max),
            interpolates: true,
            mcus_across: width.div_ceil(8 * h_max),
            mcus_down: height.div_ceil(8 * v_max),
        }
    }

    /// Planes of just the bytes of a window, with many samples at the ends of the range.
    fn planes(frame: &Frame, window: Window, generator: &mut Generator) -> [Buffer; 3] {
        let mut planes = [(); 3].map(|()| Buffer::default());
        for (component, plane) in frame.components().iter().zip(&mut planes) {
            for sample in plane.take(window.columns() * window.rows() * component.h * component.v * 64) {
                let [at_end, value, ..] = generator.next_u64().to_le_bytes();
                *sample = match at_end % 8 {
                    0 => 0,
                    1 => 255,
                    _ => value,
                };
            }
        }
        planes
    }

    #[test]
    fn lanes_give_the_bits_of_plain_rust() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let mut generator = crate::SampleSeed::new(2, 0, 0).op(0);
        let kinds = [(1, (1, 1)), (3, (1, 1)), (3, (2, 1)), (3, (1, 2)), (3, (2, 2))];
        // One set of buffers for all: what the last row left in them must not be seen.
        let (mut rows, mut plain_rows) = (Rows::default(), Rows::default());
        for round in 0..4000 {
            let (count, most) = kinds[round % kinds.len()];
            let size = (16 + below(&mut generator, 150), 16 + below(&mut generator, 40));
            let frame = frame(size, count, most);
            let [x, y] = [size.0, size.1].map(|side| below(&mut generator, side));
            let [width, height] = [size.0 - x, size.1 - y].map(|most| 1 + below(&mut generator, most));
            let [x, y, width, height] = [x, y, width, height].map(|value| u32::try_from(value).unwrap());
            let region = Rect { x, y, width, height };
            let window = frame.window(region);
            let planes = planes(&frame, window, &mut generator);
            let [mut lanes, mut plain] = [1, 2].map(|byte| vec![byte; region.size().rgb_bytes()]);
            convert(&frame, window, region, &planes, &mut rows, &mut lanes);
            convert_plain(&frame, window, region, &planes, &mut plain_rows, &mut plain);
            assert!(lanes == plain, "round {round}: {count} {most:?} {size:?} {region:?}");
        }
    }

    #[test]
    fn every_colour_is_converted_alike() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        // SAFETY: the feature is there.
        let mut lanes = unsafe { avx2::Lanes::new() };
        let all: [u8; 256] = std::array::from_fn(|value| u8::try_from(value).unwrap());
        let (mut out, mut expected) = ([0; 768], [0; 768]);
        for y in all {
            for cb in all {
                let (luma, cb) = ([y; 256], [cb; 256]);
                lanes.write(Row::Full { luma: &luma, cb: &cb, cr: &all }, &mut out);
                to_rgb(&luma, &cb, &all, &mut expected);
                assert!(out == expected, "{y} {cb:?}");
            }
        }
    }
}
