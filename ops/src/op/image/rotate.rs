//! `rotate`: turns the image by a random angle.

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::Warp;
use crate::image::parameters::check_point;
use crate::image::step::Turn;
use crate::image::warp::{self, Interpolation, Mapping, WarpStyle};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Turns the image by an angle drawn uniformly from `degrees`, as torchvision's `RandomRotation`; it keeps the size, unless it is to
/// `expand`.
///
/// A mask turns with its image, by the nearest pixel.
///
/// ```
/// use feedstock_ops::{Chain, SampleSeed, Scratch};
///
/// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
/// #     let mut out = Vec::new();
/// #     let mut encoder = png::Encoder::new(&mut out, width, height);
/// #     encoder.set_color(png::ColorType::Rgb);
/// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
/// #     out
/// # }
/// let chain = Chain::parse("decode_image,resize:2x2,rotate:90..90")?;
/// let image = encode(2, 2, &[[1; 3], [2; 3], [3; 3], [4; 3]].concat());
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [[2; 3], [4; 3], [1; 3], [3; 3]].concat()); // counter-clockwise
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Rotate {
    /// Least and greatest angle, counter-clockwise, −360 … 360; one number d is −d … d.
    #[serde(deserialize_with = "crate::check::symmetric_range")]
    pub degrees: [f64; 2],
    /// How the image is read between pixels; default nearest.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// The point that stays, `[x, y]` in pixels from the top left corner; default: the middle.
    #[serde(default)]
    pub center: Option<[f64; 2]>,
    /// The value outside of the image, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
    /// The image becomes large enough to show all of it, with Pillow's size; default false. Images differ in size after it, so a resize
    /// or crop has to follow.
    #[serde(default, skip_serializing_if = "is_false")]
    pub expand: bool,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Rotate {
    /// Turns by an angle within `degrees`, `[least, greatest]`.
    pub fn new(degrees: [f64; 2]) -> Self {
        Self {
            degrees,
            interpolation: Interpolation::default(),
            center: None,
            fill: Fill::default(),
            expand: false,
        }
    }

    /// How the image is read between pixels.
    #[must_use]
    pub fn interpolation(self, interpolation: Interpolation) -> Self {
        Self { interpolation, ..self }
    }

    /// The point that stays, `[x, y]` in pixels.
    #[must_use]
    pub fn center(self, center: [f64; 2]) -> Self {
        Self { center: Some(center), ..self }
    }

    /// The value outside of the image.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }

    /// Sets whether the image becomes large enough to show all of it.
    #[must_use]
    pub fn expand(self, expand: bool) -> Self {
        Self { expand, ..self }
    }
}

impl ImageOp for Rotate {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_range("degrees", self.degrees, -360.0, 360.0)?;
        check_point("center", self.center)?;
        match (self.expand, self.center) {
            (false, _) => compiler.warp(self.clone()),
            (true, None) => compiler.turn(self.clone()),
            (true, Some(_)) => Err(Error::config("expand turns around the middle; leave center out")),
        }
    }
}

impl Warp for Rotate {
    fn draw(&self, size: Size, generator: &mut Generator) -> Option<Mapping> {
        let angle = generator.uniform(self.degrees[0], self.degrees[1]);
        Some(warp::rotate(angle, self.center.unwrap_or(warp::middle(size))))
    }

    fn style(&self) -> WarpStyle {
        WarpStyle { interpolation: self.interpolation, fill: self.fill }
    }
}

impl Turn for Rotate {
    fn draw(&self, image: Size, generator: &mut Generator) -> Result<(Mapping, Size)> {
        let angle = generator.uniform(self.degrees[0], self.degrees[1]);
        let (mapping, size) = warp::rotate_expanded(angle, image);
        match size.check() {
            Ok(()) => Ok((mapping, size)),
            Err(error) => Err(Error::bad_sample(format!("rotate: {}", error.message()))),
        }
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
    fn an_expanded_image_has_room_for_its_corners() {
        let image = Size { height: 30, width: 81 };
        let draw = |degrees: f64| {
            let op = Rotate::new([degrees; 2]).expand(true);
            Turn::draw(&op, image, &mut SampleSeed::new(1, 0, 0).op(1)).unwrap()
        };
        for (degrees, expected) in [(0.0, [30, 81]), (90.0, [81, 30]), (-180.0, [30, 81]), (270.0, [81, 30])]
        {
            assert_eq!(draw(degrees).1, Size::from(expected), "{degrees}");
        }
        for degrees in [0.5, 33.0, 45.0, 89.9, 120.0, 300.5] {
            let (mapping, size) = draw(degrees);
            let turn = f64::to_radians(degrees);
            let needed = 81.0 * turn.cos().abs() + 30.0 * turn.sin().abs();
            assert!((0.0..2.0).contains(&(f64::from(size.width) - needed)), "{degrees}: {size:?}");
            // The middle stays in the middle.
            let (x, y) = mapping.at(f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
            assert!((x - 40.5).abs() < 1e-9 && (y - 15.0).abs() < 1e-9, "{degrees}: {x}, {y}");
        }
        let large = Rotate::new([45.0; 2]).expand(true);
        let error = Turn::draw(&large, Size::from(30_000), &mut SampleSeed::new(1, 0, 0).op(1)).unwrap_err();
        assert!(error.message().starts_with("rotate: size must be 1 … 32768 pixels"), "{error}");
    }
}
