//! Gaussian blur as torchvision's `gaussian_blur`: the image is mirrored at its outermost pixels, and sums are in single precision.
//!
//! Each row is blurred down the columns, then along the row. The order of additions is fixed, so all machines make the same bytes.

use super::augmenter::Augmenter;
use super::fill::PaddingMode;
use super::geometry::Size;
use crate::buffer::fit;

/// The longest side of a kernel: four times that of SimCLR's for 224 pixels, at 1,024 pixels.
pub(crate) const MAX_KERNEL_SIZE: u32 = 511;

/// Weights from the middle outwards.
struct Kernel {
    weights: [f32; MAX_KERNEL_SIZE as usize / 2 + 1],
    /// The last weight that counts.
    radius: usize,
}

impl Kernel {
    fn new(size: u32, sigma: f64) -> Self {
        let weight = |distance: usize| libm::exp(-(distance as f64 / sigma).powi(2) / 2.0);
        let most = size as usize / 2;
        let total = (1..=most).map(weight).sum::<f64>() * 2.0 + 1.0;
        #[expect(clippy::cast_possible_truncation, reason = "single precision, as torchvision")]
        let weights: [f32; _] =
            std::array::from_fn(|at| if at <= most { (weight(at) / total) as f32 } else { 0.0 });
        let radius = weights.iter().rposition(|weight| weight.is_normal()).unwrap_or(0);
        Self { weights, radius }
    }

    /// Returns the distances from 1 on with their weights.
    fn outer(&self) -> impl Iterator<Item = (usize, f32)> {
        (1..=self.radius).zip(self.weights[1..].iter().copied())
    }
}

/// Blurs dense RGB of `size` with a square kernel of `kernel_size` pixels, an odd number.
pub(crate) fn gaussian(
    pixels: &mut [u8],
    size: Size,
    (kernel_size, sigma): (u32, f64),
    augmenter: &mut Augmenter,
) {
    let kernel = Kernel::new(kernel_size, sigma);
    let (length, ends) = (size.width as usize * 3, kernel.radius * 3);
    let (source, [sums, padded]) = augmenter.copy(pixels);
    for (buffer, length) in [(&mut *sums, length), (&mut *padded, length + 2 * ends)] {
        fit(buffer, length);
        buffer.resize(length, 0.0);
    }
    for (row, out) in pixels.chunks_exact_mut(length).enumerate() {
        down(source, size, row, &kernel, sums);
        padded[ends..ends + length].copy_from_slice(sums);
        mirror_ends(padded, size.width, kernel.radius);
        along(padded, &kernel, sums);
        for (out, sum) in out.iter_mut().zip(&*sums) {
            *out = nearest_level(*sum);
        }
    }
}

/// Sums the columns around `row`.
fn down(source: &[u8], size: Size, row: usize, kernel: &Kernel, sums: &mut [f32]) {
    let length = sums.len();
    let row_at = |offset: i64| {
        let row = PaddingMode::Reflect.inside(row as i64 + offset, size.height).unwrap_or(row);
        &source[row * length..(row + 1) * length]
    };
    for (sum, value) in sums.iter_mut().zip(row_at(0)) {
        *sum = kernel.weights[0] * f32::from(*value);
    }
    for (distance, weight) in kernel.outer() {
        let (above, below) = (row_at(-(distance as i64)), row_at(distance as i64));
        for (sum, (above, below)) in sums.iter_mut().zip(above.iter().zip(below)) {
            *sum += weight * f32::from(u16::from(*above) + u16::from(*below));
        }
    }
}

/// Fills `radius` pixels at each end of a row of `width` pixels.
fn mirror_ends(padded: &mut [f32], width: u32, radius: usize) {
    let end = radius + width as usize;
    for at in (0..radius).chain(end..end + radius) {
        let from = PaddingMode::Reflect.inside(at as i64 - radius as i64, width).unwrap_or(0) + radius;
        padded.copy_within(from * 3..from * 3 + 3, at * 3);
    }
}

/// Sums along a row.
fn along(padded: &[f32], kernel: &Kernel, sums: &mut [f32]) {
    let (middle, length) = (kernel.radius * 3, sums.len());
    for (sum, value) in sums.iter_mut().zip(&padded[middle..]) {
        *sum = kernel.weights[0] * value;
    }
    for (distance, weight) in kernel.outer() {
        let (left, right) = (middle - distance * 3, middle + distance * 3);
        let pairs = padded[left..left + length].iter().zip(&padded[right..right + length]);
        for (sum, (left, right)) in sums.iter_mut().zip(pairs) {
            *sum += weight * (left + right);
        }
    }
}

/// Rounds to the nearest level, half to even: adding 1.5 · 2²³ leaves no digits for fractions.
fn nearest_level(value: f32) -> u8 {
    const SHIFT: f32 = 12_582_912.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
    {
        ((value + SHIFT) - SHIFT) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_image_stays_and_small_ones_are_mirrored_again() {
        for (height, width) in [(1, 1), (1, 5), (2, 3), (9, 40)] {
            for value in [0, 1, 127, 255] {
                let mut pixels = vec![value; height as usize * width as usize * 3];
                let size = Size { height, width };
                gaussian(&mut pixels, size, (23, 9.0), &mut Augmenter::default());
                assert!(pixels.iter().all(|&pixel| pixel == value), "{size:?} {value}");
            }
        }
    }

    #[test]
    fn a_narrow_kernel_changes_nothing() {
        let mut pixels: Vec<u8> = (0..7 * 5 * 3).map(|i| (i * 37 % 256) as u8).collect();
        let before = pixels.clone();
        gaussian(&mut pixels, Size { height: 5, width: 7 }, (23, 0.05), &mut Augmenter::default());
        assert_eq!(pixels, before);
    }
}
