//! EXIF orientation, as Pillow's `ImageOps.exif_transpose` applies it.

use std::io::Cursor;

use super::pixels::Pixels;
use crate::image::geometry::{Rect, Size, Window};

/// One of the eight ways a camera was held, as three steps: swap the axes, then mirror columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation {
    /// The result's rows are the stored columns.
    transpose: bool,
    /// The result's columns run against the stored (or swapped) order.
    mirror_x: bool,
    mirror_y: bool,
}

/// The orientation that the file's EXIF states; upright where there is none or it cannot be read.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    let value = exif::Reader::new()
        .read_from_container(&mut Cursor::new(bytes))
        .ok()
        .and_then(|exif| exif.get_field(exif::Tag::Orientation, exif::In::PRIMARY)?.value.get_uint(0));
    Orientation::from_exif(value.unwrap_or(1))
}

impl Orientation {
    pub(crate) const UPRIGHT: Self = Self { transpose: false, mirror_x: false, mirror_y: false };

    fn from_exif(value: u32) -> Self {
        let (transpose, mirror_x, mirror_y) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, mirror_x, mirror_y }
    }

    /// The size that a stored size is shown in (and the other way round).
    pub(crate) fn size(self, stored: Size) -> Size {
        if self.transpose { Size { height: stored.width, width: stored.height } } else { stored }
    }

    /// A rectangle of the shown image in the stored image's coordinates.
    pub(crate) fn to_stored(self, shown: Rect, stored: Size) -> Rect {
        let size = self.size(stored);
        let x = if self.mirror_x { size.width - shown.x - shown.width } else { shown.x };
        let y = if self.mirror_y { size.height - shown.y - shown.height } else { shown.y };
        if self.transpose {
            Rect { x: y, y: x, width: shown.height, height: shown.width }
        } else {
            Rect { x, y, width: shown.width, height: shown.height }
        }
    }

    /// A rectangle of a stored image of size `stored` in the coordinates of the shown one: the inverse of
    /// [`to_stored`](Self::to_stored).
    pub(super) fn to_shown(self, part: Rect, stored: Size) -> Rect {
        let size = self.size(stored);
        let Rect { x, y, width, height } = match self.transpose {
            true => Rect { x: part.y, y: part.x, width: part.height, height: part.width },
            false => part,
        };
        let x = if self.mirror_x { size.width - x - width } else { x };
        let y = if self.mirror_y { size.height - y - height } else { y };
        Rect { x, y, width, height }
    }

    /// A stored window, within a stored view, in the coordinates of the turned view.
    pub(super) fn turn_window(self, window: Window, view: Size) -> Window {
        let Window { left, top, width, height } = window;
        let shown = self.size(view);
        let (mut x, mut y, width, height) =
            if self.transpose { (top, left, height, width) } else { (left, top, width, height) };
        if self.mirror_x {
            x = f64::from(shown.width) - x - width;
        }
        if self.mirror_y {
            y = f64::from(shown.height) - y - height;
        }
        Window { left: x, top: y, width, height }
    }

    /// Writes the view of `pixels`, turned, densely into `out`.
    pub(super) fn turn(self, pixels: &[u8], from: Pixels, out: &mut [u8]) {
        let size = self.size(from.view.size());
        let (width, height) = (size.width as usize, size.height as usize);
        for (y, row) in out.chunks_exact_mut(width * 3).enumerate() {
            let y = if self.mirror_y { height - 1 - y } else { y };
            for (x, out) in row.chunks_exact_mut(3).enumerate() {
                let x = if self.mirror_x { width - 1 - x } else { x };
                let (column, line) = if self.transpose { (y, x) } else { (x, y) };
                let at = ((from.view.y as usize + line) * from.stride + from.view.x as usize + column) * 3;
                out.copy_from_slice(&pixels[at..at + 3]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warning::Warnings;

    #[test]
    fn regions_turn_like_the_whole() {
        let stored = Size { height: 3, width: 5 };
        let pixels: Vec<u8> = (0..15).flat_map(|i| [i; 3]).collect();
        for value in 1..=8 {
            let orientation = Orientation::from_exif(value);
            let size = orientation.size(stored);
            let mut whole = vec![0; 45];
            let from =
                Pixels { stride: 5, view: Rect::of(stored), window: None, warnings: Warnings::default() };
            orientation.turn(&pixels, from, &mut whole);
            let shown = Rect { x: 1, y: 1, width: 2, height: size.height - 1 };
            let mut part = vec![0; shown.size().rgb_bytes()];
            let from = Pixels { view: orientation.to_stored(shown, stored), ..from };
            assert_eq!(orientation.to_shown(from.view, stored), shown, "orientation {value}");
            orientation.turn(&pixels, from, &mut part);
            for y in 0..shown.height as usize {
                let at = ((y + 1) * size.width as usize + 1) * 3;
                assert_eq!(part[y * 6..y * 6 + 6], whole[at..at + 6], "orientation {value}");
            }
        }
    }
}
