//! Computes the memory that rows of a row group take once decoded.
//!
//! ```text
//! cataloguing   footer, offset index, page headers where they differ much ─▶ memory of each block (an upper bound)
//! reading       headers of the pages that were fetched ─▶ compared with it before anything is decompressed
//! ```
//! Bytes and text are views into decompressed pages, so a value that a dictionary holds once is in memory once. Other types
//! take their width for each value, however few bytes their runs are encoded in.
//!
//! A footer states sizes of whole column chunks. Pages of one chunk may compress differently, so the bound for some of them is
//! their stored bytes and all that the chunk's compression saves. Where that is much more than the pages themselves, their
//! headers are read: 16 KiB a page.

use super::page_header::{self, PageHeader};
use super::page_rows::{ColumnPages, GroupPages};
use crate::catalog::{Counted, VIEW_BYTES};
use crate::{Error, ObjectRef, Result, Storage};
use arrow::array::{Array, ArrayData};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::{StreamExt, TryStreamExt, stream};
use parquet::basic::{Compression, ConvertedType, Encoding, Type as PhysicalType};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use std::collections::HashSet;
use std::io::Read;
use std::ops::Range;

/// Bytes read at a page's start: a header with parquet-cpp's largest statistics (two values of 4 KiB) fits.
const HEADER_BYTES: u64 = 16 << 10;
/// Headers that are read at a time.
const HEADER_READS: usize = 16;
/// A bound is accepted if it exceeds the stored bytes by less than `block_bytes` / 4.
const TOLERANCE: u64 = 4;
/// Levels (2 + 2 bytes) and offsets (8 bytes) of a value in a nested column.
const NESTED_BYTES: u64 = 12;
/// In memory, decimals of up to 16 bytes take 16, longer ones 32.
const DECIMAL_BYTES: [u64; 2] = [16, 32];
/// Values that share prefixes take at most this many times their page's bytes, unless the file states their number of
/// bytes. Sorted URLs and paths take 3 to 6 times their page's bytes.
const PREFIX_RATIO: u64 = 16;
/// Bytes of a page that are neither values nor their lengths: levels' lengths, bit widths.
const PAGE_SLACK_BYTES: u64 = 64;
/// Deflate expands one byte to at most this many.
const GZIP_RATIO: u64 = 1032;
/// A page may claim an eighth and 1 MiB more than the catalog counts, because some writers leave headers out of their sums.
const CLAIM_SLACK: u64 = 8;
const CLAIM_SLACK_BYTES: u64 = 1 << 20;

/// Sizes of the pages of a column chunk.
pub(super) struct Sizes {
    dictionary: u64,
    pages: Vec<PageHeader>,
}

impl Sizes {
    pub(super) fn new(headers: Vec<PageHeader>) -> Self {
        let (dictionaries, pages): (Vec<_>, Vec<_>) = headers.into_iter().partition(|h| h.is_dictionary);
        Self { dictionary: dictionaries.iter().map(|header| header.plain).sum(), pages }
    }
}

/// Returns the memory of a whole row group.
pub(super) fn of_group(group: &RowGroupMetaData) -> u64 {
    let columns = group.columns().iter().map(|column| {
        let plain = expanded(column, size(column.uncompressed_size()), unencoded(column));
        leaf(column, plain, size(column.num_values()))
    });
    columns.fold(0, u64::saturating_add)
}

/// Returns the memory of each of `cuts`, runs of the group's `rows`. `known` has the sizes of columns whose headers were
/// read.
pub(super) async fn of_cuts(
    group: &RowGroupMetaData,
    pages: &GroupPages,
    mut known: Vec<Option<Sizes>>,
    cuts: &[Range<u64>],
    block_bytes: u64,
    (object, storage): (&ObjectRef, &Storage),
) -> Result<Vec<u64>> {
    known.resize_with(group.num_columns(), || None);
    let mut memory = vec![0u64; cuts.len()];
    for ((column, pages), sizes) in group.columns().iter().zip(pages.columns()).zip(known) {
        let of = |sizes: Option<&Sizes>| cuts.iter().map(|cut| of_cut(column, pages, sizes, cut)).collect();
        let bounds: Vec<Bound> = of(sizes.as_ref());
        let much = block_bytes / TOLERANCE;
        let bounds = match sizes {
            None if bounds.iter().any(|bound| bound.memory.saturating_sub(bound.least) > much) => {
                of(Some(&read_sizes(column, pages.index, object, storage).await?))
            }
            _ => bounds,
        };
        for (memory, bound) in memory.iter_mut().zip(bounds) {
            *memory = memory.saturating_add(bound.memory);
        }
    }
    Ok(memory)
}

/// The most memory that rows of a column take, and the least that their stored bytes prove.
struct Bound {
    memory: u64,
    least: u64,
}

fn of_cut(
    column: &ColumnChunkMetaData,
    of_column: ColumnPages<'_>,
    sizes: Option<&Sizes>,
    cut: &Range<u64>,
) -> Bound {
    let pages = of_column.locations;
    let chosen = of_column.of_rows(cut);
    let is_nested = column.column_descr().max_rep_level() > 0;
    let (all, packed) = (size(column.uncompressed_size()), size(column.compressed_size()));
    let saved = all.saturating_sub(packed);
    let dictionary = pages.first().map_or(0, |page| size(page.offset).saturating_sub(column.byte_range().0));
    let stored = pages[chosen.clone()]
        .iter()
        .map(|page| u64::from(page.compressed_page_size.unsigned_abs()))
        .sum::<u64>();
    let in_cut = cut.end - cut.start;
    let of_pages = of_column.index.unencoded_byte_array_data_bytes();
    let of_pages =
        of_pages.map(|bytes| chosen.clone().map(|i| bytes.get(i).map_or(0, |b| size(*b))).sum::<u64>());
    let sized = sizes.filter(|sizes| sizes.pages.len() == pages.len());
    let (plain, values) = match sized {
        Some(sizes) => {
            let sum = |of: fn(&PageHeader) -> u64| sizes.pages[chosen.clone()].iter().map(of).sum::<u64>();
            (sizes.dictionary + sum(|h| h.plain), if is_nested { sum(|h| h.values) } else { in_cut })
        }
        None => {
            let values = if is_nested { size(column.num_values()) } else { in_cut };
            let of_stored = dictionary.saturating_add(stored).saturating_add(saved);
            let of_values = of_pages.map_or(u64::MAX, |bytes| {
                let lengths = values.saturating_mul(4 + if is_nested { 4 } else { 1 });
                let pages = PAGE_SLACK_BYTES * chosen.len() as u64;
                bytes
                    .saturating_add(lengths + pages)
                    .saturating_add(dictionary.saturating_add(saved).min(all))
            });
            (all.min(of_stored).min(of_values), values)
        }
    };
    let plain = expanded(column, plain, of_pages.or(unencoded(column)));
    Bound { memory: leaf(column, plain, values), least: leaf(column, dictionary + stored, in_cut) }
}

/// Returns the memory of `values` values of a leaf whose pages have `plain` bytes once decompressed.
fn leaf(column: &ColumnChunkMetaData, plain: u64, values: u64) -> u64 {
    let (views, width) = match column.column_type() {
        PhysicalType::BYTE_ARRAY => (plain, VIEW_BYTES),
        PhysicalType::BOOLEAN => (0, 1),
        PhysicalType::INT32 | PhysicalType::FLOAT => (0, 4),
        PhysicalType::INT64 | PhysicalType::DOUBLE | PhysicalType::INT96 => (0, 8),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => (0, size(column.column_descr().type_length())),
    };
    let width = match column.column_descr().converted_type() {
        ConvertedType::DECIMAL => DECIMAL_BYTES[usize::from(width > DECIMAL_BYTES[0])],
        _ => width,
    };
    let nested = if column.column_descr().max_rep_level() > 0 { NESTED_BYTES } else { 0 };
    let validity = values.div_ceil(8);
    values.saturating_mul(width + nested).saturating_add(validity).saturating_add(views)
}

/// Returns the bytes of the values of pages of `plain` bytes; the file may state them in `unencoded`. They exceed the pages
/// if values repeat each other's prefixes.
fn expanded(column: &ColumnChunkMetaData, plain: u64, unencoded: Option<u64>) -> u64 {
    let is_bytes = column.column_type() == PhysicalType::BYTE_ARRAY;
    if !is_bytes || !column.encodings_mask().is_set(Encoding::DELTA_BYTE_ARRAY) {
        return plain;
    }
    plain.max(unencoded.unwrap_or(plain.saturating_mul(PREFIX_RATIO)))
}

fn unencoded(column: &ColumnChunkMetaData) -> Option<u64> {
    column.unencoded_byte_array_data_bytes().map(size)
}

/// Reads the headers of all pages of a column chunk.
async fn read_sizes(
    column: &ColumnChunkMetaData,
    index: &OffsetIndexMetaData,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<Sizes> {
    let bad = |at: u64| {
        Error::config(format!(
            "{}: column {}: no page header at byte {at}; the file is damaged",
            object.uri,
            column.column_path()
        ))
    };
    let (start, length) = column.byte_range();
    let end = start.saturating_add(length);
    let pages = index.page_locations().iter().map(|page| size(page.offset));
    let first = index.page_locations().first().map_or(start, |page| size(page.offset));
    let starts = (first > start).then_some(start).into_iter().chain(pages);
    let headers = stream::iter(starts.collect::<Vec<u64>>()).map(|at| async move {
        if at >= end {
            return Err(bad(at));
        }
        let bytes = storage.read(object, at..end.min(at + HEADER_BYTES)).await?;
        page_header::parse(&bytes).ok_or_else(|| bad(at))
    });
    let headers: Vec<PageHeader> = headers.buffered(HEADER_READS).try_collect().await?;
    Ok(Sizes::new(headers))
}

/// The fetched bytes of a row group's columns: runs of whole pages.
pub(super) struct PageRuns<'a> {
    pub(super) group: &'a RowGroupMetaData,
    pub(super) runs: &'a [(Range<u64>, Bytes)],
    pub(super) rows: u64,
}

/// Compares what the fetched pages claim with what the catalog counts, before parquet allocates by their claims. Returns
/// the bytes of the largest page whose values repeat prefixes: their memory is known only once they are decoded.
pub(super) fn check(fetched: &PageRuns<'_>, counted: Counted) -> Result<Option<u64>, String> {
    let (mut held, mut plain, mut prefixes) = (0u64, 0u64, None);
    for column in fetched.group.columns() {
        let claims =
            claims(fetched, column).map_err(|what| format!("column {}: {what}", column.column_path()))?;
        let is_nested = column.column_descr().max_rep_level() > 0;
        let values = if is_nested { claims.values } else { claims.values.min(fetched.rows) };
        held = held.saturating_add(leaf(column, claims.plain, values));
        plain = plain.saturating_add(claims.plain);
        prefixes = prefixes.max(claims.prefixes);
        if let Some(problem) = over(held, counted.memory).or_else(|| over(plain, counted.making)) {
            return Err(format!("column {}: {problem}", column.column_path()));
        }
    }
    Ok(prefixes)
}

/// Bytes of the buffers of several batches, each counted once.
#[derive(Default)]
pub(super) struct HeldBytes {
    known: HashSet<usize>,
    bytes: u64,
}

impl HeldBytes {
    pub(super) fn add(&mut self, batch: &RecordBatch) {
        batch.columns().iter().for_each(|column| self.add_data(&column.to_data()));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add_data(&mut self, data: &ArrayData) {
        for buffer in data.buffers() {
            if self.known.insert(buffer.as_ptr() as usize) {
                self.bytes = self.bytes.saturating_add(buffer.len() as u64);
            }
        }
        data.child_data().iter().for_each(|child| self.add_data(child));
    }
}

/// Returns what is wrong with `claimed` bytes if the catalog counts `counted`.
pub(super) fn over(claimed: u64, counted: u64) -> Option<String> {
    let most = counted.saturating_add(counted / CLAIM_SLACK).saturating_add(CLAIM_SLACK_BYTES);
    (claimed > most).then(|| {
        format!(
            "its pages take {claimed} bytes of memory once decoded, but the file's footer states {counted}"
        )
    })
}

#[derive(Default)]
struct Claims {
    plain: u64,
    values: u64,
    prefixes: Option<u64>,
}

/// Sums up the headers of a column's pages.
fn claims(fetched: &PageRuns<'_>, column: &ColumnChunkMetaData) -> Result<Claims, String> {
    let (start, length) = column.byte_range();
    let chunk = start..start.saturating_add(length);
    let mut claims = Claims::default();
    for (range, bytes) in fetched.runs.iter().filter(|(range, _)| chunk.contains(&range.start)) {
        let mut rest: &[u8] = bytes;
        while !rest.is_empty() {
            let at = range.end - rest.len() as u64;
            let header = page_header::parse(rest).ok_or_else(|| format!("no page header at byte {at}"))?;
            let page =
                usize::try_from(header.stored).ok().and_then(|stored| header.bytes.checked_add(stored));
            let page = page.filter(|page| *page <= rest.len());
            let (page, after) =
                rest.split_at(page.ok_or_else(|| format!("the page at byte {at} is cut off"))?);
            if matches!(column.compression(), Compression::GZIP(_)) {
                let levels = usize::try_from(header.levels).unwrap_or(usize::MAX);
                let values = page[header.bytes..].get(levels..).unwrap_or_default();
                inflates_to(values, header.plain).map_err(|what| format!("the page at byte {at}: {what}"))?;
            }
            claims.plain = claims.plain.saturating_add(header.plain);
            claims.values =
                claims.values.saturating_add(if header.is_dictionary { 0 } else { header.values });
            if header.has_prefixes && column.column_type() == PhysicalType::BYTE_ARRAY {
                claims.prefixes = claims.prefixes.max(Some(header.plain));
            }
            rest = after;
        }
    }
    Ok(claims)
}

/// Rejects a gzip page that inflates to more than `plain` bytes: parquet inflates to the end, whatever the header states.
/// Pages that cannot inflate to much are not checked.
fn inflates_to(page: &[u8], plain: u64) -> Result<(), String> {
    if (page.len() as u64).saturating_mul(GZIP_RATIO) <= plain.saturating_add(CLAIM_SLACK_BYTES) {
        return Ok(());
    }
    let mut inflated = MultiGzDecoder::new(page).take(plain.saturating_add(1));
    // Data that is not gzip is stored uncompressed, or parquet reports it.
    let bytes = std::io::copy(&mut inflated, &mut std::io::sink()).unwrap_or(0);
    match bytes > plain {
        true => Err(format!("it becomes more than the {plain} bytes that its header states")),
        false => Ok(()),
    }
}

/// Converts a count of a footer, which is never negative.
fn size(count: impl TryInto<u64>) -> u64 {
    count.try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use std::io::Write;

    #[test]
    fn a_gzip_page_that_becomes_more_than_it_states_is_refused() {
        let mut page = GzEncoder::new(Vec::new(), flate2::Compression::default());
        page.write_all(&vec![0; 16 << 20]).unwrap();
        let page = page.finish().unwrap();
        assert_eq!(inflates_to(&page, 16 << 20), Ok(()));
        let refused = inflates_to(&page, 14 << 20).unwrap_err();
        assert!(refused.contains("14680064 bytes"), "{refused}");
        assert_eq!(inflates_to(&page[..100], 1), Ok(()), "less than a slack");
    }
}
