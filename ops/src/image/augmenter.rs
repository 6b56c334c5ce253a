//! Working memory of the ops that read a pixel's neighbours, or other places of the image.

use super::geometry::Size;
use super::warp::{self, Mapping, WarpStyle};
use crate::buffer::fit;

/// Reusable memory: a copy of the image, and sums of a row.
#[derive(Default)]
pub(crate) struct Augmenter {
    spare: Vec<u8>,
    /// Sums of a row, and the row with its mirrored ends.
    sums: [Vec<f32>; 2],
}

impl Augmenter {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.spare.capacity() + 4 * self.sums.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Returns the memory for a copy of the image.
    pub(crate) fn spare(&mut self) -> &mut Vec<u8> {
        &mut self.spare
    }

    /// Copies the image; returns the copy and the memory for rows.
    pub(crate) fn copy(&mut self, pixels: &[u8]) -> (&[u8], &mut [Vec<f32>; 2]) {
        fit(&mut self.spare, pixels.len());
        self.spare.clear();
        self.spare.extend_from_slice(pixels);
        (&self.spare, &mut self.sums)
    }

    /// Warps a dense RGB image in place.
    pub(crate) fn warp(&mut self, pixels: &mut [u8], size: Size, mapping: Mapping, style: WarpStyle) {
        let (copy, _) = self.copy(pixels);
        warp::warp(copy, size, mapping, style, pixels);
    }
}
