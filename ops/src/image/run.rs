//! How one sample runs through a compiled chain of ops on images.
//!
//! ```text
//! Undecoded(rect) ── crops narrow the rect ──▶ resize: decode what is left, resample ──▶ dense RGB ─▶ colour ops
//!                                                             (in place)              ─▶ Convert: f32, CHW, flip
//! ```
//! Geometry is lazy, so that the decoder knows the region before it starts; `resize` followed by a crop resamples
//! only the crop. The last op that moves pixels writes into the caller's row: the resize or copy for u8 HWC, the
//! conversion otherwise. A pixel has three bytes in every mode. Each thread has three buffers, for one decoded image and two
//! intermediate ones. Views of one image (`views.rs`) find it decoded, and leave its buffer unchanged.

use super::augmenter::Augmenter;
use super::buffer::Buffer;
use super::decode::{Demand, JpegDecoder, Opened, Pixels};
use super::geometry::{Filter, Flips, Rect, Size, Window};
use super::layers::LayerBuffers;
use super::row_index::{RowIndex, Rows};
use super::rows::{copy_rows, pad_rows};
use super::sampler::Sampler;
use super::stages::{Resized, Stage, Stages, shown_of_boxes};
use super::step::{Crop, Resizing, Step, Turn};
use super::warp::warp;
use crate::scratch::{Part, Scratch};
use crate::seed::SampleSeed;
use crate::warning::Warnings;
use crate::working::Scope;
use feedstock_base::{Error, Result};

/// The codec handles and buffers of a thread.
#[derive(Default)]
pub(super) struct ImageScratch {
    jpeg: JpegDecoder,
    sampler: Sampler,
    /// The first one is for the decoded image.
    buffers: [Buffer; 3],
    augmenter: Augmenter,
    /// The layers of an image with alpha.
    pub(super) layers: LayerBuffers,
    /// The decoder's warnings about the sample.
    pub(super) warnings: Warnings,
}

impl ImageScratch {
    /// Decodes into the first buffer.
    pub(super) fn decode(&mut self, opened: &Opened<'_>, demand: Demand) -> Result<Pixels> {
        let [first, second, _] = &mut self.buffers;
        let pixels = opened.decode(&mut self.jpeg, demand, (first, second))?;
        self.warnings = pixels.warnings;
        Ok(pixels)
    }
}

impl Part for ImageScratch {
    fn kept_bytes(&self) -> usize {
        self.buffers.iter().map(Buffer::kept_bytes).sum::<usize>()
            + self.jpeg.kept_bytes()
            + self.sampler.kept_bytes()
            + self.augmenter.kept_bytes()
            + self.layers.kept_bytes()
    }
}

impl Scratch {
    /// Has the decoder of baseline JPEGs note where the next image's rows begin, and use what is `known` about it.
    ///
    /// Pixels and errors are the same with any `known`, also with that of another file. Chains of other ops, and images of
    /// other kinds, ignore it.
    ///
    /// ```
    /// use feedstock_ops::image::{ShrinkImage, Shrinker};
    /// use feedstock_ops::{Chain, SampleSeed, Scratch};
    ///
    /// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    /// #     let mut out = Vec::new();
    /// #     let mut encoder = png::Encoder::new(&mut out, width, height);
    /// #     encoder.set_color(png::ColorType::Rgb);
    /// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
    /// #     out
    /// # }
    /// let png = encode(256, 256, &[128; 256 * 256 * 3]);
    /// let jpeg = Shrinker::new(ShrinkImage::new(192))?.shrink(&png)?.unwrap();
    /// let chain = Chain::parse("decode_image,center_crop:96")?;
    /// let (mut scratch, mut row) = (Scratch::new(), vec![0; chain.output().bytes()]);
    /// scratch.note_rows(None);
    /// chain.apply(&jpeg, SampleSeed::new(7, 0, 0), &mut scratch, &mut row)?;
    /// let index = scratch.take_rows().unwrap(); // of the rows above the crop's end
    ///
    /// scratch.note_rows(Some(index));
    /// chain.apply(&jpeg, SampleSeed::new(7, 1, 0), &mut scratch, &mut row)?; // does not read the rows above the crop
    /// assert_eq!(scratch.take_rows(), None); // nothing was new
    /// # Ok::<(), feedstock_ops::Error>(())
    /// ```
    pub fn note_rows(&mut self, known: Option<RowIndex>) {
        self.part::<ImageScratch>().jpeg.rows = Rows { known, is_noted: true, noted: None };
    }

    /// Returns where the last image's rows begin, if that is new since [`note_rows`](Self::note_rows), and stops noting.
    pub fn take_rows(&mut self) -> Option<RowIndex> {
        std::mem::take(&mut self.part::<ImageScratch>().jpeg.rows).noted
    }
}

/// Where pixels come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// From the encoded bytes.
    Encoded(&'a Opened<'a>, Scope),
    /// From what was decoded of them into the first buffer, for several runs.
    Decoded(&'a Opened<'a>, Demand, Pixels),
}

/// Where the image is.
#[derive(Clone, Copy)]
enum Place {
    /// In its source; the rectangle (of the oriented image) is the part that is left of it.
    Undecoded(Rect),
    /// In a scratch buffer, in rows of `stride` pixels.
    Buffer { index: usize, stride: usize, view: Rect, window: Option<Window> },
    /// In the caller's row, dense and of the chain's size.
    Out,
}

/// One sample on its way through the chain.
pub(super) struct Run<'a> {
    stages: &'a Stages,
    source: Source<'a>,
    seed: SampleSeed,
    scratch: &'a mut ImageScratch,
    out: &'a mut [u8],
    at: Place,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        stages: &'a Stages,
        source: Source<'a>,
        seed: SampleSeed,
        scratch: &'a mut ImageScratch,
        out: &'a mut [u8],
    ) -> Self {
        let (Source::Encoded(opened, _) | Source::Decoded(opened, ..)) = source;
        let at = Place::Undecoded(Rect::of(opened.size()));
        Self { stages, source, seed, scratch, out, at }
    }

    pub(super) fn all(mut self) -> Result<()> {
        let mut next = 0;
        while next < self.stages.flips_in_convert {
            next += self.step(next)?;
        }
        let flips = self.stages.flips(next, self.seed);
        self.finish(flips)
    }

    /// Runs the step of the stage `at`; returns the number of stages that are done with it.
    fn step(&mut self, at: usize) -> Result<usize> {
        let (Stage { index, step }, seed) = (&self.stages.list[at], self.seed);
        match step {
            Step::Resize(op) => return self.resize(&**op, at),
            Step::Crop(op) => {
                let (padded, offset) = op.padded(self.size(), &mut seed.op(*index))?;
                self.pad(padded, offset, &**op)?;
                self.narrow(op.rect(padded, &mut seed.op(*index)));
            }
            Step::ResizedCrop(op) => {
                self.narrow(op.draw(self.size(), &mut seed.op(*index)));
                self.resample(op.size(), op.filter(), None, at + 1 == self.stages.geometry_end)?;
            }
            Step::CropByBoxes(_) => self.narrow(shown_of_boxes(self.size(), seed)?),
            Step::Turn(op) => self.turn(&**op, at)?,
            Step::InPlace(step) if step.is_idle(*index, seed) => {}
            Step::InPlace(step) => {
                self.in_place(
                    |pixels, size, augmenter| step.run((*index, seed), pixels, size, augmenter),
                    at,
                )?;
            }
        }
        Ok(1)
    }

    fn size(&self) -> Size {
        match self.at {
            Place::Undecoded(rect) => rect.size(),
            Place::Buffer { view, .. } => view.size(),
            Place::Out => self.stages.size,
        }
    }

    /// Cuts a rectangle out, without copying pixels.
    fn narrow(&mut self, inner: Rect) {
        match &mut self.at {
            Place::Undecoded(rect) => *rect = rect.narrow(inner),
            Place::Buffer { view, .. } => *view = view.narrow(inner),
            Place::Out => debug_assert_eq!(inner, Rect::of(self.stages.size)),
        }
    }

    /// Decodes the image into a buffer, unless that is done already.
    fn decode(&mut self, target: Option<Size>) -> Result<()> {
        if let Place::Undecoded(region) = self.at {
            let pixels = match self.source {
                Source::Encoded(opened, scope) => {
                    let denominator = self.stages.denominator(opened, region.size(), target);
                    self.scratch.decode(opened, Demand { region, denominator, scope })?
                }
                Source::Decoded(opened, demand, pixels) => opened.part((demand, pixels), region),
            };
            self.at =
                Place::Buffer { index: 0, stride: pixels.stride, view: pixels.view, window: pixels.window };
        }
        Ok(())
    }

    /// Resizes, together with a crop that follows; returns the number of stages that are done with it.
    fn resize(&mut self, op: &dyn Resizing, at: usize) -> Result<usize> {
        let Resized { to, part, window, stages } = self.stages.resized((op, at), self.size(), self.seed)?;
        self.narrow(part);
        self.resample(to, op.filter(), window, at + stages == self.stages.geometry_end)?;
        Ok(stages)
    }

    /// Resamples what is left of the image (or a `window` of it) to the size `to`. The result goes into the row if this
    /// is the last geometry op and no conversion follows, else into a buffer.
    fn resample(&mut self, to: Size, filter: Filter, window: Option<Window>, last: bool) -> Result<()> {
        let region = self.size();
        self.decode(Some(to))?;
        let Place::Buffer { index, stride, view, window: scaled } = self.at else {
            // Of several resizes, only the last one writes into the row.
            return Err(Error::bug("an image is resampled after it was written into its row"));
        };
        let window = match (scaled, window) {
            (None, window) => window,
            (scaled, None) => scaled,
            (Some(scaled), Some(inner)) => {
                let (fx, fy) =
                    (scaled.width / f64::from(region.width), scaled.height / f64::from(region.height));
                Some(Window {
                    left: scaled.left + inner.left * fx,
                    top: scaled.top + inner.top * fy,
                    width: inner.width * fx,
                    height: inner.height * fy,
                })
            }
        };
        let filter = (filter, self.stages.decode.mode.depth());
        let ImageScratch { sampler, buffers, .. } = &mut *self.scratch;
        if last && self.stages.convert.is_identity() {
            let source = buffers[index].bytes();
            sampler.resize(source, (stride, view), window, (self.out, to), filter);
            self.at = Place::Out;
            return Ok(());
        }
        let (source, target, next) = pair(buffers, index);
        let target = target.take(to.rgb_bytes());
        sampler.resize(source.bytes(), (stride, view), window, (target, to), filter);
        self.at = Place::Buffer { index: next, stride: to.width as usize, view: Rect::of(to), window: None };
        Ok(())
    }

    /// Pads to `size`, with the image at `offset`, `[y, x]`.
    fn pad(&mut self, size: Size, offset: [u32; 2], op: &dyn Crop) -> Result<()> {
        if self.size() == size {
            return Ok(());
        }
        size.check().map_err(|error| Error::bad_sample(format!("padding: {}", error.message())))?;
        self.decode(None)?;
        let Place::Buffer { index, stride, view, .. } = self.at else {
            return Err(Error::bug("an image is padded after it was written into its row"));
        };
        let (source, target, next) = pair(&mut self.scratch.buffers, index);
        let target = target.take(size.rgb_bytes());
        pad_rows(source.bytes(), (stride, view), (target, size), offset, op.padding());
        self.at =
            Place::Buffer { index: next, stride: size.width as usize, view: Rect::of(size), window: None };
        Ok(())
    }

    /// Whether other runs need what is in this buffer, too.
    fn is_shared(&self, buffer: usize) -> bool {
        buffer == 0 && matches!(self.source, Source::Decoded(..))
    }

    /// Makes the image dense: in the row if no geometry op follows `stage` and no conversion follows, else in a buffer.
    fn dense(&mut self, stage: usize) -> Result<&mut [u8]> {
        let to_out = stage >= self.stages.geometry_end && self.stages.convert.is_identity();
        self.decode(None)?;
        if let Place::Buffer { index, stride, view, .. } = self.at {
            if to_out {
                copy_rows(self.scratch.buffers[index].bytes(), stride, view, self.out);
                self.at = Place::Out;
            } else if stride != view.width as usize || view.x != 0 || view.y != 0 || self.is_shared(index) {
                let (source, target, next) = pair(&mut self.scratch.buffers, index);
                let bytes = view.size().rgb_bytes();
                copy_rows(source.bytes(), stride, view, target.take(bytes));
                let stride = view.width as usize;
                self.at = Place::Buffer { index: next, stride, view: Rect::of(view.size()), window: None };
            }
        }
        match self.at {
            Place::Buffer { index, view, .. } => {
                Ok(&mut self.scratch.buffers[index].bytes_mut()[..view.size().rgb_bytes()])
            }
            _ => Ok(self.out),
        }
    }

    /// Runs an op that changes dense pixels in place.
    fn in_place(&mut self, op: impl FnOnce(&mut [u8], Size, &mut Augmenter), stage: usize) -> Result<()> {
        let size = self.size();
        let mut augmenter = std::mem::take(&mut self.scratch.augmenter);
        let result = self.dense(stage).map(|pixels| op(pixels, size, &mut augmenter));
        self.scratch.augmenter = augmenter;
        result
    }

    /// Turns the image into a larger one.
    fn turn(&mut self, op: &dyn Turn, stage: usize) -> Result<()> {
        let size = self.size();
        let (mapping, to) = op.draw(size, &mut self.seed.op(self.stages.list[stage].index))?;
        self.dense(stage)?;
        let Place::Buffer { index, .. } = self.at else {
            // An op that fixes the size comes later.
            return Err(Error::bug("an image is turned after it was written into its row"));
        };
        let (source, target, next) = pair(&mut self.scratch.buffers, index);
        let (source, target) = (&source.bytes()[..size.rgb_bytes()], target.take(to.rgb_bytes()));
        warp((source, size), (target, to), mapping, op.style());
        self.at = Place::Buffer { index: next, stride: to.width as usize, view: Rect::of(to), window: None };
        Ok(())
    }

    /// Writes the row, unless it is written already, and runs the f32 ops on it.
    fn finish(mut self, flips: Flips) -> Result<()> {
        let (convert, size) = (self.stages.convert, self.stages.size);
        if convert.is_identity() {
            self.dense(usize::MAX)?;
        } else {
            self.dense(usize::MAX)?;
            let Place::Buffer { index, .. } = self.at else {
                return Err(Error::bug("an image to convert is in its row already"));
            };
            let rgb = &self.scratch.buffers[index].bytes()[..size.rgb_bytes()];
            convert.run(rgb, size.width as usize, flips, self.out);
        }
        for (index, op) in &self.stages.floats {
            op.run(self.out, size, convert.layout, &mut self.seed.op(*index));
        }
        Ok(())
    }
}

/// Returns the buffer at `index`, another buffer, and that one's index.
fn pair(buffers: &mut [Buffer; 3], index: usize) -> (&Buffer, &mut Buffer, usize) {
    let [a, b, c] = buffers;
    match index {
        0 => (a, b, 1),
        1 => (b, c, 2),
        _ => (c, b, 1),
    }
}
