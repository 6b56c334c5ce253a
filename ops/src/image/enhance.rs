//! Colour arithmetic on dense RGB exactly as Pillow does it: `ImageEnhance`, `ImageOps` and HSV.
//!
//! torchvision's PIL path calls these, so the same draws give the same images; `tests/suite/golden.rs` compares.

use crate::buffer::fit;

/// ITU-R 601-2 luma in 16.16 fixed point, rounded.
fn luma(pixel: &[u8]) -> u8 {
    let sum =
        u32::from(pixel[0]) * 19_595 + u32::from(pixel[1]) * 38_470 + u32::from(pixel[2]) * 7_471 + 0x8000;
    u8::try_from(sum >> 16).unwrap_or(u8::MAX)
}

/// `Image.blend` of one value: truncation towards zero and, outside 0 … 1, clipping.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let value = f32::from(from) + factor * (f32::from(to) - f32::from(from));
    // A float → int cast saturates, which is Pillow's clipping.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
    {
        value as u8
    }
}

#[expect(clippy::cast_possible_truncation, reason = "Pillow computes in single precision")]
fn single(factor: f64) -> f32 {
    factor as f32
}

/// 0 is black, 1 unchanged.
pub(crate) fn brightness(pixels: &mut [u8], factor: f64) {
    let factor = single(factor);
    let table: [u8; 256] = std::array::from_fn(|value| blend(0, low(value), factor));
    pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// 0 is the mean grey, 1 unchanged.
pub(crate) fn contrast(pixels: &mut [u8], factor: f64) {
    let factor = single(factor);
    let count = (pixels.len() / 3).max(1) as f64;
    let sum: u64 = pixels.chunks_exact(3).map(|pixel| u64::from(luma(pixel))).sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of bytes")]
    let mean = (sum as f64 / count + 0.5) as u8;
    let table: [u8; 256] = std::array::from_fn(|value| blend(mean, low(value), factor));
    pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// 0 is grey, 1 unchanged.
pub(crate) fn saturation(pixels: &mut [u8], factor: f64) {
    let factor = single(factor);
    for pixel in pixels.chunks_exact_mut(3) {
        let grey = luma(pixel);
        pixel.iter_mut().for_each(|value| *value = blend(grey, *value, factor));
    }
}

/// 0 is smoothed with Pillow's SMOOTH kernel, 1 unchanged.
pub(crate) fn sharpness(pixels: &mut [u8], width: usize, factor: f64, spare: &mut Vec<u8>) {
    let factor = single(factor);
    let row = width * 3;
    fit(spare, pixels.len());
    spare.clear();
    spare.extend_from_slice(pixels);
    let height = pixels.len() / row.max(1);
    // The outermost pixels have no full neighbourhood and stay, which blending leaves as they are.
    if width < 3 || height < 3 {
        return;
    }
    for y in 1..height - 1 {
        for at in y * row + 3..(y + 1) * row - 3 {
            let three =
                |at: usize| u32::from(spare[at - 3]) + u32::from(spare[at]) + u32::from(spare[at + 3]);
            let sum = three(at - row) + three(at) + three(at + row) + 4 * u32::from(spare[at]);
            // (1 1 1, 1 5 1, 1 1 1) / 13, rounded; a thirteenth never ties.
            let smooth = u8::try_from((2 * sum + 13) / 26).unwrap_or(u8::MAX);
            pixels[at] = blend(smooth, spare[at], factor);
        }
    }
}

/// Rotates the hue by `factor` turns, −0.5 … 0.5, in Pillow's 8-bit HSV.
pub(crate) fn hue(pixels: &mut [u8], factor: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "−0.5 … 0.5 × 255 fits")]
    let shift = (factor * 255.0) as i32;
    let shift = u8::try_from(shift.rem_euclid(256)).unwrap_or(0);
    for pixel in pixels.chunks_exact_mut(3) {
        let [h, s, v] = to_hsv([pixel[0], pixel[1], pixel[2]]);
        pixel.copy_from_slice(&to_rgb([h.wrapping_add(shift), s, v]));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "Pillow's C code truncates and clamps the same way"
)]
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let part = |value: u8| f32::from(most - value) / range;
    let (rc, gc, bc) = (part(r), part(g), part(b));
    let h = if r == most {
        bc - gc
    } else if g == most {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let h = ((f64::from(h) / 6.0 + 1.0) % 1.0) as f32;
    let s = range / f32::from(most);
    [(f64::from(h) * 255.0) as u8, (f64::from(s) * 255.0) as u8, most]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "Pillow's C code truncates and clamps the same way"
)]
fn to_rgb([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let turn = f64::from(h) * 6.0 / 255.0;
    let sector = turn.floor();
    let f = f64::from((turn - sector) as f32);
    let fs = f64::from((f64::from(s) / 255.0) as f32);
    let value = f64::from(v);
    let p = (value * (1.0 - fs)).round() as u8;
    let q = (value * (1.0 - fs * f)).round() as u8;
    let t = (value * (1.0 - fs * (1.0 - f))).round() as u8;
    match sector as u8 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

/// Keeps the `bits` highest bits of each channel.
pub(crate) fn posterize(pixels: &mut [u8], bits: u32) {
    let mask = if bits >= 8 { 0xFF } else { !(0xFF_u8 >> bits) };
    pixels.iter_mut().for_each(|value| *value &= mask);
}

/// Inverts all values.
pub(crate) fn invert(pixels: &mut [u8]) {
    pixels.iter_mut().for_each(|value| *value = 255 - *value);
}

/// Writes the luma to all channels, as torchvision's `rgb_to_grayscale` with three channels.
pub(crate) fn grayscale(pixels: &mut [u8]) {
    pixels.chunks_exact_mut(3).for_each(|pixel| pixel.fill(luma(pixel)));
}

/// Inverts all values at or above `threshold`.
pub(crate) fn solarize(pixels: &mut [u8], threshold: f64) {
    let table: [u8; 256] =
        std::array::from_fn(|value| if (value as f64) < threshold { low(value) } else { 255 - low(value) });
    pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// Adds to all values below 128.
pub(crate) fn solarize_add(pixels: &mut [u8], added: u8) {
    pixels.iter_mut().filter(|value| **value < 128).for_each(|value| *value = value.saturating_add(added));
}

/// Stretches each channel to 0 … 255.
pub(crate) fn autocontrast(pixels: &mut [u8]) {
    by_channel(pixels, |histogram| {
        let lowest = histogram.iter().position(|&n| n > 0).unwrap_or(0);
        let highest = histogram.iter().rposition(|&n| n > 0).unwrap_or(0);
        if highest <= lowest {
            return std::array::from_fn(low);
        }
        let scale = 255.0 / (highest - lowest) as f64;
        let offset = -(lowest as f64) * scale;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
        std::array::from_fn(|value| (value as f64 * scale + offset) as u8)
    });
}

/// Flattens each channel's histogram.
pub(crate) fn equalize(pixels: &mut [u8]) {
    by_channel(pixels, |histogram| {
        let used = histogram.iter().filter(|&&n| n > 0).count();
        let last = histogram.iter().rev().find(|&&n| n > 0).copied().unwrap_or(0);
        let step = (histogram.iter().sum::<u64>() - last) / 255;
        if used <= 1 || step == 0 {
            return std::array::from_fn(low);
        }
        let mut sum = step / 2;
        std::array::from_fn(|value| {
            let level = u8::try_from(sum / step).unwrap_or(u8::MAX);
            sum += histogram[value];
            level
        })
    });
}

fn by_channel(pixels: &mut [u8], table: impl Fn(&[u64; 256]) -> [u8; 256]) {
    let mut histograms = [[0_u64; 256]; 3];
    for pixel in pixels.chunks_exact(3) {
        for (histogram, value) in histograms.iter_mut().zip(pixel) {
            histogram[usize::from(*value)] += 1;
        }
    }
    let tables = histograms.each_ref().map(table);
    for pixel in pixels.chunks_exact_mut(3) {
        for (table, value) in tables.iter().zip(pixel) {
            *value = table[usize::from(*value)];
        }
    }
}

fn low(value: usize) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}
