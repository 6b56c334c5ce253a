//! `posterize`: keeps the highest bits.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// With `probability`, keeps the `bits` highest bits of each value, as torchvision's `RandomPosterize`.
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
/// let chain = Chain::parse("decode_image,center_crop:1,posterize:2:1")?;
/// let image = encode(1, 1, &[63, 64, 255]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [0, 64, 192]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Posterize {
    /// 1 … 8.
    pub bits: u32,
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl Posterize {
    /// Keeps `bits` bits with `probability`, 0 … 1.
    pub fn new(bits: u32, probability: f64) -> Self {
        Self { bits, probability }
    }
}

impl ImageOp for Posterize {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        if !(1..=8).contains(&self.bits) {
            return Err(Error::config(format!("bits must be 1 … 8; got {}", self.bits)));
        }
        compiler.pixels(self.clone())
    }
}

impl PixelOp for Posterize {
    fn run(&self, pixels: &mut [u8], _: Size, generator: &mut Generator, _: &mut Augmenter) {
        if generator.chance(self.probability) {
            enhance::posterize(pixels, self.bits);
        }
    }
}
