//! `horizontal_flip`: left becomes right.

use serde::{Deserialize, Serialize};

use crate::chain::Op;
use crate::seed::Generator;

/// Mirrors the picture with `probability`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HorizontalFlip {
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl HorizontalFlip {
    /// A flip with `probability`, 0 … 1.
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }

    /// Whether the sample of this generator is mirrored.
    pub fn draw(&self, generator: &mut Generator) -> bool {
        generator.chance(self.probability)
    }
}

impl Default for HorizontalFlip {
    fn default() -> Self {
        Self::new(half())
    }
}

impl From<HorizontalFlip> for Op {
    fn from(op: HorizontalFlip) -> Self {
        Self::HorizontalFlip(op)
    }
}

/// [`HorizontalFlip`] with `probability`, 0 … 1; torchvision's default is 0.5.
pub fn horizontal_flip(probability: f64) -> Op {
    HorizontalFlip::new(probability).into()
}

/// Mirrors a dense RGB picture in place.
pub(crate) fn flip_rgb(pixels: &mut [u8], width: usize) {
    for row in pixels.chunks_exact_mut(width * 3) {
        let (left, right) = row.split_at_mut(width / 2 * 3);
        let right = right.rchunks_exact_mut(3);
        for (a, b) in left.chunks_exact_mut(3).zip(right) {
            let pixel = [a[0], a[1], a[2]];
            a.copy_from_slice(b);
            b.copy_from_slice(&pixel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flips_odd_and_even_widths() {
        for width in 1..40_u8 {
            let row: Vec<u8> = (0..width * 3).collect();
            let mut pixels = [row.clone(), row.clone()].concat();
            flip_rgb(&mut pixels, usize::from(width));
            let expected: Vec<u8> = row.rchunks_exact(3).flatten().copied().collect();
            assert_eq!(pixels, [expected.clone(), expected].concat());
        }
    }
}
