//! `timm_rand_augment`: RandAugment (Cubuk et al., arXiv 1909.13719) with the operations, magnitudes and filters of timm.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::image::warp::{self, Interpolation, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The strongest magnitude.
const MOST_MAGNITUDE: f64 = 10.0;

/// Operations per image: more would leave nothing of it, and each costs a pass.
const MAX_LAYERS: u32 = 16;

/// Applies `num_layers` uniformly drawn operations, each with `probability` and a normally distributed magnitude: the defaults are
/// timm's `rand-m9-mstd0.5-inc1`, as its `create_transform` makes it for ImageNet.
///
/// The 15 operations are autocontrast, equalize, invert, rotate (≤ 30°), posterize (≤ 4 bits are left), solarize, solarize-add
/// (≤ 110 to values below 128), colour, contrast, brightness and sharpness (1 ± ≤ 0.9), shear (≤ 0.3) and translate
/// (≤ `translate_pct` of the side). Warps read by the bilinear or the bicubic filter, which is drawn for each.
///
/// ```
/// use feedstock_ops::image::TimmRandAugment;
/// use feedstock_ops::{ChainSpec, Op, center_crop, decode_image, timm_rand_augment};
///
/// // rand-m7-n3-mstd1
/// let op = TimmRandAugment::new(7.0).num_layers(3).magnitude_std(1.0).increasing(false);
/// let text = "decode_image,center_crop:32,timm_rand_augment:7:num_layers=3:magnitude_std=1:increasing=false";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from([decode_image(), center_crop(32), op.into()]));
/// assert_eq!(timm_rand_augment(9.0), Op::from(TimmRandAugment::default()));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TimmRandAugment {
    /// The mean of the magnitudes, 0 … 10 (timm's `m`); default 9.
    #[serde(default = "nine")]
    pub magnitude: f64,
    /// The standard deviation of the magnitudes, 0 … 100 (`mstd`); default 0.5. Magnitudes are limited to 0 … 10.
    #[serde(default = "half")]
    pub magnitude_std: f64,
    /// Operations drawn per image, 0 … 16 (`n`); default 2.
    #[serde(default = "two")]
    pub num_layers: u32,
    /// Whether a greater magnitude always is a stronger change (`inc1`); default true. Without it, posterize and solarize are
    /// strongest at 0, and enhancements have the factor 0.1 + 0.18 · magnitude.
    #[serde(default = "yes")]
    pub increasing: bool,
    /// The probability of each drawn operation, 0 … 1 (`p`); default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
    /// The largest move, as a share of the side, 0 … 1; default 0.45.
    #[serde(default = "translate_pct")]
    pub translate_pct: f64,
    /// How warps read between pixels; default: bilinear or bicubic, drawn for each warp.
    #[serde(default)]
    pub interpolation: Option<Interpolation>,
    /// The value outside of a warped image; default 124/116/104, the mean of ImageNet. An image of one channel needs one number.
    #[serde(default = "imagenet_mean")]
    pub fill: Fill,
}

fn nine() -> f64 {
    9.0
}

fn half() -> f64 {
    0.5
}

fn two() -> u32 {
    2
}

fn yes() -> bool {
    true
}

fn translate_pct() -> f64 {
    0.45
}

fn imagenet_mean() -> Fill {
    Fill([124, 116, 104])
}

impl Default for TimmRandAugment {
    fn default() -> Self {
        Self::new(nine())
    }
}

impl TimmRandAugment {
    /// Draws magnitudes around `magnitude`, 0 … 10.
    pub fn new(magnitude: f64) -> Self {
        Self {
            magnitude,
            magnitude_std: half(),
            num_layers: two(),
            increasing: yes(),
            probability: half(),
            translate_pct: translate_pct(),
            interpolation: None,
            fill: imagenet_mean(),
        }
    }

    /// The standard deviation of the magnitudes.
    #[must_use]
    pub fn magnitude_std(self, magnitude_std: f64) -> Self {
        Self { magnitude_std, ..self }
    }

    /// The number of operations drawn per image.
    #[must_use]
    pub fn num_layers(self, num_layers: u32) -> Self {
        Self { num_layers, ..self }
    }

    /// Whether a greater magnitude always is a stronger change.
    #[must_use]
    pub fn increasing(self, increasing: bool) -> Self {
        Self { increasing, ..self }
    }

    /// The probability of each drawn operation.
    #[must_use]
    pub fn probability(self, probability: f64) -> Self {
        Self { probability, ..self }
    }

    /// The largest move, as a share of the side.
    #[must_use]
    pub fn translate_pct(self, translate_pct: f64) -> Self {
        Self { translate_pct, ..self }
    }

    /// How all warps read between pixels.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Self {
        Self { interpolation: Some(interpolation), ..self }
    }

    /// The value outside of a warped image.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }

    fn check(&self) -> Result<()> {
        check_probability(self.probability)?;
        if self.num_layers > MAX_LAYERS {
            let given = self.num_layers;
            return Err(Error::config(format!("num_layers must be 0 … {MAX_LAYERS}; got {given}")));
        }
        for (name, value, most) in [
            ("magnitude", self.magnitude, MOST_MAGNITUDE),
            ("magnitude_std", self.magnitude_std, 100.0),
            ("translate_pct", self.translate_pct, 1.0),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(Error::config(format!("{name} must be 0 … {most}; got {value}")));
            }
        }
        Ok(())
    }

    /// Draws an operation with all its parameters; `None` for one that its probability left out.
    fn draw(&self, generator: &mut Generator) -> Option<Drawn> {
        let kind = KINDS[generator.below(KIND_COUNT) as usize];
        if !generator.chance(self.probability) {
            return None;
        }
        let deviation = if self.magnitude_std > 0.0 { self.magnitude_std * generator.normal() } else { 0.0 };
        let share = (self.magnitude + deviation).clamp(0.0, MOST_MAGNITUDE) / MOST_MAGNITUDE;
        let sign = if kind.is_signed(self.increasing) && generator.below(2) == 1 { -1.0 } else { 1.0 };
        let drawn = match self.interpolation {
            None if kind.is_warp() && generator.below(2) == 1 => Interpolation::Bicubic,
            None => Interpolation::Bilinear,
            Some(interpolation) => interpolation,
        };
        Some(Drawn { kind, argument: self.argument(kind, share, sign), interpolation: drawn })
    }

    /// The argument of an operation at a share of the strongest magnitude.
    fn argument(&self, kind: Kind, share: f64, sign: f64) -> f64 {
        match kind {
            Kind::AutoContrast | Kind::Equalize | Kind::Invert => 0.0,
            Kind::Rotate => sign * share * 30.0,
            Kind::Posterize if self.increasing => 4.0 - (share * 4.0).trunc(),
            Kind::Posterize => (share * 4.0).trunc(),
            Kind::Solarize if self.increasing => 256.0 - (share * 256.0).trunc(),
            Kind::Solarize => (share * 256.0).trunc(),
            Kind::SolarizeAdd => (share * 110.0).trunc(),
            Kind::Color | Kind::Contrast | Kind::Brightness | Kind::Sharpness if self.increasing => {
                (1.0 + sign * share * 0.9).max(0.1)
            }
            Kind::Color | Kind::Contrast | Kind::Brightness | Kind::Sharpness => share * 1.8 + 0.1,
            Kind::ShearX | Kind::ShearY => sign * share * 0.3,
            Kind::TranslateX | Kind::TranslateY => sign * share * self.translate_pct,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

const KIND_COUNT: u32 = 15;

/// The operations in timm's order.
const KINDS: [Kind; KIND_COUNT as usize] = [
    Kind::AutoContrast,
    Kind::Equalize,
    Kind::Invert,
    Kind::Rotate,
    Kind::Posterize,
    Kind::Solarize,
    Kind::SolarizeAdd,
    Kind::Color,
    Kind::Contrast,
    Kind::Brightness,
    Kind::Sharpness,
    Kind::ShearX,
    Kind::ShearY,
    Kind::TranslateX,
    Kind::TranslateY,
];

impl Kind {
    fn is_warp(self) -> bool {
        matches!(self, Self::Rotate | Self::ShearX | Self::ShearY | Self::TranslateX | Self::TranslateY)
    }

    /// Half of the draws take the negative magnitude.
    fn is_signed(self, increasing: bool) -> bool {
        let is_enhancement =
            matches!(self, Self::Color | Self::Contrast | Self::Brightness | Self::Sharpness);
        self.is_warp() || (is_enhancement && increasing)
    }
}

/// One operation.
struct Drawn {
    kind: Kind,
    argument: f64,
    interpolation: Interpolation,
}

impl Drawn {
    fn apply(&self, pixels: &mut [u8], size: Size, fill: Fill, augmenter: &mut Augmenter) {
        let Self { kind, argument, interpolation } = *self;
        let mapping = match kind {
            Kind::AutoContrast => return enhance::autocontrast(pixels),
            Kind::Equalize => return enhance::equalize(pixels),
            Kind::Invert => return enhance::invert(pixels),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 4 bits")]
            Kind::Posterize => return enhance::posterize(pixels, argument as u32),
            Kind::Solarize => return enhance::solarize(pixels, argument),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 110")]
            Kind::SolarizeAdd => return enhance::solarize_add(pixels, argument as u8),
            Kind::Color => return enhance::saturation(pixels, argument),
            Kind::Contrast => return enhance::contrast(pixels, argument),
            Kind::Brightness => return enhance::brightness(pixels, argument),
            Kind::Sharpness => {
                return enhance::sharpness(pixels, size.width as usize, argument, augmenter.spare());
            }
            Kind::Rotate => warp::rotate(argument, warp::middle(size)),
            Kind::ShearX => warp::shear(argument, 0.0),
            Kind::ShearY => warp::shear(0.0, argument),
            // A positive share moves the image to the left or up, by parts of pixels, too.
            Kind::TranslateX => warp::translate(-argument * f64::from(size.width), 0.0),
            Kind::TranslateY => warp::translate(0.0, -argument * f64::from(size.height)),
        };
        augmenter.warp(pixels, size, mapping, WarpStyle { interpolation, fill });
    }
}

impl ImageOp for TimmRandAugment {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.check()?;
        compiler.pixels(self.clone())?;
        compiler.check_fill(self.fill)
    }
}

impl PixelOp for TimmRandAugment {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        for _ in 0..self.num_layers {
            if let Some(drawn) = self.draw(generator) {
                drawn.apply(pixels, size, self.fill, augmenter);
            }
        }
    }

    fn moves_pixels(&self) -> bool {
        true
    }

    fn copies_image(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn magnitudes_are_normal_and_both_filters_are_drawn() {
        let op = TimmRandAugment::new(5.0).magnitude_std(1.0);
        let drawn: Vec<Drawn> =
            (0..20_000).filter_map(|sample| op.draw(&mut SampleSeed::new(1, 0, sample).op(2))).collect();
        // 10,000 expected, σ ≈ 71.
        assert!(drawn.len().abs_diff(10_000) < 400, "{}", drawn.len());
        let angles: Vec<f64> =
            drawn.iter().filter(|op| op.kind == Kind::Rotate).map(|op| op.argument).collect();
        let magnitudes: Vec<f64> = angles.iter().map(|angle| angle.abs() / 3.0).collect();
        let count = magnitudes.len() as f64;
        let mean = magnitudes.iter().sum::<f64>() / count;
        let variance = magnitudes.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 5.0).abs() < 0.2 && (variance - 1.0).abs() < 0.3, "{mean} {variance}");
        let negative = angles.iter().filter(|angle| **angle < 0.0).count() as f64 / count;
        let cubic =
            drawn.iter().filter(|op| op.kind == Kind::Rotate && op.interpolation == Interpolation::Bicubic);
        assert!((0.4..0.6).contains(&negative), "{negative}");
        assert!((0.4..0.6).contains(&(cubic.count() as f64 / count)));
    }
}
