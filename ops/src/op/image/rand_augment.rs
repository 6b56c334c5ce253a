//! `rand_augment`: a few random operations of one magnitude (Cubuk et al., arXiv 1909.13719).

use serde::{Deserialize, Serialize};

use crate::image::augment::{Augmentation, Strength};
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::image::warp::{Interpolation, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Applies `num_ops` uniformly drawn operations at `magnitude`, with torchvision's `RandAugment` set and ranges:
/// identity, shear (≤ 0.3), translate (≤ 150/331 of the side), rotate (≤ 30°), brightness, colour, contrast and
/// sharpness (1 ± ≤ 0.9), posterize (≥ 4 bits), solarize, autocontrast, equalize.
///
/// ```
/// use feedstock_ops::{ChainSpec, center_crop, decode_image, rand_augment};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), rand_augment(2, 9)]).compile()?;
/// assert_eq!(chain.output().shape, [32, 32, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandAugment {
    /// Operations per image; default 2.
    #[serde(default = "two")]
    pub num_ops: u32,
    /// The bin of the magnitude, 0 … `num_magnitude_bins` − 1; default 9.
    #[serde(default = "nine")]
    pub magnitude: u32,
    /// Bins from no effect to the strongest; default 31.
    #[serde(default = "bins")]
    pub num_magnitude_bins: u32,
    /// How warps read between pixels; default nearest.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// The RGB colour outside a warped image; default black.
    #[serde(default)]
    pub fill: [u8; 3],
}

fn two() -> u32 {
    2
}

fn nine() -> u32 {
    9
}

pub(super) fn bins() -> u32 {
    31
}

/// Operations per image: more would leave nothing of it, and each costs a pass.
const MAX_OPS: u32 = 16;

impl Default for RandAugment {
    fn default() -> Self {
        Self::new(two(), nine())
    }
}

impl RandAugment {
    /// Applies `num_ops` operations at the bin `magnitude` of 31.
    pub fn new(num_ops: u32, magnitude: u32) -> Self {
        Self {
            num_ops,
            magnitude,
            num_magnitude_bins: bins(),
            interpolation: Interpolation::default(),
            fill: [0; 3],
        }
    }

    /// How warps read between pixels.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Self {
        Self { interpolation, ..self }
    }

    /// The RGB colour outside a warped image.
    #[must_use]
    pub fn fill(self, fill: [u8; 3]) -> Self {
        Self { fill, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let bins = self.num_magnitude_bins;
        if self.num_ops <= MAX_OPS && (2..=1024).contains(&bins) && self.magnitude < bins {
            return Ok(());
        }
        Err(Error::config(format!(
            "num_ops must be at most {MAX_OPS}, num_magnitude_bins 2 … 1024, and magnitude below it; got {}, {bins} \
             and {}",
            self.num_ops, self.magnitude
        )))
    }
}

impl ImageOp for RandAugment {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for RandAugment {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        let strength = Strength::moderate(size);
        let style = WarpStyle { interpolation: self.interpolation, fill: self.fill.into() };
        for _ in 0..self.num_ops {
            let op = Augmentation::draw(generator);
            let magnitude = op.magnitude(strength, self.magnitude, self.num_magnitude_bins);
            op.draw_and_apply(magnitude, pixels, size, style, generator, augmenter);
        }
    }

    fn moves_pixels(&self) -> bool {
        true
    }

    fn copies_image(&self) -> bool {
        true
    }
}
