//! The sample's index, encoded in the pixels, so that a test can identify samples after decoding.
//!
//! The top left corner of every image has 4 × 2 flat grey cells of 16×16 px. Each is aligned to a 4:2:0 MCU, so that
//! JPEG changes its level by at most 2. A cell holds four bits as the level 8 + 16 × value. The cells hold the 32
//! bits of the index row by row, highest bits first.

const CELL: usize = 16;
const CELLS_PER_ROW: usize = 4;
const CELLS: usize = 8;
/// Width of the mark, and minimum width of an image, in pixels.
pub const MARK_WIDTH: u32 = 64;
/// Height of the mark, and minimum height of an image, in pixels.
pub const MARK_HEIGHT: u32 = 32;

fn level(index: u32, cell: usize) -> u8 {
    let value = index >> (4 * (CELLS - 1 - cell)) & 0xf;
    8 + 16 * value as u8
}

/// Writes the low 32 bits of `index` into RGB rows of `width` pixels.
pub(crate) fn write_mark(rgb: &mut [u8], width: usize, index: u32) {
    for cell in 0..CELLS {
        let (left, top) = (cell % CELLS_PER_ROW * CELL, cell / CELLS_PER_ROW * CELL);
        for y in top..top + CELL {
            let start = 3 * (y * width + left);
            rgb[start..start + 3 * CELL].fill(level(index, cell));
        }
    }
}

/// Returns the index (its low 32 bits) in a decoded image, or `None` if it is not a whole image of this crate.
///
/// `rgb` is u8 `[height, width, 3]` without padding, decoded at full size without crop or flip.
///
/// ```
/// use feedstock_synth::{MARK_HEIGHT, MARK_WIDTH, read_mark};
///
/// let (width, height) = (MARK_WIDTH as usize, MARK_HEIGHT as usize);
/// let black_cells = vec![8; 3 * width * height]; // eight cells of level 8: index 0
/// assert_eq!(read_mark(&black_cells, width), Some(0));
/// assert_eq!(read_mark(&black_cells[..300], width), None); // a crop
/// ```
pub fn read_mark(rgb: &[u8], width: usize) -> Option<u32> {
    if width < MARK_WIDTH as usize || rgb.len() < 3 * width * MARK_HEIGHT as usize {
        return None;
    }
    let mut index = 0;
    for cell in 0..CELLS {
        let (left, top) = (cell % CELLS_PER_ROW * CELL, cell / CELLS_PER_ROW * CELL);
        let mut sum = 0_u32;
        for y in top + 4..top + 12 {
            let start = 3 * (y * width + left + 4);
            sum += rgb[start..start + 3 * 8].iter().map(|&value| u32::from(value)).sum::<u32>();
        }
        let mean = sum / (8 * 8 * 3);
        if !(4..=12).contains(&(mean % 16)) {
            return None;
        }
        index = (index << 4) | (mean / 16);
    }
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back() {
        for index in [0, 1, 0x1234_5678, u32::MAX] {
            let mut rgb = vec![77; 3 * 100 * 40];
            write_mark(&mut rgb, 100, index);
            assert_eq!(read_mark(&rgb, 100), Some(index));
        }
    }

    #[test]
    fn an_unmarked_image_has_no_index() {
        assert_eq!(read_mark(&vec![112; 3 * 100 * 40], 100), None);
        assert_eq!(read_mark(&[], 100), None);
    }
}
