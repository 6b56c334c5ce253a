//! Luma, in three equal channels.

use super::pixels::Pixels;

/// Replaces the RGB of the view by its luma (ITU-R 601-2), with the integers of Pillow's `convert("L")`.
pub(super) fn gray(rgb: &mut [u8], Pixels { stride, view, .. }: Pixels) {
    for row in view.y as usize..(view.y + view.height) as usize {
        let start = (row * stride + view.x as usize) * 3;
        for pixel in rgb[start..start + view.width as usize * 3].as_chunks_mut::<3>().0 {
            let [r, g, b] = pixel.map(u32::from);
            let luma = (r * 19_595 + g * 38_470 + b * 7_471 + 0x8000) >> 16;
            *pixel = [luma.to_le_bytes()[0]; 3];
        }
    }
}
