//! `horizontal_flip`: left becomes right.

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::step::Mirror;
use crate::seed::Generator;
use feedstock_base::Result;

/// Mirrors the image with `probability`.
///
/// ```
/// use feedstock_ops::{ChainSpec, center_crop, decode_image, horizontal_flip};
///
/// let chain = ChainSpec::from([decode_image(), center_crop(32), horizontal_flip(0.5)]).compile()?;
/// assert_eq!(chain.output().shape, [32, 32, 3]);
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
    /// A flip with `probability`, 0 … 1.
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
}
