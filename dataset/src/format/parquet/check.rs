//! Compares what a Parquet footer claims with the file and with itself, before blocks are cut by it.
//!
//! parquet 59 validates neither row counts, places of column chunks nor offset indexes. One flipped bit would lose rows
//! without an error, or place pages where there are none.

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

/// Limit on the rows of one row group. Writers make groups of 10⁵ to 10⁶ rows; more than 2³² are damage.
const MAX_GROUP_ROWS: u64 = u32::MAX as u64;

/// Checks row counts and places of column chunks in a file of `file_bytes`.
pub(super) fn footer(metadata: &ParquetMetaData, file_bytes: u64) -> Result<(), String> {
    let mut total = 0u64;
    for (i, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).ok().filter(|rows| *rows <= MAX_GROUP_ROWS);
        let rows = rows.ok_or_else(|| format!("row group {i} claims {} rows", group.num_rows()))?;
        for column in group.columns() {
            chunk(column, rows, file_bytes)
                .map_err(|what| format!("row group {i}, column {}: {what}", column.column_path()))?;
        }
        total += rows; // at most 2¹⁵ groups of 2³² rows
    }
    let stated = metadata.file_metadata().num_rows();
    if u64::try_from(stated) != Ok(total) {
        return Err(format!("its row groups have {total} rows, and its footer states {stated}"));
    }
    Ok(())
}

/// Checks the chunk of a column in a group of `rows`.
fn chunk(column: &ColumnChunkMetaData, rows: u64, file_bytes: u64) -> Result<(), String> {
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let place = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
    let length = column.compressed_size();
    let (start, length) = place.ok_or_else(|| format!("it claims {length} bytes at byte {start}"))?;
    if start.checked_add(length).is_none_or(|end| end > file_bytes) {
        return Err(format!(
            "it claims to reach byte {}, but the file has {file_bytes}; it was cut off or overwritten",
            start.saturating_add(length)
        ));
    }
    if rows > 0 && length == 0 {
        return Err(format!("it has no bytes for {rows} rows"));
    }
    let values = column.num_values();
    // A row of a nested column has at least one value or null, each of a flat column exactly one.
    let fits = match column.column_descr().max_rep_level() {
        0 => u64::try_from(values) == Ok(rows),
        _ => u64::try_from(values).is_ok_and(|values| values >= rows),
    };
    if fits { Ok(()) } else { Err(format!("it claims {values} values in {rows} rows")) }
}

/// Checks the pages of a group whose [`footer`] was checked: they are in their chunk one after another, and their rows
/// rise. An index that lacks a column is neither used nor checked.
pub(super) fn pages(group: &RowGroupMetaData, index: &[OffsetIndexMetaData]) -> Result<(), String> {
    if index.len() != group.num_columns() || index.iter().any(|column| column.page_locations().is_empty()) {
        return Ok(());
    }
    for (column, index) in group.columns().iter().zip(index) {
        let (start, length) = column.byte_range();
        let (mut byte, mut row) = (start, 0);
        for (i, page) in index.page_locations().iter().enumerate() {
            let offset = u64::try_from(page.offset).ok().filter(|offset| *offset >= byte);
            let size = u64::try_from(page.compressed_page_size).ok().filter(|size| *size > 0);
            let end = offset.zip(size).map(|(offset, size)| offset.saturating_add(size));
            let rises = if i == 0 { page.first_row_index == 0 } else { page.first_row_index >= row };
            match end.filter(|end| *end <= start + length) {
                Some(end) if rises && page.first_row_index < group.num_rows() => {
                    (byte, row) = (end, page.first_row_index);
                }
                _ => {
                    return Err(format!(
                        "column {}: page {i} of its offset index claims {} bytes at byte {}, from row {} on, which \
                         does not fit the pages next to it or the column",
                        column.column_path(),
                        page.compressed_page_size,
                        page.offset,
                        page.first_row_index
                    ));
                }
            }
        }
    }
    Ok(())
}
