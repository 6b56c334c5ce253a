//! `equalize`: flattens the histograms.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::Result;

/// With `probability`, flattens the histogram of each channel, as torchvision's `RandomEqualize`. The arithmetic is Pillow's
/// `ImageOps.equalize`.
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
/// let chain = Chain::parse("decode_image,resize:16x32,equalize:1")?;
/// let image = encode(32, 16, &(0..32 * 16 * 3).map(|i| (i / 6 % 100) as u8).collect::<Vec<u8>>());
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row.iter().max(), Some(&255)); // 99 before
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Equalize {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl Equalize {
    /// Equalizes with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }
}

impl Default for Equalize {
    fn default() -> Self {
        Self::new(half())
    }
}

impl ImageOp for Equalize {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        compiler.pixels(self.clone())
    }
}

impl PixelOp for Equalize {
    fn run(&self, pixels: &mut [u8], _: Size, generator: &mut Generator, _: &mut Augmenter) {
        if generator.chance(self.probability) {
            enhance::equalize(pixels);
        }
    }
}
