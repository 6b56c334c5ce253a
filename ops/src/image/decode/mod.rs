//! `decode_image`: JPEG, PNG and WebP into RGB, only as much as is needed.
//!
//! ```text
//! bytes ─▶ sniff by magic bytes ─▶ header and limits ─▶ region ─▶ RGB in a scratch buffer, and where the region is
//!          (a PNG named .jpg decodes)  (before any allocation)
//! ```
//! A region of a JPEG is decoded bit for bit as in the whole picture (`jpeg.rs` has the margins). What is checked:
//! the header, the limits, every entropy-coded symbol that is read, and that the file reaches its end marker. Damage
//! inside rows below the region that does not shorten the file cannot be seen without decoding them.
//!
//! What Pillow's `load()` decodes without an error is decoded, with its result; where Pillow is silent about damage, the
//! sample carries a [`Warning`](crate::Warning).

mod baseline;
mod exif;
mod jpeg;
mod jpeg_header;
mod jpeg_scans;
mod mode;
mod png;
mod png_repair;
mod vp8l;
mod webp;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::geometry::{Rect, Size};
use super::resize::Window;
use crate::buffer::Buffer;
use crate::chain::Op;
use crate::limits::{
    MAX_COEFFICIENT_BYTES, MAX_HUFFMAN_GROUPS, MAX_PIXELS, MAX_PIXELS_PER_BYTE, MAX_SCAN_BLOCKS, MAX_SCANS,
    RATIO_FREE_PIXELS, over,
};
use crate::warning::Warnings;
use crate::working::Scope;
use feedstock_base::{Error, Result};

pub(crate) use exif::Orientation;
pub(crate) use jpeg::JpegDecoder;
use jpeg_header::JpegHeader;
pub use mode::read_mode;

/// Decodes a JPEG (baseline, progressive, grey, CMYK, YCCK), PNG (every colour type and depth) or WebP into RGB.
///
/// The format is told by the content, not by the name. Grey becomes three equal channels, alpha is dropped (as
/// Pillow's `convert("RGB")`), 16-bit channels keep their high byte, CMYK goes the way of Pillow's formula.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DecodeImage {
    /// Turn the picture as its EXIF orientation says, as Pillow's `ImageOps.exif_transpose`. Default false, as
    /// `Image.open` and torchvision's data sets do. Unreadable EXIF counts as upright.
    #[serde(default)]
    pub exif_orientation: bool,
    /// Let the JPEG decoder halve large pictures (1/2, 1/4, 1/8) as long as twice the target's size remains in both
    /// directions. Default true: it is the rule of Pillow's `reducing_gap=2.0`, differs by less than 1 level on average
    /// from the full path, and touches only crops of at least 4 × the target (896 px for 224). Set false for
    /// results that are bit-identical to the full decode at every size.
    #[serde(default = "yes")]
    pub scaled: bool,
    /// The most pixels a picture may have; default 89,478,485 (Pillow's limit). Checked before allocation.
    #[serde(default = "max_pixels")]
    pub max_pixels: u64,
    /// The most pixels per encoded byte, for pictures over 4 megapixels; default 1024. Checked before allocation.
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
    /// The most bytes of coefficients that the decoder keeps between scans, in addition to the pixels: 128 for each block of
    /// each component. Default 805,306,368, which no picture within the default `max_pixels` needs.
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
    /// With the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Turn the picture as its EXIF orientation says.
    #[must_use]
    pub fn exif_orientation(self, on: bool) -> Self {
        Self { exif_orientation: on, ..self }
    }

    /// Let the JPEG decoder halve large pictures.
    #[must_use]
    pub fn scaled(self, on: bool) -> Self {
        Self { scaled: on, ..self }
    }

    /// The most pixels a picture may have.
    #[must_use]
    pub fn max_pixels(self, pixels: u64) -> Self {
        Self { max_pixels: pixels, ..self }
    }

    /// The most pixels per encoded byte, for pictures over 4 megapixels.
    #[must_use]
    pub fn max_pixels_per_byte(self, pixels: u32) -> Self {
        Self { max_pixels_per_byte: pixels, ..self }
    }

    /// The most scans of a JPEG.
    #[must_use]
    pub fn max_scans(self, scans: u32) -> Self {
        Self { max_scans: scans, ..self }
    }

    /// The most blocks of 8×8 that all scans of a JPEG visit.
    #[must_use]
    pub fn max_scan_blocks(self, blocks: u64) -> Self {
        Self { max_scan_blocks: blocks, ..self }
    }

    /// The most bytes of coefficients that are kept between the scans of a JPEG.
    #[must_use]
    pub fn max_coefficient_bytes(self, bytes: u64) -> Self {
        Self { max_coefficient_bytes: bytes, ..self }
    }

    /// The most groups of Huffman codes of a lossless WebP.
    #[must_use]
    pub fn max_huffman_groups(self, groups: u32) -> Self {
        Self { max_huffman_groups: groups, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        // A codec's row and buffer arithmetic stays within i32 and usize up to here.
        const MOST: u64 = 1 << 31;
        if !(1..=MOST).contains(&self.max_pixels) || self.max_pixels_per_byte == 0 {
            return Err(Error::config(format!(
                "max_pixels {} must be 1 … {MOST} and max_pixels_per_byte positive",
                self.max_pixels
            )));
        }
        if !(1..=i32::MAX.unsigned_abs()).contains(&self.max_scans) {
            return Err(Error::config(format!("max_scans {} must be 1 … {}", self.max_scans, i32::MAX)));
        }
        if self.max_scan_blocks == 0 || self.max_coefficient_bytes == 0 || self.max_huffman_groups == 0 {
            return Err(Error::config(
                "max_scan_blocks, max_coefficient_bytes and max_huffman_groups must be positive",
            ));
        }
        Ok(())
    }

    fn check_limits(&self, header: ImageHeader, bytes: usize) -> Result<()> {
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

impl From<DecodeImage> for Op {
    fn from(op: DecodeImage) -> Self {
        Self::DecodeImage(op)
    }
}

/// [`DecodeImage`] with its defaults.
pub fn decode_image() -> Op {
    DecodeImage::default().into()
}

/// A picture's file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// ITU-T T.81.
    Jpeg,
    /// W3C PNG.
    Png,
    /// RFC 9649.
    WebP,
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}

/// What the header says: the stored size, before any EXIF orientation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageHeader {
    /// Told by the magic bytes.
    pub format: ImageFormat,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

fn sniff(bytes: &[u8]) -> Result<ImageFormat> {
    if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
        return Ok(ImageFormat::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(ImageFormat::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(ImageFormat::WebP);
    }
    if bytes.is_empty() {
        return Err(Error::bad_sample("the picture is empty (0 bytes)"));
    }
    Err(Error::bad_sample(format!(
        "{} bytes starting with {:02x?} are no JPEG, PNG or WebP",
        bytes.len(),
        &bytes[..bytes.len().min(12)]
    )))
}

/// Reads format and size without decoding.
///
/// # Errors
/// `BadSample` where the bytes are none of the formats or the header is damaged.
pub fn read_header(bytes: &[u8]) -> Result<ImageHeader> {
    let format = sniff(bytes)?;
    let size = match format {
        ImageFormat::Jpeg => JpegHeader::parse(bytes)?.size(),
        ImageFormat::Png => png::size(bytes)?,
        ImageFormat::WebP => webp::size(bytes)?,
    };
    if size.width == 0 || size.height == 0 {
        return Err(Error::bad_sample(format!(
            "the {format} header asks for {}×{} px; a picture needs at least one",
            size.width, size.height
        )));
    }
    Ok(ImageHeader { format, width: size.width, height: size.height })
}

/// A picture whose header is read and within the limits.
pub(crate) struct Opened<'a> {
    bytes: &'a [u8],
    body: Body<'a>,
    stored: Size,
    orientation: Orientation,
}

enum Body<'a> {
    Jpeg(Box<JpegHeader<'a>>),
    Png,
    WebP,
}

/// RGB in a buffer, with rows of `stride` pixels, of which `view` is meant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pixels {
    pub(crate) stride: usize,
    pub(crate) view: Rect,
    /// After scaled decoding: where exactly the region lies in the view.
    pub(crate) window: Option<Window>,
    pub(crate) warnings: Warnings,
}

/// What a region may be decoded to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// In the oriented picture's coordinates.
    pub(crate) region: Rect,
    /// The size that the region is to be resized to, if the next step is a resize that takes the whole region.
    pub(crate) target: Option<Size>,
    /// How much memory decoding may take.
    pub(crate) scope: Scope,
}

impl<'a> Opened<'a> {
    pub(crate) fn new(bytes: &'a [u8], op: &DecodeImage) -> Result<Self> {
        let format = sniff(bytes)?;
        let (body, header) = match format {
            ImageFormat::Jpeg => {
                let jpeg = JpegHeader::parse(bytes)?;
                let Size { width, height } = jpeg.size();
                if width == 0 || height == 0 {
                    return Err(Error::bad_sample(format!("the JPEG header asks for {width}×{height} px")));
                }
                (Body::Jpeg(Box::new(jpeg)), ImageHeader { format, width, height })
            }
            ImageFormat::Png => (Body::Png, read_header(bytes)?),
            ImageFormat::WebP => (Body::WebP, read_header(bytes)?),
        };
        op.check_limits(header, bytes.len())?;
        let mut body = body;
        match &mut body {
            Body::Jpeg(jpeg) => {
                jpeg_scans::check(jpeg, bytes, op)?;
                jpeg.max_scans = op.max_scans;
            }
            Body::Png => {}
            Body::WebP => webp::check(bytes, Size { height: header.height, width: header.width }, op)?,
        }
        let stored = Size { height: header.height, width: header.width };
        let orientation = if op.exif_orientation { exif::orientation(bytes) } else { Orientation::UPRIGHT };
        Ok(Self { bytes, body, stored, orientation })
    }

    /// Whether crops of the picture jump from one restart marker to another, so many MCUs apart.
    pub(crate) fn skips_between(&self, interval: RangeInclusive<u16>) -> bool {
        match &self.body {
            Body::Jpeg(header) => interval.contains(&header.restart_interval) && baseline::takes(header),
            Body::Png | Body::WebP => false,
        }
    }

    /// Whether the CPU would decode `region`, to be resized to `target`, at a fraction of its size.
    pub(crate) fn is_halved(&self, region: Size, target: Size) -> bool {
        jpeg::denominator(region, target) > 1
    }

    pub(crate) fn is_jpeg(&self) -> bool {
        matches!(self.body, Body::Jpeg(_))
    }

    /// What stands behind the JPEG's end marker; `None` where there is none.
    pub(crate) fn behind_jpeg(&self) -> Option<&[u8]> {
        let Body::Jpeg(header) = &self.body else { return None };
        let data = self.bytes.get(header.data..)?;
        memchr::memmem::find(data, &[0xFF, 0xD9]).map(|end| &data[end + 2..])
    }

    /// Whether every decoder of JPEGs makes about the same of it: baseline, in three components or one, upright, whole.
    pub(crate) fn is_plain_jpeg(&self) -> bool {
        let Body::Jpeg(header) = &self.body else { return false };
        baseline::takes(header)
            && header.is_strictly_baseline()
            && self.orientation == Orientation::UPRIGHT
            && jpeg_header::reaches_its_end(self.bytes, header.data)
    }

    /// The size after orientation: what the user sees.
    pub(crate) fn size(&self) -> Size {
        self.orientation.size(self.stored)
    }

    /// Decodes what `demand` needs into `out`; `spare` serves orientation. `scaled` allows halving.
    pub(crate) fn decode(
        &self,
        jpeg: &mut JpegDecoder,
        demand: Demand,
        scaled: bool,
        (out, spare): (&mut Buffer, &mut Buffer),
    ) -> Result<Pixels> {
        let region = self.orientation.to_stored(demand.region, self.stored);
        let target = demand.target.map(|size| self.orientation.size(size));
        let pixels = match &self.body {
            Body::Jpeg(header) => {
                let denominator = match target {
                    Some(target) if scaled => jpeg::denominator(region.size(), target),
                    _ => 1,
                };
                jpeg.decode(self.bytes, header, (region, denominator), demand.scope, out)?
            }
            Body::Png => {
                let warnings = png::decode(self.bytes, self.stored, demand.scope, out)?;
                Pixels { warnings, ..self.whole(region) }
            }
            Body::WebP => {
                webp::decode(self.bytes, self.stored, out, spare)?;
                self.whole(region)
            }
        };
        if self.orientation == Orientation::UPRIGHT {
            return Ok(pixels);
        }
        let size = self.orientation.size(pixels.view.size());
        let turned = spare.take(size.rgb_bytes());
        self.orientation.turn(out.bytes(), pixels, turned);
        std::mem::swap(out, spare);
        Ok(Pixels {
            stride: size.width as usize,
            view: Rect::of(size),
            window: pixels.window.map(|window| self.orientation.turn_window(window, pixels.view.size())),
            warnings: pixels.warnings,
        })
    }

    /// Bytes that [`decode`](Self::decode) takes for the same demand, its pixels included, and the size of what it shows.
    pub(crate) fn working_bytes(&self, demand: Demand, scaled: bool) -> (u64, Size) {
        let region = self.orientation.to_stored(demand.region, self.stored);
        let target = demand.target.map(|size| self.orientation.size(size));
        let (bytes, shown) = match &self.body {
            Body::Jpeg(header) => {
                let denominator = match target {
                    Some(target) if scaled => jpeg::denominator(region.size(), target),
                    _ => 1,
                };
                let bytes = jpeg::working_bytes(self.bytes, header, (region, denominator), demand.scope);
                (bytes, jpeg::scaled_region(region, denominator).0.size())
            }
            Body::Png => (png::working_bytes(self.bytes, self.stored, demand.scope), region.size()),
            Body::WebP => (webp::working_bytes(self.bytes, self.stored), region.size()),
        };
        let turned = if self.orientation == Orientation::UPRIGHT { 0 } else { shown.rgb_bytes() as u64 };
        (bytes + turned, self.orientation.size(shown))
    }

    fn whole(&self, region: Rect) -> Pixels {
        let stride = self.stored.width as usize;
        Pixels { stride, view: region, window: None, warnings: Warnings::default() }
    }
}

/// Decodes the whole picture into dense RGB.
///
/// # Errors
/// `BadSample`, as [`Chain::apply`](crate::Chain::apply).
pub fn decode_rgb(bytes: &[u8], op: &DecodeImage) -> Result<(Size, Vec<u8>)> {
    decode_rgb_warned(bytes, op).map(|(size, rgb, _)| (size, rgb))
}

/// As [`decode_rgb`], with what is unusual about the picture.
///
/// # Errors
/// `BadSample`, as [`decode_rgb`].
pub fn decode_rgb_warned(bytes: &[u8], op: &DecodeImage) -> Result<(Size, Vec<u8>, Warnings)> {
    let opened = Opened::new(bytes, op)?;
    let size = opened.size();
    let (mut out, mut spare) = (Buffer::default(), Buffer::default());
    let demand = Demand { region: Rect::of(size), target: None, scope: Scope::Most };
    let pixels = opened.decode(&mut JpegDecoder::default(), demand, false, (&mut out, &mut spare))?;
    let mut rgb = vec![0; size.rgb_bytes()];
    super::resize::copy_rows(out.bytes(), pixels.stride, pixels.view, &mut rgb);
    Ok((size, rgb, pixels.warnings))
}
