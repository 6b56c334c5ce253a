//! `resize`: Pillow's antialiased resampling, computed by fast_image_resize (within one level of Pillow).

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use super::geometry::{Filter, MAX_SIDE, Rect, Size};
use crate::chain::Op;
use crate::error::{Error, Result};

/// Resizes to a shorter side (keeping the aspect ratio) or to an exact size.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Resize {
    /// A number is the shorter side, `[height, width]` is exact, as in torchvision.
    pub size: ResizeTo,
    /// The resampling filter; default bilinear.
    #[serde(default)]
    pub filter: Filter,
}

/// What [`Resize`] resizes to.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum ResizeTo {
    /// The shorter side in pixels; the longer is ⌊shorter · long / short⌋, as torchvision.
    Shorter(u32),
    /// `[height, width]`.
    Exact([u32; 2]),
}

impl From<u32> for ResizeTo {
    fn from(side: u32) -> Self {
        Self::Shorter(side)
    }
}

impl From<[u32; 2]> for ResizeTo {
    fn from(sides: [u32; 2]) -> Self {
        Self::Exact(sides)
    }
}

impl Resize {
    /// To a shorter side, or to an exact `[height, width]`.
    pub fn new(size: impl Into<ResizeTo>) -> Self {
        Self { size: size.into(), filter: Filter::default() }
    }

    /// The resampling filter.
    #[must_use]
    pub fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.size {
            ResizeTo::Shorter(side) => Size::from(side).check(),
            ResizeTo::Exact(sides) => Size::from(sides).check(),
        }
    }

    /// The size of a picture after this op.
    pub(crate) fn target(&self, picture: Size) -> Result<Size> {
        let shorter = match self.size {
            ResizeTo::Exact(sides) => return Ok(sides.into()),
            ResizeTo::Shorter(side) => side,
        };
        let (short, long) =
            (u64::from(picture.height.min(picture.width)), u64::from(picture.height.max(picture.width)));
        let longer = u64::from(shorter) * long / short;
        let longer = u32::try_from(longer).ok().filter(|&side| side <= MAX_SIDE).ok_or_else(|| {
            Error::sample(format!(
                "resize: a {long}×{short} picture would become {longer} px long, over {MAX_SIDE}; its aspect ratio \
                 is unusable"
            ))
        })?;
        Ok(if picture.width <= picture.height {
            Size { height: longer, width: shorter }
        } else {
            Size { height: shorter, width: longer }
        })
    }
}

impl From<Resize> for Op {
    fn from(op: Resize) -> Self {
        Self::Resize(op)
    }
}

/// [`Resize`] to a shorter side, or to an exact `[height, width]`.
pub fn resize(size: impl Into<ResizeTo>) -> Op {
    Resize::new(size).into()
}

impl Filter {
    fn algorithm(self) -> ResizeAlg {
        match self {
            Self::Nearest => ResizeAlg::Nearest,
            Self::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Self::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Self::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        }
    }

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

/// Resizes `view` of `pixels` (RGB, rows of `stride` pixels) into `out` (RGB, dense, `to` in size).
///
/// With a `window` (relative to `view`), the result shows the window only, yet reads the view around it where the
/// filter reaches there: that is what cutting the window out of the resized view gives. Without, the view's edge is
/// the picture's edge, as when one crops first and resizes then.
pub(crate) fn resize_rgb(
    resizer: &mut Resizer,
    pixels: &[u8],
    stride: usize,
    view: Rect,
    window: Option<Window>,
    (out, to): (&mut [u8], Size),
    filter: Filter,
) -> Result<()> {
    let bug = |error: &dyn std::fmt::Display| Error::bug(format!("resize of {view:?} to {to:?}: {error}"));
    if window.is_none() && view.size() == to {
        copy_rows(pixels, stride, view, out);
        return Ok(());
    }
    let rows = view.y + view.height;
    let width = u32::try_from(stride).map_err(|error| bug(&error))?;
    let source = ImageRef::new(width, rows, &pixels[..rows as usize * stride * 3], PixelType::U8x3)
        .map_err(|error| bug(&error))?;
    let source = CroppedImage::new(&source, view.x, view.y, view.width, view.height)
        .map_err(|error| bug(&error))?;
    let mut target = Image::from_slice_u8(to.width, to.height, out, PixelType::U8x3)
        .map_err(|error| bug(&error))?;
    let mut options = ResizeOptions::new().resize_alg(filter.algorithm());
    if let Some(window) = window {
        options = options.crop(window.left, window.top, window.width, window.height);
    }
    resizer.resize(&source, &mut target, &options).map_err(|error| bug(&error))
}

/// Copies `view` of `pixels` (RGB, rows of `stride` pixels) densely into `out`.
pub(crate) fn copy_rows(pixels: &[u8], stride: usize, view: Rect, out: &mut [u8]) {
    let length = view.width as usize * 3;
    for (row, out) in out.chunks_exact_mut(length).enumerate() {
        let start = ((view.y as usize + row) * stride + view.x as usize) * 3;
        out.copy_from_slice(&pixels[start..start + length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_side_truncates_as_torchvision() {
        let op = Resize::new(256);
        assert_eq!(op.target(Size { height: 350, width: 400 }).unwrap(), Size { height: 256, width: 292 });
        assert_eq!(op.target(Size { height: 400, width: 350 }).unwrap(), Size { height: 292, width: 256 });
        assert!(op.target(Size { height: 1, width: 60_000 }).is_err());
    }
}
