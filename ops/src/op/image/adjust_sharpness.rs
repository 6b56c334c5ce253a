//! `adjust_sharpness`: smooths or sharpens.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::augmenter::Augmenter;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::enhance;
use crate::image::geometry::Size;
use crate::image::in_place::PixelOp;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// With `probability`, changes the sharpness by a factor, as torchvision's `RandomAdjustSharpness`. The arithmetic is Pillow's
/// `ImageEnhance.Sharpness`.
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
/// let chain = Chain::parse("decode_image,center_crop:3,adjust_sharpness:2:1")?;
/// let image = encode(3, 3, &[[50; 12].as_slice(), &[63; 3], &[50; 12]].concat());
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row[12..15], [71; 3]); // smoothed, the middle is 55
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AdjustSharpness {
    /// ≥ 0: 0 smooths, 1 changes nothing, 2 doubles the sharpness.
    pub sharpness_factor: f64,
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl AdjustSharpness {
    /// Sharpens by `sharpness_factor` with `probability`, 0 … 1.
    pub fn new(sharpness_factor: f64, probability: f64) -> Self {
        Self { sharpness_factor, probability }
    }
}

impl ImageOp for AdjustSharpness {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        if !(0.0..=f64::MAX).contains(&self.sharpness_factor) {
            let factor = self.sharpness_factor;
            return Err(Error::config(format!(
                "sharpness_factor must be a finite number >= 0; got {factor}"
            )));
        }
        compiler.pixels(self.clone())
    }
}

impl PixelOp for AdjustSharpness {
    fn run(&self, pixels: &mut [u8], size: Size, generator: &mut Generator, augmenter: &mut Augmenter) {
        if generator.chance(self.probability) {
            enhance::sharpness(pixels, size.width as usize, self.sharpness_factor, augmenter.spare());
        }
    }

    fn copies_image(&self) -> bool {
        true
    }
}
