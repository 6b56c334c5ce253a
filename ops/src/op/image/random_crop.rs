//! `random_crop`: a random place of the image.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::{Fill, PaddingMode};
use crate::image::geometry::{Rect, Size};
use crate::image::step::Crop;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Cuts `size` out at a uniformly drawn place, as torchvision's `RandomCrop`.
///
/// ```
/// use feedstock_ops::{ChainSpec, decode_image, random_crop};
///
/// let chain = ChainSpec::from([decode_image(), random_crop([192, 256])]).compile()?;
/// assert_eq!(chain.output().shape, [192, 256, 3]);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomCrop {
    /// Height and width of the result.
    pub size: Size,
    /// Pixels added on each side first; default 0.
    #[serde(default)]
    pub padding: u32,
    /// Pad a smaller image (on both sides, as torchvision) instead of refusing it; default false.
    #[serde(default)]
    pub pad_if_needed: bool,
    /// The value of added pixels, in every channel, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default, skip_serializing_if = "is_black")]
    pub fill: u8,
}

fn is_black(fill: &u8) -> bool {
    *fill == 0
}

impl RandomCrop {
    /// Crops to `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), padding: 0, pad_if_needed: false, fill: 0 }
    }

    /// Adds `pixels` on each side first.
    #[must_use]
    pub fn padding(self, pixels: u32) -> Self {
        Self { padding: pixels, ..self }
    }

    /// Pads smaller images instead of refusing them.
    #[must_use]
    pub fn pad_if_needed(self, pad: bool) -> Self {
        Self { pad_if_needed: pad, ..self }
    }

    /// Sets the value of added pixels.
    #[must_use]
    pub fn fill(self, fill: u8) -> Self {
        Self { fill, ..self }
    }
}

impl ImageOp for RandomCrop {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.size.check()?;
        Size::from(self.padding.max(1)).check()?;
        compiler.crop(self.size, self.clone())
    }
}

impl Crop for RandomCrop {
    fn is_idle(&self, image: Size, _: &mut Generator) -> bool {
        self.padding == 0 && image == self.size
    }

    fn padded(&self, image: Size, _: &mut Generator) -> Result<(Size, [u32; 2])> {
        let mut size =
            Size { height: image.height + 2 * self.padding, width: image.width + 2 * self.padding };
        let mut offset = [self.padding; 2];
        let lack = [self.size.height.saturating_sub(size.height), self.size.width.saturating_sub(size.width)];
        if lack != [0, 0] && !self.pad_if_needed {
            return Err(Error::bad_sample(format!(
                "random_crop: the image is {}×{} (height × width), smaller than the crop {}×{}; resize first or \
                 set pad_if_needed",
                size.height, size.width, self.size.height, self.size.width
            )));
        }
        for (axis, side) in [&mut size.height, &mut size.width].into_iter().enumerate() {
            *side += 2 * lack[axis];
            offset[axis] += lack[axis];
        }
        Ok((size, offset))
    }

    fn rect(&self, image: Size, generator: &mut Generator) -> Rect {
        // Rows first, as torchvision.
        let y = generator.below(image.height - self.size.height + 1);
        let x = generator.below(image.width - self.size.width + 1);
        Rect { x, y, width: self.size.width, height: self.size.height }
    }

    fn padding(&self) -> (PaddingMode, Fill) {
        (PaddingMode::Constant, self.fill.into())
    }
}
