//! `perspective`: shows the image from a random side.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::Warp;
use crate::image::warp::{self, Interpolation, Mapping, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// With `probability`, moves each corner of the image inwards by up to `distortion_scale` / 2 of the sides and warps the image
/// accordingly, as torchvision's `RandomPerspective`; it keeps the size.
///
/// A mask follows its image, by the nearest pixel. Where the corners come to be on one line, the image stays.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, perspective, resize};
///
/// let chain = ChainSpec::from([decode_image(), resize([32, 32]), perspective(0.5, 0.5)]);
/// assert_eq!("decode_image,resize:32x32,perspective".parse::<ChainSpec>()?, chain);
/// assert_eq!(chain.compile()?.output().shape, [32, 32, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Perspective {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub distortion_scale: f64,
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
    /// How the image is read between pixels; default bilinear.
    #[serde(default = "bilinear")]
    pub interpolation: Interpolation,
    /// The value outside of the image, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
}

fn half() -> f64 {
    0.5
}

fn bilinear() -> Interpolation {
    Interpolation::Bilinear
}

impl Default for Perspective {
    fn default() -> Self {
        Self::new(half(), half())
    }
}

impl Perspective {
    /// Moves the corners by up to `distortion_scale` / 2 of the sides, with `probability`; both 0 … 1.
    pub fn new(distortion_scale: f64, probability: f64) -> Self {
        Self { distortion_scale, probability, interpolation: bilinear(), fill: Fill::default() }
    }

    /// How the image is read between pixels.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Self {
        Self { interpolation, ..self }
    }

    /// The value outside of the image.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }

    /// Draws where the corners go, `[x, y]`, clockwise from the top left.
    fn corners(&self, size: Size, generator: &mut Generator) -> [[f64; 2]; 4] {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most half a side")]
        let bound = |side: u32| (self.distortion_scale * f64::from(side / 2)) as u32 + 1;
        let bounds = [bound(size.width), bound(size.height)];
        let sides = [size.width, size.height];
        [[false, false], [true, false], [true, true], [false, true]].map(|is_far| {
            std::array::from_fn(|axis| {
                let first = if is_far[axis] { sides[axis] - bounds[axis] } else { 0 };
                f64::from(first + generator.below(bounds[axis]))
            })
        })
    }
}

impl ImageOp for Perspective {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        if !(0.0..=1.0).contains(&self.distortion_scale) {
            let scale = self.distortion_scale;
            return Err(Error::config(format!("distortion_scale must be 0 … 1; got {scale}")));
        }
        compiler.warp(self.clone())
    }
}

impl Warp for Perspective {
    fn draw(&self, size: Size, generator: &mut Generator) -> Option<Mapping> {
        if !generator.chance(self.probability) {
            return None;
        }
        warp::perspective(size, self.corners(size, generator))
    }

    fn style(&self) -> WarpStyle {
        WarpStyle { interpolation: self.interpolation, fill: self.fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn corners_move_inwards_by_half_the_scale() {
        let (op, size) = (Perspective::new(0.6, 1.0), Size { height: 41, width: 100 });
        let mut seen = [[f64::MAX, f64::MIN]; 8];
        for sample in 0..2000 {
            let corners = op.corners(size, &mut SampleSeed::new(1, 0, sample).op(1));
            for ([low, high], value) in seen.iter_mut().zip(corners.as_flattened()) {
                (*low, *high) = (low.min(*value), high.max(*value));
            }
        }
        // 0.6 · 50 and 0.6 · 20 pixels.
        let (left, right, top, bottom) = ([0.0, 30.0], [69.0, 99.0], [0.0, 12.0], [28.0, 40.0]);
        assert_eq!(seen, [left, top, right, top, right, bottom, left, bottom]);
        let point = Size { height: 1, width: 1 };
        assert!(op.draw(point, &mut SampleSeed::new(1, 0, 0).op(1)).is_none());
    }
}
