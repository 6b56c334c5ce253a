//! `solarize`: inverts bright values.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// With `probability`, inverts all values at or above `threshold`, as torchvision's `RandomSolarize`.
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
/// let chain = Chain::parse("decode_image,center_crop:1,solarize:128:1")?;
/// let image = encode(1, 1, &[127, 128, 255]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [127, 127, 0]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Solarize {
    /// The least value that is inverted, 0 … 256.
    pub threshold: f64,
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl Solarize {
    /// Inverts values of `threshold` or more with `probability`, 0 … 1.
    pub fn new(threshold: f64, probability: f64) -> Self {
        Self { threshold, probability }
    }
}

impl ImageOp for Solarize {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        if !(0.0..=256.0).contains(&self.threshold) {
            return Err(Error::config(format!("threshold must be 0 … 256; got {}", self.threshold)));
        }
        compiler.pixels(self.clone())
    }
}

impl PixelOp for Solarize {
    fn run(&self, pixels: &mut [u8], _: Size, generator: &mut Generator, _: &mut Augmenter) {
        if generator.chance(self.probability) {
            enhance::solarize(pixels, self.threshold);
        }
    }
}
