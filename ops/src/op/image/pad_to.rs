//! `pad_to`: adds pixels on the right and below up to a size.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::{Fill, PaddingMode};
use crate::image::geometry::{Rect, Size};
use crate::image::step::Crop;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Adds pixels on the right and below, so that all images have one size. A larger image is a bad sample.
///
/// ```
/// use feedstock_ops::image::{PadTo, Resize};
/// use feedstock_ops::{ChainSpec, decode_image};
///
/// // As detectors resize: the shorter side to 800 pixels, but the longer to 1,333 at most.
/// let ops = [decode_image(), Resize::new(800).max_size(1333).into(), PadTo::new(1344).fill(114).into()];
/// let chain = ChainSpec::from(ops);
/// assert_eq!("decode_image,resize:800:max_size=1333,pad_to:1344:fill=114".parse::<ChainSpec>()?, chain);
/// assert_eq!(chain.compile()?.output().shape, [1344, 1344, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PadTo {
    /// Height and width of the result.
    pub size: Size,
    /// The value of added pixels, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
}

impl PadTo {
    /// Pads to `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), fill: Fill::default() }
    }

    /// Sets the value of added pixels.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }
}

impl ImageOp for PadTo {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.size.check()?;
        compiler.crop(self.size, self.clone())
    }
}

impl Crop for PadTo {
    fn padded(&self, image: Size, _: &mut Generator) -> Result<(Size, [u32; 2])> {
        let Size { height, width } = self.size;
        if image.height > height || image.width > width {
            return Err(Error::bad_sample(format!(
                "pad_to: the image is {}×{} (height × width), larger than {height}×{width}; resize first, with max_size",
                image.height, image.width
            )));
        }
        Ok((self.size, [0, 0]))
    }

    fn rect(&self, padded: Size, _: &mut Generator) -> Rect {
        Rect::of(padded)
    }

    fn padding(&self) -> (PaddingMode, Fill) {
        (PaddingMode::Constant, self.fill)
    }
}
