//! An image whose header is read: what its decoder takes and makes.

use std::ops::RangeInclusive;

use super::exif::{self, Orientation};
use super::format::{ImageFormat, ImageHeader, sniff};
use super::gray::gray;
use super::header::read_header;
use super::jpeg::{self, JpegDecoder};
use super::jpeg_header::{self, JpegHeader};
use super::layer::Layer;
use super::mode::{DecodeMode, read_mode};
use super::options::DecodeImage;
use super::pixels::Pixels;
use super::{baseline, jpeg_scans, png, webp};
use crate::image::buffer::Buffer;
use crate::image::geometry::{Rect, Size};
use crate::image::rows::copy_rows;
use crate::warning::Warnings;
use crate::working::Scope;
use feedstock_base::{Error, Result};

/// An image whose header is read and within the limits.
pub(crate) struct Opened<'a> {
    bytes: &'a [u8],
    body: Body<'a>,
    stored: Size,
    orientation: Orientation,
    mode: DecodeMode,
    layer: Layer,
}

enum Body<'a> {
    Jpeg(Box<JpegHeader<'a>>),
    Png,
    WebP,
}

/// What is to be decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// In the oriented image's coordinates.
    pub(crate) region: Rect,
    /// The fraction of its size that the region is decoded at: [`Opened::denominator`].
    pub(crate) denominator: u32,
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
        op.mode.check(bytes)?;
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
        Ok(Self { bytes, body, stored, orientation, mode: op.mode, layer: Layer::Colors })
    }

    /// Decodes this layer from now on, instead of the colours.
    pub(crate) fn set_layer(&mut self, layer: Layer) {
        self.layer = layer;
    }

    /// Whether pixels may be transparent.
    pub(crate) fn has_alpha(&self) -> bool {
        match &self.body {
            Body::Jpeg(_) => false,
            Body::Png => png::has_alpha(self.bytes),
            Body::WebP => read_mode(self.bytes).is_ok_and(|mode| mode == "RGBA"),
        }
    }

    /// Whether crops of the image jump from one restart marker to another, if the number of MCUs between them is in
    /// `interval`.
    pub(crate) fn skips_between(&self, interval: RangeInclusive<u16>) -> bool {
        match &self.body {
            Body::Jpeg(header) => interval.contains(&header.restart_interval) && baseline::takes(header),
            Body::Png | Body::WebP => false,
        }
    }

    /// Returns the denominator (1, 2, 4 or 8) of the fraction of its size at which a region of size `region` may be decoded.
    /// `target` is the size that it is resized to, if the next step is a resize that takes the whole region.
    pub(crate) fn denominator(&self, region: Size, target: Option<Size>) -> u32 {
        match (&self.body, target) {
            (Body::Jpeg(_), Some(target)) => jpeg::denominator(region, target),
            _ => 1,
        }
    }

    pub(crate) fn is_jpeg(&self) -> bool {
        matches!(self.body, Body::Jpeg(_))
    }

    /// What is after the JPEG's end marker; `None` where there is none.
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

    /// Decodes what `demand` needs into `out`; `spare` serves orientation.
    pub(crate) fn decode(
        &self,
        jpeg: &mut JpegDecoder,
        demand: Demand,
        (out, spare): (&mut Buffer, &mut Buffer),
    ) -> Result<Pixels> {
        let region = self.orientation.to_stored(demand.region, self.stored);
        let pixels = match &self.body {
            _ if self.layer == Layer::Alpha && !self.has_alpha() => opaque((region, demand.denominator), out),
            Body::Jpeg(header) => {
                jpeg.decode(self.bytes, header, (region, demand.denominator), demand.scope, out)?
            }
            Body::Png => {
                let pixels = match self.mode {
                    DecodeMode::Rgb | DecodeMode::Rgba | DecodeMode::Gray => png::Values::Layer(self.layer),
                    DecodeMode::Gray16 => png::Values::Wide,
                    DecodeMode::Indices => png::Values::Stored,
                };
                let warnings = png::decode(self.bytes, self.stored, (pixels, demand.scope), out)?;
                Pixels { warnings, ..self.whole(region) }
            }
            Body::WebP => {
                webp::decode(self.bytes, self.stored, self.layer, (out, spare))?;
                self.whole(region)
            }
        };
        if self.mode == DecodeMode::Gray {
            gray(out.bytes_mut(), pixels);
        }
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

    /// Returns where `region` is in the `pixels` that were decoded for `demand`, whose region holds it. They are the pixels that
    /// [`decode`](Self::decode) makes of it at the same fraction of its size.
    pub(crate) fn part(&self, (demand, pixels): (Demand, Pixels), region: Rect) -> Pixels {
        let scaled =
            |region| jpeg::scaled_region(self.orientation.to_stored(region, self.stored), demand.denominator);
        let (whole, (own, window)) = (scaled(demand.region).0, scaled(region));
        let inner = Rect { x: own.x - whole.x, y: own.y - whole.y, ..own };
        Pixels {
            view: pixels.view.narrow(self.orientation.to_shown(inner, whole.size())),
            window: pixels.window.map(|_| self.orientation.turn_window(window, own.size())),
            ..pixels
        }
    }

    /// Returns the size that `region` has when it is decoded at 1/`denominator`.
    pub(crate) fn shown(&self, region: Rect, denominator: u32) -> Size {
        let stored = self.orientation.to_stored(region, self.stored);
        self.orientation.size(jpeg::scaled_region(stored, denominator).0.size())
    }

    /// Bytes that [`decode`](Self::decode) takes for the same demand, its pixels included.
    pub(crate) fn working_bytes(&self, demand: Demand) -> u64 {
        let region = self.orientation.to_stored(demand.region, self.stored);
        let bytes = match &self.body {
            Body::Jpeg(header) => {
                jpeg::working_bytes(self.bytes, header, (region, demand.denominator), demand.scope)
            }
            Body::Png => png::working_bytes(self.bytes, self.stored, demand.scope),
            Body::WebP => webp::working_bytes(self.bytes, self.stored),
        };
        let shown = self.shown(demand.region, demand.denominator).rgb_bytes() as u64;
        bytes + if self.orientation == Orientation::UPRIGHT { 0 } else { shown }
    }

    fn whole(&self, region: Rect) -> Pixels {
        let stride = self.stored.width as usize;
        Pixels { stride, view: region, window: None, warnings: Warnings::default() }
    }
}

/// Writes the alpha of a region without transparent pixels, as large as it is when it is decoded at 1/`denominator`.
fn opaque((region, denominator): (Rect, u32), out: &mut Buffer) -> Pixels {
    let (shown, window) = jpeg::scaled_region(region, denominator);
    let size = shown.size();
    out.take(size.rgb_bytes()).fill(u8::MAX);
    Pixels {
        stride: size.width as usize,
        view: Rect::of(size),
        window: (denominator > 1).then_some(window),
        warnings: Warnings::default(),
    }
}

/// Decodes the whole image into dense RGB.
///
/// ```
/// use feedstock_ops::image::{DecodeImage, Size, decode_rgb};
///
/// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
/// #     let mut out = Vec::new();
/// #     let mut encoder = png::Encoder::new(&mut out, width, height);
/// #     encoder.set_color(png::ColorType::Rgb);
/// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
/// #     out
/// # }
/// let image = encode(2, 1, &[255, 0, 0, 0, 0, 255]);
/// let (size, pixels) = decode_rgb(&image, &DecodeImage::new())?;
/// assert_eq!((size, pixels), (Size { height: 1, width: 2 }, vec![255, 0, 0, 0, 0, 255]));
///
/// let error = decode_rgb(&image, &DecodeImage::new().max_pixels(1)).unwrap_err();
/// assert!(error.message().starts_with("the PNG header asks for 2×1 px = 2, over max_pixels (1)"));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
///
/// # Errors
/// `BadSample`, as [`Chain::apply`](crate::Chain::apply).
pub fn decode_rgb(bytes: &[u8], op: &DecodeImage) -> Result<(Size, Vec<u8>)> {
    decode_rgb_warned(bytes, op).map(|(size, rgb, _)| (size, rgb))
}

/// As [`decode_rgb`], with what is unusual about the image.
///
/// # Errors
/// `BadSample`, as [`decode_rgb`].
pub fn decode_rgb_warned(bytes: &[u8], op: &DecodeImage) -> Result<(Size, Vec<u8>, Warnings)> {
    let opened = Opened::new(bytes, op)?;
    let size = opened.size();
    let (mut out, mut spare) = (Buffer::default(), Buffer::default());
    let demand = Demand { region: Rect::of(size), denominator: 1, scope: Scope::Most };
    let pixels = opened.decode(&mut JpegDecoder::default(), demand, (&mut out, &mut spare))?;
    let mut rgb = vec![0; size.rgb_bytes()];
    copy_rows(out.bytes(), pixels.stride, pixels.view, &mut rgb);
    Ok((size, rgb, pixels.warnings))
}
