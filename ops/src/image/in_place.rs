//! Steps that change dense pixels in place and keep the size: color ops, flips, warps, and groups of such steps.

use std::ops::Range;

use super::augmenter::Augmenter;
use super::geometry::{Axis, Flips, Size};
use super::rows::flip_rgb;
use super::warp::{Interpolation, Mapping, WarpStyle};
use crate::seed::{Generator, SampleSeed};

/// A step on dense 8-bit RGB that keeps the size.
pub(super) enum InPlace {
    Mirror(Box<dyn Mirror>),
    Pixels(Box<dyn PixelOp>),
    Warp(Box<dyn Warp>),
    Group(Group),
}

/// Exchanges left and right or top and bottom, or leaves the image unchanged.
pub(crate) trait Mirror: Send + Sync {
    /// Returns true if the sample of this generator is mirrored.
    fn draw(&self, generator: &mut Generator) -> bool;

    fn axis(&self) -> Axis;
}

/// Changes pixels in place.
pub(crate) trait PixelOp: Send + Sync {
    /// Works on dense RGB.
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter);

    /// True if it moves pixels in a way that masks, boxes and keypoints cannot follow.
    fn moves_pixels(&self) -> bool {
        false
    }

    /// True if it may copy the image into the buffer of `augmenter`, which counts as working memory.
    fn copies_image(&self) -> bool {
        false
    }

    /// True if it sums images in the `Mixing` of `augmenter`, which counts as working memory.
    fn mixes_images(&self) -> bool {
        false
    }
}

/// Shows at each pixel another place of the image. A mask follows it.
pub(crate) trait Warp: Send + Sync {
    /// Returns which places an image of this size shows; `None` leaves it unchanged.
    fn draw(&self, size: Size, generator: &mut Generator) -> Option<Mapping>;

    fn style(&self) -> WarpStyle;
}

/// A warp that takes the nearest pixel.
pub(super) struct WarpByNearest<T>(pub(super) T);

impl<T: Warp> Warp for WarpByNearest<T> {
    fn draw(&self, size: Size, generator: &mut Generator) -> Option<Mapping> {
        self.0.draw(size, generator)
    }

    fn style(&self) -> WarpStyle {
        WarpStyle { interpolation: Interpolation::Nearest, ..self.0.style() }
    }
}

/// Chooses the ops of a group that run.
pub(crate) trait Choice: Send + Sync {
    /// Returns the indices of the ops that run.
    fn draw(&self, generator: &mut Generator) -> Range<usize>;
}

/// Steps of which some run. Step i of the group of op k draws from the seed that absorbed k, then i.
pub(super) struct Group {
    pub(super) choice: Box<dyn Choice>,
    /// Each with the index of its op in the group.
    pub(super) steps: Vec<(usize, InPlace)>,
}

impl Group {
    /// Returns the steps that run, each with the index of its op in the group.
    pub(super) fn chosen(&self, generator: &mut Generator) -> impl Iterator<Item = &(usize, InPlace)> {
        let chosen = self.choice.draw(generator);
        self.steps.iter().filter(move |(index, _)| chosen.contains(index))
    }
}

impl InPlace {
    /// True if the step of the op at `index` leaves this sample unchanged, which is known before its pixels are.
    pub(super) fn is_idle(&self, index: usize, seed: SampleSeed) -> bool {
        let generator = &mut seed.op(index);
        match self {
            Self::Mirror(op) => !op.draw(generator),
            Self::Group(group) => {
                group.chosen(generator).all(|(inner, step)| step.is_idle(*inner, seed.within(index)))
            }
            Self::Pixels(_) | Self::Warp(_) => false,
        }
    }

    /// Runs the step of the op at `index`.
    pub(super) fn run(
        &self,
        (index, seed): (usize, SampleSeed),
        pixels: &mut [u8],
        size: Size,
        augmenter: &mut Augmenter,
    ) {
        let generator = &mut seed.op(index);
        match self {
            Self::Mirror(op) => {
                if op.draw(generator) {
                    flip_rgb(pixels, size.width as usize, Flips::default().and(op.axis()));
                }
            }
            Self::Pixels(op) => op.run(pixels, size, generator, augmenter),
            Self::Warp(op) => {
                if let Some(mapping) = op.draw(size, generator) {
                    augmenter.warp(pixels, size, mapping, op.style());
                }
            }
            Self::Group(group) => {
                for (inner, step) in group.chosen(generator) {
                    step.run((*inner, seed.within(index)), pixels, size, augmenter);
                }
            }
        }
    }

    /// True if it may copy the image into the buffer of an [`Augmenter`].
    pub(super) fn copies_image(&self) -> bool {
        match self {
            Self::Mirror(_) => false,
            Self::Pixels(op) => op.copies_image(),
            Self::Warp(_) => true,
            Self::Group(group) => group.steps.iter().any(|(_, step)| step.copies_image()),
        }
    }

    /// True if it may sum images in the `Mixing` of an [`Augmenter`].
    pub(super) fn mixes_images(&self) -> bool {
        match self {
            Self::Mirror(_) | Self::Warp(_) => false,
            Self::Pixels(op) => op.mixes_images(),
            Self::Group(group) => group.steps.iter().any(|(_, step)| step.mixes_images()),
        }
    }
}
