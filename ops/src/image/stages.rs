//! A compiled chain of ops on images.

use super::convert::Convert;
use super::decode::{DecodeImage, DecodeMode, Opened};
use super::geometry::{Filter, Flips, Rect, Size, Window, needed};
use super::in_place::InPlace;
use super::layers::Layers;
use super::step::{FloatOp, Resizing, Step};
use crate::seed::{BoxCrop, SampleSeed};
use crate::spec::TensorSpec;
use feedstock_base::{Error, Result};

/// A compiled chain of ops on images.
pub(super) struct Stages {
    pub(super) decode: DecodeImage,
    pub(super) list: Vec<Stage>,
    /// All geometry stages are before this one.
    pub(super) geometry_end: usize,
    /// This stage and all after it flip, and the conversion does that.
    pub(super) flips_in_convert: usize,
    pub(super) convert: Convert,
    /// How the layers of an image with alpha are joined; `None` for all others.
    pub(super) layers: Option<Layers>,
    /// Ops after the conversion to f32, each with its index in the chain.
    pub(super) floats: Vec<(usize, Box<dyn FloatOp>)>,
    pub(super) size: Size,
    pub(super) output: TensorSpec,
}

/// One step with the index of its op in the chain, which seeds its generator.
pub(super) struct Stage {
    pub(super) index: usize,
    pub(super) step: Step,
}

impl Stage {
    pub(super) fn is_flip(&self) -> bool {
        matches!(self.step, Step::InPlace(InPlace::Mirror(_)))
    }
}

/// A resize of one sample's image, together with a crop that follows.
pub(super) struct Resized {
    /// The size of the result.
    pub(super) to: Size,
    /// What the filter reads of the image.
    pub(super) part: Rect,
    /// What the result shows of that part; `None`: all of it.
    pub(super) window: Option<Window>,
    /// The number of stages that are done with it.
    pub(super) stages: usize,
}

impl Stages {
    /// Returns the denominator of the fraction at which a region of this size is decoded: 1 if its values are classes.
    pub(super) fn denominator(&self, opened: &Opened<'_>, region: Size, target: Option<Size>) -> u32 {
        match self.decode.scaled && self.decode.mode != DecodeMode::Indices {
            true => opened.denominator(region, target),
            false => 1,
        }
    }

    /// Returns what the resize `op` of stage `at` does to an image of size `source`.
    pub(super) fn resized(
        &self,
        (op, at): (&dyn Resizing, usize),
        source: Size,
        seed: SampleSeed,
    ) -> Result<Resized> {
        let target = op.target(source, &mut seed.op(self.list[at].index))?;
        // The nearest-pixel filter reads nothing around the crop, and a window would change its rounding.
        let crop = self.crop_at(at + 1, target, seed).filter(|_| op.filter() != Filter::Nearest);
        let Some(crop) = crop else {
            return Ok(Resized { to: target, part: Rect::of(source), window: None, stages: 1 });
        };
        let window = Window::of_resized(crop, source, target);
        let part = needed(window, source, target, op.filter());
        let (left, top) = (window.left - f64::from(part.x), window.top - f64::from(part.y));
        Ok(Resized { to: crop.size(), part, window: Some(Window { left, top, ..window }), stages: 2 })
    }

    /// Returns the region that a sample's image is decoded for, and the size that the next step resizes all of it to. The stages
    /// before are run without pixels.
    ///
    /// # Errors
    /// `BadSample` for an image that an op cannot work on.
    pub(super) fn decoded(&self, image: Size, seed: SampleSeed) -> Result<(Rect, Option<Size>)> {
        let mut region = Rect::of(image);
        for (at, Stage { index, step }) in self.list.iter().enumerate() {
            match step {
                Step::Resize(op) => {
                    let Resized { to, part, .. } = self.resized((&**op, at), region.size(), seed)?;
                    return Ok((region.narrow(part), Some(to)));
                }
                Step::Crop(op) => {
                    let (padded, _) = op.padded(region.size(), &mut seed.op(*index))?;
                    if padded != region.size() {
                        return Ok((region, None));
                    }
                    region = region.narrow(op.rect(padded, &mut seed.op(*index)));
                }
                Step::ResizedCrop(op) => {
                    let rect = op.draw(region.size(), &mut seed.op(*index));
                    return Ok((region.narrow(rect), Some(op.size())));
                }
                Step::CropByBoxes(_) => region = region.narrow(shown_of_boxes(region.size(), seed)?),
                Step::InPlace(step) if step.is_idle(*index, seed) => {}
                Step::InPlace(_) | Step::Turn(_) => break,
            }
        }
        Ok((region, None))
    }

    /// Returns what the stages from `first` on exchange, all of which flip.
    pub(super) fn flips(&self, first: usize, seed: SampleSeed) -> Flips {
        self.list[first..].iter().fold(Flips::default(), |flips, Stage { index, step }| match step {
            Step::InPlace(InPlace::Mirror(op)) if op.draw(&mut seed.op(*index)) => flips.and(op.axis()),
            _ => flips,
        })
    }

    /// Whether a stage crops.
    pub(super) fn shows_parts(&self) -> bool {
        let crops = |step: &Step| matches!(step, Step::Crop(_) | Step::ResizedCrop(_) | Step::CropByBoxes(_));
        self.list.iter().any(|stage| crops(&stage.step))
    }

    /// Returns the rectangle that the stage `at` cuts out of an image of size `size`, if it is a crop without padding.
    pub(super) fn crop_at(&self, at: usize, size: Size, seed: SampleSeed) -> Option<Rect> {
        let Stage { index, step: Step::Crop(crop) } = self.list.get(at)? else { return None };
        let (padded, _) = crop.padded(size, &mut seed.op(*index)).ok()?;
        (padded == size).then(|| crop.rect(size, &mut seed.op(*index)))
    }
}

/// Returns the part that the sample's boxes have drawn of an image of size `image`.
///
/// # Errors
/// `BadConfig` if they have not drawn; `Bug` for a part of another image.
pub(super) fn shown_of_boxes(image: Size, seed: SampleSeed) -> Result<Rect> {
    match seed.box_crop() {
        Some(BoxCrop::Whole) => Ok(Rect::of(image)),
        Some(BoxCrop::Part { x, y, width, height }) => {
            let ends = x.checked_add(width).zip(y.checked_add(height));
            match ends.filter(|(right, bottom)| *right <= image.width && *bottom <= image.height) {
                Some(_) => Ok(Rect { x, y, width, height }),
                None => Err(Error::bug("the crop that boxes drew is not within the image")),
            }
        }
        None => Err(Error::config(
            "random_iou_crop crops by the boxes of a joint map; map the image jointly with fs.boxes(…)",
        )),
    }
}
