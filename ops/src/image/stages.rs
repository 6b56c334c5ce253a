//! A compiled chain of ops on images.

use super::convert::Convert;
use super::decode::{DecodeImage, DecodeMode};
use super::geometry::{Rect, Size};
use super::step::{FloatOp, Step};
use crate::seed::SampleSeed;
use crate::spec::TensorSpec;

/// A compiled chain of ops on images.
pub(super) struct Stages {
    pub(super) decode: DecodeImage,
    pub(super) list: Vec<Stage>,
    /// All geometry stages are before this one.
    pub(super) geometry_end: usize,
    /// The last stage mirrors, and the conversion does that.
    pub(super) mirror_in_convert: bool,
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

impl Stages {
    /// Whether JPEGs may be decoded at a fraction of their size: not if their values are classes.
    pub(super) fn is_scaled(&self) -> bool {
        self.decode.scaled && self.decode.mode != DecodeMode::Indices
    }

    /// Whether a stage crops.
    pub(super) fn shows_parts(&self) -> bool {
        self.list.iter().any(|stage| matches!(stage.step, Step::Crop(_) | Step::ResizedCrop(_)))
    }

    /// Returns the rectangle that the stage `at` cuts out of an image of size `size`, if it is a crop without padding.
    pub(super) fn crop_at(&self, at: usize, size: Size, seed: SampleSeed) -> Option<Rect> {
        let Stage { index, step: Step::Crop(crop) } = self.list.get(at)? else { return None };
        let (padded, _) = crop.padded(size).ok()?;
        (padded == size).then(|| crop.rect(size, &mut seed.op(*index)))
    }
}
