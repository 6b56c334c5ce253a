//! Sizes, rectangles and resampling filters.

use serde::{Deserialize, Serialize};

use feedstock_base::{Error, Result};

/// The longest side that an op may produce, in pixels: a 32,768² u8 image is 3 GiB, far over any training input.
pub(crate) const MAX_SIDE: u32 = 32_768;

/// Height and width in pixels; `[height, width]` in JSON, where a single number means a square.
///
/// ```
/// use feedstock_ops::image::Size;
///
/// assert_eq!(Size::from([224, 288]), Size { height: 224, width: 288 });
/// assert_eq!(serde_json::from_str::<Size>("224").unwrap(), Size::from([224, 224]));
/// ```
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
            "size must be 1 … {MAX_SIDE} pixels on each side; got {}×{} (height × width)",
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

    /// Returns the smallest rectangle that holds both.
    pub(crate) fn around(self, other: Rect) -> Self {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let right = (self.x + self.width).max(other.x + other.width);
        let bottom = (self.y + self.height).max(other.y + other.height);
        Self { x, y, width: right - x, height: bottom - y }
    }

    /// True if the centre of a box, given as left, top, right, bottom, is inside of the rectangle, and not on its edge.
    pub(crate) fn has_centre_of(self, [left, top, right, bottom]: [f64; 4]) -> bool {
        let is_within = |middle: f64, start: u32, length: u32| {
            f64::from(start) < middle && middle < f64::from(start) + f64::from(length)
        };
        is_within(0.5 * (left + right), self.x, self.width)
            && is_within(0.5 * (top + bottom), self.y, self.height)
    }

    /// `inner`, given relative to `self`, in the coordinates of `self`.
    pub(crate) fn narrow(self, inner: Rect) -> Self {
        debug_assert!(inner.x + inner.width <= self.width && inner.y + inner.height <= self.height);
        Self { x: self.x + inner.x, y: self.y + inner.y, ..inner }
    }
}

/// What a flip exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Left and right.
    Horizontal,
    /// Top and bottom.
    Vertical,
}

/// What several flips exchange together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flips {
    /// Left and right are exchanged.
    pub(crate) horizontal: bool,
    /// Top and bottom are exchanged.
    pub(crate) vertical: bool,
}

impl Flips {
    /// Adds a flip; two along one axis cancel.
    #[must_use]
    pub(crate) fn and(self, axis: Axis) -> Self {
        match axis {
            Axis::Horizontal => Self { horizontal: !self.horizontal, ..self },
            Axis::Vertical => Self { vertical: !self.vertical, ..self },
        }
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

impl Filter {
    /// Source pixels that weigh in on either side of a result pixel, at `scale` source pixels per result pixel.
    pub(crate) fn reach(self, scale: f64) -> f64 {
        let support = match self {
            Self::Nearest => 0.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        };
        support * scale.max(1.0)
    }
}

/// Source pixels in fractions: what the result shows of `view`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Window {
    /// What `crop` of an image of size `source` that was resized to `target` shows of it.
    pub(crate) fn of_resized(crop: Rect, source: Size, target: Size) -> Self {
        let scale_x = f64::from(source.width) / f64::from(target.width);
        let scale_y = f64::from(source.height) / f64::from(target.height);
        Self {
            left: f64::from(crop.x) * scale_x,
            top: f64::from(crop.y) * scale_y,
            width: f64::from(crop.width) * scale_x,
            height: f64::from(crop.height) * scale_y,
        }
    }
}

/// What a filter touches where it makes `window` of an image of size `source` that is resized to `target`.
pub(super) fn needed(window: Window, source: Size, target: Size, filter: Filter) -> Rect {
    let reach = |from: u32, to: u32| filter.reach(f64::from(from) / f64::from(to));
    let (x, width) = around(window.left, window.width, reach(source.width, target.width), source.width);
    let (y, height) = around(window.top, window.height, reach(source.height, target.height), source.height);
    Rect { x, y, width, height }
}

/// The pixels that a filter of `reach` touches around `start` … `start + length`, within `0 … limit`, with one pixel
/// to spare: (first, count).
fn around(start: f64, length: f64, reach: f64, limit: u32) -> (u32, u32) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0 … limit, a u32"
    )]
    let pixel = |value: f64| value.clamp(0.0, f64::from(limit)) as u32;
    let first = pixel((start - reach).floor() - 1.0);
    let end = pixel((start + length + reach).ceil() + 1.0);
    (first, end - first)
}

/// Python's `round` of a half difference, which torchvision's centre crop uses: ties go to the even number.
pub(crate) fn half(difference: u32) -> u32 {
    let floor = difference / 2;
    if difference % 2 == 1 && floor % 2 == 1 { floor + 1 } else { floor }
}
