//! A compiled chain of ops on images.

use super::convert::Convert;
use super::decode::{DecodeImage, DecodeMode};
use super::geometry::{Flips, Rect, Size};
use super::in_place::InPlace;
use super::step::{FloatOp, Step};
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;

/// A compiled chain of ops on images.
pub(super) struct Stages {
    pub(super) decode: DecodeImage,
    pub(super) list: Vec<Stage>,
    /// All geometry stages are before this one.
    pub(super) geometry_end: usize,
    /// This stage and all after it flip, and the conversion does that.
    pub(super) flips_in_convert: usize,
    pub(super) convert: Convert,
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

impl Stages {
    /// Whether JPEGs may be decoded at a fraction of their size: not if their values are classes.
    pub(super) fn is_scaled(&self) -> bool {
        self.decode.scaled && self.decode.mode != DecodeMode::Indices
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
        self.list.iter().any(|stage| matches!(stage.step, Step::Crop(_) | Step::ResizedCrop(_)))
    }

    /// Returns the rectangle that the stage `at` cuts out of an image of size `size`, if it is a crop without padding.
    pub(super) fn crop_at(&self, at: usize, size: Size, seed: SampleSeed) -> Option<Rect> {
        let Stage { index, step: Step::Crop(crop) } = self.list.get(at)? else { return None };
        let (padded, _) = crop.padded(size, &mut seed.op(*index)).ok()?;
        (padded == size).then(|| crop.rect(size, &mut seed.op(*index)))
    }
}
