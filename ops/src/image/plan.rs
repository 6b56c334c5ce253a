//! A compiled chain of picture ops, and how one sample runs through it.
//!
//! ```text
//! Undecoded(rect) ── crops narrow the rect ──▶ resize: decode what is left, resample ──▶ dense RGB ─▶ colour ops
//!                                                             (in place)              ─▶ Convert: f32, CHW, flip
//! ```
//! Geometry is lazy, so that the decoder learns the region before it starts; `resize` followed by a crop resamples
//! the crop only. The last op that moves pixels writes into the caller's row: the resize or copy for u8 HWC, the
//! conversion otherwise. Buffers are three per thread and hold one decoded picture and two intermediate ones.

use super::augment::Augmenter;
use super::center_crop::CenterCrop;
use super::color_jitter::ColorJitter;
use super::decode::{DecodeImage, Demand, JpegDecoder, Opened};
use super::geometry::{Filter, Rect, Size, check_probability};
use super::horizontal_flip::{HorizontalFlip, flip_rgb};
use super::normalize::Convert;
use super::rand_augment::RandAugment;
use super::random_crop::RandomCrop;
use super::random_erasing::RandomErasing;
use super::random_resized_crop::RandomResizedCrop;
use super::resize::{Resize, Sampler, Window, copy_rows};
use super::trivial_augment::TrivialAugment;
use crate::buffer::Buffer;
use crate::chain::Op;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use crate::working::Scope;
use feedstock_base::{Error, Result};

/// A thread's codec handles and buffers.
#[derive(Default)]
pub(crate) struct ImageScratch {
    jpeg: JpegDecoder,
    sampler: Sampler,
    buffers: [Buffer; 3],
    augmenter: Augmenter,
    /// What the decoder found unusual about the sample.
    warnings: Warnings,
}

impl ImageScratch {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.buffers.iter().map(Buffer::kept_bytes).sum::<usize>()
            + self.jpeg.kept_bytes()
            + self.sampler.kept_bytes()
            + self.augmenter.kept_bytes()
    }
}

/// A compiled chain of picture ops.
pub(crate) struct ImagePlan {
    pub(super) decode: DecodeImage,
    pub(super) stages: Vec<Stage>,
    /// Stages before this one include all geometry.
    pub(super) geometry_end: usize,
    /// The last stage is a flip that the conversion does on its way.
    flip_in_convert: bool,
    pub(super) convert: Convert,
    /// Erasing after the conversion to f32.
    pub(super) erase: Vec<(usize, RandomErasing)>,
    pub(super) size: Size,
    output: TensorSpec,
}

/// One op with its index in the chain, which seeds its generator.
pub(super) struct Stage {
    pub(super) index: usize,
    pub(super) step: Step,
}

pub(super) enum Step {
    Resize(Resize),
    CenterCrop(CenterCrop),
    RandomCrop(RandomCrop),
    RandomResizedCrop(RandomResizedCrop),
    Flip(HorizontalFlip),
    Jitter(ColorJitter),
    RandAugment(RandAugment),
    TrivialAugment(TrivialAugment),
    Erase(RandomErasing),
}

impl Step {
    fn is_geometry(&self) -> bool {
        matches!(
            self,
            Self::Resize(_) | Self::CenterCrop(_) | Self::RandomCrop(_) | Self::RandomResizedCrop(_)
        )
    }
}

/// What compiling has seen so far.
struct Compiler {
    stages: Vec<Stage>,
    size: Option<Size>,
    convert: Convert,
    normalized: bool,
    erase: Vec<(usize, RandomErasing)>,
}

impl Compiler {
    fn push(&mut self, index: usize, step: Step) -> Result<()> {
        if self.convert.dtype != DType::U8 {
            let flip_commutes = matches!(step, Step::Flip(_)) && self.erase.is_empty();
            if !flip_commutes {
                return Err(Error::config("works on bytes; put it before to_f32 and normalize"));
            }
        }
        self.stages.push(Stage { index, step });
        Ok(())
    }

    fn add(&mut self, index: usize, op: &Op) -> Result<()> {
        match op {
            Op::DecodeImage(_) => {
                Err(Error::config("the picture is decoded already; decode_image comes once"))
            }
            Op::Resize(op) => {
                op.check()?;
                self.size = match op.size {
                    super::ResizeTo::Exact(sides) => Some(sides.into()),
                    super::ResizeTo::Shorter(_) => self.size.map(|size| op.target(size)).transpose()?,
                };
                self.push(index, Step::Resize(op.clone()))
            }
            Op::CenterCrop(op) => {
                op.size.check()?;
                self.size = Some(op.size);
                self.push(index, Step::CenterCrop(op.clone()))
            }
            Op::RandomCrop(op) => {
                op.size.check()?;
                Size::from(op.padding.max(1)).check()?;
                self.size = Some(op.size);
                self.push(index, Step::RandomCrop(op.clone()))
            }
            Op::RandomResizedCrop(op) => {
                op.check()?;
                self.size = Some(op.size);
                self.push(index, Step::RandomResizedCrop(op.clone()))
            }
            Op::HorizontalFlip(op) => {
                check_probability(op.probability)?;
                self.push(index, Step::Flip(op.clone()))
            }
            Op::ColorJitter(op) => {
                op.check()?;
                self.push(index, Step::Jitter(op.clone()))
            }
            Op::RandAugment(op) => {
                op.check()?;
                self.push(index, Step::RandAugment(op.clone()))
            }
            Op::TrivialAugment(op) => {
                op.check()?;
                self.push(index, Step::TrivialAugment(op.clone()))
            }
            Op::RandomErasing(op) => {
                op.check()?;
                if self.convert.dtype == DType::U8 {
                    op.check_u8()?;
                    return self.push(index, Step::Erase(op.clone()));
                }
                self.erase.push((index, op.clone()));
                Ok(())
            }
            Op::ToF32(_) => {
                if self.convert.dtype != DType::U8 {
                    return Err(Error::config("the picture is f32 already"));
                }
                self.convert.unit();
                Ok(())
            }
            Op::Normalize(op) => {
                op.check()?;
                if self.normalized || !self.erase.is_empty() {
                    return Err(Error::config("comes once, and before random_erasing of f32"));
                }
                self.normalized = true;
                self.convert.normalize(op);
                Ok(())
            }
            Op::ToChw(_) => {
                self.convert.layout = Layout::Chw;
                Ok(())
            }
            #[allow(unreachable_patterns, reason = "without other features there are no other ops")]
            _ => Err(Error::config("does not work on pictures")),
        }
    }
}

impl ImagePlan {
    /// `ops` starts with `decode_image`.
    pub(crate) fn compile(ops: &[Op]) -> Result<Self> {
        let at = |index: usize, op: &Op| {
            let place = format!("op {index} ({})", op.name());
            move |error: Error| error.context(place)
        };
        let Some((Op::DecodeImage(decode), rest)) = ops.split_first() else {
            return Err(Error::bug("a picture chain is compiled from its decode_image on"));
        };
        decode.check().map_err(at(0, &ops[0]))?;
        let convert = Convert { dtype: DType::U8, layout: Layout::Hwc, scale: [1.0; 3], bias: [0.0; 3] };
        let mut compiler =
            Compiler { stages: Vec::new(), size: None, convert, normalized: false, erase: Vec::new() };
        for (index, op) in (1..).zip(rest) {
            compiler.add(index, op).map_err(at(index, op))?;
        }
        let Compiler { stages, size, convert, erase, .. } = compiler;
        let size = size.ok_or_else(|| {
            Error::config(
                "the chain has no fixed output size, so its rows cannot stand in one batch; add \
                 random_resized_crop:224, center_crop:224, or resize:224x224",
            )
        })?;
        let flip_in_convert =
            !convert.is_identity() && matches!(stages.last(), Some(Stage { step: Step::Flip(_), .. }));
        let geometry_end = stages.iter().rposition(|stage| stage.step.is_geometry()).map_or(0, |i| i + 1);
        let (h, w) = (size.height as usize, size.width as usize);
        let shape = if convert.layout == Layout::Chw { [3, h, w] } else { [h, w, 3] };
        let output = TensorSpec::new(convert.dtype, shape, convert.layout);
        Ok(Self {
            decode: decode.clone(),
            stages,
            geometry_end,
            flip_in_convert,
            convert,
            erase,
            size,
            output,
        })
    }

    pub(crate) fn output(&self) -> &TensorSpec {
        &self.output
    }

    /// What the stage `at` cuts out of a picture of size `size`, if it is a crop that pads nothing.
    pub(super) fn crop_at(&self, at: usize, size: Size, seed: SampleSeed) -> Option<Rect> {
        match self.stages.get(at)? {
            Stage { step: Step::CenterCrop(crop), .. } if crop.padded(size).0 == size => {
                Some(crop.rect(size))
            }
            Stage { index, step: Step::RandomCrop(crop) }
                if crop.padded(size).is_ok_and(|(padded, _)| padded == size) =>
            {
                Some(crop.rect(size, &mut seed.op(*index)))
            }
            _ => None,
        }
    }

    pub(crate) fn apply(
        &self,
        encoded: &[u8],
        seed: SampleSeed,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Warnings> {
        scratch.image.warnings = Warnings::default();
        self.run(encoded, seed, scratch, out).map(|()| scratch.image.warnings)
    }

    fn run(&self, encoded: &[u8], seed: SampleSeed, scratch: &mut Scratch, out: &mut [u8]) -> Result<()> {
        let opened = Opened::new(encoded, &self.decode)?;
        let scope = scratch.admit(|scope| self.working_bytes(&opened, seed, scope))?;
        let at = Place::Undecoded(Rect::of(opened.size()));
        let mut run = Run { plan: self, opened, scope, seed, scratch: &mut scratch.image, out, at };
        let mut next = 0;
        while let Some(stage) = self.stages.get(next) {
            let is_last_geometry = |stages: usize| next + stages == self.geometry_end;
            next += match &stage.step {
                Step::Resize(op) => run.resize(op, next)?,
                Step::CenterCrop(op) => {
                    let (padded, offset) = op.padded(run.size());
                    run.pad(padded, offset)?;
                    run.narrow(op.rect(padded));
                    1
                }
                Step::RandomCrop(op) => {
                    let (padded, offset) = op.padded(run.size())?;
                    run.pad(padded, offset)?;
                    run.narrow(op.rect(padded, &mut seed.op(stage.index)));
                    1
                }
                Step::RandomResizedCrop(op) => {
                    let rect = op.draw(run.size(), &mut seed.op(stage.index));
                    run.narrow(rect);
                    run.resample(op.size, op.filter, None, is_last_geometry(1))?;
                    1
                }
                Step::Flip(op) => {
                    let flip = op.draw(&mut seed.op(stage.index));
                    let fused = self.flip_in_convert && next + 1 == self.stages.len();
                    if fused {
                        return run.finish(flip);
                    }
                    if flip {
                        run.in_place(|pixels, size, _| flip_rgb(pixels, size.width as usize), next)?;
                    }
                    1
                }
                step => {
                    let mut generator = seed.op(stage.index);
                    run.in_place(
                        |pixels, size, augmenter| match step {
                            Step::Jitter(op) => op.run(pixels, &mut generator),
                            Step::RandAugment(op) => op.run(pixels, size, &mut generator, augmenter),
                            Step::TrivialAugment(op) => op.run(pixels, size, &mut generator, augmenter),
                            Step::Erase(op) => op.run_u8(pixels, size, &mut generator),
                            _ => {}
                        },
                        next,
                    )?;
                    1
                }
            };
        }
        run.finish(false)
    }
}

/// Where the picture is.
#[derive(Clone, Copy)]
enum Place {
    /// In the encoded bytes; the rectangle (of the oriented picture) is what is left of it.
    Undecoded(Rect),
    /// In a scratch buffer, rows of `stride` pixels.
    Buffer { index: usize, stride: usize, view: Rect, window: Option<Window> },
    /// In the caller's row, dense and of the chain's size.
    Out,
}

/// One sample's way through the chain.
struct Run<'a> {
    plan: &'a ImagePlan,
    opened: Opened<'a>,
    scope: Scope,
    seed: SampleSeed,
    scratch: &'a mut ImageScratch,
    out: &'a mut [u8],
    at: Place,
}

impl Run<'_> {
    fn size(&self) -> Size {
        match self.at {
            Place::Undecoded(rect) => rect.size(),
            Place::Buffer { view, .. } => view.size(),
            Place::Out => self.plan.size,
        }
    }

    /// Cuts `rect` out, by looking at less.
    fn narrow(&mut self, inner: Rect) {
        match &mut self.at {
            Place::Undecoded(rect) => *rect = rect.narrow(inner),
            Place::Buffer { view, .. } => *view = view.narrow(inner),
            Place::Out => debug_assert_eq!(inner, Rect::of(self.plan.size)),
        }
    }

    /// Brings the picture into a buffer, if it is still encoded.
    fn decode(&mut self, target: Option<Size>) -> Result<()> {
        if let Place::Undecoded(region) = self.at {
            let [first, second, _] = &mut self.scratch.buffers;
            let demand = Demand { region, target, scope: self.scope };
            let scaled = self.plan.decode.scaled;
            let pixels = self.opened.decode(&mut self.scratch.jpeg, demand, scaled, (first, second))?;
            self.scratch.warnings = pixels.warnings;
            self.at =
                Place::Buffer { index: 0, stride: pixels.stride, view: pixels.view, window: pixels.window };
        }
        Ok(())
    }

    /// Resizes, together with the crop that may follow; returns how many stages that took.
    fn resize(&mut self, op: &Resize, at: usize) -> Result<usize> {
        let source = self.size();
        let target = op.target(source)?;
        let crop = self.plan.crop_at(at + 1, target, self.seed);
        let stages = if crop.is_some() { 2 } else { 1 };
        let last = at + stages == self.plan.geometry_end;
        let Some(crop) = crop.filter(|_| op.filter != Filter::Nearest) else {
            // Nearest has no filter to reach around the crop, and a box would shift its rounding.
            self.resample(target, op.filter, None, last && stages == 1)?;
            return Ok(1);
        };
        let window = Window::of_resized(crop, source, target);
        let needed = needed(window, source, target, op.filter);
        self.narrow(needed);
        let (left, top) = (window.left - f64::from(needed.x), window.top - f64::from(needed.y));
        let window = Window { left, top, ..window };
        self.resample(crop.size(), op.filter, Some(window), last)?;
        Ok(stages)
    }

    /// Resamples what is left of the picture (or a `window` of it) to `to`: into the row, if this is the last
    /// geometry and nothing is to be converted, else into a buffer.
    fn resample(&mut self, to: Size, filter: Filter, window: Option<Window>, last: bool) -> Result<()> {
        let region = self.size();
        self.decode(Some(to))?;
        let Place::Buffer { index, stride, view, window: scaled } = self.at else {
            // Two resizes in a row of which the first wrote into the row cannot be: only the last one does.
            return Err(Error::bug("a picture is resampled after it was written into its row"));
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
        let ImageScratch { sampler, buffers, .. } = &mut *self.scratch;
        if last && self.plan.convert.is_identity() {
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

    /// Pads with black to `size`, the picture at `[y, x]`.
    fn pad(&mut self, size: Size, [y, x]: [u32; 2]) -> Result<()> {
        let inner = self.size();
        if inner == size {
            return Ok(());
        }
        size.check().map_err(|error| Error::bad_sample(format!("padding: {}", error.message())))?;
        self.decode(None)?;
        let Place::Buffer { index, stride, view, .. } = self.at else {
            return Err(Error::bug("a picture is padded after it was written into its row"));
        };
        let (source, target, next) = pair(&mut self.scratch.buffers, index);
        let target = target.take(size.rgb_bytes());
        target.fill(0);
        let (length, width) = (inner.width as usize * 3, size.width as usize);
        for row in 0..inner.height as usize {
            let from = ((view.y as usize + row) * stride + view.x as usize) * 3;
            let to = ((y as usize + row) * width + x as usize) * 3;
            target[to..to + length].copy_from_slice(&source.bytes()[from..from + length]);
        }
        self.at = Place::Buffer { index: next, stride: width, view: Rect::of(size), window: None };
        Ok(())
    }

    /// Makes the picture dense: in the row, if no geometry follows `stage` and nothing is to be converted, else in
    /// a buffer.
    fn dense(&mut self, stage: usize) -> Result<&mut [u8]> {
        let to_out = stage >= self.plan.geometry_end && self.plan.convert.is_identity();
        self.decode(None)?;
        if let Place::Buffer { index, stride, view, .. } = self.at {
            if to_out {
                copy_rows(self.scratch.buffers[index].bytes(), stride, view, self.out);
                self.at = Place::Out;
            } else if stride != view.width as usize || view.x != 0 || view.y != 0 {
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

    /// Writes the row, if it is not written yet, and erases in it.
    fn finish(mut self, flip: bool) -> Result<()> {
        let (convert, size) = (self.plan.convert, self.plan.size);
        if convert.is_identity() {
            self.dense(usize::MAX)?;
        } else {
            self.dense(usize::MAX)?;
            let Place::Buffer { index, .. } = self.at else {
                return Err(Error::bug("a picture to convert is in its row already"));
            };
            let rgb = &self.scratch.buffers[index].bytes()[..size.rgb_bytes()];
            convert.run(rgb, size.width as usize, flip, self.out);
        }
        for (index, op) in &self.plan.erase {
            op.run_f32(self.out, size, convert.layout, &mut self.seed.op(*index));
        }
        Ok(())
    }
}

/// What a filter touches where it makes `window` of a picture of size `source` that is resized to `target`.
pub(super) fn needed(window: Window, source: Size, target: Size, filter: Filter) -> Rect {
    let reach = |from: u32, to: u32| filter.reach(f64::from(from) / f64::from(to));
    let (x, width) = around(window.left, window.width, reach(source.width, target.width), source.width);
    let (y, height) = around(window.top, window.height, reach(source.height, target.height), source.height);
    Rect { x, y, width, height }
}

/// The pixels that a filter of `reach` touches around `start` … `start + length`, within `0 … limit`, with one pixel
/// to spare: (first, count).
fn around(start: f64, length: f64, reach: f64, limit: u32) -> (u32, u32) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0 … limit, a u32"
    )]
    let pixel = |value: f64| value.clamp(0.0, f64::from(limit)) as u32;
    let first = pixel((start - reach).floor() - 1.0);
    let end = pixel((start + length + reach).ceil() + 1.0);
    (first, end - first)
}

/// The buffer at `index`, another one, and the other one's index.
fn pair(buffers: &mut [Buffer; 3], index: usize) -> (&Buffer, &mut Buffer, usize) {
    let [a, b, c] = buffers;
    match index {
        0 => (a, b, 1),
        1 => (b, c, 2),
        _ => (c, b, 1),
    }
}
