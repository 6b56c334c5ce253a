//! `pad`: adds pixels around the image.

use serde::{Deserialize, Serialize};

use crate::image::compile::{Compiler, ImageOp};
use crate::image::fill::{Fill, PaddingMode};
use crate::image::geometry::{MAX_SIDE, Rect, Size};
use crate::image::step::Crop;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Adds pixels around the image, as torchvision's `Pad`.
///
/// A mask is padded as its image.
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
/// let chain = Chain::parse("decode_image,resize:1x2,pad:2/0:padding_mode=symmetric")?;
/// let image = encode(2, 1, &[1, 1, 1, 2, 2, 2]);
/// let mut row = vec![0; chain.output().bytes()];
/// chain.apply(&image, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(row, [[2; 3], [1; 3], [1; 3], [2; 3], [2; 3], [1; 3]].concat());
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Pad {
    /// Pixels on each side.
    pub padding: Padding,
    /// The value of added pixels, 0 … 255; default 0. For a mask, the class that a loss ignores.
    #[serde(default)]
    pub fill: Fill,
    /// What added pixels show; default constant, which is `fill`.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

/// Pixels on each side: in JSON one number, `[left and right, top and bottom]`, or `[left, top, right, bottom]`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(from = "Form", into = "[u32; 4]")]
pub struct Padding {
    /// Columns on the left.
    pub left: u32,
    /// Rows above.
    pub top: u32,
    /// Columns on the right.
    pub right: u32,
    /// Rows below.
    pub bottom: u32,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected pixels, left/top as 4/8, or left/top/right/bottom as 4/8/4/8")]
enum Form {
    All(u32),
    Axes([u32; 2]),
    Sides([u32; 4]),
}

impl From<Form> for Padding {
    fn from(form: Form) -> Self {
        match form {
            Form::All(pixels) => pixels.into(),
            Form::Axes([x, y]) => [x, y, x, y].into(),
            Form::Sides(sides) => sides.into(),
        }
    }
}

impl From<u32> for Padding {
    fn from(pixels: u32) -> Self {
        [pixels; 4].into()
    }
}

/// `[left, top, right, bottom]`.
impl From<[u32; 4]> for Padding {
    fn from([left, top, right, bottom]: [u32; 4]) -> Self {
        Self { left, top, right, bottom }
    }
}

impl From<Padding> for [u32; 4] {
    fn from(padding: Padding) -> Self {
        [padding.left, padding.top, padding.right, padding.bottom]
    }
}

impl Padding {
    fn around(self, image: Size) -> Size {
        Size { height: image.height + self.top + self.bottom, width: image.width + self.left + self.right }
    }
}

impl Pad {
    /// Adds `padding`: pixels on every side, or `[left, top, right, bottom]`.
    pub fn new(padding: impl Into<Padding>) -> Self {
        Self { padding: padding.into(), fill: Fill::default(), padding_mode: PaddingMode::default() }
    }

    /// Sets the value of added pixels.
    #[must_use]
    pub fn fill(self, fill: impl Into<Fill>) -> Self {
        Self { fill: fill.into(), ..self }
    }

    /// Sets what added pixels show.
    #[must_use]
    pub fn padding_mode(self, padding_mode: PaddingMode) -> Self {
        Self { padding_mode, ..self }
    }
}

impl ImageOp for Pad {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        let sides: [u32; 4] = self.padding.into();
        if let Some(side) = sides.into_iter().find(|side| *side > MAX_SIDE) {
            return Err(Error::config(format!(
                "padding must be 0 … {MAX_SIDE} pixels on each side; got {side}"
            )));
        }
        let size = compiler.size().map(|size| self.padding.around(size));
        size.map_or(Ok(()), Size::check)?;
        compiler.crop(size, self.clone())
    }
}

impl Crop for Pad {
    fn padded(&self, image: Size, _: &mut Generator) -> Result<(Size, [u32; 2])> {
        Ok((self.padding.around(image), [self.padding.top, self.padding.left]))
    }

    fn rect(&self, padded: Size, _: &mut Generator) -> Rect {
        Rect::of(padded)
    }

    fn padding(&self) -> (PaddingMode, Fill) {
        (self.padding_mode, self.fill)
    }
}
