//! The pixels that both passes read.

use crate::image::geometry::Rect;

/// A view of pixels of three bytes whose rows are a stride apart.
#[derive(Clone, Copy)]
pub(in crate::image) struct Source<'a> {
    pub(in crate::image) pixels: &'a [u8],
    pub(in crate::image) stride: usize,
    pub(in crate::image) view: Rect,
}

/// Bytes after a row's last readable pixel that a load of 16 may touch.
pub(super) const ROW_PADDING: usize = 16;

/// The source rows that are needed, each starting at the first byte that is needed.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) pixels: &'a [u8],
    /// Bytes from the start of one row to the next.
    pub(super) pitch: usize,
}

/// The source rows of one result row.
#[derive(Clone, Copy)]
pub(super) struct RowTaps<'a> {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) pairs: &'a [i32],
    pub(super) precision: u32,
}
