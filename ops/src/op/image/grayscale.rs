//! `grayscale`: removes the colors.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::Result;

/// With `probability`, gives all three channels the image's luma, as torchvision's `RandomGrayscale`. The arithmetic is
/// Pillow's `convert("L")`.
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
/// let chain = Chain::parse("decode_image,center_crop:1,grayscale:1")?;
/// let image = encode(1, 1, &[255, 0, 0]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [76; 3]); // 0.299 R + 0.587 G + 0.114 B
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Grayscale {
    /// 0 … 1; default 0.1.
    #[serde(default = "tenth")]
    pub probability: f64,
}

fn tenth() -> f64 {
    0.1
}

impl Grayscale {
    /// Removes the colors with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }
}

impl Default for Grayscale {
    fn default() -> Self {
        Self::new(tenth())
    }
}

impl ImageOp for Grayscale {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for Grayscale {
    fn run(&self, pixels: &mut [u8], _: Size, generator: &mut Generator, _: &mut Augmenter) {
        if generator.chance(self.probability) {
            enhance::grayscale(pixels);
        }
    }
}
