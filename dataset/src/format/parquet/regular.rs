//! Whether a part of a block can be read without the rest of it: the pages of the payload columns are small and regular.
//!
//! ```text
//! payload  [ 0 1 2 ][ 3 4 5 ][ 6 7 8 ][ 9 ]      pages of 3 rows: each is one request and is decoded once
//! label    [ 0 1 2 3 4 5 6 7 8 9 ]               small: read once for the row group
//! ```
//! A piece is a whole number of pages only if pages begin at multiples of their rows among all samples. So the rows of a row
//! group must be a multiple of its page, except for the last row group. Few rows may be in pages that begin elsewhere: a piece
//! there reads one page more.

use super::super::sides::{HELD_BYTES, UNIT_BYTES};
use super::page_rows::GroupPages;
use crate::catalog::{MAX_PAGE_BYTES, Parts};
use parquet::arrow::ProjectionMask;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use std::num::NonZeroU32;

/// Most bytes of the other columns of a row group if a reader cannot hold those of all row groups: a 32nd of a piece.
const READ_AGAIN_BYTES: u64 = 8 << 10;
/// Most pages of a column of a row group: every piece reads the places of all of them.
const MOST_PAGES: usize = 1024;
/// One row of this number at most may be in pages that do not begin at a multiple of their rows.
const ALIGNED_ROWS: u64 = 32;

/// A row group whose payload columns have pages of the same number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Regular {
    rows: u64,
    /// Rows of a page; the last one may have fewer.
    page: u64,
    /// Bytes of the other columns.
    small_bytes: u64,
}

impl Regular {
    /// Examines a row group of which an offset index states the pages; `payload` selects the payload's leaves. `None` if pages are
    /// irregular or large, or if other columns are.
    pub(super) fn of(group: &RowGroupMetaData, index: &GroupPages, payload: &ProjectionMask) -> Option<Self> {
        let rows = group.num_rows().unsigned_abs();
        let (mut found, mut small_bytes) = (None, 0u64);
        for (leaf, (column, pages)) in group.columns().iter().zip(index.columns()).enumerate() {
            let (start, bytes) = column.byte_range();
            if !payload.leaf_included(leaf) {
                small_bytes = small_bytes.saturating_add(bytes);
                continue;
            }
            let first = pages.locations.first()?;
            let has_dictionary = first.offset.unsigned_abs() != start;
            let is_list = column.column_descr().max_rep_level() > 0;
            let starts = pages.locations.iter().map(|page| page.first_row_index.unsigned_abs());
            let page = page_rows(starts, rows)?;
            if has_dictionary
                || is_list
                || pages.locations.len() > MOST_PAGES
                || bytes_of_full(pages.locations) > MAX_PAGE_BYTES
                || found.is_some_and(|other| other != page)
            {
                return None;
            }
            found = Some(page);
        }
        let page = found.filter(|_| small_bytes <= UNIT_BYTES)?;
        Some(Self { rows, page, small_bytes })
    }

    /// Whether all its rows are in one page.
    fn is_one_page(&self) -> bool {
        self.page == self.rows
    }
}

/// Returns the mean bytes of all pages but the last, which may have fewer rows.
fn bytes_of_full(pages: &[PageLocation]) -> u64 {
    let full = &pages[..pages.len().saturating_sub(1).max(1).min(pages.len())];
    let bytes = full.iter().map(|page| u64::from(page.compressed_page_size.unsigned_abs())).sum::<u64>();
    bytes / (full.len() as u64).max(1)
}

/// Returns the rows of each page but the last, which may have fewer; `None` if they differ.
fn page_rows(starts: impl Iterator<Item = u64>, rows: u64) -> Option<u64> {
    let mut starts = starts.enumerate();
    if starts.next() != Some((0, 0)) {
        return None;
    }
    let Some((_, page)) = starts.next() else { return Some(rows) };
    let mut last = page;
    for (i, start) in starts {
        if start != page.checked_mul(i as u64)? {
            return None;
        }
        last = start;
    }
    (page > 0 && last < rows && rows - last <= page).then_some(page)
}

/// Returns what can be read of blocks of these row groups, in catalog order.
pub(super) fn parts(groups: &[Option<Regular>]) -> Parts {
    let several = groups.iter().flatten().find(|group| !group.is_one_page());
    let Some(page) = several.map(|group| group.page) else { return Parts::None };
    let (mut samples, mut elsewhere, mut small_bytes, mut most_small_bytes) = (0u64, 0u64, 0u64, 0u64);
    for group in groups {
        let fits = |group: &&Regular| group.page == page || group.is_one_page() && group.rows < page;
        let Some(group) = group.as_ref().filter(fits) else { return Parts::None };
        if !samples.is_multiple_of(page) {
            elsewhere += group.rows;
        }
        samples += group.rows;
        small_bytes = small_bytes.saturating_add(group.small_bytes);
        most_small_bytes = most_small_bytes.max(group.small_bytes);
    }
    let is_aligned = elsewhere.saturating_mul(ALIGNED_ROWS) <= samples;
    let is_held = small_bytes <= HELD_BYTES || most_small_bytes <= READ_AGAIN_BYTES;
    match u32::try_from(page).ok().and_then(NonZeroU32::new) {
        Some(page) if is_aligned && is_held => Parts::Pages(page),
        _ => Parts::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages_of(samples: u32) -> Parts {
        Parts::Pages(NonZeroU32::new(samples).unwrap())
    }

    #[test]
    fn all_pages_but_the_last_have_the_same_rows() {
        for (starts, rows, expected) in [
            (&[0, 3, 6, 9][..], 10, Some(3)),
            (&[0, 3, 6], 9, Some(3)),
            (&[0, 3, 6], 10, None), // the last page has more
            (&[0, 3, 5], 8, None),
            (&[0], 7, Some(7)),
            (&[0, 1, 2], 3, Some(1)),
            (&[0, 0, 1], 2, None), // an empty page
            (&[0, 2], 2, None),
            (&[1, 2], 3, None),
            (&[], 3, None),
        ] {
            assert_eq!(page_rows(starts.iter().copied(), rows), expected, "{starts:?} of {rows}");
        }
    }

    #[test]
    fn pieces_need_pages_that_begin_at_multiples() {
        let group = |rows, page, small_bytes| Some(Regular { rows, page, small_bytes });
        let several = |rows, page| group(rows, page, 100);
        let one = |rows| several(rows, rows);
        assert_eq!(parts(&[several(9, 3), one(3), several(10, 3)]), pages_of(3));
        assert_eq!(parts(&[several(10, 1), several(7, 1), one(1)]), pages_of(1));
        assert_eq!(parts(&[several(10, 3), several(9, 3)]), Parts::None); // the second begins within a page
        assert_eq!(parts(&[several(3_000, 3), several(10, 3), several(30, 3)]), pages_of(3)); // few rows
        assert_eq!(parts(&[several(9, 3), several(8, 2)]), Parts::None);
        assert_eq!(parts(&[several(9, 3), one(4)]), Parts::None);
        assert_eq!(parts(&[several(9, 3), None]), Parts::None);
        assert_eq!(parts(&[one(3), one(3)]), Parts::None); // a page is the row group
        assert_eq!(parts(&[]), Parts::None);
        // Labels that are neither held nor small would be read again for every piece.
        assert_eq!(parts(&vec![group(300, 3, 1 << 20); 32]), pages_of(3));
        assert_eq!(parts(&vec![group(300, 3, 1 << 20); 33]), Parts::None);
        assert_eq!(parts(&vec![group(300, 3, 8 << 10); 10_000]), pages_of(3));
    }
}
