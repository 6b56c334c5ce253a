//! Finds the pages of a row group in files written without an offset index (pyarrow's default).
//!
//! The page headers are walked once, when the catalog is built: each states its size, hence where the next one is.
//!
//! ```text
//! row groups ─▶ columns, walked at once ─▶ window ─▶ header ─▶ next header …
//!                                            └─▶ levels of repeated columns: the rows that begin in the page
//! ```
//! Cost: one read a page, of 1 to 16 KiB, and columns that take up to 1/32 of the row group are read in windows of 1 MiB. A
//! page of version 1 of a repeated column does not state its rows, so its levels are read, too: up to 1/4 of the column's
//! bytes, or all of them where the row group is too large to be one block. Columns that need more leave the row group uncut.

use super::levels::{self, Counted, PageRows};
use super::memory::Sizes;
use super::page_header::{self, PageHeader};
use super::page_rows::GroupPages;
use crate::format::cataloguing::Cataloguing;
use crate::{Error, ObjectRef, Result, Storage};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder, RowGroupMetaData};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use std::cmp::Reverse;
use tokio::sync::Semaphore;

/// Bytes of a read for a header whose size is unknown: parquet-cpp's largest statistics (two values of 4 KiB) fit.
const HEADER_BYTES: u64 = 16 << 10;
/// Minimum of a read for a header. Headers without statistics take 20 to 60 bytes.
const MIN_HEADER_BYTES: u64 = 1 << 10;
/// A header larger than this is damage.
const MAX_HEADER_BYTES: u64 = 4 << 20;
/// Bytes of a read where pages are small or the column is: at 100 MB/s, a third of a request's latency of 30 ms.
const WINDOW_BYTES: u64 = 1 << 20;
/// Pages that are on average up to this size are read through: their headers alone would be a request each.
const SMALL_PAGE_BYTES: u64 = 16 << 10;
/// Columns that together have up to this share of the row group are read through.
const THROUGH_SHARE: u64 = 32;
/// The levels of a column may take this share of its bytes.
const LEVEL_SHARE: u64 = 4;
/// The levels may take all bytes in row groups that would be a block of over `HUGE_BLOCKS` × `block_bytes`, which budgets
/// refuse.
const HUGE_BLOCKS: u64 = 64;
/// Limit on the bytes that are read for the levels of one page: twice the levels' own limit.
const MAX_LEVEL_READ: u64 = 8 << 20;
/// A column chunk may have this number of pages of any size; more pages must have `TINY_PAGE_BYTES` on average. A page takes
/// about 100 bytes of memory while its chunk is walked.
const FEW_PAGES: u64 = 4096;
/// The smallest real pages hold 20,000 rows of one value, in about 40 bytes.
const TINY_PAGE_BYTES: u64 = 32;
/// Limit on the pages of a column chunk: 100 MB while it is walked. Row groups with more are not cut.
const MAX_PAGES: u64 = 1 << 20;

/// The pages of a row group, and the sizes that their headers state.
pub(super) struct Walked {
    pub(super) pages: GroupPages,
    pub(super) sizes: Vec<Sizes>,
}

/// Walks through column chunks, of which the data set's files together have a bounded number at once.
pub(super) struct Walks<'a> {
    with: &'a Cataloguing<'a>,
    /// Each walk holds a window of 1 MiB, so 128 MiB in all. Pages of very many levels take up to 8 MiB.
    permits: Semaphore,
}

impl<'a> Walks<'a> {
    pub(super) fn new(with: &'a Cataloguing<'a>) -> Self {
        Self { with, permits: Semaphore::new(with.reads_at_once()) }
    }

    /// Returns where the pages of every column of a row group are, and their sizes; `None` if the rows of some column's pages
    /// cannot be found, or only by reading much of it.
    pub(super) async fn group(&self, group: &RowGroupMetaData, object: &ObjectRef) -> Result<Option<Walked>> {
        let columns = group.columns().iter();
        if columns.clone().any(|column| is_repeated(column) && !levels::is_known(column.compression())) {
            return Ok(None);
        }
        let whole: u64 = columns.clone().map(|column| column.byte_range().1).fold(0, u64::saturating_add);
        let is_huge = whole > HUGE_BLOCKS.saturating_mul(self.with.block_bytes);
        let share = if is_huge { 1 } else { LEVEL_SHARE };
        let walks = columns.zip(read_through(group, whole)).map(|(column, is_read_through)| {
            let (start, length) = column.byte_range();
            let end = start.saturating_add(length).min(object.size);
            let storage = self.with.storage;
            let window = Window { object, storage, start, bytes: Bytes::new(), end };
            let level_bytes = if is_read_through { u64::MAX } else { length / share };
            let walk = Walk { column, window, is_read_through, level_bytes, header_bytes: 0, level_read: 0 };
            async move {
                let _permit = self.permits.acquire().await;
                walk.run(group.num_rows()).await
            }
            .boxed()
        });
        let walks: Vec<_> = walks.collect();
        let walked: Vec<Option<(OffsetIndexMetaData, Vec<bool>, Sizes)>> =
            stream::iter(walks).buffered(self.with.reads_at_once()).try_collect().await?;
        let walked: Option<Vec<_>> = walked.into_iter().collect();
        Ok(walked.map(|columns| {
            let (pages, sizes) =
                columns.into_iter().map(|(index, marks, size)| ((index, marks), size)).unzip();
            Walked { pages: GroupPages::new(pages), sizes }
        }))
    }
}

/// Returns for each column whether all of it is read: the smallest ones, up to a share of the `whole` row group.
fn read_through(group: &RowGroupMetaData, whole: u64) -> Vec<bool> {
    let length = |column: usize| group.column(column).byte_range().1;
    let mut by_size: Vec<usize> = (0..group.num_columns()).collect();
    by_size.sort_by_key(|&column| Reverse(length(column)));
    let (mut left, mut through) = (whole / THROUGH_SHARE, vec![false; group.num_columns()]);
    while let Some(column) = by_size.pop().filter(|&column| length(column) <= left) {
        left -= length(column);
        through[column] = true;
    }
    through
}

fn is_repeated(column: &ColumnChunkMetaData) -> bool {
    column.column_descr().max_rep_level() > 0
}

/// A walk through the pages of one column chunk.
struct Walk<'a> {
    column: &'a ColumnChunkMetaData,
    window: Window<'a>,
    is_read_through: bool,
    /// Bytes that may still be read for levels.
    level_bytes: u64,
    /// The largest header so far.
    header_bytes: u64,
    /// Bytes to read for a page's levels in addition to its header, learned from the pages before it.
    level_read: u64,
}

impl Walk<'_> {
    /// Visits the page headers; returns `None` if the rows of the pages cannot be found.
    async fn run(mut self, group_rows: i64) -> Result<Option<(OffsetIndexMetaData, Vec<bool>, Sizes)>> {
        let (mut index, mut headers, mut continues) = (OffsetIndexBuilder::new(), Vec::new(), Vec::new());
        let (mut at, end, mut total) = (self.window.start, self.window.end, 0i64);
        let start = at;
        while at < end {
            let pages = headers.len() as u64;
            if pages > MAX_PAGES || pages > FEW_PAGES && (at - start) / pages < TINY_PAGE_BYTES {
                return Ok(None);
            }
            if pages > 1 && (at - start) / pages <= SMALL_PAGE_BYTES {
                (self.is_read_through, self.level_bytes) = (true, u64::MAX);
            }
            let header = self.header(at).await?;
            let next = (at + header.bytes as u64).saturating_add(header.stored);
            if next > end {
                return Err(self.bad(&format!("the page at byte {at} reaches past its chunk's end")));
            }
            if header.is_data {
                let Some(rows) = self.rows(at, &header).await? else { return Ok(None) };
                let place = i64::try_from(at).ok().zip(i32::try_from(next - at).ok());
                let place = place.zip(i64::try_from(rows.begun).ok());
                let ((offset, size), begun) =
                    place.ok_or_else(|| self.bad(&format!("a page of {} bytes", next - at)))?;
                if rows.continues && continues.is_empty() {
                    return Err(self.bad("its first page begins within a row"));
                }
                total = total.saturating_add(begun);
                if total > group_rows {
                    break;
                }
                index.append_row_count(begun);
                index.append_offset_and_size(offset, size);
                continues.push(rows.continues);
            } else if !header.is_dictionary {
                return Err(self.bad(&format!("the page at byte {at} is of an unknown kind")));
            }
            headers.push(header);
            at = next;
        }
        match total == group_rows {
            true => Ok(Some((index.build(), continues, Sizes::new(headers)))),
            // Some writers stated wrong rows, which readers of whole row groups do not use.
            false if is_repeated(self.column) => Ok(None),
            false => Err(self.bad(&format!("its pages hold {total} rows, the row group {group_rows}"))),
        }
    }

    /// Reads the header of the page at byte `at`.
    async fn header(&mut self, at: u64) -> Result<PageHeader> {
        let left = self.window.end - at;
        let mut least = 1;
        loop {
            let bytes = self.window.get(at, least, self.most()).await?;
            if let Some(header) = page_header::parse(&bytes) {
                self.header_bytes = self.header_bytes.max(header.bytes as u64);
                return Ok(header);
            }
            let held = bytes.len() as u64;
            if held >= left.min(MAX_HEADER_BYTES) {
                return Err(self.bad(&format!("no page header at byte {at}")));
            }
            least = (4 * held).max(self.most()).min(left).min(MAX_HEADER_BYTES);
        }
    }

    /// Returns the rows of the page at byte `at`; `None` if they cannot be found.
    async fn rows(&mut self, at: u64, header: &PageHeader) -> Result<Option<PageRows>> {
        if !is_repeated(self.column) {
            return Ok(Some(PageRows { begun: header.rows.unwrap_or(header.values), continues: false }));
        }
        if header.values == 0 || header.rows == Some(0) {
            return Ok(None); // no writer makes them; between pages of one row they would end it
        }
        if let Some(begun) = header.rows {
            return Ok(Some(PageRows { begun, continues: false })); // pages of version 2 begin with a row
        }
        if !header.has_level_runs || header.stored == 0 {
            return Ok(None);
        }
        let (codec, max_level) = (self.column.compression(), self.column.column_descr().max_rep_level());
        let body = at + header.bytes as u64;
        let mut least = 1;
        loop {
            let bytes = self.window.get(body, least, self.most()).await?;
            let held = (bytes.len() as u64).min(header.stored);
            let stored = bytes.get(..usize::try_from(held).unwrap_or(0)).unwrap_or_default();
            match levels::count(codec, stored, header.values, max_level) {
                Counted::Rows(rows) => {
                    let read = self.level_read.min(header.stored);
                    let Some(left) = self.level_bytes.checked_sub(read) else { return Ok(None) };
                    self.level_bytes = left;
                    return Ok(Some(rows));
                }
                Counted::Short if held < header.stored => {
                    least = (2 * held).max(self.most()).min(header.stored);
                    if least > self.level_bytes.min(MAX_LEVEL_READ) {
                        return Ok(None);
                    }
                    self.level_read = self.level_read.max(least);
                }
                Counted::Short | Counted::Unknown => return Ok(None),
            }
        }
    }

    /// Returns the bytes to read where a page begins.
    fn most(&self) -> u64 {
        let header = match self.header_bytes {
            0 => HEADER_BYTES,
            known => (4 * known).clamp(MIN_HEADER_BYTES, WINDOW_BYTES),
        };
        let most = header + self.level_read;
        if self.is_read_through { most.max(WINDOW_BYTES) } else { most }
    }

    fn bad(&self, what: &str) -> Error {
        let (uri, column) = (&self.window.object.uri, self.column.column_path());
        Error::damage(format!("{uri}: column {column}: {what}; the file is damaged"))
    }
}

/// The part of a column chunk that is in memory.
struct Window<'a> {
    object: &'a ObjectRef,
    storage: &'a Storage,
    start: u64,
    bytes: Bytes,
    /// Where the chunk ends.
    end: u64,
}

impl Window<'_> {
    /// Returns what is held from byte `at` on. If that is less than `least` bytes, reads `most`, or `least` if that is more.
    async fn get(&mut self, at: u64, least: u64, most: u64) -> Result<Bytes> {
        let until = at.saturating_add(least).min(self.end);
        if at < self.start || until > self.start + self.bytes.len() as u64 {
            let range = at..at.saturating_add(most.max(least)).min(self.end);
            self.bytes = self.storage.read(self.object, range).await?;
            self.start = at;
        }
        Ok(self.bytes.slice(usize::try_from(at - self.start).unwrap_or(usize::MAX)..))
    }
}

/// Whether this column is stored as bytes whose minimum and maximum are of no use.
pub(super) fn is_bytes(column: &ColumnChunkMetaData) -> bool {
    column.column_type() == PhysicalType::BYTE_ARRAY
        && column.column_descr().converted_type() != parquet::basic::ConvertedType::UTF8
}
