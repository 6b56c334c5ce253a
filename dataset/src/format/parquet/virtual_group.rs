//! Reads rows of a row group some of whose pages begin within a row.
//!
//! parquet skips pages by an offset index, whose pages begin with a row. Here they may not. So the rows' pages are
//! presented as a separate row group, without an offset index and without copying the pages:
//!
//! ```text
//! column   dictionary │ placeholder: the rows that are complete before the first page │ the pages that hold the rows
//! ```
//! The placeholder is an empty page of version 2. parquet skips it whole, because its header states its rows. A row that goes
//! on in the first page counts as one row, so a placeholder counts one row less if that page begins within a row. Every page
//! follows the one before it as in the file, so rows that go on from page to page are read as in a whole row group.

use super::page_rows::{ColumnPages, GroupPages};
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    RowSelection, RowSelectionPolicy,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use std::ops::Range;
use std::sync::Arc;

/// Maximum rows of a placeholder: the header has 32 bits.
const MAX_PLACEHOLDER_ROWS: u64 = i32::MAX as u64;

/// Rows of a row group, and its pages.
pub(super) struct Wanted<'a> {
    /// The metadata of the row group alone.
    pub(super) metadata: &'a ArrowReaderMetadata,
    pub(super) pages: &'a GroupPages,
    pub(super) columns: &'a ProjectionMask,
    pub(super) rows: &'a Range<u64>,
}

impl Wanted<'_> {
    /// Returns the places of the dictionaries and of the pages that hold the rows.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let ranges = self.places().into_iter().flat_map(|(_, dictionary, pages)| [dictionary, pages]);
        ranges.filter(|range| !range.is_empty()).collect()
    }

    /// Returns a reader of the rows, `batch_rows` at a time, from the bytes of [`ranges`](Self::ranges).
    pub(super) fn reader(
        &self,
        runs: &[(Range<u64>, Bytes)],
        batch_rows: usize,
    ) -> Result<ParquetRecordBatchReader> {
        let group = self.metadata.metadata().row_group(0);
        let bytes_of = |range: &Range<u64>| {
            let run = runs.iter().find(|(run, _)| run == range).map(|(_, bytes)| bytes.clone());
            run.ok_or_else(|| ParquetError::General(format!("bytes {range:?} were not fetched")))
        };
        let mut file = Segments::default();
        let mut columns = group.columns().to_vec();
        for (column, dictionary, pages) in self.places() {
            let start = file.len();
            let has_dictionary = !dictionary.is_empty();
            if has_dictionary {
                file.push(bytes_of(&dictionary)?);
            }
            let data = file.len();
            let of_column = self.pages.column(column);
            let first = of_column.of_rows(self.rows).start;
            placeholders(of_column.rows_before(first)).for_each(|page| file.push(page));
            if !pages.is_empty() {
                file.push(bytes_of(&pages)?);
            }
            columns[column] =
                moved(&columns[column], has_dictionary.then_some(start), data, file.len() - start)?;
        }
        let (start, end) = (to_usize(self.rows.start)?, to_usize(self.rows.end)?);
        let group = group.clone().into_builder().set_column_metadata(columns);
        let group = group.set_num_rows(i64::try_from(end)?).build()?;
        let metadata = ParquetMetaData::new(self.metadata.metadata().file_metadata().clone(), vec![group]);
        let options = ArrowReaderOptions::new().with_schema(self.metadata.schema().clone());
        let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), options)?;
        ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
            .with_projection(self.columns.clone())
            .with_batch_size(batch_rows)
            .with_row_selection(RowSelection::from_consecutive_ranges(std::iter::once(start..end), end))
            .with_row_selection_policy(RowSelectionPolicy::Selectors)
            .build()
    }

    /// Returns the places of each requested column's dictionary, empty if it has none, and pages.
    fn places(&self) -> Vec<(usize, Range<u64>, Range<u64>)> {
        let group = self.metadata.metadata().row_group(0);
        let wanted = (0..group.num_columns()).filter(|&column| self.columns.leaf_included(column));
        let place = |column: usize| {
            let pages: ColumnPages<'_> = self.pages.column(column);
            let start = group.column(column).byte_range().0;
            let first = pages.locations.first().map_or(start, |page| page.offset.unsigned_abs());
            (column, start..first.max(start), pages.bytes(&pages.of_rows(self.rows)))
        };
        wanted.map(place).collect()
    }
}

/// Returns a column chunk of `length` bytes with another place.
fn moved(
    column: &ColumnChunkMetaData,
    dictionary: Option<u64>,
    data: u64,
    length: u64,
) -> Result<ColumnChunkMetaData> {
    column
        .clone()
        .into_builder()
        .set_dictionary_page_offset(dictionary.map(i64::try_from).transpose()?)
        .set_data_page_offset(i64::try_from(data)?)
        .set_total_compressed_size(i64::try_from(length)?)
        .build()
}

/// Returns empty pages of version 2 that together claim `rows` rows: mostly one, none for no rows.
fn placeholders(rows: u64) -> impl Iterator<Item = Bytes> {
    let pages = rows.div_ceil(MAX_PLACEHOLDER_ROWS);
    (0..pages).map(move |page| placeholder((rows - page * MAX_PLACEHOLDER_ROWS).min(MAX_PLACEHOLDER_ROWS)))
}

/// Returns the header of an empty page of version 2, in Thrift's compact protocol.
fn placeholder(rows: u64) -> Bytes {
    const INT: u8 = 0x15; // the next field, of 32 bits
    const HEADER_V2: u8 = 0x5c; // 5 fields on, a struct
    let mut header = vec![INT, 6, INT, 0, INT, 0, HEADER_V2]; // kind 3; sizes 0
    for value in [rows, rows, rows, 0, 0, 0] {
        // values, nulls, rows, the encoding, the levels' lengths
        header.push(INT);
        let mut rest = value << 1; // zigzag
        while rest > 0x7f {
            header.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        header.push(rest.to_le_bytes()[0]);
    }
    header.extend([0, 0]); // both structs end
    header.into()
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|e| ParquetError::External(Box::new(e)))
}

/// A file of parts that follow one another. No header and no page reaches from one into another.
#[derive(Default)]
struct Segments {
    /// Each with its first byte's place.
    parts: Vec<(u64, Bytes)>,
}

impl Segments {
    fn push(&mut self, part: Bytes) {
        self.parts.push((self.len(), part));
    }

    fn after(&self, byte: u64) -> Result<Bytes> {
        let part = self.parts.partition_point(|(start, _)| *start <= byte).checked_sub(1);
        let part = part.and_then(|part| self.parts.get(part));
        let found = part.and_then(|(start, bytes)| {
            let at = usize::try_from(byte - start).ok().filter(|at| *at <= bytes.len())?;
            Some(bytes.slice(at..))
        });
        found.ok_or_else(|| ParquetError::EOF(format!("a page at byte {byte} of {}", self.len())))
    }
}

impl Length for Segments {
    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |(start, bytes)| start + bytes.len() as u64)
    }
}

impl ChunkReader for Segments {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.after(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.after(start)?;
        match length <= bytes.len() {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::EOF(format!("{length} bytes at byte {start} of {}", self.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parquet::page_header;

    #[test]
    fn placeholders_state_their_rows_and_have_no_bytes() {
        let most = MAX_PLACEHOLDER_ROWS;
        for (rows, pages) in
            [(0, 0), (1, 1), (63, 1), (64, 1), (8192, 1), (most, 1), (most + 1, 2), (3 * most, 3)]
        {
            let placeholders: Vec<Bytes> = placeholders(rows).collect();
            assert_eq!(placeholders.len(), pages);
            let headers = placeholders.iter().map(|page| {
                let header = page_header::parse(page).unwrap();
                assert_eq!((header.bytes, header.stored, header.plain, header.levels), (page.len(), 0, 0, 0));
                assert!(header.is_data && header.rows == Some(header.values), "{header:?}");
                header.values
            });
            assert_eq!(headers.sum::<u64>(), rows);
        }
    }
}
