//! One shard in memory: rows become row groups of a Parquet file, or record batches of an Arrow IPC file.

use super::options::RewriteFormat;
use super::page_writer::PageWriter;
use super::schema::{FEATURES_KEY, PayloadKind, ShardSchema};
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, AsArray};
use arrow::compute::concat_batches;
use arrow::ipc::writer::FileWriter;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Rows of a group at most, however small the samples: with 16 bytes of views a row that is 1 MiB.
const GROUP_ROWS: usize = 1 << 16;
/// Bytes of a page at about which it is closed: four pages in a group of 4 MiB, so that readers can cut it.
const PAGE_BYTES: usize = 1 << 20;

/// How groups are cut and columns are stored.
#[derive(Debug, Clone)]
pub(super) struct EncodeOptions {
    pub(super) format: RewriteFormat,
    pub(super) group_bytes: u64,
    /// Mean bytes of a sample, by which pages are cut.
    pub(super) sample_bytes: u64,
    /// Rows of a page of the payload columns, and what row groups are a multiple of.
    pub(super) page_samples: Option<NonZeroU32>,
}

/// A shard being made.
pub(super) struct ShardEncoder {
    shape: ShardSchema,
    group_bytes: u64,
    /// What the rows of a group are a multiple of.
    page_rows: usize,
    file: File,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: u64,
}

enum File {
    Parquet(Box<ArrowWriter<Vec<u8>>>),
    Pages(Box<PageWriter>),
    Ipc(Box<FileWriter<Vec<u8>>>),
}

impl ShardEncoder {
    pub(super) fn new(
        shape: &ShardSchema,
        kinds: &BTreeMap<String, PayloadKind>,
        options: &EncodeOptions,
    ) -> Result<Self> {
        let schema = &shape.schema;
        let properties = || properties(shape, kinds, options.sample_bytes);
        let page_rows = options.page_samples.map(|rows| usize::try_from(rows.get()).unwrap_or(usize::MAX));
        let file = match (options.format, page_rows) {
            (RewriteFormat::Parquet, None) => {
                let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties().build()));
                File::Parquet(Box::new(writer.map_err(refused)?))
            }
            (RewriteFormat::Parquet, Some(rows)) => {
                let payload: Vec<ColumnPath> = kinds.keys().map(|name| bytes_of(name)).collect();
                let writer = PageWriter::new(schema, properties(), &payload, rows);
                File::Pages(Box::new(writer.map_err(refused)?))
            }
            (RewriteFormat::Ipc, _) => {
                File::Ipc(Box::new(FileWriter::try_new(Vec::new(), schema).map_err(refused)?))
            }
        };
        let (shape, group_bytes, page_rows) = (shape.clone(), options.group_bytes, page_rows.unwrap_or(1));
        let (pending, pending_rows, pending_bytes) = (Vec::new(), 0, 0);
        Ok(Self { shape, group_bytes, page_rows, file, pending, pending_rows, pending_bytes })
    }

    /// Adds rows of the catalog's columns. Where groups end depends on the rows alone, not on the batches.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let sizes = row_bytes(batch);
        let mut start = 0;
        for (row, bytes) in sizes.into_iter().enumerate() {
            let rows = self.pending_rows + row - start;
            let is_full = self.pending_bytes + bytes > self.group_bytes || rows >= GROUP_ROWS;
            if rows > 0 && rows.is_multiple_of(self.page_rows) && is_full {
                self.keep(batch, start..row);
                self.write_group()?;
                start = row;
            }
            self.pending_bytes += bytes;
        }
        self.keep(batch, start..batch.num_rows());
        Ok(())
    }

    fn keep(&mut self, batch: &RecordBatch, rows: std::ops::Range<usize>) {
        if !rows.is_empty() {
            self.pending_rows += rows.len();
            self.pending.push(batch.slice(rows.start, rows.len()));
        }
    }

    fn write_group(&mut self) -> Result<()> {
        let Some(first) = self.pending.first() else { return Ok(()) };
        let rows = concat_batches(&first.schema(), &self.pending).map_err(refused)?;
        self.pending.clear();
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let group = self.shape.apply(&rows)?;
        match &mut self.file {
            File::Parquet(writer) => writer.write(&group).and_then(|()| writer.flush()).map_err(refused),
            File::Pages(writer) => writer.write(&group).map_err(refused),
            File::Ipc(writer) => writer.write(&group).map_err(refused),
        }
    }

    /// The whole file.
    pub(super) fn finish(mut self) -> Result<Bytes> {
        self.write_group()?;
        let bytes = match self.file {
            File::Parquet(writer) => writer.into_inner().map_err(refused)?,
            File::Pages(writer) => writer.into_inner().map_err(refused)?,
            File::Ipc(writer) => writer.into_inner().map_err(refused)?,
        };
        Ok(bytes.into())
    }
}

/// Bytes of each row: its payloads exactly, its metadata by their types.
fn row_bytes(batch: &RecordBatch) -> Vec<u64> {
    let mut sizes = vec![0u64; batch.num_rows()];
    for column in batch.columns() {
        match column.as_binary_view_opt() {
            Some(views) => {
                for (size, length) in sizes.iter_mut().zip(views.lengths()) {
                    *size += u64::from(length);
                }
            }
            None => {
                let width = column.data_type().primitive_width().unwrap_or(TEXT_BYTES) as u64;
                sizes.iter_mut().for_each(|size| *size += width);
            }
        }
    }
    sizes
}

/// What a text or nested value counts as; a group of metadata alone is cut by [`GROUP_ROWS`] anyway.
const TEXT_BYTES: usize = 32;

/// Payloads uncompressed and without dictionary or statistics (encoded bytes neither shrink nor sort); everything
/// else as usual. Offset and column index are written for all.
fn properties(
    shape: &ShardSchema,
    kinds: &BTreeMap<String, PayloadKind>,
    sample_bytes: u64,
) -> WriterPropertiesBuilder {
    let features = shape.schema.metadata().get(FEATURES_KEY).cloned();
    // The writer looks at a page's size only after this number of rows.
    let rows_per_look = (PAGE_BYTES as u64 / 4 / sample_bytes.max(1)).clamp(1, 1024);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_write_batch_size(usize::try_from(rows_per_look).unwrap_or(1024))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_key_value_metadata(Some(vec![KeyValue::new(FEATURES_KEY.to_owned(), features)]));
    for payload in kinds.keys() {
        let bytes = bytes_of(payload);
        properties = properties
            .set_column_compression(bytes.clone(), Compression::UNCOMPRESSED)
            .set_column_dictionary_enabled(bytes.clone(), false)
            .set_column_statistics_enabled(bytes, EnabledStatistics::None);
    }
    properties
}

/// Returns the path of a payload's bytes.
fn bytes_of(payload: &str) -> ColumnPath {
    ColumnPath::new(vec![payload.to_owned(), "bytes".to_owned()])
}

fn refused(error: impl std::fmt::Display) -> Error {
    let message =
        format!("the shard's format cannot hold these columns: {error}; leave them out with columns");
    Error::new(ErrorKind::BadConfig, message)
}
