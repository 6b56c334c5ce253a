//! Pillow's antialiased resampling of rows of RGB, within one level of Pillow, and of grey values of 16 bits.

use super::buffer::Buffer;
use super::geometry::{Filter, Rect, Size, Window};
use super::resample::{Resampler, Source};
use super::rows::copy_rows;

/// What the three bytes of a pixel are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Channels of 8 bits.
    Eight,
    /// A grey value of 16 bits: the high byte, the low byte, and one that is not used.
    Sixteen,
}

/// Resamples images. It keeps the buffers for weights and intermediate images.
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
    /// With a `window` (relative to `view`), the result shows only the window, but the filter also reads the pixels of
    /// the view around it: the same as cutting the window out of the resized view. Without a window, the view's edge is
    /// the image's edge, as in a crop followed by a resize.
    pub(crate) fn resize(
        &mut self,
        pixels: &[u8],
        (stride, view): (usize, Rect),
        window: Option<Window>,
        (out, to): (&mut [u8], Size),
        (filter, depth): (Filter, Depth),
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
            Filter::Bilinear if depth == Depth::Eight => {
                self.resampler.resample(source, window, (out, to), filter);
            }
            _ => self.two_passes(source, window, (out, to), (filter, depth)),
        }
    }

    /// Resamples in Pillow's order: along the rows first, unless the image becomes wider and lower.
    ///
    /// The resampler itself always goes down the columns first, which is faster. With filters that overshoot, values
    /// are clamped between the passes, so the order matters (up to 10 levels); therefore each pass is a separate call.
    fn two_passes(
        &mut self,
        source: Source<'_>,
        window: Window,
        (out, to): (&mut [u8], Size),
        (filter, depth): (Filter, Depth),
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
        let resampler = &mut self.resampler;
        let mut pass = |source, window, out: (&mut [u8], Size)| match depth {
            Depth::Eight => resampler.resample(source, window, out, filter),
            Depth::Sixteen => resampler.resample_wide(source, window, out, filter),
        };
        let pixels = self.between.take(between.rgb_bytes());
        pass(source, first, (&mut *pixels, between));
        let source = Source { pixels, stride: between.width as usize, view: Rect::of(between) };
        pass(source, second, (out, to));
    }
}

/// Pillow's nearest neighbour. Positions are summed step by step, as in Pillow, because the rounding decides ties.
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
