//! `center_crop`: the middle of the picture.

use serde::{Deserialize, Serialize};

use super::geometry::{Rect, Size, half};
use crate::chain::Op;

/// Cuts `size` out of the middle, as torchvision's `CenterCrop`; a smaller picture is padded with black, evenly.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CenterCrop {
    /// Height and width of the result.
    pub size: Size,
}

impl CenterCrop {
    /// A crop of `size`: a side, or `[height, width]`.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into() }
    }

    /// Where the crop lies in a picture at least as large.
    pub(crate) fn rect(&self, picture: Size) -> Rect {
        Rect {
            x: half(picture.width - self.size.width),
            y: half(picture.height - self.size.height),
            width: self.size.width,
            height: self.size.height,
        }
    }

    /// The size after padding, and where the picture lies in it (torchvision: the odd pixel goes after).
    pub(crate) fn padded(&self, picture: Size) -> (Size, [u32; 2]) {
        let lack =
            [self.size.height.saturating_sub(picture.height), self.size.width.saturating_sub(picture.width)];
        let size = Size { height: picture.height + lack[0], width: picture.width + lack[1] };
        (size, lack.map(|missing| missing / 2))
    }
}

impl From<CenterCrop> for Op {
    fn from(op: CenterCrop) -> Self {
        Self::CenterCrop(op)
    }
}

/// [`CenterCrop`] of `size`: a side, or `[height, width]`.
pub fn center_crop(size: impl Into<Size>) -> Op {
    CenterCrop::new(size).into()
}
