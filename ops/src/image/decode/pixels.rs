//! Decoded pixels.

use crate::image::geometry::{Rect, Window};
use crate::warning::Warnings;

/// RGB in a buffer, with rows of `stride` pixels, of which `view` is meant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pixels {
    pub(crate) stride: usize,
    pub(crate) view: Rect,
    /// After scaled decoding: where exactly the region is in the view.
    pub(crate) window: Option<Window>,
    pub(crate) warnings: Warnings,
}
