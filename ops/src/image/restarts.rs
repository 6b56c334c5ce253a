//! Adds restart markers to stored JPEGs, without loss: a crop of such an image need not decode what it does not show.
//!
//! Decoding of a JPEG can start at its beginning or at a restart marker (ITU-T T.81, E.1.4). The decoder of crops
//! (`decode/baseline/`) skips the intervals outside the crop: with a marker every 4 MCUs, 64 × 16 pixels of a 4:2:0
//! image, `random_resized_crop` costs about a quarter less CPU (`cargo bench -p feedstock-ops --bench decode_chain`).
//! Crops so large that they are decoded at half their size gain nothing.
//!
//! libjpeg-turbo transcodes the coefficients, as `jpegtran -optimize -restart` does; Huffman tables made for the image
//! save about as many bytes as the markers take. The result is decoded and compared with the image pixel by pixel.
//! Comments, EXIF and colour profiles are kept.

use std::ffi::c_int;
use std::fmt;

use serde::{Deserialize, Serialize};
use turbojpeg_sys as tj;

use super::decode::{DecodeImage, Opened, decode_rgb};
use super::turbo::Handle;
use crate::image::limits::MAX_SCANS;
use feedstock_base::{Error, Result};

/// Limit on the coefficients of one image, in MB: those of 89 megapixels (the limit on images) at 4:2:0.
const MAX_MEMORY: c_int = 300;

/// The result of [`RestartMarkers::add`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// The image with markers, baseline where it was progressive.
    Yes(Vec<u8>),
    /// The image stays unchanged.
    No(Unmarked),
}

/// Why an image gets no restart markers. In JSON in snake_case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unmarked {
    /// It already has at least as many.
    HasMarkers,
    /// It is not a JPEG.
    NoJpeg,
    /// Even with markers it could not be decoded in part: CMYK, RGB, 4:1:1, 12-bit …
    Kind,
    /// Something follows the image, such as a second image or a video, and would be lost.
    MoreBehind,
    /// It has no end, libjpeg-turbo warns about it, or its pixels would change.
    Damaged,
}

impl fmt::Display for Unmarked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HasMarkers => "have as many already",
            Self::NoJpeg => "are no JPEGs",
            Self::Kind => "are of a kind that is not decoded in part (CMYK, RGB, 4:1:1, 12-bit)",
            Self::MoreBehind => "have something after the image that would be lost",
            Self::Damaged => "are damaged",
        })
    }
}

/// Adds restart markers. Use one per thread, because it keeps a codec handle.
pub struct RestartMarkers {
    interval: u16,
    handle: Handle,
}

impl RestartMarkers {
    /// Adds a marker every `interval` MCUs (the blocks that are coded together); 1 … 65,535.
    ///
    /// # Errors
    /// `BadConfig` for 0.
    pub fn new(interval: u16) -> Result<Self> {
        if interval == 0 {
            return Err(Error::config("restart_interval must be 1 … 65535 MCUs; got 0"));
        }
        let handle = Handle::new(tj::TJINIT_TJINIT_TRANSFORM)?;
        handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS.cast_signed())?;
        handle.set(tj::TJPARAM_TJPARAM_STOPONWARNING, 1)?;
        handle.set(tj::TJPARAM_TJPARAM_MAXMEMORY, MAX_MEMORY)?;
        // Tables made for the image have codes for all its coefficients; the standard ones may lack some.
        handle.set(tj::TJPARAM_TJPARAM_OPTIMIZE, 1)?;
        handle.set(tj::TJPARAM_TJPARAM_RESTARTBLOCKS, c_int::from(interval))?;
        Ok(Self { interval, handle })
    }

    /// Returns the image with markers, or the reason why it stays unchanged.
    ///
    /// ```
    /// use feedstock_ops::image::{Marked, RestartMarkers, ShrinkImage, Shrinker, Unmarked};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let png = encode(64, 64, &[128; 64 * 64 * 3]);
    /// let jpeg = Shrinker::new(ShrinkImage::new(48))?.shrink(&png)?.unwrap();
    /// let mut markers = RestartMarkers::new(1)?;
    /// let Marked::Yes(marked) = markers.add(&jpeg)? else { panic!("it is a plain JPEG") };
    /// assert!(marked.windows(2).any(|bytes| bytes == [0xFF, 0xD0])); // the first marker
    /// assert_eq!(markers.add(&marked)?, Marked::No(Unmarked::HasMarkers));
    /// assert_eq!(markers.add(&png)?, Marked::No(Unmarked::NoJpeg));
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadSample` if the bytes are not an image, or its size exceeds [`DecodeImage`]'s limits.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Marked> {
        let op = DecodeImage::default();
        let opened = Opened::new(bytes, &op)?;
        let unmarked = |why| Ok(Marked::No(why));
        if !opened.is_jpeg() {
            return unmarked(Unmarked::NoJpeg);
        }
        if opened.skips_between(1..=self.interval) {
            return unmarked(Unmarked::HasMarkers);
        }
        match opened.behind_jpeg() {
            None => return unmarked(Unmarked::Damaged),
            Some(behind) if behind.iter().any(|byte| *byte != 0) => return unmarked(Unmarked::MoreBehind),
            Some(_padding) => {}
        }
        let Some(marked) = self.transform(bytes)? else { return unmarked(Unmarked::Damaged) };
        if !Opened::new(&marked, &op).is_ok_and(|marked| marked.skips_between(1..=self.interval)) {
            return unmarked(Unmarked::Kind);
        }
        let same = matches!((decode_rgb(bytes, &op), decode_rgb(&marked, &op)), (Ok(a), Ok(b)) if a == b);
        if same { Ok(Marked::Yes(marked)) } else { unmarked(Unmarked::Damaged) }
    }

    /// Returns the same coefficients with markers; `None` if the library reports an error or a warning.
    fn transform(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        let transform = tj::tjtransform {
            r: tj::tjregion { x: 0, y: 0, w: 0, h: 0 },
            op: tj::TJXOP_TJXOP_NONE as c_int,
            options: 0,
            data: std::ptr::null_mut(),
            customFilter: None,
        };
        let (mut start, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: pointer and length belong to one slice; the library allocates the one buffer that is requested.
        let status = unsafe {
            tj::tj3Transform(
                self.handle.raw(),
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                1,
                &raw mut start,
                &raw mut length,
                &raw const transform,
            )
        };
        let done = self.handle.check(status).is_ok() && !start.is_null();
        let length = usize::try_from(length).map_err(|_| Error::bug("a JPEG does not fit memory"))?;
        // SAFETY: the library wrote `length` bytes from `start` on.
        let jpeg = done.then(|| unsafe { std::slice::from_raw_parts(start, length) }.to_vec());
        // SAFETY: null, or allocated by the library and not freed yet.
        unsafe { tj::tj3Free(start.cast()) };
        if !done {
            // The handle may hold a half-read image.
            *self = Self::new(self.interval)?;
        }
        Ok(jpeg)
    }
}

impl fmt::Debug for RestartMarkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestartMarkers").field("interval", &self.interval).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::image::decode_rgb;

    fn read(name: &str) -> Vec<u8> {
        std::fs::read(golden::path(&format!("decode/{name}"))).unwrap()
    }

    fn marked(markers: &mut RestartMarkers, picture: &[u8]) -> Vec<u8> {
        match markers.add(picture).unwrap() {
            Marked::Yes(marked) => marked,
            Marked::No(why) => panic!("it stays unchanged: {why:?}"),
        }
    }

    fn stays(markers: &mut RestartMarkers, picture: &[u8]) -> Unmarked {
        match markers.add(picture).unwrap() {
            Marked::Yes(_) => panic!("it got markers"),
            Marked::No(why) => why,
        }
    }

    #[test]
    fn the_pixels_stay_and_the_markers_come() {
        let mut markers = RestartMarkers::new(4).unwrap();
        let op = DecodeImage::new();
        for name in ["444", "422", "420", "grey", "optimized", "progressive", "exif6"] {
            let before = read(&format!("{name}.jpg"));
            let after = marked(&mut markers, &before);
            let upright = op.clone().exif_orientation(true);
            for op in [&op, &upright] {
                assert!(decode_rgb(&before, op).unwrap() == decode_rgb(&after, op).unwrap(), "{name}");
            }
            let opened = Opened::new(&after, &op).unwrap();
            assert!(opened.skips_between(1..=4) && !opened.skips_between(1..=3), "{name}");
            assert_eq!(stays(&mut markers, &after), Unmarked::HasMarkers, "{name}: once is enough");
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        let mut markers = RestartMarkers::new(1).unwrap();
        let whole = read("420.jpg");
        for (name, why) in [
            ("cmyk.jpg", Unmarked::Kind),
            ("rgb.jpg", Unmarked::Kind),
            ("rgb.png", Unmarked::NoJpeg),
            ("lossy.webp", Unmarked::NoJpeg),
        ] {
            assert_eq!(stays(&mut markers, &read(name)), why, "{name}");
        }
        assert_eq!(stays(&mut markers, &whole[..whole.len() / 2]), Unmarked::Damaged);
        let two = [&whole[..], &whole[..]].concat();
        assert_eq!(stays(&mut markers, &two), Unmarked::MoreBehind);
        let mut damaged = whole.clone();
        damaged.drain(whole.len() * 3 / 4..whole.len() - 2);
        assert_eq!(stays(&mut markers, &damaged), Unmarked::Damaged);
        // A good image after bad ones.
        marked(&mut markers, &[&whole[..], &[0; 7]].concat());
        assert_eq!(markers.add(b"no image").unwrap_err().kind(), crate::ErrorKind::BadSample);
        assert_eq!(RestartMarkers::new(0).unwrap_err().kind(), crate::ErrorKind::BadConfig);
    }

    /// Crops skip intervals, and give the same pixels as before.
    #[test]
    fn crops_stay() {
        let text = "decode_image,random_resized_crop:24,horizontal_flip";
        let chain = crate::Chain::parse(text).unwrap();
        let mut scratch = crate::Scratch::new();
        for interval in [1, 3, 4, 7] {
            let mut markers = RestartMarkers::new(interval).unwrap();
            for name in ["444", "422", "420", "grey", "progressive"] {
                let before = read(&format!("{name}.jpg"));
                let after = marked(&mut markers, &before);
                for sample in 0..50 {
                    let mut crop = |bytes: &[u8]| {
                        let mut row = vec![0; chain.output().bytes()];
                        let seed = crate::SampleSeed::new(1, 0, sample);
                        chain.apply(bytes, seed, &mut scratch, &mut row).unwrap();
                        row
                    };
                    assert!(crop(&before) == crop(&after), "{name}, {interval}, {sample}");
                }
            }
        }
    }
}
