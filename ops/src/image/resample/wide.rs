//! Resampling of grey values of 16 bits in f64, as Pillow resizes images of mode `I;16`: a pass along the rows or one down the
//! columns, whose sums are rounded and clamped. A pixel has three bytes: the high byte, the low byte, and one that is not used.

use super::rows::Source;
use super::weights::{Side, Weights};
use crate::image::geometry::{Filter, Size, Window};

/// Resamples one direction of `window`; the other is copied.
pub(super) fn resample(
    weights: &mut Weights,
    Source { pixels, stride, view }: Source<'_>,
    window: Window,
    (out, to): (&mut [u8], Size),
    filter: Filter,
) {
    let across = Side { source: view.width, start: window.left, length: window.width, target: to.width };
    let down = Side { source: view.height, start: window.top, length: window.height, target: to.height };
    let start = view.y as usize * stride + view.x as usize;
    let value = |x: usize, y: usize| read(&pixels[(start + y * stride + x) * 3..]);
    let rows = out.chunks_exact_mut(to.width as usize * 3).enumerate();
    if across.is_copied() {
        let left = first(across);
        weights.fill(down, filter);
        for ((_, out), (first, taps)) in rows.zip(weights.exact()) {
            for (x, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                let column = (first..).zip(taps).map(|(y, weight)| value(left + x, y) * weight);
                *out = pixel(column.sum());
            }
        }
    } else {
        let top = first(down);
        weights.fill(across, filter);
        for (y, out) in rows {
            for (out, (first, taps)) in out.as_chunks_mut::<3>().0.iter_mut().zip(weights.exact()) {
                let row = (first..).zip(taps).map(|(x, weight)| value(x, top + y) * weight);
                *out = pixel(row.sum());
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number within the view")]
fn first(side: Side) -> usize {
    side.start as usize
}

fn read(pixel: &[u8]) -> f64 {
    f64::from(u16::from_be_bytes([pixel[0], pixel[1]]))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 … 65,535")]
fn pixel(sum: f64) -> [u8; 3] {
    let [high, low] = ((sum + 0.5).clamp(0.0, 65_535.0) as u16).to_be_bytes();
    [high, low, 0]
}
