//! `horizontal_flip`: left becomes right.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::Axis;
use crate::image::in_place::Mirror;
use crate::seed::Generator;
use feedstock_base::Result;

/// Mirrors the image with `probability`.
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
/// let chain = Chain::parse("decode_image,center_crop:1x2,horizontal_flip:1")?;
/// let image = encode(2, 1, &[1, 2, 3, 4, 5, 6]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [4, 5, 6, 1, 2, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HorizontalFlip {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl HorizontalFlip {
    /// Flips with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }

    /// Draws whether the sample of this generator is mirrored.
    pub fn draw(&self, generator: &mut Generator) -> bool {
        generator.chance(self.probability)
    }
}

impl Default for HorizontalFlip {
    fn default() -> Self {
        Self::new(half())
    }
}

impl ImageOp for HorizontalFlip {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        compiler.mirror(self.clone())
    }
}

impl Mirror for HorizontalFlip {
    fn draw(&self, generator: &mut Generator) -> bool {
        self.draw(generator)
    }

    fn axis(&self) -> Axis {
        Axis::Horizontal
    }
}
