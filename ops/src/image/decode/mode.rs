//! The colour mode that an image is stored in, and the one that it is decoded to.

use super::format::{ImageFormat, sniff};
use super::jpeg_header::JpegHeader;
use crate::image::sampler::Depth;
use feedstock_base::{Error, Result};
use serde::{Deserialize, Serialize};

/// What `decode_image` makes of an image's colours.
///
/// ```
/// use feedstock_ops::ChainSpec;
/// use feedstock_ops::image::{DecodeImage, DecodeMode};
/// use feedstock_ops::{resize, to_chw};
///
/// let shape = |mode| ChainSpec::from([DecodeImage::new().mode(mode).into(), resize([8, 8])]).compile();
/// assert_eq!(shape(DecodeMode::Rgb)?.output().shape, [8, 8, 3]);
/// assert_eq!(shape(DecodeMode::Rgba)?.output().shape, [8, 8, 4]);
/// assert_eq!(shape(DecodeMode::Gray)?.output().shape, [8, 8, 1]);
/// assert_eq!(shape(DecodeMode::Gray16)?.output().shape, [8, 8, 1]);
/// assert_eq!(shape(DecodeMode::Indices)?.output().shape, [8, 8]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DecodeMode {
    /// Three channels. Grey becomes three equal channels, and alpha is dropped.
    #[default]
    Rgb,
    /// Four channels, as Pillow's `convert("RGBA")`: an image without alpha is opaque (255). Crops, resizes, flips, rotations and
    /// other geometry, `to_f32` and `to_chw` work on it. Padding is transparent black, so `fill` must be 0. As in Pillow, filters
    /// average colours by their alpha. Images with alpha are decoded twice.
    Rgba,
    /// One channel: luma by ITU-R 601-2, as Pillow's `convert("L")`.
    Gray,
    /// One channel of 16 bits, 0 … 65,535: a PNG of 16-bit grey, as Pillow's mode `I;16`, such as a depth map. Other images
    /// are bad samples. Crops, resizes, padding (with `fill` · 257), flips, `to_f32` (to 0 … 1) and `normalize` work on it.
    Gray16,
    /// One number per pixel, as a mask of classes: a PNG's palette index or its grey value, as `numpy.asarray` of Pillow's
    /// image (0 and 1 for one bit). Resizing takes the nearest pixel, and ops on colours do nothing, as in torchvision v2 for
    /// masks. An image with colours and without a palette is a bad sample.
    Indices,
}

impl DecodeMode {
    pub(crate) fn is_rgb(&self) -> bool {
        *self == Self::Rgb
    }

    /// Returns what the three bytes of a pixel are between ops.
    pub(crate) fn depth(self) -> Depth {
        match self {
            Self::Gray16 => Depth::Sixteen,
            Self::Rgb | Self::Rgba | Self::Gray | Self::Indices => Depth::Eight,
        }
    }

    /// Refuses images that have no such pixels.
    pub(super) fn check(self, bytes: &[u8]) -> Result<()> {
        let stored = match self {
            Self::Indices | Self::Gray16 => read_mode(bytes)?,
            Self::Rgb | Self::Rgba | Self::Gray => return Ok(()),
        };
        match stored {
            "I;16" if self == Self::Gray16 => Ok(()),
            other if self == Self::Gray16 => Err(Error::bad_sample(format!(
                "the image is {other}, and mode=\"gray16\" needs a PNG of 16-bit grey"
            ))),
            "P" | "L" | "1" => Ok(()),
            other => Err(Error::bad_sample(format!(
                "the image is {other}, and mode=\"indices\" needs a palette or grey values of at most 8 bits"
            ))),
        }
    }
}

/// Reads the colour mode that an image is stored in from its header, in Pillow's terms: `L` grey, `RGB`, `CMYK` (JPEG),
/// `P` palette, `LA` and `RGBA` with alpha, `1` one bit, `I;16` grey of 16 bits; and `RGB;16`, whose mode in Pillow is
/// `RGB`. Feedstock decodes all of them to RGB by default; see [`DecodeMode`].
///
/// ```
/// use feedstock_ops::image::read_mode;
///
/// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
/// #     let mut out = Vec::new();
/// #     let mut encoder = png::Encoder::new(&mut out, width, height);
/// #     encoder.set_color(png::ColorType::Rgb);
/// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
/// #     out
/// # }
/// assert_eq!(read_mode(&encode(1, 1, &[0; 3]))?, "RGB");
/// assert!(read_mode(b"GIF89a").is_err());
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
///
/// # Errors
/// `BadSample` for bytes without such a header.
pub fn read_mode(bytes: &[u8]) -> Result<&'static str> {
    let cut = || Error::bad_sample(format!("{} bytes hold no complete header", bytes.len()));
    let byte = |at: usize| bytes.get(at).copied().ok_or_else(cut);
    Ok(match sniff(bytes)? {
        ImageFormat::Jpeg => match JpegHeader::parse(bytes)?.components().len() {
            1 => "L",
            4 => "CMYK",
            _ => "RGB",
        },
        ImageFormat::Png => match (byte(25)?, byte(24)?) {
            (0, 1) => "1",
            (0, 16) => "I;16",
            (0, _) => "L",
            (2, 16) => "RGB;16",
            (2, _) => "RGB",
            (3, _) => "P",
            (4, _) => "LA",
            _ => "RGBA",
        },
        ImageFormat::WebP => {
            let has_alpha = match bytes.get(12..16) {
                Some(b"VP8X") => byte(20)? & 0x10 != 0,
                Some(b"VP8L") => byte(24)? & 0x10 != 0, // after 14 bits each of width and height
                _ => false,
            };
            if has_alpha { "RGBA" } else { "RGB" }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Pillow 12 names the modes of these files.
    #[test]
    fn modes_are_pillows() {
        for (name, mode) in [
            ("1.png", "1"),
            ("420.jpg", "RGB"),
            ("alpha.webp", "RGBA"),
            ("cmyk.jpg", "CMYK"),
            ("grey.jpg", "L"),
            ("l.png", "L"),
            ("la.png", "LA"),
            ("lossless.webp", "RGB"),
            ("lossy.webp", "RGB"),
            ("p.png", "P"),
            ("p_transparent.png", "P"),
            ("progressive.jpg", "RGB"),
            ("rgb.png", "RGB"),
            ("rgba.png", "RGBA"),
        ] {
            let bytes = std::fs::read(format!("tests/golden/decode/{name}")).unwrap();
            assert_eq!(read_mode(&bytes).unwrap(), mode, "{name}");
        }
        assert!(read_mode(b"no image").is_err());
    }
}
