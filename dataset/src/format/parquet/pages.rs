//! Finds the pages of a column chunk in files written without an offset index (pyarrow's default).
//!
//! The page headers are walked once, when the catalog is built: each states its size, hence where the next one is.
//! parquet's page reader parses them over a window of the file. When it requests bytes outside the window, that is the
//! place to read next. Cost: one 16 KiB read a page, so about 1.5 % of the bytes for 1 MiB pages.

use super::memory::Sizes;
use super::page_header::{self, PageHeader};
use crate::{Error, ObjectRef, Result, Storage};
use bytes::{Buf, Bytes};
use parquet::basic::Type as PhysicalType;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder, RowGroupMetaData};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a window: a header with parquet-cpp's largest statistics (two values of 4 KiB) fits.
const WINDOW_BYTES: u64 = 16 << 10;
/// A header larger than this is damage.
const MAX_WINDOW_BYTES: u64 = 4 << 20;

/// Returns where the pages of every column of a row group are, and their sizes; `None` if it has nested columns, whose page
/// headers do not state rows.
pub(super) async fn offset_index(
    group: &RowGroupMetaData,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<Option<(Vec<OffsetIndexMetaData>, Vec<Sizes>)>> {
    if group.columns().iter().any(|c| c.column_descr().max_rep_level() > 0) {
        return Ok(None);
    }
    let (mut columns, mut sizes) = (Vec::new(), Vec::new());
    for column in group.columns() {
        let (index, of_pages) = walk(column, group.num_rows(), object, storage).await?;
        columns.push(index);
        sizes.push(of_pages);
    }
    Ok(Some((columns, sizes)))
}

/// Visits the page headers of one column chunk.
async fn walk(
    column: &ColumnChunkMetaData,
    group_rows: i64,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<(OffsetIndexMetaData, Sizes)> {
    let (start, length) = column.byte_range();
    let end = start.saturating_add(length).min(object.size);
    let bad = |what: String| {
        Error::damage(format!("{}: column {}: {what}; the file is damaged", object.uri, column.column_path()))
    };
    let window = Arc::new(Window::new(start, end));
    let rows = usize::try_from(group_rows).map_err(|_| bad("negative row count".into()))?;
    let mut pages =
        SerializedPageReader::new(window.clone(), column, rows, None).map_err(|e| bad(e.to_string()))?;
    let mut starts: Vec<(u64, usize)> = Vec::new(); // data pages: offset and rows
    let mut headers = Vec::new();
    loop {
        let page = match pages.peek_next_page() {
            Ok(page) => page,
            Err(error) => {
                let Some(range) = window.next_read() else { return Err(bad(error.to_string())) };
                let bytes = storage.read(object, range.clone()).await?;
                window.fill(range.start, bytes);
                continue;
            }
        };
        let Some(page) = page else { break };
        headers.push(window.header().ok_or_else(|| bad("a page without a header".into()))?);
        if !page.is_dict {
            let rows =
                page.num_rows.or(page.num_levels).ok_or_else(|| bad("a page without a row count".into()))?;
            starts.push((window.asked(), rows));
        }
        pages.skip_next_page().map_err(|e| bad(e.to_string()))?;
    }
    let mut index = OffsetIndexBuilder::new();
    let mut total = 0i64;
    for (i, &(offset, rows)) in starts.iter().enumerate() {
        let next = starts.get(i + 1).map_or(end, |n| n.0);
        let size =
            i32::try_from(next - offset).map_err(|_| bad(format!("a page of {} bytes", next - offset)))?;
        let rows = i64::try_from(rows).map_err(|_| bad(format!("a page of {rows} rows")))?;
        let offset = i64::try_from(offset).map_err(|_| bad(format!("a page at byte {offset}")))?;
        index.append_row_count(rows);
        index.append_offset_and_size(offset, size);
        total += rows;
    }
    if total != group_rows {
        return Err(bad(format!("its pages hold {total} rows, the row group {group_rows}")));
    }
    Ok((index.build(), Sizes::new(headers)))
}

/// The part of a file that is in memory, and what was last requested of it.
struct Window {
    chunk_end: u64,
    state: Mutex<State>,
}

struct State {
    start: u64,
    bytes: Bytes,
    asked: u64,
    /// What to read next, if the last request could not be met.
    wanted: Option<std::ops::Range<u64>>,
}

impl Window {
    fn new(start: u64, chunk_end: u64) -> Self {
        Self {
            chunk_end,
            state: Mutex::new(State { start, bytes: Bytes::new(), asked: start, wanted: None }),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // plain data: no broken invariant to fear
    }

    fn fill(&self, start: u64, bytes: Bytes) {
        let mut state = self.lock();
        (state.start, state.bytes) = (start, bytes);
    }

    /// Returns where the header that was parsed last begins.
    fn asked(&self) -> u64 {
        self.lock().asked
    }

    /// Returns the header that was parsed last.
    fn header(&self) -> Option<PageHeader> {
        let state = self.lock();
        let at = usize::try_from(state.asked.checked_sub(state.start)?).ok()?;
        page_header::parse(state.bytes.get(at..)?)
    }

    /// Returns the read that may let the last request succeed: the window moved there, or doubled if it was there already;
    /// `None` if a larger window cannot help.
    fn next_read(&self) -> Option<std::ops::Range<u64>> {
        let mut state = self.lock();
        let held = state.start..state.start + state.bytes.len() as u64;
        if let Some(range) = state.wanted.take() {
            return Some(range);
        }
        let doubled = (state.asked + 2 * (held.end - held.start).max(WINDOW_BYTES)).min(self.chunk_end);
        let grows =
            held.start == state.asked && doubled > held.end && doubled - state.asked <= MAX_WINDOW_BYTES;
        grows.then_some(state.asked..doubled)
    }
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.chunk_end
    }
}

impl ChunkReader for Window {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut state = self.lock();
        state.asked = start;
        let end = state.start + state.bytes.len() as u64;
        if start >= self.chunk_end {
            return Err(ParquetError::EOF(format!("a page at byte {start}, past its chunk's end")));
        }
        // If less than a window is left, move it, so that a header is rarely cut by its edge.
        if start < state.start
            || (end < self.chunk_end && start + WINDOW_BYTES > end && start != state.start)
            || start >= end
        {
            state.wanted = Some(start..(start + WINDOW_BYTES).min(self.chunk_end));
            return Err(ParquetError::EOF("outside the window".into()));
        }
        #[expect(clippy::cast_possible_truncation, reason = "an offset into bytes held in memory")]
        Ok(state.bytes.slice((start - state.start) as usize..).reader())
    }

    fn get_bytes(&self, _start: u64, _length: usize) -> ParquetResult<Bytes> {
        Err(ParquetError::General("page bodies are not read while walking headers".into()))
    }
}

/// Whether this column is stored as bytes whose minimum and maximum are of no use.
pub(super) fn is_bytes(column: &ColumnChunkMetaData) -> bool {
    column.column_type() == PhysicalType::BYTE_ARRAY
        && column.column_descr().converted_type() != parquet::basic::ConvertedType::UTF8
}
