//! `auto_augment`: one of a learned policy's pairs of operations (Cubuk et al., arXiv 1805.09501).

use serde::{Deserialize, Serialize};

use crate::image::augment::Strength;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::image::policies;
use crate::image::warp::{Interpolation, WarpStyle};
use crate::seed::Generator;
use feedstock_base::Result;

/// The magnitudes of each operation.
const BINS: u32 = 10;

/// Applies one of a policy's 25 pairs of operations, uniformly drawn, each operation with its probability; as torchvision's
/// `AutoAugment`.
///
/// ```
/// use feedstock_ops::image::AutoAugmentPolicy;
/// use feedstock_ops::{ChainSpec, auto_augment, center_crop, decode_image};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), auto_augment(AutoAugmentPolicy::Cifar10)]);
/// assert_eq!("decode_image,center_crop:32,auto_augment:cifar10".parse::<ChainSpec>()?, chain);
/// assert_eq!(chain.compile()?.output().shape, [32, 32, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AutoAugment {
    /// The data set that the policy was learned on; default imagenet.
    #[serde(default)]
    pub policy: AutoAugmentPolicy,
    /// How warps read between pixels; default nearest.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// The value outside of a warped image, 0 … 255; default 0.
    #[serde(default)]
    pub fill: Fill,
}

/// The data set that a policy of [`AutoAugment`] was learned on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AutoAugmentPolicy {
    /// ImageNet.
    #[default]
    Imagenet,
    /// CIFAR-10.
    Cifar10,
    /// Street View House Numbers.
    Svhn,
}

impl AutoAugment {
    /// Applies `policy`.
    pub fn new(policy: AutoAugmentPolicy) -> Self {
        Self { policy, ..Self::default() }
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

    fn pairs(&self) -> &'static policies::Policy {
        match self.policy {
            AutoAugmentPolicy::Imagenet => &policies::IMAGENET,
            AutoAugmentPolicy::Cifar10 => &policies::CIFAR10,
            AutoAugmentPolicy::Svhn => &policies::SVHN,
        }
    }
}

impl ImageOp for AutoAugment {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        compiler.check_fill(self.fill)?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for AutoAugment {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        let style = WarpStyle { interpolation: self.interpolation, fill: self.fill };
        let pair = &self.pairs()[generator.below(policies::PAIRS) as usize];
        for (op, tenths, bin) in pair {
            if generator.chance(f64::from(*tenths) / 10.0) {
                let magnitude = op.magnitude(Strength::moderate(size), *bin, BINS);
                op.draw_and_apply(magnitude, pixels, size, style, generator, augmenter);
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
    use crate::golden;
    use crate::image::augment::Augmentation;

    #[test]
    fn policies_and_magnitudes_are_torchvisions() {
        let references = golden::references();
        let size = Size { height: 48, width: 64 };
        for policy in [AutoAugmentPolicy::Imagenet, AutoAugmentPolicy::Cifar10, AutoAugmentPolicy::Svhn] {
            let name = serde_json::to_value(policy).unwrap();
            let expected = references["policies"][name.as_str().unwrap()].as_array().unwrap();
            let pairs = AutoAugment::new(policy).pairs();
            assert_eq!(pairs.len(), expected.len());
            for (op, expected) in
                pairs.iter().zip(expected).flat_map(|(a, b)| a.iter().zip(b.as_array().unwrap()))
            {
                let probability = f64::from(op.1) / 10.0;
                let magnitude = op.0.magnitude(Strength::moderate(size), op.2, BINS);
                assert_eq!(format!("{:?}", op.0), expected["op"].as_str().unwrap());
                assert_eq!(probability, expected["probability"].as_f64().unwrap(), "{expected}");
                let expected_magnitude = expected["magnitude"].as_f64().unwrap();
                assert!((magnitude - expected_magnitude).abs() < 1e-5, "{expected}: {magnitude}");
                assert_eq!(op.0.is_signed(), expected["signed"].as_bool().unwrap(), "{expected}");
                assert!(op.0 != Augmentation::Identity);
            }
        }
    }
}
