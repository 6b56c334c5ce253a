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
    mixing: Mixing,
}

/// A weighted sum of images, and the image that is added next.
#[derive(Default)]
pub(crate) struct Mixing {
    sum: Vec<f32>,
    image: Vec<u8>,
}

/// Bytes of a [`Mixing`] for each byte of an image.
pub(super) const MIXING_BYTES: u64 = 5;

impl Mixing {
    /// Starts the sum with `weight` times the image.
    pub(crate) fn start(&mut self, pixels: &[u8], weight: f32) {
        fit(&mut self.sum, pixels.len());
        self.sum.clear();
        self.sum.extend(pixels.iter().map(|&value| weight * f32::from(value)));
    }

    /// Returns a copy of the image, to be changed.
    pub(crate) fn copy(&mut self, pixels: &[u8]) -> &mut [u8] {
        fit(&mut self.image, pixels.len());
        self.image.clear();
        self.image.extend_from_slice(pixels);
        &mut self.image
    }

    /// Adds `weight` times the changed copy.
    pub(crate) fn add(&mut self, weight: f32) {
        let both = self.sum.iter_mut().zip(&self.image);
        both.for_each(|(sum, &value)| *sum += weight * f32::from(value));
    }

    /// Writes the sum, truncated.
    pub(crate) fn write(&self, pixels: &mut [u8]) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
        pixels.iter_mut().zip(&self.sum).for_each(|(value, &sum)| *value = sum as u8);
    }
}

impl Augmenter {
    pub(crate) fn kept_bytes(&self) -> usize {
        let floats: usize = self.sums.iter().chain([&self.mixing.sum]).map(Vec::capacity).sum();
        self.spare.capacity() + self.mixing.image.capacity() + 4 * floats
    }

    /// Lends the memory for a sum of images; [`give_back`](Self::give_back) ends the loan.
    pub(crate) fn take_mixing(&mut self) -> Mixing {
        std::mem::take(&mut self.mixing)
    }

    /// Takes the memory for the next sum.
    pub(crate) fn give_back(&mut self, mixing: Mixing) {
        self.mixing = mixing;
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
        warp::warp((copy, size), (pixels, size), mapping, style);
    }
}
