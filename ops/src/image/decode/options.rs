//! The options of `decode_image`: what a sample may cost at most, and how it is decoded.

use serde::{Deserialize, Serialize};

use super::format::ImageHeader;
use super::mode::DecodeMode;
use crate::image::limits::{
    MAX_COEFFICIENT_BYTES, MAX_HUFFMAN_GROUPS, MAX_PIXELS, MAX_PIXELS_PER_BYTE, MAX_SCAN_BLOCKS, MAX_SCANS,
    RATIO_FREE_PIXELS,
};
use crate::limits::over;
use feedstock_base::{Error, Result};

/// Decodes a JPEG (baseline, progressive, grey, CMYK, YCCK), PNG (every colour type and depth) or WebP into RGB, or into one
/// channel by [`mode`](Self::mode).
///
/// The format follows from the content, not from the name. Grey becomes three equal channels, alpha is dropped (as
/// Pillow's `convert("RGB")`), 16-bit channels keep their high byte, CMYK goes the way of Pillow's formula.
///
/// ```
/// use feedstock_ops::{ChainSpec, image::DecodeImage, resize};
///
/// let decode = DecodeImage::new().exif_orientation(true).max_pixels(10_000_000);
/// let chain = ChainSpec::from([decode.into(), resize([64, 64])]).compile()?;
/// assert_eq!(chain.output().bytes(), 64 * 64 * 3);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DecodeImage {
    /// What is made of the colours; default RGB.
    #[serde(default, skip_serializing_if = "DecodeMode::is_rgb")]
    pub mode: DecodeMode,
    /// Turn the image by its EXIF orientation, as Pillow's `ImageOps.exif_transpose`. Default false, as `Image.open`
    /// and torchvision's data sets do. Unreadable EXIF counts as upright.
    #[serde(default)]
    pub exif_orientation: bool,
    /// Let the JPEG decoder halve large images (1/2, 1/4, 1/8) as long as twice the target's size remains in both
    /// directions. Default true: it is the rule of Pillow's `reducing_gap=2.0`, differs by less than 1 level on average
    /// from the full path, and touches only crops of at least 4 × the target (896 px for 224). Set false for results
    /// that are bit-identical to the full decode at every size.
    #[serde(default = "yes")]
    pub scaled: bool,
    /// The most pixels an image may have; default 89,478,485 (Pillow's limit). Checked before allocation.
    #[serde(default = "max_pixels")]
    pub max_pixels: u64,
    /// The most pixels per encoded byte, for images over 4 megapixels; default 1024. Checked before allocation.
    #[serde(default = "max_pixels_per_byte")]
    pub max_pixels_per_byte: u32,
    /// The most scans of a JPEG, 1 … 2,147,483,647; default 500. Only files with several scans count: progressive ones, and
    /// those with a scan for each component. Checked before decoding, as are the next two.
    #[serde(default = "max_scans", skip_serializing_if = "is_max_scans")]
    pub max_scans: u32,
    /// The most blocks of 8×8 that all scans of a JPEG visit: for each scan the blocks of its components. Default 67,108,864,
    /// which is 48 scans of a component with 89 megapixels. It bounds the time for a file with several scans.
    #[serde(default = "max_scan_blocks", skip_serializing_if = "is_max_scan_blocks")]
    pub max_scan_blocks: u64,
    /// The most bytes of coefficients that the decoder keeps between scans, in addition to the pixels: 128 for each
    /// block of each component. Default 805,306,368, which no image within the default `max_pixels` needs.
    #[serde(default = "max_coefficient_bytes", skip_serializing_if = "is_max_coefficient_bytes")]
    pub max_coefficient_bytes: u64,
    /// The most groups of Huffman codes of a lossless WebP or of a WebP's alpha channel; default 2,600, the most that libwebp
    /// writes. Checked before they are allocated.
    #[serde(default = "max_huffman_groups", skip_serializing_if = "is_max_huffman_groups")]
    pub max_huffman_groups: u32,
}

fn yes() -> bool {
    true
}

fn max_pixels() -> u64 {
    MAX_PIXELS
}

fn max_pixels_per_byte() -> u32 {
    MAX_PIXELS_PER_BYTE
}

fn max_scans() -> u32 {
    MAX_SCANS
}

fn max_scan_blocks() -> u64 {
    MAX_SCAN_BLOCKS
}

fn max_coefficient_bytes() -> u64 {
    MAX_COEFFICIENT_BYTES
}

fn max_huffman_groups() -> u32 {
    MAX_HUFFMAN_GROUPS
}

// Limits that came later are written only where they differ from the default: descriptions of before keep their hash.
fn is_max_scans(scans: &u32) -> bool {
    *scans == MAX_SCANS
}

fn is_max_scan_blocks(blocks: &u64) -> bool {
    *blocks == MAX_SCAN_BLOCKS
}

fn is_max_coefficient_bytes(bytes: &u64) -> bool {
    *bytes == MAX_COEFFICIENT_BYTES
}

fn is_max_huffman_groups(groups: &u32) -> bool {
    *groups == MAX_HUFFMAN_GROUPS
}

impl Default for DecodeImage {
    fn default() -> Self {
        Self {
            mode: DecodeMode::Rgb,
            exif_orientation: false,
            scaled: true,
            max_pixels: MAX_PIXELS,
            max_pixels_per_byte: MAX_PIXELS_PER_BYTE,
            max_scans: MAX_SCANS,
            max_scan_blocks: MAX_SCAN_BLOCKS,
            max_coefficient_bytes: MAX_COEFFICIENT_BYTES,
            max_huffman_groups: MAX_HUFFMAN_GROUPS,
        }
    }
}

impl DecodeImage {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what is made of the colours.
    #[must_use]
    pub fn mode(self, mode: DecodeMode) -> Self {
        Self { mode, ..self }
    }

    /// Sets whether the image is turned by its EXIF orientation.
    #[must_use]
    pub fn exif_orientation(self, on: bool) -> Self {
        Self { exif_orientation: on, ..self }
    }

    /// Sets whether the JPEG decoder may halve large images.
    #[must_use]
    pub fn scaled(self, on: bool) -> Self {
        Self { scaled: on, ..self }
    }

    /// Sets the most pixels that an image may have.
    #[must_use]
    pub fn max_pixels(self, pixels: u64) -> Self {
        Self { max_pixels: pixels, ..self }
    }

    /// Sets the most pixels per encoded byte, for images over 4 megapixels.
    #[must_use]
    pub fn max_pixels_per_byte(self, pixels: u32) -> Self {
        Self { max_pixels_per_byte: pixels, ..self }
    }

    /// Sets the most scans of a JPEG.
    #[must_use]
    pub fn max_scans(self, scans: u32) -> Self {
        Self { max_scans: scans, ..self }
    }

    /// Sets the most blocks of 8×8 that all scans of a JPEG visit.
    #[must_use]
    pub fn max_scan_blocks(self, blocks: u64) -> Self {
        Self { max_scan_blocks: blocks, ..self }
    }

    /// Sets the most bytes of coefficients that are kept between the scans of a JPEG.
    #[must_use]
    pub fn max_coefficient_bytes(self, bytes: u64) -> Self {
        Self { max_coefficient_bytes: bytes, ..self }
    }

    /// Sets the most groups of Huffman codes of a lossless WebP.
    #[must_use]
    pub fn max_huffman_groups(self, groups: u32) -> Self {
        Self { max_huffman_groups: groups, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        // A codec's row and buffer arithmetic stays within i32 and usize up to here.
        const MOST: u64 = 1 << 31;
        if !(1..=MOST).contains(&self.max_pixels) || self.max_pixels_per_byte == 0 {
            return Err(Error::config(format!(
                "max_pixels must be 1 … {MOST}, and max_pixels_per_byte at least 1; got {} and {}",
                self.max_pixels, self.max_pixels_per_byte
            )));
        }
        if !(1..=i32::MAX.unsigned_abs()).contains(&self.max_scans) {
            return Err(Error::config(format!("max_scans must be 1 … {}; got {}", i32::MAX, self.max_scans)));
        }
        if self.max_scan_blocks == 0 || self.max_coefficient_bytes == 0 || self.max_huffman_groups == 0 {
            return Err(Error::config(format!(
                "max_scan_blocks, max_coefficient_bytes and max_huffman_groups must be at least 1; got {}, {} and {}",
                self.max_scan_blocks, self.max_coefficient_bytes, self.max_huffman_groups
            )));
        }
        Ok(())
    }

    pub(super) fn check_limits(&self, header: ImageHeader, bytes: usize) -> Result<()> {
        let ImageHeader { format, width, height } = header;
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            let found = format!("the {format} header asks for {width}×{height} px = {pixels}");
            return Err(over(found, "max_pixels", self.max_pixels));
        }
        if pixels > RATIO_FREE_PIXELS && pixels > bytes as u64 * u64::from(self.max_pixels_per_byte) {
            let found =
                format!("the {format} header asks for {width}×{height} px = {pixels} in {bytes} bytes");
            return Err(over(found, "max_pixels_per_byte", self.max_pixels_per_byte));
        }
        Ok(())
    }
}
