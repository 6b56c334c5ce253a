//! The one pass that converts, normalises, mirrors and lays out a finished image.

use super::decode::DecodeMode;
use super::geometry::Flips;
use super::rows::flip_rgb;
use super::sampler::Depth;
use crate::spec::{DType, Layout};

/// The conversion at a chain's end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Convert {
    /// RGB; RGB and alpha, which come apart (`sample.rs`); three equal channels, of which one is written; or a value of 16 bits.
    pub(crate) mode: DecodeMode,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    /// f32 result = value · scale + bias, per channel.
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
}

impl Convert {
    /// Leaves values as they are between ops.
    pub(crate) fn of_mode(mode: DecodeMode) -> Self {
        let layout = if mode == DecodeMode::Indices { Layout::Hw } else { Layout::Hwc };
        let dtype = if mode == DecodeMode::Gray16 { DType::U16 } else { DType::U8 };
        Self { mode, dtype, layout, scale: [1.0; 3], bias: [0.0; 3] }
    }

    /// Nothing to convert: the last u8 op can write the result itself.
    pub(crate) fn is_identity(&self) -> bool {
        self.mode.is_rgb() && self.dtype == DType::U8 && self.layout == Layout::Hwc
    }

    pub(crate) fn channels(&self) -> usize {
        match self.mode {
            DecodeMode::Rgb => 3,
            DecodeMode::Rgba => 4,
            DecodeMode::Gray | DecodeMode::Gray16 | DecodeMode::Indices => 1,
        }
    }

    pub(crate) fn unit(&mut self) {
        self.dtype = DType::F32;
        self.scale = [1.0 / self.most(); 3];
        self.bias = [0.0; 3];
    }

    /// Sets the scale of a channel's values in 0 … 255, and the bias.
    pub(crate) fn normalize(&mut self, (scale, bias): ([f32; 3], [f32; 3])) {
        self.dtype = DType::F32;
        let of_byte = 255.0 / self.most();
        (self.scale, self.bias) = (scale.map(|scale| scale * of_byte), bias);
    }

    /// Returns the largest value of a channel.
    fn most(&self) -> f32 {
        match self.mode.depth() {
            Depth::Eight => 255.0,
            Depth::Sixteen => 65_535.0,
        }
    }

    /// Converts a dense RGB image, `width` wide, into `out`, flipped by `flips`.
    pub(crate) fn run(&self, rgb: &[u8], width: usize, flips: Flips, out: &mut [u8]) {
        if !self.mode.is_rgb() {
            return self.one_channel(rgb, width, flips, out);
        }
        match (self.layout == Layout::Chw, self.dtype == DType::F32) {
            (false, false) => {
                out.copy_from_slice(rgb);
                flip_rgb(out, width, flips);
            }
            (false, true) => self.interleaved_f32(rgb, width, flips, out),
            (true, false) => planar_u8(rgb, width, flips, out),
            (true, true) => self.planar_f32(rgb, width, flips, out),
        }
    }

    /// Writes the first channel. With one channel, all layouts are the same.
    fn one_channel(&self, rgb: &[u8], width: usize, flips: Flips, out: &mut [u8]) {
        let (scale, bias) = (self.scale[0], self.bias[0]);
        let (depth, bytes) = (self.mode.depth(), self.dtype.bytes());
        let wide = |pixel: &[u8]| u16::from_be_bytes([pixel[0], pixel[1]]);
        let write = |(pixel, out): (&[u8], &mut [u8])| match (self.dtype, depth) {
            (DType::F32, Depth::Eight) => {
                out.copy_from_slice(&(f32::from(pixel[0]) * scale + bias).to_ne_bytes());
            }
            (DType::F32, Depth::Sixteen) => {
                out.copy_from_slice(&(f32::from(wide(pixel)) * scale + bias).to_ne_bytes());
            }
            (_, Depth::Eight) => out[0] = pixel[0],
            (_, Depth::Sixteen) => out.copy_from_slice(&wide(pixel).to_ne_bytes()),
        };
        for (row, out) in rows(rgb, width, flips).zip(out.chunks_exact_mut(width * bytes)) {
            let pixels = row.chunks_exact(3);
            if flips.horizontal {
                pixels.rev().zip(out.chunks_exact_mut(bytes)).for_each(write);
            } else {
                pixels.zip(out.chunks_exact_mut(bytes)).for_each(write);
            }
        }
    }

    fn interleaved_f32(&self, rgb: &[u8], width: usize, flips: Flips, out: &mut [u8]) {
        let value = |channel: usize, byte: u8| {
            (f32::from(byte) * self.scale[channel] + self.bias[channel]).to_ne_bytes()
        };
        for (row, out) in rows(rgb, width, flips).zip(out.chunks_exact_mut(width * 12)) {
            let write = |(pixel, out): (&[u8], &mut [u8])| {
                for channel in 0..3 {
                    out[channel * 4..channel * 4 + 4].copy_from_slice(&value(channel, pixel[channel]));
                }
            };
            let pixels = row.chunks_exact(3);
            if flips.horizontal {
                pixels.rev().zip(out.chunks_exact_mut(12)).for_each(write);
            } else {
                pixels.zip(out.chunks_exact_mut(12)).for_each(write);
            }
        }
    }

    fn planar_f32(&self, rgb: &[u8], width: usize, flips: Flips, out: &mut [u8]) {
        let plane = rgb.len() / 3 * 4;
        for (channel, out) in out.chunks_exact_mut(plane).enumerate() {
            let (scale, bias) = (self.scale[channel], self.bias[channel]);
            for (row, out) in rows(rgb, width, flips).zip(out.chunks_exact_mut(width * 4)) {
                let write = |(pixel, out): (&[u8], &mut [u8])| {
                    out.copy_from_slice(&(f32::from(pixel[channel]) * scale + bias).to_ne_bytes());
                };
                let pixels = row.chunks_exact(3);
                if flips.horizontal {
                    pixels.rev().zip(out.chunks_exact_mut(4)).for_each(write);
                } else {
                    pixels.zip(out.chunks_exact_mut(4)).for_each(write);
                }
            }
        }
    }
}

/// Returns the rows of an image, from the bottom if they are exchanged.
fn rows(rgb: &[u8], width: usize, flips: Flips) -> impl Iterator<Item = &[u8]> {
    let (length, count) = (width * 3, rgb.len() / (width * 3));
    (0..count).map(move |row| {
        let start = if flips.vertical { count - 1 - row } else { row } * length;
        &rgb[start..start + length]
    })
}

fn planar_u8(rgb: &[u8], width: usize, flips: Flips, out: &mut [u8]) {
    let plane = rgb.len() / 3;
    for (channel, out) in out.chunks_exact_mut(plane).enumerate() {
        for (row, out) in rows(rgb, width, flips).zip(out.chunks_exact_mut(width)) {
            let pixels = row.chunks_exact(3).map(|pixel| pixel[channel]);
            if flips.horizontal {
                pixels.rev().zip(out).for_each(|(value, out)| *out = value);
            } else {
                pixels.zip(out).for_each(|(value, out)| *out = value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Normalize;

    #[test]
    fn every_layout_and_type_agrees_with_the_definition() {
        let (width, height) = (37, 5);
        let rgb: Vec<u8> = (0..width * height * 3).map(|i| u8::try_from(i * 89 % 256).unwrap()).collect();
        let op = Normalize::default();
        for (dtype, layout) in [DType::U8, DType::F32]
            .into_iter()
            .flat_map(|dtype| [Layout::Hwc, Layout::Chw].map(|layout| (dtype, layout)))
        {
            let mut convert = Convert { dtype, layout, ..Convert::of_mode(DecodeMode::Rgb) };
            if dtype == DType::F32 {
                convert.normalize(op.scale_and_bias());
            }
            for (horizontal, vertical) in [(false, false), (true, false), (false, true), (true, true)] {
                // One byte off, to show that the alignment is free.
                let mut out = vec![0; rgb.len() * dtype.bytes() + 1];
                convert.run(&rgb, width, Flips { horizontal, vertical }, &mut out[1..]);
                for (y, x, c) in
                    (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| (y, x, c))))
                {
                    let (from_x, from_y) = (
                        if horizontal { width - 1 - x } else { x },
                        if vertical { height - 1 - y } else { y },
                    );
                    let byte = rgb[(from_y * width + from_x) * 3 + c];
                    let element = if layout == Layout::Chw {
                        (c * height + y) * width + x
                    } else {
                        (y * width + x) * 3 + c
                    };
                    let at = element * dtype.bytes() + 1;
                    if dtype == DType::U8 {
                        assert_eq!(out[at], byte);
                    } else {
                        let got = f32::from_ne_bytes(out[at..at + 4].try_into().unwrap());
                        let exact = (f64::from(byte) / 255.0 - f64::from(op.mean[c])) / f64::from(op.std[c]);
                        assert!((f64::from(got) - exact).abs() < 1e-6);
                    }
                }
            }
        }
    }
}
