//! Sizes, rectangles and resampling filters.

use serde::{Deserialize, Serialize};

pub(crate) use crate::check::{check_probability, check_range};
use feedstock_base::{Error, Result};

/// The longest side that an op may produce, in pixels: a 32,768² u8 picture is 3 GiB, far over any training input.
pub(crate) const MAX_SIDE: u32 = 32_768;

/// Height and width in pixels; `[height, width]` in JSON, where a single number means a square.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "SizeForm", into = "[u32; 2]")]
pub struct Size {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a side in pixels, or height and width as 224x288")]
enum SizeForm {
    Square(u32),
    Sides([u32; 2]),
}

impl From<SizeForm> for Size {
    fn from(form: SizeForm) -> Self {
        match form {
            SizeForm::Square(side) => side.into(),
            SizeForm::Sides(sides) => sides.into(),
        }
    }
}

impl From<u32> for Size {
    fn from(side: u32) -> Self {
        Self { height: side, width: side }
    }
}

/// `[height, width]`.
impl From<[u32; 2]> for Size {
    fn from([height, width]: [u32; 2]) -> Self {
        Self { height, width }
    }
}

impl From<Size> for [u32; 2] {
    fn from(size: Size) -> Self {
        [size.height, size.width]
    }
}

impl Size {
    pub(crate) fn rgb_bytes(self) -> usize {
        self.height as usize * self.width as usize * 3
    }

    pub(crate) fn check(self) -> Result<()> {
        let sides = [self.height, self.width];
        if sides.iter().all(|side| (1..=MAX_SIDE).contains(side)) {
            return Ok(());
        }
        Err(Error::config(format!(
            "size {}×{} (height × width) is outside 1 … {MAX_SIDE}",
            self.height, self.width
        )))
    }
}

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rect {
    /// The first column.
    pub x: u32,
    /// The first row.
    pub y: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Rect {
    pub(crate) fn of(size: Size) -> Self {
        Self { x: 0, y: 0, width: size.width, height: size.height }
    }

    pub(crate) fn size(self) -> Size {
        Size { height: self.height, width: self.width }
    }

    /// `inner`, given relative to `self`, in the coordinates of `self`.
    pub(crate) fn narrow(self, inner: Rect) -> Self {
        debug_assert!(inner.x + inner.width <= self.width && inner.y + inner.height <= self.height);
        Self { x: self.x + inner.x, y: self.y + inner.y, ..inner }
    }
}

/// How resizing weighs source pixels: Pillow's antialiased filters of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// Triangle, support 1: torchvision's default.
    #[default]
    Bilinear,
    /// Catmull–Rom family with a = −0.5, support 2.
    Bicubic,
    /// Windowed sinc, support 3.
    Lanczos,
}

/// Python's `round` of a half difference, which torchvision's centre crop uses: ties go to the even number.
pub(crate) fn half(difference: u32) -> u32 {
    let floor = difference / 2;
    if difference % 2 == 1 && floor % 2 == 1 { floor + 1 } else { floor }
}
