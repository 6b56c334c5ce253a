//! `rotate`: turns the image by a random angle.

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::Fill;
use crate::image::geometry::Size;
use crate::image::in_place::Warp;
use crate::image::parameters::check_point;
use crate::image::warp::{self, Interpolation, Mapping, WarpStyle};
use crate::seed::Generator;
use feedstock_base::Result;

/// Turns the image by an angle drawn uniformly from `degrees`, as torchvision's `RandomRotation`; it keeps the size.
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
}

impl Rotate {
    /// Turns by an angle within `degrees`, `[least, greatest]`.
    pub fn new(degrees: [f64; 2]) -> Self {
        Self { degrees, interpolation: Interpolation::default(), center: None, fill: Fill::default() }
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
}

impl ImageOp for Rotate {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_range("degrees", self.degrees, -360.0, 360.0)?;
        check_point("center", self.center)?;
        compiler.warp(self.clone())
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
