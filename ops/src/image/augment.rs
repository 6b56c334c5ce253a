//! The operations that `auto_augment`, `rand_augment`, `trivial_augment` and `aug_mix` choose from, as torchvision's `_apply_op` on
//! PIL images defines them.

use super::augmenter::Augmenter;
use super::enhance;
use super::geometry::Size;
use super::warp::{self, WarpStyle};
use crate::seed::Generator;

/// One operation of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Augmentation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    /// Only in policies of `auto_augment`.
    Invert,
}

use Augmentation as A;

/// The operations that `rand_augment` and `trivial_augment` draw, in torchvision's order.
const ALL: [Augmentation; 14] = [
    A::Identity,
    A::ShearX,
    A::ShearY,
    A::TranslateX,
    A::TranslateY,
    A::Rotate,
    A::Brightness,
    A::Color,
    A::Contrast,
    A::Sharpness,
    A::Posterize,
    A::Solarize,
    A::AutoContrast,
    A::Equalize,
];

/// How strong a policy's strongest operations are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strength {
    pub(crate) shear: f32,
    /// Largest move in pixels to the side and down.
    pub(crate) translate: [f32; 2],
    pub(crate) rotate: f32,
    pub(crate) enhance: f32,
    /// The bits that posterize keeps at the first magnitude, and the most that it takes away of them.
    pub(crate) posterize: [f32; 2],
}

impl Strength {
    /// Of `auto_augment` and `rand_augment`, for an image of this size.
    pub(crate) fn moderate(size: Size) -> Self {
        Self {
            shear: 0.3,
            translate: [150.0 / 331.0 * size.width as f32, 150.0 / 331.0 * size.height as f32],
            rotate: 30.0,
            enhance: 0.9,
            posterize: [8.0, 4.0],
        }
    }

    /// Of `aug_mix`, for an image of this size.
    pub(crate) fn of_aug_mix(size: Size) -> Self {
        Self {
            translate: [size.width as f32 / 3.0, size.height as f32 / 3.0],
            posterize: [4.0, 4.0],
            ..Self::moderate(size)
        }
    }
}

impl Augmentation {
    /// Any of [`ALL`], uniformly.
    pub(crate) fn draw(generator: &mut Generator) -> Self {
        const COUNT: u32 = 14;
        const { assert!(ALL.len() == COUNT as usize) };
        ALL[generator.below(COUNT) as usize]
    }

    /// The magnitude at `bin` of `bins`, unsigned; f32 as in torchvision.
    pub(crate) fn magnitude(self, strength: Strength, bin: u32, bins: u32) -> f64 {
        let to = |most: f32| f64::from(linspace(0.0, most, bin, bins));
        match self {
            A::Identity | A::AutoContrast | A::Equalize | A::Invert => 0.0,
            A::ShearX | A::ShearY => to(strength.shear),
            A::TranslateX => to(strength.translate[0]),
            A::TranslateY => to(strength.translate[1]),
            A::Rotate => to(strength.rotate),
            A::Brightness | A::Color | A::Contrast | A::Sharpness => to(strength.enhance),
            A::Posterize => {
                let [kept, taken] = strength.posterize;
                f64::from(kept - (bin as f32 / ((bins - 1) as f32 / taken)).round_ties_even())
            }
            A::Solarize => f64::from(linspace(255.0, 0.0, bin, bins)),
        }
    }

    /// Half of the draws take the negative magnitude.
    pub(crate) fn is_signed(self) -> bool {
        !matches!(self, A::Identity | A::Posterize | A::Solarize | A::AutoContrast | A::Equalize | A::Invert)
    }

    /// Draws the sign and applies the operation to a dense RGB image.
    pub(crate) fn draw_and_apply(
        self,
        magnitude: f64,
        pixels: &mut [u8],
        size: Size,
        style: WarpStyle,
        generator: &mut Generator,
        augmenter: &mut Augmenter,
    ) {
        let negative = self.is_signed() && generator.below(2) == 1;
        let magnitude = if negative { -magnitude } else { magnitude };
        self.apply(magnitude, pixels, size, style, augmenter);
    }

    pub(crate) fn apply(
        self,
        magnitude: f64,
        pixels: &mut [u8],
        size: Size,
        style: WarpStyle,
        augmenter: &mut Augmenter,
    ) {
        let mapping = match self {
            A::Identity => return,
            A::ShearX => warp::shear(magnitude, 0.0),
            A::ShearY => warp::shear(0.0, magnitude),
            A::TranslateX => warp::translate(magnitude.trunc(), 0.0),
            A::TranslateY => warp::translate(0.0, magnitude.trunc()),
            A::Rotate => warp::rotate(magnitude, warp::middle(size)),
            A::Brightness => return enhance::brightness(pixels, 1.0 + magnitude),
            A::Color => return enhance::saturation(pixels, 1.0 + magnitude),
            A::Contrast => return enhance::contrast(pixels, 1.0 + magnitude),
            A::Sharpness => {
                return enhance::sharpness(pixels, size.width as usize, 1.0 + magnitude, augmenter.spare());
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 8 bits")]
            A::Posterize => return enhance::posterize(pixels, magnitude as u32),
            A::Solarize => return enhance::solarize(pixels, magnitude),
            A::AutoContrast => return enhance::autocontrast(pixels),
            A::Equalize => return enhance::equalize(pixels),
            A::Invert => return enhance::invert(pixels),
        };
        augmenter.warp(pixels, size, mapping, style);
    }
}

/// `torch.linspace` in f32: counted from the nearer end with fused multiply-add, so that the middle of 0 … 32 is just
/// below 16 and translates by 15 pixels.
pub(crate) fn linspace(start: f32, end: f32, bin: u32, bins: u32) -> f32 {
    let step = (end - start) / (bins - 1) as f32;
    if bin < bins / 2 {
        step.mul_add(bin as f32, start)
    } else {
        (-step).mul_add((bins - 1 - bin) as f32, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::image::{DecodeImage, decode_rgb};

    fn by_name(name: &str) -> Option<Augmentation> {
        ALL.into_iter().chain([A::Invert]).find(|op| format!("{op:?}") == name)
    }

    #[test]
    fn pixels_are_pillows() {
        let read =
            |name| decode_rgb(&std::fs::read(golden::path(name)).unwrap(), &DecodeImage::new()).unwrap();
        let (scene_size, scene) = read("scene.png");
        let (_, outcomes) = read("augment.png");
        let size = Size { height: 48, width: 64 };
        let mut input = Vec::new();
        for y in 5..53 {
            let at = (y * scene_size.width as usize + 8) * 3;
            input.extend_from_slice(&scene[at..at + 64 * 3]);
        }
        let cases = golden::references()["augment"].as_array().unwrap().clone();
        assert_eq!(outcomes.len(), cases.len() * input.len());
        let mut seen = std::collections::HashSet::new();
        for (case, expected) in cases.iter().zip(outcomes.chunks_exact(input.len())) {
            let magnitude = case["magnitude"].as_f64().unwrap();
            let interpolation = serde_json::from_value(case["interpolation"].clone()).unwrap();
            let name = case["op"].as_str().unwrap();
            let mut pixels = input.clone();
            match by_name(name) {
                Some(op) => {
                    seen.insert(format!("{op:?}"));
                    let style = WarpStyle { interpolation, fill: [10, 200, 30].into() };
                    op.apply(magnitude, &mut pixels, size, style, &mut Augmenter::default());
                }
                None => enhance::hue(&mut pixels, magnitude),
            }
            golden::assert_warped(&pixels, expected, interpolation, case);
        }
        assert_eq!(seen.len(), ALL.len() + 1); // with Invert
    }

    #[test]
    fn magnitudes_are_torchvisions() {
        let size = Size { height: 48, width: 64 };
        let trivial = Strength {
            shear: 0.99,
            translate: [32.0; 2],
            rotate: 135.0,
            enhance: 0.99,
            posterize: [8.0, 6.0],
        };
        for (policy, strength) in [("rand_augment", Strength::moderate(size)), ("trivial_augment", trivial)] {
            let tables = golden::references()["magnitudes"][policy].as_object().unwrap().clone();
            assert_eq!(tables.len(), ALL.len());
            for (name, table) in tables {
                for (bin, expected) in table.as_array().unwrap().iter().enumerate() {
                    let got = by_name(&name).unwrap().magnitude(strength, u32::try_from(bin).unwrap(), 31);
                    let expected = expected.as_f64().unwrap();
                    assert!((got - expected).abs() < 1e-5, "{policy} {name} bin {bin}: {got}, {expected}");
                    assert_eq!(got.trunc(), expected.trunc(), "{policy} {name} bin {bin}");
                }
            }
        }
    }
}
