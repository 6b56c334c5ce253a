//! `affine`: turns, moves, scales and shears the image at random.

use serde::{Deserialize, Deserializer, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::Warp;
use crate::image::parameters::check_point;
use crate::image::warp::{self, Interpolation, Mapping, Move, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Turns, moves, scales and shears the image around its middle, as torchvision's `RandomAffine`; it keeps the size.
///
/// All numbers are drawn uniformly, and all are always drawn. A mask moves with its image, by the nearest pixel.
///
/// ```
/// use feedstock_ops::{ChainSpec, affine, decode_image, resize};
/// use feedstock_ops::image::Affine;
///
/// let op = Affine::new([-10.0, 10.0]).translate([0.1, 0.1]).scale([0.9, 1.1]).fill(128);
/// let text = "decode_image,resize:32x32,affine:10:translate=0.1/0.1:scale=0.9..1.1:fill=128";
/// let chain = ChainSpec::parse(text)?;
/// assert_eq!(chain, ChainSpec::from([decode_image(), resize([32, 32]), op.into()]));
/// assert_eq!(chain.compile()?.output().shape, [32, 32, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Affine {
    /// Least and greatest angle, clockwise, −360 … 360; one number d is −d … d.
    #[serde(deserialize_with = "crate::check::symmetric_range")]
    pub degrees: [f64; 2],
    /// The largest move to either side and up or down, in fractions of width and height, 0 … 1; default 0. Moves are whole pixels.
    #[serde(default)]
    pub translate: [f64; 2],
    /// Least and greatest scale, above 0; default 1.
    #[serde(default = "ones", deserialize_with = "crate::check::range")]
    pub scale: [f64; 2],
    /// Least and greatest shear along x, then along y, in degrees; two numbers are those along x, one number s is −s … s along x;
    /// default 0.
    #[serde(default, deserialize_with = "shear")]
    pub shear: [f64; 4],
    /// How the image is read between pixels; default nearest.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// The value outside of the image, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
    /// The point that stays, `[x, y]` in pixels from the top left corner; default: the middle.
    #[serde(default)]
    pub center: Option<[f64; 2]>,
}

fn ones() -> [f64; 2] {
    [1.0; 2]
}

fn shear<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 4], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, a range as -10..10, or two ranges as -10/10/-5/5")]
    enum Form {
        One(f64),
        Two([f64; 2]),
        Four([f64; 4]),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(value) => [-value, value, 0.0, 0.0],
        Form::Two([low, high]) => [low, high, 0.0, 0.0],
        Form::Four(ranges) => ranges,
    })
}

impl Affine {
    /// Turns by an angle within `degrees`, `[least, greatest]`; set the rest with the methods below.
    pub fn new(degrees: [f64; 2]) -> Self {
        Self {
            degrees,
            translate: [0.0; 2],
            scale: ones(),
            shear: [0.0; 4],
            interpolation: Interpolation::default(),
            fill: Fill::default(),
            center: None,
        }
    }

    /// The largest moves, in fractions of width and height.
    #[must_use]
    pub fn translate(self, translate: [f64; 2]) -> Self {
        Self { translate, ..self }
    }

    /// The scale, `[least, greatest]`.
    #[must_use]
    pub fn scale(self, scale: [f64; 2]) -> Self {
        Self { scale, ..self }
    }

    /// The shear along x, then along y, each least and greatest, in degrees.
    #[must_use]
    pub fn shear(self, shear: [f64; 4]) -> Self {
        Self { shear, ..self }
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

    /// The point that stays, `[x, y]` in pixels.
    #[must_use]
    pub fn center(self, center: [f64; 2]) -> Self {
        Self { center: Some(center), ..self }
    }

    fn draw_move(&self, size: Size, generator: &mut Generator) -> Move {
        let angle = generator.uniform(self.degrees[0], self.degrees[1]);
        let sides = [f64::from(size.width), f64::from(size.height)];
        let translate = std::array::from_fn(|axis| {
            let most = self.translate[axis] * sides[axis];
            generator.uniform(-most, most).round_ties_even()
        });
        let scale = generator.uniform(self.scale[0], self.scale[1]);
        let [x_low, x_high, y_low, y_high] = self.shear;
        let shear = [generator.uniform(x_low, x_high), generator.uniform(y_low, y_high)];
        Move { angle, translate, scale, shear }
    }
}

impl ImageOp for Affine {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_range("degrees", self.degrees, -360.0, 360.0)?;
        if !self.translate.iter().all(|share| (0.0..=1.0).contains(share)) {
            let [x, y] = self.translate;
            return Err(Error::config(format!("translate must be two numbers 0 … 1; got {x} and {y}")));
        }
        check_range("scale", self.scale, 1e-3, 1e3)?;
        let [x_low, x_high, y_low, y_high] = self.shear;
        for range in [[x_low, x_high], [y_low, y_high]] {
            check_range("shear", range, -89.0, 89.0)?;
        }
        check_point("center", self.center)?;
        compiler.warp(self.clone())
    }
}

impl Warp for Affine {
    fn draw(&self, size: Size, generator: &mut Generator) -> Option<Mapping> {
        let moved = self.draw_move(size, generator);
        Some(warp::affine(moved, self.center.unwrap_or(warp::middle(size))))
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
    fn draws_fill_their_ranges() {
        let op =
            Affine::new([-10.0, 20.0]).translate([0.1, 0.5]).scale([0.5, 2.0]).shear([-5.0, 5.0, 0.0, 8.0]);
        let size = Size { height: 20, width: 100 };
        let draws: Vec<Move> =
            (0..2000).map(|sample| op.draw_move(size, &mut SampleSeed::new(1, 0, sample).op(1))).collect();
        let range = |value: fn(&Move) -> f64| {
            draws.iter().map(value).fold([f64::MAX, f64::MIN], |[low, high], x| [low.min(x), high.max(x)])
        };
        for (range, [low, high]) in [
            (range(|moved| moved.angle), [-10.0, 20.0]),
            (range(|moved| moved.translate[0]), [-10.0, 10.0]),
            (range(|moved| moved.translate[1]), [-10.0, 10.0]),
            (range(|moved| moved.scale), [0.5, 2.0]),
            (range(|moved| moved.shear[0]), [-5.0, 5.0]),
            (range(|moved| moved.shear[1]), [0.0, 8.0]),
        ] {
            let slack = (high - low) / 100.0;
            assert!(range[0] >= low && range[0] < low + slack, "{range:?}, {low}");
            assert!(range[1] <= high && range[1] > high - slack, "{range:?}, {high}");
        }
        assert!(draws.iter().all(|moved| moved.translate.iter().all(|pixels| pixels.fract() == 0.0)));
    }
}
