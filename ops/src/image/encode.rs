//! Shrinking stored images: decode, resize, encode as JPEG again. For rewriting data sets, not for training chains.
//!
//! Rule: an image whose longer side exceeds the limit is shrunk to it, its aspect ratio kept, with Pillow's antialiased
//! bicubic after halvings in the JPEG decoder where twice the target remains (`Image.thumbnail`). The pixels are not
//! turned: the EXIF orientation is carried over, so that readers that honour it and readers that do not both see what
//! they saw before. Other metadata (colour profiles, thumbnails, places) is left out.

use std::ffi::c_int;
use std::io::Cursor;

use serde::{Deserialize, Serialize};
use turbojpeg_sys as tj;

use super::decode::{DecodeImage, Demand, JpegDecoder, Opened};
use super::geometry::{Filter, MAX_SIDE, Rect, Size};
use super::sampler::{Depth, Sampler};
use super::turbo::Handle;
use crate::image::buffer::Buffer;
use crate::scratch::DECODER_MEMORY;
use crate::working::Scope;
use feedstock_base::{Error, Result};

/// The size and JPEG quality that images are shrunk to.
///
/// ```
/// use feedstock_ops::image::ShrinkImage;
///
/// ShrinkImage { max_side: 512, quality: 95 }.check()?;
/// let error = ShrinkImage { max_side: 512, quality: 101 }.check().unwrap_err();
/// assert!(error.message().contains("must be 1 … 100; got 101"));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ShrinkImage {
    /// The longest side kept, in pixels, 1 … 32,768.
    pub max_side: u32,
    /// JPEG quality of shrunk images (4:2:0 baseline), 1 … 100.
    pub quality: u8,
}

impl ShrinkImage {
    /// Shrinks to `max_side` pixels, with JPEG quality 90.
    pub fn new(max_side: u32) -> Self {
        Self { max_side, quality: 90 }
    }

    /// Rejects values out of range.
    ///
    /// # Errors
    /// `BadConfig`, naming the value and its range.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_SIDE).contains(&self.max_side) {
            return Err(Error::config(format!("max_side must be 1 … {MAX_SIDE}; got {}", self.max_side)));
        }
        if !(1..=100).contains(&self.quality) {
            return Err(Error::config(format!("the JPEG quality must be 1 … 100; got {}", self.quality)));
        }
        Ok(())
    }

    /// The size to shrink to; `None` where the image is small enough.
    fn target(&self, picture: Size) -> Option<Size> {
        let longer = u64::from(picture.height.max(picture.width));
        let max = u64::from(self.max_side);
        let side = |side: u32| {
            let rounded = (u64::from(side) * max + longer / 2) / longer;
            u32::try_from(rounded.max(1)).unwrap_or(self.max_side) // never above max_side, which is a u32
        };
        (longer > max).then(|| Size { height: side(picture.height), width: side(picture.width) })
    }
}

/// Shrinks images. Use one per thread, because it keeps codec handles and buffers.
pub struct Shrinker {
    to: ShrinkImage,
    decode: DecodeImage,
    jpeg: JpegDecoder,
    sampler: Sampler,
    buffers: [Buffer; 3],
    encoder: Encoder,
}

impl Shrinker {
    /// Creates a shrinker to `to`.
    ///
    /// # Errors
    /// `BadConfig` for values out of range.
    pub fn new(to: ShrinkImage) -> Result<Self> {
        to.check()?;
        Ok(Self {
            to,
            decode: DecodeImage::default(),
            jpeg: JpegDecoder::default(),
            sampler: Sampler::default(),
            buffers: Default::default(),
            encoder: Encoder::new(to.quality)?,
        })
    }

    /// Returns the shrunk image as a JPEG, or `None` if the image stays unchanged. That is the case if it is small enough
    /// (then only its header is read), or if its decoder warns about it, so that its readers are warned, too.
    ///
    /// ```
    /// use feedstock_ops::image::{ImageFormat, ShrinkImage, Shrinker, read_header};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let mut shrinker = Shrinker::new(ShrinkImage::new(32))?;
    /// let smaller = shrinker.shrink(&encode(64, 48, &[128; 64 * 48 * 3]))?.unwrap();
    /// let header = read_header(&smaller)?;
    /// assert_eq!((header.format, header.width, header.height), (ImageFormat::Jpeg, 32, 24));
    /// assert_eq!(shrinker.shrink(&encode(32, 8, &[128; 32 * 8 * 3]))?, None); // small enough
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadSample` for images that cannot be decoded, as [`decode_rgb`](super::decode_rgb).
    pub fn shrink(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        let opened = Opened::new(bytes, &self.decode)?;
        let Some(to) = self.to.target(opened.size()) else { return Ok(None) };
        let result = self.encode(&opened, to, bytes);
        let kept: usize = self.buffers.iter().map(Buffer::kept_bytes).sum::<usize>()
            + self.jpeg.kept_bytes()
            + self.sampler.kept_bytes()
            + self.encoder.out.kept_bytes();
        if kept as u64 > DECODER_MEMORY {
            (self.jpeg, self.sampler, self.buffers) = Default::default();
            self.encoder.out = Buffer::default();
        }
        result
    }

    fn encode(&mut self, opened: &Opened<'_>, to: Size, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        let [decoded, spare, small] = &mut self.buffers;
        let denominator = opened.denominator(opened.size(), Some(to));
        let demand = Demand { region: Rect::of(opened.size()), denominator, scope: Scope::Most };
        let pixels = opened.decode(&mut self.jpeg, demand, (decoded, spare))?;
        if !pixels.warnings.is_empty() {
            return Ok(None);
        }
        let rgb = small.take(to.rgb_bytes());
        let view = (pixels.stride, pixels.view);
        self.sampler.resize(
            decoded.bytes(),
            view,
            pixels.window,
            (&mut *rgb, to),
            (Filter::Bicubic, Depth::Eight),
        );
        let jpeg = self.encoder.encode(rgb, to)?;
        Ok(Some(match stored_orientation(bytes) {
            Some(orientation) => with_orientation(&jpeg, orientation),
            None => jpeg,
        }))
    }
}

impl std::fmt::Debug for Shrinker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shrinker").field("to", &self.to).finish_non_exhaustive()
    }
}

/// EXIF orientation 2 … 8; `None` for upright images and unreadable EXIF.
fn stored_orientation(bytes: &[u8]) -> Option<u8> {
    let exif = exif::Reader::new().read_from_container(&mut Cursor::new(bytes)).ok()?;
    let value = exif.get_field(exif::Tag::Orientation, exif::In::PRIMARY)?.value.get_uint(0)?;
    u8::try_from(value).ok().filter(|value| (2..=8).contains(value))
}

/// The JPEG with an APP1 segment that states nothing but the orientation (Exif 2.32 §4.6.4), after the JFIF header.
fn with_orientation(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut segment =
        *b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0";
    segment[29] = orientation; // the entry's SHORT value, big-endian
    let at = match jpeg.get(2..6) {
        Some([0xff, 0xe0, high, low]) => 4 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 2,
    };
    [&jpeg[..at], &segment, &jpeg[at..]].concat()
}

/// A compressor of libjpeg-turbo for 4:2:0 baseline JPEG.
struct Encoder {
    handle: Handle,
    out: Buffer,
}

impl Encoder {
    fn new(quality: u8) -> Result<Self> {
        let handle = Handle::new(tj::TJINIT_TJINIT_COMPRESS)?;
        handle.set(tj::TJPARAM_TJPARAM_QUALITY, c_int::from(quality))?;
        handle.set(tj::TJPARAM_TJPARAM_SUBSAMP, tj::TJSAMP_TJSAMP_420)?;
        handle.set(tj::TJPARAM_TJPARAM_NOREALLOC, 1)?;
        Ok(Self { handle, out: Buffer::default() })
    }

    /// The JPEG of dense RGB.
    fn encode(&mut self, rgb: &[u8], size: Size) -> Result<Vec<u8>> {
        assert_eq!(rgb.len(), size.rgb_bytes(), "rows without padding");
        let (width, height) = (size.width.cast_signed(), size.height.cast_signed());
        // SAFETY: no preconditions; 0 means that the size is out of range.
        let capacity = unsafe { tj::tj3JPEGBufSize(width, height, tj::TJSAMP_TJSAMP_420) };
        let too_long =
            |_| Error::bug(format!("a JPEG of {}×{} does not fit memory", size.width, size.height));
        let room = usize::try_from(capacity).map_err(too_long)?;
        if room == 0 {
            return Err(Error::bug(format!("libjpeg-turbo knows no JPEG of {}×{}", size.width, size.height)));
        }
        let (mut start, mut length) = (self.out.take(room).as_mut_ptr(), capacity);
        // SAFETY: `rgb` holds height rows of 3 × width bytes (asserted); the buffer has the worst case's size and
        // NOREALLOC keeps the library from replacing it.
        let status = unsafe {
            tj::tj3Compress8(
                self.handle.raw(),
                rgb.as_ptr(),
                width,
                0,
                height,
                tj::TJPF_TJPF_RGB,
                &raw mut start,
                &raw mut length,
            )
        };
        let failed = |text| Error::bug(format!("libjpeg-turbo cannot encode: {text}"));
        self.handle.check(status).map_err(failed)?;
        let jpeg = self.out.bytes()[..usize::try_from(length).map_err(too_long)?].to_vec();
        Ok(jpeg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{decode_rgb, read_header};

    /// A smooth slope, so that quality 95 stays within a few levels.
    fn picture(width: u32, height: u32) -> Vec<u8> {
        let mut rgb = Vec::new();
        for y in 0..height {
            for x in 0..width {
                rgb.extend([(x * 255 / width) as u8, (y * 255 / height) as u8, 128]);
            }
        }
        Encoder::new(95).unwrap().encode(&rgb, Size { height, width }).unwrap()
    }

    #[test]
    fn a_damaged_picture_stays_as_it_is() {
        let mut damaged = picture(200, 100);
        let half = damaged.len() / 2;
        damaged[half..half + 2].copy_from_slice(&[0xFF, 0xD9]);
        let mut shrinker = Shrinker::new(ShrinkImage { max_side: 100, quality: 95 }).unwrap();
        assert!(shrinker.shrink(&damaged).unwrap().is_none());
        assert!(shrinker.shrink(&picture(200, 100)).unwrap().is_some());
    }

    #[test]
    fn large_pictures_shrink_to_the_limit_and_small_ones_stay() {
        let mut shrinker = Shrinker::new(ShrinkImage { max_side: 100, quality: 95 }).unwrap();
        assert!(shrinker.shrink(&picture(100, 60)).unwrap().is_none());
        for (from, to) in [((333, 250), (100, 75)), ((50, 1000), (5, 100)), ((4000, 3), (100, 1))] {
            let small = shrinker.shrink(&picture(from.0, from.1)).unwrap().unwrap();
            let header = read_header(&small).unwrap();
            assert_eq!((header.width, header.height), to);
        }
        let small = shrinker.shrink(&picture(900, 800)).unwrap().unwrap();
        let (size, rgb) = decode_rgb(&small, &DecodeImage::new()).unwrap();
        for y in 0..size.height {
            for x in 0..size.width {
                let at = ((y * size.width + x) * 3) as usize;
                let want = [(2 * x + 1) * 255 / (2 * size.width), (2 * y + 1) * 255 / (2 * size.height), 128];
                for (have, want) in rgb[at..at + 3].iter().zip(want) {
                    assert!(u32::from(*have).abs_diff(want) <= 8, "{x},{y}: {have} for {want}");
                }
            }
        }
    }

    #[test]
    fn the_orientation_is_carried_over_and_the_pixels_are_not_turned() {
        let turned = with_orientation(&picture(300, 200), 6);
        assert_eq!(stored_orientation(&turned), Some(6));
        let mut shrinker = Shrinker::new(ShrinkImage::new(150)).unwrap();
        let small = shrinker.shrink(&turned).unwrap().unwrap();
        let header = read_header(&small).unwrap();
        assert_eq!((header.width, header.height), (150, 100));
        assert_eq!(stored_orientation(&small), Some(6));
        let (shown, _) = decode_rgb(&small, &DecodeImage::new().exif_orientation(true)).unwrap();
        assert_eq!((shown.width, shown.height), (100, 150));
        assert_eq!(stored_orientation(&shrinker.shrink(&picture(300, 200)).unwrap().unwrap()), None);
    }

    #[test]
    fn bad_pictures_and_bad_options_are_errors() {
        let mut shrinker = Shrinker::new(ShrinkImage::new(64)).unwrap();
        let whole = picture(300, 200);
        for bad in [&whole[..whole.len() / 2], b"no image", b""] {
            assert_eq!(shrinker.shrink(bad).unwrap_err().kind(), crate::ErrorKind::BadSample);
        }
        assert!(shrinker.shrink(&whole).unwrap().is_some(), "a good image after bad ones");
        for bad in [ShrinkImage { max_side: 0, quality: 90 }, ShrinkImage { max_side: 9, quality: 101 }] {
            assert_eq!(Shrinker::new(bad).unwrap_err().kind(), crate::ErrorKind::BadConfig);
        }
    }
}
