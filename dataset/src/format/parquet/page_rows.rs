//! Which pages of a row group hold which rows.
//!
//! Writers of files without an offset index may let pages of repeated columns begin within a row (pyarrow 21 does, 26 does
//! not). An offset index cannot express that, so these pages are marked next to it. The catalog keeps the marks in the unit's
//! footer, as key-value metadata: one character for each page.
//!
//! ```text
//! rows     0     1        2  3        4
//! pages  [ 0, 1 begins ][ 1 ends, 2 ][ 3, 4 ]      first_row_index 0, 2, 3; the second page continues row 1
//! ```
//! `first_row_index` is the number of rows that begin before the page, for every page. Invariant: the pages of a run of rows
//! hold all of these rows' values.

use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use std::ops::Range;

/// The key of a column's marks, followed by the column's number.
const KEY: &str = "feedstock.continuing_pages.";
const BEGINS: char = '0';
const CONTINUES: char = '1';

/// The pages of all columns of a row group.
pub(super) struct GroupPages {
    pub(super) index: Vec<OffsetIndexMetaData>,
    /// For each column whether each page begins within a row; empty if no page does.
    continues: Vec<Vec<bool>>,
}

impl GroupPages {
    /// Returns the pages of an offset index, which begin with a row.
    pub(super) fn aligned(index: Vec<OffsetIndexMetaData>) -> Self {
        let continues = vec![Vec::new(); index.len()];
        Self { index, continues }
    }

    /// Returns pages of which those marked in `continues` begin within a row.
    pub(super) fn new(columns: Vec<(OffsetIndexMetaData, Vec<bool>)>) -> Self {
        let (index, continues): (Vec<_>, Vec<Vec<bool>>) = columns.into_iter().unzip();
        let some = |marks: Vec<bool>| if marks.contains(&true) { marks } else { Vec::new() };
        Self { index, continues: continues.into_iter().map(some).collect() }
    }

    /// Returns the pages of a unit's footer, if some of them begin within a row.
    ///
    /// # Errors
    /// If the marks are damaged. Without them, rows would be read at the wrong place.
    pub(super) fn continuing(unit: &ParquetMetaData) -> ParquetResult<Option<Self>> {
        let Some(marks) = unit.file_metadata().key_value_metadata() else { return Ok(None) };
        let index = unit.offset_index().and_then(|groups| groups.first());
        let pages = index.and_then(|index| {
            let mut pages = Self::aligned(index.clone());
            for KeyValue { key, value } in marks {
                let column: usize = key.strip_prefix(KEY)?.parse().ok()?;
                let marks: Vec<bool> = value.as_ref()?.chars().map(|mark| mark == CONTINUES).collect();
                let is_of_pages = index.get(column)?.page_locations().len() == marks.len();
                *pages.continues.get_mut(column).filter(|_| is_of_pages)? = marks;
            }
            Some(pages)
        });
        let damaged = || ParquetError::General("the catalog's marks of pages are damaged".to_owned());
        pages.map(Some).ok_or_else(damaged)
    }

    /// Returns the marks of pages that begin within a row, as a unit's footer keeps them.
    pub(super) fn marks(&self) -> Option<Vec<KeyValue>> {
        let marked = self.continues.iter().enumerate().filter(|(_, marks)| !marks.is_empty());
        let text = |marks: &[bool]| marks.iter().map(|&mark| if mark { CONTINUES } else { BEGINS }).collect();
        let marks: Vec<KeyValue> = marked
            .map(|(column, marks)| KeyValue::new(format!("{KEY}{column}"), Some(text(marks))))
            .collect();
        (!marks.is_empty()).then_some(marks)
    }

    pub(super) fn column(&self, column: usize) -> ColumnPages<'_> {
        let index = &self.index[column];
        ColumnPages { index, locations: index.page_locations(), continues: &self.continues[column] }
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = ColumnPages<'_>> {
        (0..self.index.len()).map(|column| self.column(column))
    }
}

/// The pages of one column of a row group.
#[derive(Clone, Copy)]
pub(super) struct ColumnPages<'a> {
    pub(super) index: &'a OffsetIndexMetaData,
    pub(super) locations: &'a [PageLocation],
    continues: &'a [bool],
}

impl ColumnPages<'_> {
    /// Returns the pages that hold some of `rows`, which is not empty.
    pub(super) fn of_rows(&self, rows: &Range<u64>) -> Range<usize> {
        let first_row = |page: &PageLocation| page.first_row_index.unsigned_abs();
        let first = self.locations.partition_point(|page| first_row(page) <= rows.start).saturating_sub(1);
        let mut end = self.locations.partition_point(|page| first_row(page) < rows.end);
        // Pages in which no row of `rows` begins, but the last one goes on.
        while end < self.locations.len() && first_row(&self.locations[end]) == rows.end && self.continues(end)
        {
            end += 1;
        }
        first..end.max(first)
    }

    /// Returns the number of rows that are complete before page `page` begins.
    pub(super) fn rows_before(&self, page: usize) -> u64 {
        let begun = self.locations.get(page).map_or(0, |page| page.first_row_index.unsigned_abs());
        begun.saturating_sub(u64::from(self.continues(page)))
    }

    /// Returns the bytes of a run of pages in the file.
    pub(super) fn bytes(&self, pages: &Range<usize>) -> Range<u64> {
        let pages = self.locations.get(pages.clone()).unwrap_or_default();
        let start = pages.first().map_or(0, |page| page.offset.unsigned_abs());
        let end = |page: &PageLocation| {
            page.offset.unsigned_abs().saturating_add(u64::from(page.compressed_page_size.unsigned_abs()))
        };
        start..pages.last().map_or(start, end)
    }

    fn continues(&self, page: usize) -> bool {
        self.continues.get(page).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::metadata::OffsetIndexBuilder;

    /// Pages in which these numbers of rows begin; each takes 10 bytes.
    fn pages(rows: [(i64, bool); 6]) -> GroupPages {
        let mut index = OffsetIndexBuilder::new();
        for (i, (begun, _)) in rows.iter().enumerate() {
            index.append_row_count(*begun);
            index.append_offset_and_size(100 + 10 * i as i64, 10);
        }
        GroupPages::new(vec![(index.build(), rows.iter().map(|(_, continues)| *continues).collect())])
    }

    #[test]
    fn rows_have_all_pages_that_hold_some_of_their_values() {
        // rows 0, 1 | 1 | 1, 2 | 3, 4 | 4 | 5
        let pages = pages([(2, false), (0, true), (1, true), (2, false), (0, true), (1, false)]);
        let pages = pages.column(0);
        for (rows, expected) in [
            (0..1, 0..1),
            (0..2, 0..3),
            (1..2, 0..3),
            (2..3, 2..3),
            (2..4, 2..4),
            (4..5, 3..5),
            (5..6, 5..6),
            (0..6, 0..6),
        ] {
            assert_eq!(pages.of_rows(&rows), expected, "{rows:?}");
        }
        assert_eq!((0..6).map(|page| pages.rows_before(page)).collect::<Vec<_>>(), [0, 1, 1, 3, 4, 5]);
        assert_eq!(pages.bytes(&(2..5)), 120..150);
    }

    #[test]
    fn pages_that_all_begin_with_a_row_have_no_marks() {
        assert_eq!(pages([(1, false); 6]).marks(), None);
        let marks =
            pages([(1, false), (1, true), (1, false), (1, false), (0, true), (1, true)]).marks().unwrap();
        assert_eq!(marks, [KeyValue::new(format!("{KEY}0"), Some("010011".to_owned()))]);
    }
}
