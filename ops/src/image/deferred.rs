//! Rows whose images are decoded later, by a GPU: the JPEG unchanged, and what its chain would have shown of it.
//!
//! ```text
//! chain.deferring(share) ─▶ apply_ragged ─▶ | JPEG or pixels | 64 bytes: which of them, size, view, window, flips |
//! ```
//! Which images are deferred is a pure function of (seed, epoch, sample) and the image's bytes. A JPEG stays with the
//! CPU where decoders in hardware differ or fail: progressive and 12-bit ones, CMYK, unusual sampling; turned by EXIF;
//! cut off before its end marker; far larger than its row; or so large that the CPU decodes it at a fraction of its
//! size.

use std::sync::Arc;

use super::decode::Opened;
use super::geometry::{Filter, Rect, Size, Window, needed};
use super::sample::run;
use super::stages::{Stage, Stages};
use super::step::Step;
use crate::plan::{Plan, Row};
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// The draw that splits images between CPU and GPU is that of an op after all that a chain may have.
const SPLIT_DRAW: usize = 1 << 20;

/// A JPEG of more bytes than this multiple of its row of pixels stays with the CPU: rows of a batch are as long as its
/// longest.
const MOST_BYTES_A_PIXEL_BYTE: usize = 2;

/// An image of more pixels than this multiple of its row's stays with the CPU, which decodes only what is shown: the
/// GPU decodes all, into memory of 192 times its row (29 MB for 224 x 224) at most.
const MOST_PIXELS_A_ROW_PIXEL: u64 = 64;

/// Bytes after the image's own.
const TRAILER_BYTES: usize = 64;

/// The part of an image that a row shows: `view` is the part that the filter may read, `window` the part that fills the row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shown {
    /// Of the whole image.
    pub picture: Size,
    /// In pixels of the image.
    pub view: Rect,
    /// Left, top, width and height, relative to `view`.
    pub window: [f64; 4],
    /// Left and right are exchanged, in the row.
    pub mirrored: bool,
    /// Top and bottom are exchanged, in the row.
    pub upended: bool,
}

/// A row of a chain that defers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DeferredRow<'a> {
    /// What the chain makes, made.
    Pixels(&'a [u8]),
    /// A baseline JPEG with its end marker, grey or YCbCr of 4:4:4, 4:4:0, 4:2:2 or 4:2:0, and what is to be shown of it.
    Jpeg(&'a [u8], Shown),
}

impl<'a> DeferredRow<'a> {
    /// Reads what [`Chain::apply_ragged`](crate::Chain::apply_ragged) wrote.
    ///
    /// ```
    /// use feedstock_ops::image::DeferredRow;
    /// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let chain = Chain::parse("decode_image,resize:2x2")?.deferring(1.0)?; // all JPEGs that a GPU can decode
    /// let (png, mut row) = (encode(2, 2, &[9; 12]), RaggedRow::new());
    /// chain.apply_ragged(&png, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
    /// assert_eq!(DeferredRow::read(row.bytes())?, DeferredRow::Pixels(&[9; 12])); // a PNG is decoded here
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Bug` where the bytes are no such row.
    pub fn read(row: &'a [u8]) -> Result<Self> {
        let bug = || Error::bug(format!("{} bytes are no row of a chain that defers", row.len()));
        let (content, trailer) = row.split_last_chunk::<TRAILER_BYTES>().ok_or_else(bug)?;
        let word = |index: usize| {
            let bytes = trailer[index * 4..index * 4 + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(bytes)
        };
        let real = |index: usize| {
            let bytes = trailer[32 + index * 8..40 + index * 8].try_into().unwrap_or_default();
            f64::from_le_bytes(bytes)
        };
        match word(0) {
            0 => Ok(Self::Pixels(content)),
            kind @ 1..=4 => {
                let shown = Shown {
                    picture: Size { height: word(1), width: word(2) },
                    view: Rect { x: word(3), y: word(4), width: word(5), height: word(6) },
                    window: std::array::from_fn(real),
                    mirrored: kind == 2 || kind == 4,
                    upended: kind > 2,
                };
                Ok(Self::Jpeg(content, shown))
            }
            _ => Err(bug()),
        }
    }

    fn write(self, out: &mut [u8]) {
        let (content, trailer) = out.split_at_mut(out.len() - TRAILER_BYTES);
        trailer.fill(0);
        if let Self::Jpeg(bytes, Shown { picture, view, window, mirrored, upended }) = self {
            content.copy_from_slice(bytes);
            let words = [
                1 + u32::from(mirrored) + 2 * u32::from(upended),
                picture.height,
                picture.width,
                view.x,
                view.y,
                view.width,
                view.height,
            ];
            for (to, word) in trailer.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            for (to, real) in trailer[32..].chunks_exact_mut(8).zip(window) {
                to.copy_from_slice(&real.to_le_bytes());
            }
        }
    }
}

fn is_small(picture: Size, row: Size) -> bool {
    let pixels = |size: Size| u64::from(size.height) * u64::from(size.width);
    pixels(picture) <= pixels(row).saturating_mul(MOST_PIXELS_A_ROW_PIXEL)
}

/// A chain that leaves some of its images to a GPU.
pub(super) struct Deferring {
    stages: Arc<Stages>,
    /// Of all images that can be, 0 … 1.
    share: f64,
    output: TensorSpec,
}

impl Deferring {
    /// # Errors
    /// `BadConfig` where the chain does more than decode, cut out, resize and mirror.
    pub(super) fn new(stages: &Arc<Stages>, share: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::config(format!("a share of images must be 0 … 1; got {share}")));
        }
        stages.check_deferrable()?;
        let output = TensorSpec::new(DType::U8, [0], Layout::T).ragged(0);
        Ok(Self { stages: Arc::clone(stages), share, output })
    }
}

impl Plan for Deferring {
    fn output(&self) -> &TensorSpec {
        &self.output
    }

    fn shows_parts(&self) -> bool {
        self.stages.shows_parts()
    }

    fn image_size(&self, encoded: &[u8]) -> Result<Option<[u32; 2]>> {
        Ok(Some(Opened::new(encoded, &self.stages.decode)?.size().into()))
    }

    fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        row: Row<'_>,
    ) -> Result<Warnings> {
        let (stages, out) = (&*self.stages, row.ragged()?);
        let pixels = stages.output.bytes();
        if encoded.len() <= pixels * MOST_BYTES_A_PIXEL_BYTE && seed.op(SPLIT_DRAW).chance(self.share) {
            let opened = Opened::new(encoded, &stages.decode)?;
            if opened.is_plain_jpeg()
                && is_small(opened.size(), stages.size)
                && let Some(shown) = stages.shown(&opened, seed)
            {
                let bytes = encoded.len() + TRAILER_BYTES;
                DeferredRow::Jpeg(encoded, shown).write(out.raw(bytes, bytes));
                return Ok(Warnings::default());
            }
        }
        let bytes = pixels + TRAILER_BYTES;
        let row = out.raw(bytes, bytes);
        let warnings = run(stages, encoded, seed, scratch, &mut row[..pixels])?;
        DeferredRow::Pixels(&[]).write(row);
        Ok(warnings)
    }
}

impl Stages {
    /// # Errors
    /// `BadConfig` where the chain does more than a GPU does after its decoder.
    fn check_deferrable(&self) -> Result<()> {
        let (geometry, rest) = self.list.split_at(self.geometry_end);
        let is_one_cut = match geometry {
            [Stage { step: Step::ResizedCrop(op), .. }] => op.filter() == Filter::Bilinear,
            [Stage { step: Step::Resize(op), .. }]
            | [Stage { step: Step::Resize(op), .. }, Stage { step: Step::Crop(_), .. }] => {
                op.filter() == Filter::Bilinear
            }
            _ => false,
        };
        if is_one_cut
            && self.convert.is_identity()
            && self.layers.is_none()
            && self.floats.is_empty()
            && rest.iter().all(Stage::is_flip)
        {
            return Ok(());
        }
        Err(Error::config(
            "a GPU decodes for chains of decode_image, then random_resized_crop, resize, or resize and one crop, all with \
             the filter bilinear, then at most horizontal_flip and vertical_flip; leave the rest to finish_pictures, or to the CPU",
        ))
    }

    /// What a row shows of an image that is decoded whole; nothing where the chain pads it, or refuses it, or the CPU
    /// would decode it at a fraction of its size, which is another image.
    fn shown(&self, opened: &Opened<'_>, seed: SampleSeed) -> Option<Shown> {
        let picture = opened.size();
        let geometry = &self.list[..self.geometry_end];
        let (view, window, decoded) = match geometry {
            [Stage { index, step: Step::ResizedCrop(op) }] => {
                let view = op.draw(picture, &mut seed.op(*index));
                let (width, height) = (view.width.into(), view.height.into());
                (view, Window { left: 0.0, top: 0.0, width, height }, view)
            }
            [Stage { index, step: Step::Resize(op) }, crops @ ..] => {
                let target = op.target(picture, &mut seed.op(*index)).ok()?;
                let crop = match crops {
                    [] => Rect::of(target),
                    _ => self.crop_at(1, target, seed)?,
                };
                let window = Window::of_resized(crop, picture, target);
                let decoded = match crops {
                    [] => Rect::of(picture),
                    _ => needed(window, picture, target, op.filter()),
                };
                (Rect::of(picture), window, decoded)
            }
            _ => return None,
        };
        if self.denominator(opened, decoded.size(), Some(self.size)) > 1 {
            return None;
        }
        let flips = self.flips(self.geometry_end, seed);
        Some(Shown {
            picture,
            view,
            window: [window.left, window.top, window.width, window.height],
            mirrored: flips.horizontal,
            upended: flips.vertical,
        })
    }
}
