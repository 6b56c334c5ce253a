//! `center_crop`: the middle of the image.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::{Fill, PaddingMode};
use crate::image::geometry::{Rect, Size, half};
use crate::image::step::Crop;
use crate::seed::Generator;
use feedstock_base::Result;

/// Cuts `size` out of the middle, as torchvision's `CenterCrop`; a smaller image is padded, evenly.
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
/// let chain = Chain::parse("decode_image,center_crop:1x2")?;
/// let image = encode(1, 1, &[7, 8, 9]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// let black = row.chunks(3).filter(|pixel| *pixel == [0; 3]).count();
/// assert_eq!((chain.output().shape.as_slice(), black), (&[1, 2, 3][..], 1)); // one column was added
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CenterCrop {
    /// Height and width of the result.
    pub size: Size,
    /// The value of added pixels, in every channel, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default, skip_serializing_if = "is_black")]
    pub fill: u8,
}

fn is_black(fill: &u8) -> bool {
    *fill == 0
}

impl CenterCrop {
    /// Crops to `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), fill: 0 }
    }

    /// Sets the value of added pixels.
    #[must_use]
    pub fn fill(self, fill: u8) -> Self {
        Self { fill, ..self }
    }
}

impl ImageOp for CenterCrop {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        self.size.check()?;
        compiler.crop(self.size, self.clone())
    }
}

impl Crop for CenterCrop {
    fn padded(&self, image: Size, _: &mut Generator) -> Result<(Size, [u32; 2])> {
        let lack =
            [self.size.height.saturating_sub(image.height), self.size.width.saturating_sub(image.width)];
        let size = Size { height: image.height + lack[0], width: image.width + lack[1] };
        // torchvision adds the odd pixel after the image.
        Ok((size, lack.map(|missing| missing / 2)))
    }

    fn rect(&self, padded: Size, _: &mut Generator) -> Rect {
        Rect {
            x: half(padded.width - self.size.width),
            y: half(padded.height - self.size.height),
            width: self.size.width,
            height: self.size.height,
        }
    }

    fn padding(&self) -> (PaddingMode, Fill) {
        (PaddingMode::Constant, self.fill.into())
    }
}
