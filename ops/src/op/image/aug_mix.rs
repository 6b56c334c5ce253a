//! `aug_mix`: a weighted sum of the image and of several augmented ones (Hendrycks et al., arXiv 1912.02781).

use serde::{Deserialize, Serialize};

use crate::image::augment::{Augmentation, Strength, linspace};
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::image::warp::{Interpolation, WarpStyle};
use crate::seed::Generator;
use Augmentation as A;
use feedstock_base::{Error, Result};

/// The magnitudes of each operation.
const BINS: u32 = 10;

/// Augmented images of a sum, and operations on each of them, at most: each costs a pass.
const MOST: u32 = 16;

/// Smaller concentrations only give weights of 0 and 1.
const LEAST_ALPHA: f64 = 0.01;

/// The operations, in torchvision's order. The last four only with `all_ops`.
const OPS: [Augmentation; 13] = [
    A::ShearX,
    A::ShearY,
    A::TranslateX,
    A::TranslateY,
    A::Rotate,
    A::Posterize,
    A::Solarize,
    A::AutoContrast,
    A::Equalize,
    A::Brightness,
    A::Color,
    A::Contrast,
    A::Sharpness,
];
const ALL_OPS: u32 = 13;
const OPS_OF_PAPER: u32 = 9;

/// Mixes the image with `mixture_width` augmented images, as torchvision's v2 `AugMix`: each goes through a chain of uniformly
/// drawn operations. The chains' weights are drawn from a Dirichlet distribution, and that of their sum from Beta(α, α).
///
/// The operations are those on PIL images: shear (≤ 0.3), translate (≤ a third of the side), rotate (≤ 30°), posterize (≤ 4 bits
/// are left), solarize, autocontrast, equalize, and with `all_ops` brightness, colour, contrast and sharpness (1 ± ≤ 0.9).
/// The sum is computed in single precision and truncated.
///
/// ```
/// use feedstock_ops::image::AugMix;
/// use feedstock_ops::{ChainSpec, center_crop, decode_image};
///
/// let op = AugMix::new(5).mixture_width(2).chain_depth(3).alpha(0.5).all_ops(false);
/// let text = "decode_image,center_crop:32,aug_mix:5:mixture_width=2:chain_depth=3:alpha=0.5:all_ops=false";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from([decode_image(), center_crop(32), op.into()]));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AugMix {
    /// The magnitudes that are drawn from, of 10: 1 … 10; default 3.
    #[serde(default = "three")]
    pub severity: u32,
    /// Augmented images, 1 … 16; default 3.
    #[serde(default = "three")]
    pub mixture_width: u32,
    /// Operations on each augmented image, 1 … 16; −1 (the default) draws 1 … 3 for each.
    #[serde(default = "random_depth")]
    pub chain_depth: i32,
    /// The concentration of both distributions, 0.01 … 10⁶; default 1.
    #[serde(default = "one")]
    pub alpha: f64,
    /// Whether brightness, colour, contrast and sharpness are drawn, too; default true.
    #[serde(default = "yes")]
    pub all_ops: bool,
    /// How warps read between pixels; default bilinear.
    #[serde(default = "bilinear")]
    pub interpolation: Interpolation,
    /// The value outside of a warped image, 0 … 255; default 0.
    #[serde(default)]
    pub fill: Fill,
}

fn three() -> u32 {
    3
}

fn random_depth() -> i32 {
    -1
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

fn bilinear() -> Interpolation {
    Interpolation::Bilinear
}

impl Default for AugMix {
    fn default() -> Self {
        Self::new(three())
    }
}

impl AugMix {
    /// Draws from the first `severity` of 10 magnitudes.
    pub fn new(severity: u32) -> Self {
        Self {
            severity,
            mixture_width: three(),
            chain_depth: random_depth(),
            alpha: one(),
            all_ops: yes(),
            interpolation: bilinear(),
            fill: Fill::default(),
        }
    }

    /// The number of augmented images.
    #[must_use]
    pub fn mixture_width(self, mixture_width: u32) -> Self {
        Self { mixture_width, ..self }
    }

    /// Operations on each augmented image; −1 draws 1 … 3.
    #[must_use]
    pub fn chain_depth(self, chain_depth: i32) -> Self {
        Self { chain_depth, ..self }
    }

    /// The concentration of both distributions.
    #[must_use]
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// Whether brightness, colour, contrast and sharpness are drawn, too.
    #[must_use]
    pub fn all_ops(self, all_ops: bool) -> Self {
        Self { all_ops, ..self }
    }

    /// How warps read between pixels.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Self {
        Self { interpolation, ..self }
    }

    /// The value outside of a warped image.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }

    fn check(&self) -> Result<()> {
        let depth = u32::try_from(self.chain_depth).ok();
        if !(1..=BINS).contains(&self.severity) {
            return Err(Error::config(format!("severity must be 1 … {BINS}; got {}", self.severity)));
        }
        if !(1..=MOST).contains(&self.mixture_width) {
            return Err(Error::config(format!(
                "mixture_width must be 1 … {MOST}; got {}",
                self.mixture_width
            )));
        }
        if self.chain_depth != -1 && !depth.is_some_and(|depth| (1..=MOST).contains(&depth)) {
            return Err(Error::config(format!(
                "chain_depth must be −1 or 1 … {MOST}; got {}",
                self.chain_depth
            )));
        }
        if !(LEAST_ALPHA..=1e6).contains(&self.alpha) {
            return Err(Error::config(format!("alpha must be {LEAST_ALPHA} … 1e6; got {}", self.alpha)));
        }
        Ok(())
    }

    /// Draws an operation and its magnitude without a sign.
    fn draw(&self, size: Size, generator: &mut Generator) -> (Augmentation, f64) {
        let op = OPS[generator.below(if self.all_ops { ALL_OPS } else { OPS_OF_PAPER }) as usize];
        let magnitude = match op {
            A::AutoContrast | A::Equalize => 0.0,
            // v2 scales thresholds of 0 … 1; the rounding decides about values that are equal to the threshold.
            A::Solarize => 255.0 * f64::from(linspace(1.0, 0.0, generator.below(self.severity), BINS)),
            _ => op.magnitude(Strength::of_aug_mix(size), generator.below(self.severity), BINS),
        };
        (op, magnitude)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "torchvision mixes in single precision")]
fn single(weight: f64) -> f32 {
    weight as f32
}

impl ImageOp for AugMix {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.pixels(self.clone())?;
        compiler.check_fill(self.fill)
    }
}

impl PixelOp for AugMix {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        const { assert!(OPS.len() == ALL_OPS as usize && OPS_OF_PAPER < ALL_OPS) };
        let style = WarpStyle { interpolation: self.interpolation, fill: self.fill };
        let (mut parts, mut weights) = ([0.0; 2], [0.0; MOST as usize]);
        generator.dirichlet(self.alpha, &mut parts);
        let weights = &mut weights[..self.mixture_width as usize];
        generator.dirichlet(self.alpha, weights);
        let mut mixing = augmenter.take_mixing();
        mixing.start(pixels, single(parts[0]));
        for weight in weights {
            let image = mixing.copy(pixels);
            let depth = u32::try_from(self.chain_depth).unwrap_or_else(|_| 1 + generator.below(3));
            for _ in 0..depth {
                let (op, magnitude) = self.draw(size, generator);
                op.draw_and_apply(magnitude, image, size, style, generator, augmenter);
            }
            mixing.add(single(*weight) * single(parts[1]));
        }
        mixing.write(pixels);
        augmenter.give_back(mixing);
    }

    fn moves_pixels(&self) -> bool {
        true
    }

    fn copies_image(&self) -> bool {
        true
    }

    fn mixes_images(&self) -> bool {
        true
    }
}
