//! Fancy upsampling (`jdsample.c`: triangle filter, 3/4 and 1/4) and YCbCr → RGB (`jdcolor.c`: 16-bit fixed point),
//! a row at a time and only for the region's pixels.

use super::super::super::geometry::Rect;
use super::{Frame, Window};
use crate::scratch::Buffer;

/// Row buffers.
#[derive(Default)]
pub(super) struct Rows {
    /// Chroma sums with one sample of context on each side.
    sums: Vec<u16>,
    /// Upsampled chroma.
    cb: Vec<u8>,
    cr: Vec<u8>,
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
            stride: window.columns() * component.h * 8,
            x: window.first_column * component.h * 8,
            y: window.first_row * component.v * 8,
            width: component.width,
            height: component.height,
        }
    }

    /// Samples `x` … `x + length` of row `y`, in the picture's coordinates.
    #[inline(always)]
    fn row(&self, y: usize, x: usize, length: usize) -> &'a [u8] {
        let start = (y - self.y) * self.stride + x - self.x;
        &self.samples[start..start + length]
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
    convert_anywhere(frame, window, region, planes, rows, out);
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
    convert_anywhere(frame, window, region, planes, rows, out);
}

#[inline(always)]
fn convert_anywhere(
    frame: &Frame,
    window: Window,
    region: Rect,
    planes: &[Buffer; 3],
    rows: &mut Rows,
    out: &mut [u8],
) {
    let (x, width) = (region.x as usize, region.width as usize);
    let luma = Plane::new(frame, window, 0, &planes[0]);
    for (y, out) in (region.y as usize..).zip(out.chunks_exact_mut(width * 3)) {
        let luma = luma.row(y, x, width);
        if frame.count == 1 {
            for (out, value) in out.chunks_exact_mut(3).zip(luma) {
                out.fill(*value);
            }
            continue;
        }
        let Rows { sums, cb, cr } = rows;
        let cb = chroma(frame, &Plane::new(frame, window, 1, &planes[1]), (x, y, width), sums, cb);
        let cr = chroma(frame, &Plane::new(frame, window, 2, &planes[2]), (x, y, width), sums, cr);
        to_rgb(luma, cb, cr, out);
    }
}

/// The chroma samples of pixels `x` … `x + width` of row `y`.
#[inline(always)]
fn chroma<'a>(
    frame: &Frame,
    plane: &Plane<'a>,
    (x, y, width): (usize, usize, usize),
    sums: &mut Vec<u16>,
    out: &'a mut Vec<u8>,
) -> &'a [u8] {
    let halved_rows = frame.v_max == 2;
    if frame.h_max == 1 && !halved_rows {
        return plane.row(y, x, width);
    }
    let near = if halved_rows { y / 2 } else { y };
    let far = match (halved_rows, y % 2) {
        (false, _) => near,
        (true, 0) => near.saturating_sub(1),
        (true, _) => (near + 1).min(plane.height - 1),
    };
    if frame.h_max == 1 {
        out.resize(width.max(out.len()), 0);
        let bias = if y % 2 == 0 { 1 } else { 2 };
        let (near, far) = (plane.row(near, x, width), plane.row(far, x, width));
        for ((out, near), far) in out.iter_mut().zip(near).zip(far) {
            *out = low((u16::from(*near) * 3 + u16::from(*far) + bias) >> 2);
        }
        return &out[..width];
    }
    // Two pixels per sample: the samples of the region, and one beside them where the picture has one.
    let (first, last) = (x / 2, (x + width - 1) / 2);
    let (left, right) = (first.saturating_sub(1), (last + 1).min(plane.width - 1));
    let count = last - first + 1;
    sums.resize((count + 2).max(sums.len()), 0);
    out.resize((count * 2).max(out.len()), 0);
    let sums = &mut sums[..count + 2];
    let skip = left + 1 - first;
    let (near, far) = (plane.row(near, left, right - left + 1), plane.row(far, left, right - left + 1));
    for ((sum, near), far) in sums[skip..].iter_mut().zip(near).zip(far) {
        *sum = if halved_rows { u16::from(*near) * 3 + u16::from(*far) } else { u16::from(*near) };
    }
    // At the picture's edges the outermost sample stands in for its missing neighbour.
    if left == first {
        sums[0] = sums[1];
    }
    if right == last {
        sums[count + 1] = sums[count];
    }
    let (before, here, after) = (&sums[..count], &sums[1..=count], &sums[2..]);
    let pairs = out[..count * 2].chunks_exact_mut(2);
    let samples = pairs.zip(before).zip(here).zip(after);
    if halved_rows {
        for (((out, before), here), after) in samples {
            out[0] = low((here * 3 + before + 8) >> 4);
            out[1] = low((here * 3 + after + 7) >> 4);
        }
    } else {
        for (((out, before), here), after) in samples {
            out[0] = low((here * 3 + before + 1) >> 2);
            out[1] = low((here * 3 + after + 2) >> 2);
        }
    }
    &out[x % 2..x % 2 + width]
}

#[expect(clippy::cast_possible_truncation, reason = "a weighted mean of bytes")]
#[inline(always)]
fn low(value: u16) -> u8 {
    value as u8
}

/// JFIF's YCbCr → RGB.
#[inline(always)]
fn to_rgb(luma: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((out, y), cb), cr) in out.chunks_exact_mut(3).zip(luma).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
        out[0] = byte(y + ((91_881 * cr + 32_768) >> 16));
        out[1] = byte(y + ((-22_554 * cb - 46_802 * cr + 32_768) >> 16));
        out[2] = byte(y + ((116_130 * cb + 32_768) >> 16));
    }
}

#[inline(always)]
fn byte(value: i32) -> u8 {
    value.clamp(0, 255) as u8
}
