//! `trivial_augment`: one random operation of random magnitude (Müller, Hutter, arXiv 2103.10158).

use serde::{Deserialize, Serialize};

use super::rand_augment::bins;
use crate::image::augment::{Augmentation, Strength};
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::image::warp::{Interpolation, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Applies one uniformly drawn operation at a uniformly drawn magnitude, with torchvision's `TrivialAugmentWide` set
/// and ranges: as [`RandAugment`](super::RandAugment), but shear ≤ 0.99, translate ≤ 32 px, rotate ≤ 135°,
/// enhancements 1 ± ≤ 0.99, posterize ≥ 2 bits.
///
/// ```
/// use feedstock_ops::{ChainSpec, center_crop, decode_image, trivial_augment};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), trivial_augment()]).compile()?;
/// assert_eq!(chain.output().shape, [32, 32, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TrivialAugment {
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

impl Default for TrivialAugment {
    fn default() -> Self {
        Self { num_magnitude_bins: bins(), interpolation: Interpolation::default(), fill: [0; 3] }
    }
}

impl TrivialAugment {
    /// Returns the op with its defaults.
    pub fn new() -> Self {
        Self::default()
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
        if (2..=1024).contains(&self.num_magnitude_bins) {
            return Ok(());
        }
        Err(Error::config(format!("num_magnitude_bins must be 2 … 1024; got {}", self.num_magnitude_bins)))
    }
}

impl ImageOp for TrivialAugment {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for TrivialAugment {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        let strength = Strength {
            shear: 0.99,
            translate: [32.0; 2],
            rotate: 135.0,
            enhance: 0.99,
            posterize: [8.0, 6.0],
        };
        let style = WarpStyle { interpolation: self.interpolation, fill: self.fill.into() };
        let op = Augmentation::draw(generator);
        let bin = generator.below(self.num_magnitude_bins);
        let magnitude = op.magnitude(strength, bin, self.num_magnitude_bins);
        op.draw_and_apply(magnitude, pixels, size, style, generator, augmenter);
    }

    fn moves_pixels(&self) -> bool {
        true
    }

    fn copies_image(&self) -> bool {
        true
    }
}
