//! JPEG: the region that is needed, bit for bit as in the whole image.
//!
//! Plain photos go to `baseline`, our own decoder, at any scale; libjpeg-turbo (tj3 API) decodes every kind of JPEG. Given a cropping
//! region it entropy-decodes the rows above, inverse-transforms only the columns and rows asked for, and stops after
//! the last row: `jpeg_skip_scanlines` to the bottom ends the input pass without reading it. Chroma upsampling looks
//! one sample to each side, so the region is widened by [`MARGIN`] pixels (its left edge then snaps to an iMCU);
//! without that, half of all crops differ from the whole image by up to 27 levels. The tests compare hundreds of random
//! crops bit for bit.
//!
//! **Damage** is treated as in Pillow, which ignores libjpeg's warnings (it goes on with grey or wrong pixels) and refuses
//! files that end before the last row. A first pass stops at the first warning. If the markers lead to the last row, a second
//! pass over the whole image ignores warnings, and the sample carries
//! [`DamagedData`](crate::Warning::DamagedData). libjpeg-turbo inserts an end marker where the bytes run out, which no
//! message would show in the second pass; hence the walk over the markers.
//!
//! Each file gets a new handle of libjpeg-turbo: a reused one keeps the tables of the file before, and a file that lacks
//! its own would be decoded with them.

use std::ffi::c_int;

use turbojpeg_sys as tj;

use super::baseline::{self, Baseline};
use super::jpeg_header::{JpegHeader, reaches_its_end};
use super::jpeg_scans;
use super::pixels::Pixels;
use crate::image::buffer::Buffer;
use crate::image::geometry::{Rect, Size, Window};
use crate::image::row_index::Rows;
use crate::image::turbo::Handle;
use crate::warning::{Warning, Warnings};
use crate::working::{Scope, exceeds};
use feedstock_base::{Error, Result};

/// Bytes that libjpeg-turbo takes for each column of the scaled image: rows of samples, of coefficients, and of what is
/// between upsampling and colours, for four components; and what does not grow with the image.
const ROW_BYTES: u64 = 128;
const FIXED_BYTES: u64 = 1 << 20;

/// Pixels around a region whose chroma weighs in on the region's edge.
const MARGIN: u32 = 1;

/// A value of TJPARAM_SAVEMARKERS: no marker is kept. Colour profiles are not applied, so a damaged one must not matter.
const SAVE_NO_MARKERS: c_int = 0;

/// The halving (1, 2, 4 or 8) that leaves at least twice the target in both directions.
pub(super) fn denominator(region: Size, target: Size) -> u32 {
    let ratio = (region.width / target.width.max(1)).min(region.height / target.height.max(1));
    // 2 × target must remain: a ratio of 4 allows 1/2, 8 allows 1/4, 16 allows 1/8.
    match ratio / 2 {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 4,
        _ => 8,
    }
}

/// libjpeg-turbo's warning about bytes between the last row's data and an end marker.
const STRAY_BYTES_BEFORE_THE_END: &str = "extraneous bytes before marker 0xd9";

/// Decoder state of one thread.
#[derive(Default)]
pub(crate) struct JpegDecoder {
    baseline: Baseline,
    cmyk: Buffer,
    /// Where the rows of the next image begin, if that is known, and whether it is noted.
    pub(crate) rows: Rows,
}

/// Bytes that decoding `region` at 1/`denominator` takes, the pixels included. With [`Scope::Stated`] those of a file that is
/// decoded without warnings.
pub(super) fn working_bytes(
    bytes: &[u8],
    header: &JpegHeader<'_>,
    (region, denominator): (Rect, u32),
    scope: Scope,
) -> u64 {
    let data = bytes.len() - header.data.min(bytes.len());
    let shown = scaled_region(region, denominator).0;
    let own = baseline::working_bytes(data, header, (shown, denominator));
    let is_closed = reaches_its_end(bytes, header.data);
    let Size { width, height } = header.size();
    let whole = Size { width: width.div_ceil(denominator), height: height.div_ceil(denominator) };
    let everything = scope == Scope::Most || !is_closed || !header.is_cut_by_turbo();
    let size = match everything {
        true => whole,
        // The margins, and columns from an iMCU's edge on.
        false => Size {
            width: (shown.width + 2 * MARGIN + 32).min(whole.width),
            height: (shown.height + 2 * MARGIN).min(whole.height),
        },
    };
    let pixels = u64::from(size.width) * u64::from(size.height);
    let out = match own {
        Some(_) if !everything => shown.size().rgb_bytes() as u64,
        _ => pixels * if header.component_count == 4 { 7 } else { 3 },
    };
    let copy = if is_closed { 0 } else { bytes.len() as u64 + 2 };
    let rows = FIXED_BYTES + ROW_BYTES * u64::from(whole.width.max(width.div_ceil(8)));
    own.unwrap_or(0) + jpeg_scans::kept_bytes(header) + out + copy + rows
}

/// How and what to decode.
#[derive(Clone, Copy)]
struct Request<'a> {
    denominator: u32,
    /// In pixels of the scaled image; `None` is everything.
    crop: Option<Rect>,
    format: tj::TJPF,
    /// The only warning to go on after; none where all are errors.
    ignored: Option<&'a str>,
}

/// Why libjpeg-turbo did not decode a file.
enum Failure {
    /// It would go on after this warning.
    Warned(String),
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Warned(text) => jpeg_error(&text),
            Failure::Refused(error) => error,
        }
    }
}

fn jpeg_error(text: &str) -> Error {
    Error::bad_sample(format!("JPEG: {text}"))
}

impl JpegDecoder {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.cmyk.kept_bytes() + self.baseline.kept_bytes()
    }

    /// Decodes at least `region`, at 1/`denominator` of its size, as RGB into `out`.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        (region, denominator): (Rect, u32),
        scope: Scope,
        out: &mut Buffer,
    ) -> Result<Pixels> {
        let (shown, window) = scaled_region(region, denominator);
        if self.baseline.decode(bytes, header, (shown, denominator), &mut self.rows, out).is_ok() {
            return Ok(Pixels {
                stride: shown.width as usize,
                view: Rect::of(shown.size()),
                window: (denominator > 1).then_some(window),
                warnings: Warnings::default(),
            });
        }
        if reaches_its_end(bytes, header.data) {
            let is_whole = |_: &str| match scope {
                _ if !header.leads_to_its_last_row(bytes) => Ok(false),
                Scope::Stated => Err(exceeds()), // the whole image takes more than the region
                Scope::Most => Ok(true),
            };
            return self.turbo_as_pillow(bytes, header, (region, denominator), false, is_whole, out);
        }
        let cut = |error: Error| {
            error.context(format!("the file has no end marker; it seems cut off after {} bytes", bytes.len()))
        };
        // A sequential Huffman file of which only the marker is missing passes, as in Pillow: decoding everything
        // against our own marker shows whether data is missing too. A progressive file may lack whole scans, and an
        // arithmetic decoder reads zeros past its end, neither of which would show.
        if !matches!(header.frame, 0xC0 | 0xC1) {
            return Err(cut(Error::bad_sample("a progressive or arithmetic JPEG must be complete")));
        }
        let mut closed = Vec::with_capacity(bytes.len() + 2);
        closed.extend_from_slice(bytes);
        closed.extend_from_slice(&[0xFF, 0xD9]);
        // Stray bytes come after the last row's data.
        let is_whole = |warning: &str| {
            Ok(warning.contains(STRAY_BYTES_BEFORE_THE_END) || header.leads_to_its_last_row(bytes))
        };
        self.turbo_as_pillow(&closed, header, (region, denominator), true, is_whole, out).map_err(cut)
    }

    /// Decodes with libjpeg-turbo. Where it warns although the file `is_whole`, decodes everything once more, regardless
    /// of warnings.
    fn turbo_as_pillow(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        region: (Rect, u32),
        everything: bool,
        is_whole: impl Fn(&str) -> Result<bool>,
        out: &mut Buffer,
    ) -> Result<Pixels> {
        match self.turbo(bytes, header, region, None, everything, out) {
            Err(Failure::Warned(text)) if is_whole(&text)? => {
                let pixels = self.turbo(bytes, header, region, Some(&text), true, out)?;
                Ok(Pixels { warnings: [Warning::DamagedData].into_iter().collect(), ..pixels })
            }
            result => Ok(result?),
        }
    }

    fn turbo(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        (region, denominator): (Rect, u32),
        ignored: Option<&str>,
        everything: bool,
        out: &mut Buffer,
    ) -> std::result::Result<Pixels, Failure> {
        let cmyk = header.component_count == 4;
        let format = if cmyk { tj::TJPF_TJPF_CMYK } else { tj::TJPF_TJPF_RGB };
        let window = scaled_region(region, denominator);
        let crop = if everything { None } else { Some(window.0) };
        let request = Request { denominator, crop, format, ignored };
        let target = if cmyk { &mut self.cmyk } else { &mut *out };
        let decoded = Turbo::new(header.max_scans)?.decode(bytes, request, target)?;
        if cmyk {
            let pixels = decoded.width as usize * decoded.height as usize;
            cmyk_to_rgb(&self.cmyk.bytes()[..pixels * 4], out.take(pixels * 3));
        }
        let view = Rect { x: window.0.x - decoded.x, y: window.0.y - decoded.y, ..window.0 };
        let window = (denominator > 1).then_some(window.1);
        Ok(Pixels { stride: decoded.width as usize, view, window, warnings: Warnings::default() })
    }
}

/// The scaled image's pixels that touch `region`, and where exactly the region is in them.
pub(super) fn scaled_region(region: Rect, denominator: u32) -> (Rect, Window) {
    let (x, y) = (region.x / denominator, region.y / denominator);
    let right = (region.x + region.width).div_ceil(denominator);
    let bottom = (region.y + region.height).div_ceil(denominator);
    let fraction = |value: u32| f64::from(value) / f64::from(denominator);
    let window = Window {
        left: fraction(region.x) - f64::from(x),
        top: fraction(region.y) - f64::from(y),
        width: fraction(region.width),
        height: fraction(region.height),
    };
    (Rect { x, y, width: right - x, height: bottom - y }, window)
}

/// A decompressor of libjpeg-turbo.
struct Turbo(Handle);

impl Turbo {
    fn new(max_scans: u32) -> Result<Self> {
        let handle = Handle::new(tj::TJINIT_TJINIT_DECOMPRESS)?;
        handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, to_int(max_scans)?)?;
        handle.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, SAVE_NO_MARKERS)?;
        Ok(Self(handle))
    }

    /// Checks the status of a call that had to stop at every warning, or that went on after `ignored`.
    ///
    /// libjpeg-turbo's code is that of a warning after errors too, if a warning came before. Its text is then the error's:
    /// of warnings it keeps the first, which the first pass returned.
    fn check(&self, status: c_int, ignored: Option<&str>) -> std::result::Result<(), Failure> {
        let Err(text) = self.0.check(status) else { return Ok(()) };
        // SAFETY: the handle is valid.
        let code = unsafe { tj::tj3GetErrorCode(self.0.raw()) };
        match ignored {
            _ if code != tj::TJERR_TJERR_WARNING as c_int => Err(Failure::Refused(jpeg_error(&text))),
            None => Err(Failure::Warned(text)),
            Some(ignored) if ignored == text => Ok(()),
            Some(_) => Err(Failure::Refused(jpeg_error(&text))),
        }
    }

    /// Decodes into `out`, densely, and returns the rectangle of the scaled image that it holds.
    fn decode(
        &mut self,
        bytes: &[u8],
        request: Request<'_>,
        out: &mut Buffer,
    ) -> std::result::Result<Rect, Failure> {
        let Request { ignored, .. } = request;
        self.0.set(tj::TJPARAM_TJPARAM_STOPONWARNING, c_int::from(ignored.is_none()))?;
        let length = bytes.len() as tj::size_t;
        // SAFETY: pointer and length are one slice's.
        self.check(unsafe { tj::tj3DecompressHeader(self.0.raw(), bytes.as_ptr(), length) }, ignored)?;
        let scale = tj::tjscalingfactor { num: 1, denom: to_int(request.denominator)? };
        // SAFETY: the handle is valid and its header read.
        self.check(unsafe { tj::tj3SetScalingFactor(self.0.raw(), scale) }, None)?;
        let side = |parameter| {
            u32::try_from(self.0.get(parameter))
                .map(|pixels| pixels.div_ceil(request.denominator))
                .map_err(|_| Error::bug("libjpeg-turbo knows no size after the header"))
        };
        let width = side(tj::TJPARAM_TJPARAM_JPEGWIDTH)?;
        let height = side(tj::TJPARAM_TJPARAM_JPEGHEIGHT)?;
        let whole = Rect { x: 0, y: 0, width, height };
        let rect =
            request.crop.and_then(|crop| self.widened(crop, whole, request.denominator)).unwrap_or(whole);
        self.crop(if rect == whole { None } else { Some(rect) })?;
        let channels = if request.format == tj::TJPF_TJPF_CMYK { 4 } else { 3 };
        let pitch = rect.width as usize * channels;
        let out = out.take(rect.height as usize * pitch);
        // SAFETY: `out` holds rect.height rows of `pitch` bytes, which is what the cropping region set above (or the
        // scaled image's size, from the header of these same bytes) makes libjpeg-turbo write.
        let status = unsafe {
            tj::tj3Decompress8(
                self.0.raw(),
                bytes.as_ptr(),
                length,
                out.as_mut_ptr(),
                c_int::try_from(pitch).map_err(|_| Error::bug("row over 2 GiB"))?,
                request.format as c_int,
            )
        };
        self.check(status, ignored)?;
        Ok(rect)
    }

    /// `crop` with its margins, from an iMCU edge on; `None` where this kind of JPEG cannot be decoded in part.
    fn widened(&self, crop: Rect, whole: Rect, denominator: u32) -> Option<Rect> {
        let mcu_width = match self.0.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 => 8,
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 16,
            tj::TJSAMP_TJSAMP_411 => 32,
            tj::TJSAMP_TJSAMP_441 => 8,
            _ => return None,
        };
        if self.0.get(tj::TJPARAM_TJPARAM_LOSSLESS) != 0 {
            return None;
        }
        let step = (mcu_width / denominator).max(1);
        let x = crop.x.saturating_sub(MARGIN) / step * step;
        let y = crop.y.saturating_sub(MARGIN);
        let right = (crop.x + crop.width + MARGIN).min(whole.width);
        let bottom = (crop.y + crop.height + MARGIN).min(whole.height);
        Some(Rect { x, y, width: right - x, height: bottom - y })
    }

    fn crop(&self, rect: Option<Rect>) -> std::result::Result<(), Failure> {
        let region = match rect {
            None => tj::tjregion { x: 0, y: 0, w: 0, h: 0 },
            Some(rect) => tj::tjregion {
                x: to_int(rect.x)?,
                y: to_int(rect.y)?,
                w: to_int(rect.width)?,
                h: to_int(rect.height)?,
            },
        };
        // SAFETY: the handle is valid and its header read.
        self.check(unsafe { tj::tj3SetCroppingRegion(self.0.raw(), region) }, None)
    }
}

fn to_int(value: u32) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::bug("a JPEG's number over 2³¹"))
}

/// Pillow's CMYK → RGB on values inverted as Adobe writes them (it assumes that of every CMYK JPEG).
fn cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (from, to) in cmyk.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        let key = i32::from(from[3]);
        for channel in 0..3 {
            let product = (255 - i32::from(from[channel])) * key + 128;
            let ink = ((product >> 8) + product) >> 8;
            to[channel] = u8::try_from((key - ink).clamp(0, 255)).unwrap_or(u8::MAX);
        }
    }
}
