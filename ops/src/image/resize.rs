//! `resize`: Pillow's antialiased resampling, within one level of Pillow.

use serde::{Deserialize, Serialize};

use super::geometry::{Filter, MAX_SIDE, Rect, Size};
use super::resample::{Resampler, Source};
use crate::buffer::Buffer;
use crate::chain::Op;
use feedstock_base::{Error, Result};

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
#[serde(untagged, expecting = "expected the shorter side in pixels, or height and width as 224x288")]
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
            Error::bad_sample(format!(
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
    /// What `crop` of a picture of size `source` that was resized to `target` shows of it.
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

/// Resamples pictures; keeps its weights' and intermediate buffers.
#[derive(Default)]
pub(crate) struct Sampler {
    resampler: Resampler,
    between: Buffer,
}

impl Sampler {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.between.kept_bytes() + self.resampler.kept_bytes()
    }

    /// Resizes `view` of `pixels` (RGB, rows of `stride` pixels) into `out` (RGB, dense, `to` in size).
    ///
    /// With a `window` (relative to `view`), the result shows the window only, yet reads the view around it where the
    /// filter reaches there: that is what cutting the window out of the resized view gives. Without, the view's edge
    /// is the picture's edge, as when one crops first and resizes then.
    pub(crate) fn resize(
        &mut self,
        pixels: &[u8],
        (stride, view): (usize, Rect),
        window: Option<Window>,
        (out, to): (&mut [u8], Size),
        filter: Filter,
    ) {
        if window.is_none() && view.size() == to {
            return copy_rows(pixels, stride, view, out);
        }
        let source = Source { pixels, stride, view };
        let window = window.unwrap_or(Window {
            left: 0.0,
            top: 0.0,
            width: view.width.into(),
            height: view.height.into(),
        });
        match filter {
            Filter::Nearest => nearest(source, window, (out, to)),
            Filter::Bilinear => self.resampler.resample(source, window, (out, to), filter),
            Filter::Bicubic | Filter::Lanczos => self.two_passes(source, window, (out, to), filter),
        }
    }

    /// In Pillow's order: along the rows first, unless the picture becomes wider and lower.
    ///
    /// The resampler always goes down the columns first, which is faster. With filters that overshoot, clipping
    /// between the passes makes the order visible (up to 10 levels), so here each pass is a call of its own.
    fn two_passes(
        &mut self,
        source: Source<'_>,
        window: Window,
        (out, to): (&mut [u8], Size),
        filter: Filter,
    ) {
        let view = source.view;
        let columns_first = f64::from(to.width) > window.width && f64::from(to.height) < window.height;
        let (between, first, second) = if columns_first {
            (
                Size { height: to.height, width: view.width },
                Window { left: 0.0, width: view.width.into(), ..window },
                Window { top: 0.0, height: to.height.into(), ..window },
            )
        } else {
            (
                Size { height: view.height, width: to.width },
                Window { top: 0.0, height: view.height.into(), ..window },
                Window { left: 0.0, width: to.width.into(), ..window },
            )
        };
        let pixels = self.between.take(between.rgb_bytes());
        self.resampler.resample(source, first, (&mut *pixels, between), filter);
        let source = Source { pixels, stride: between.width as usize, view: Rect::of(between) };
        self.resampler.resample(source, second, (out, to), filter);
    }
}

/// Pillow's nearest neighbour: positions are summed up step by step, which decides ties.
fn nearest(source: Source<'_>, window: Window, (out, to): (&mut [u8], Size)) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the view")]
    let positions = |start: f64, length: f64, count: u32, limit: u32| {
        let step = length / f64::from(count);
        let mut at = start + step * 0.5;
        (0..count).map(move |_| {
            let position = (at as u32).min(limit - 1) as usize;
            at += step;
            position
        })
    };
    let Source { pixels, stride, view } = source;
    let columns: Vec<usize> = positions(window.left, window.width, to.width, view.width).collect();
    let rows = positions(window.top, window.height, to.height, view.height);
    for (out, row) in out.chunks_exact_mut(to.width as usize * 3).zip(rows) {
        let start = (view.y as usize + row) * stride + view.x as usize;
        for (out, column) in out.chunks_exact_mut(3).zip(&columns) {
            let at = (start + column) * 3;
            out.copy_from_slice(&pixels[at..at + 3]);
        }
    }
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
