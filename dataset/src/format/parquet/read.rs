//! Reads rows of a row group: its unit's footer, then the pages of the selected columns, then views.

use super::super::sides::Side;
use super::super::units::UnitRows;
use super::memory::{self, HeldBytes, PageRuns};
use super::page_rows::GroupPages;
use super::virtual_group::Wanted;
use crate::cache::RangeReader;
use crate::catalog::Counted;
use crate::catalog::columns::{Mapping, bug, pick};
use crate::held::held_schema;
use crate::{Error, ErrorKind, ObjectRef, Result};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowSelection,
};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// Rows that are decoded at a time. parquet reserves memory for all of them before it reads the first: 1 MiB a column.
const BATCH_ROWS: usize = 64 << 10;
/// If values repeat prefixes, their memory is checked whenever about this number of bytes was decoded.
const PREFIX_BATCH_BYTES: u64 = 16 << 20;

/// Parses a unit's footer, as its catalog keeps it.
pub(crate) fn parse_unit(bytes: &Bytes) -> Result<ParquetMetaData> {
    ParquetMetaDataReader::new()
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional)
        .parse_and_finish(bytes)
        .map_err(|e| Error::new(ErrorKind::Bug, "a footer in the catalog cannot be parsed").with_source(e))
}

/// Hashes a unit's fields, because its bytes change with each release of the parquet crate.
pub(super) fn unit_digest(unit: &Bytes) -> Result<u64> {
    let metadata = parse_unit(unit)?;
    let mut hash = twox_hash::XxHash64::default();
    for group in metadata.row_groups() {
        hash.write_i64(group.num_rows());
        for column in group.columns() {
            hash.write(column.column_path().string().as_bytes());
            hash.write_u8(0xff); // no UTF-8 text holds it
            hash.write_i64(column.num_values());
            hash.write_i64(column.data_page_offset());
            hash.write_i64(column.compressed_size());
            hash.write_i64(column.uncompressed_size());
            for bytes in column.statistics().into_iter().flat_map(|s| [s.min_bytes_opt(), s.max_bytes_opt()])
            {
                hash.write(bytes.unwrap_or_default());
                hash.write_u8(0xff);
            }
        }
    }
    Ok(hash.finish())
}

/// The stored pages of rows of one row group.
pub(crate) struct Fetched {
    object: ObjectRef,
    rows: Range<u64>,
    counted: Counted,
    group: RowGroupMetaData,
    runs: Vec<(Range<u64>, Bytes)>,
    metadata: ArrowReaderMetadata,
    mask: ProjectionMask,
    /// The row group's pages, if some of them begin within a row.
    pages: Option<GroupPages>,
}

/// Fetches the pages that hold the catalog's `columns` of rows of one row group.
pub(crate) async fn fetch(
    unit: UnitRows,
    source_schema: &SchemaRef,
    mapping: &Mapping,
    columns: &[usize],
    reader: &RangeReader,
) -> Result<Fetched> {
    let UnitRows { object, number, description, rows, is_of_pages, counted, sides } = unit;
    let metadata = parse_unit(&description)?;
    let group = metadata.row_group(0).clone();
    let unfit = |e: ParquetError| damaged(&object, e);
    let pages = GroupPages::continuing(&metadata).map_err(unfit)?;
    let options = ArrowReaderOptions::new().with_schema(held_schema(source_schema));
    let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), options).map_err(unfit)?;
    let mask = projection(&metadata, source_schema, mapping, columns);
    let mut fetched = Fetched { object, rows, counted, group, runs: Vec::new(), metadata, mask, pages };
    if let Some(wanted) = fetched.wanted() {
        let ranges = wanted.ranges();
        let bytes = reader.read_ranges(&fetched.object, &ranges).await?;
        fetched.runs = ranges.into_iter().zip(bytes).collect();
        return Ok(fetched);
    }
    let small = if is_of_pages { fetched.small(source_schema, mapping, columns) } else { Vec::new() };
    let side = match small.is_empty() {
        true => Side::default(),
        false => sides.of_unit(number, &fetched.object, &small, reader).await?,
    };
    let mut decoder = fetched.decoder(usize::MAX)?;
    while let Asked::Pages(ranges) = asked(&mut decoder).map_err(|e| damaged(&fetched.object, e))? {
        let bytes = side.read_ranges(&fetched.object, &ranges, reader).await?;
        fetched.runs.extend(ranges.iter().cloned().zip(bytes.iter().cloned()));
        decoder.push_ranges(ranges, bytes).map_err(|e| damaged(&fetched.object, e))?;
    }
    Ok(fetched)
}

/// What a decoder needs to go on.
enum Asked {
    Pages(Vec<Range<u64>>),
    Nothing(Option<Box<ParquetRecordBatchReader>>),
}

fn asked(decoder: &mut ParquetPushDecoder) -> ParquetResult<Asked> {
    Ok(match decoder.try_next_reader()? {
        DecodeResult::NeedsData(ranges) => Asked::Pages(ranges),
        DecodeResult::Data(reader) => Asked::Nothing(Some(Box::new(reader))),
        DecodeResult::Finished => Asked::Nothing(None),
    })
}

impl Fetched {
    /// Returns the places of the fetched columns that are not payloads: parts of blocks need a page of each, so they are read once
    /// for all parts of the row group.
    fn small(&self, source: &SchemaRef, mapping: &Mapping, columns: &[usize]) -> Vec<Range<u64>> {
        let is_payload = |column: &usize| *mapping.schema.field(*column).data_type() == DataType::BinaryView;
        let payload: Vec<usize> = columns.iter().copied().filter(is_payload).collect();
        let payload = projection(&self.metadata, source, mapping, &payload);
        let leaves = self.group.columns().iter().enumerate();
        let small =
            leaves.filter(|(leaf, _)| self.mask.leaf_included(*leaf) && !payload.leaf_included(*leaf));
        small
            .map(|(_, column)| column.byte_range())
            .map(|(start, bytes)| start..start.saturating_add(bytes))
            .collect()
    }

    /// Returns a decoder of the rows, `most` at a time.
    fn decoder(&self, most: usize) -> Result<ParquetPushDecoder> {
        let group_rows = to_usize(self.group.num_rows().unsigned_abs())?;
        let keep = to_usize(self.rows.start)?..to_usize(self.rows.end)?;
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(self.metadata.clone())
            .with_projection(self.mask.clone())
            .with_batch_size(keep.len().clamp(1, most.min(BATCH_ROWS)));
        if keep.len() < group_rows {
            let selection = RowSelection::from_consecutive_ranges(std::iter::once(keep), group_rows);
            builder = builder.with_row_selection(selection);
        }
        builder.build().map_err(|e| damaged(&self.object, e))
    }

    /// Returns the rows as one batch of the catalog's `columns`, which were fetched. Texts are views.
    pub(crate) fn decode(
        self,
        source_schema: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
    ) -> Result<RecordBatch> {
        let pages = PageRuns { group: &self.group, runs: &self.runs, rows: self.rows.end - self.rows.start };
        let prefixes = memory::check(&pages, self.counted).map_err(|what| self.too_much(&what))?;
        // Values that repeat prefixes are at most as long as their page, so the memory of a few at a time is bounded.
        let most = prefixes
            .map_or(usize::MAX, |page| usize::try_from(PREFIX_BATCH_BYTES / page.max(1)).unwrap_or(1));
        let batches = self.batches(most.max(1))?;
        let batch = match batches.as_slice() {
            [only] => only.clone(),
            several => {
                let schema = several.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
                arrow::compute::concat_batches(&schema, several).map_err(bug)?
            }
        };
        let count = to_usize(self.rows.end - self.rows.start)?;
        if batch.num_rows() != count {
            return Err(Error::damage(format!(
                "{}: rows {}..{} came back as {} rows; the file is damaged",
                self.object.uri,
                self.rows.start,
                self.rows.end,
                batch.num_rows()
            )));
        }
        pick(&batch, source_schema, mapping, columns)
    }

    /// Returns the requested rows, if pages of the row group begin within a row.
    fn wanted(&self) -> Option<Wanted<'_>> {
        let pages = self.pages.as_ref()?;
        Some(Wanted { metadata: &self.metadata, pages, columns: &self.mask, rows: &self.rows })
    }

    /// Returns a reader of the fetched pages, which begin with a row.
    fn pushed(&self, most: usize) -> Result<Option<Box<ParquetRecordBatchReader>>> {
        let unfit = |e: ParquetError| damaged(&self.object, e);
        let mut decoder = self.decoder(most)?;
        let (ranges, bytes) = self.runs.iter().cloned().unzip();
        decoder.push_ranges(ranges, bytes).map_err(unfit)?;
        match asked(&mut decoder).map_err(unfit)? {
            Asked::Nothing(reader) => Ok(reader),
            Asked::Pages(_) => {
                let what = "pages that were not fetched are needed";
                Err(Error::new(ErrorKind::Bug, format!("{}: {what}", self.object.uri)))
            }
        }
    }

    /// Returns the rows in batches of `most`, together within what the catalog counts.
    fn batches(&self, most: usize) -> Result<Vec<RecordBatch>> {
        let unfit = |e: ParquetError| damaged(&self.object, e);
        let count = to_usize(self.rows.end - self.rows.start)?;
        let reader = match self.wanted() {
            Some(wanted) => {
                let batch_rows = count.clamp(1, most.min(BATCH_ROWS));
                Some(Box::new(wanted.reader(&self.runs, batch_rows).map_err(unfit)?))
            }
            None => self.pushed(most)?,
        };
        let (mut batches, mut held, mut rows) = (Vec::new(), HeldBytes::default(), 0);
        for batch in reader.into_iter().flatten() {
            let batch = batch.map_err(|e| damaged(&self.object, e.into()))?;
            held.add(&batch);
            if most < usize::MAX
                && let Some(what) = memory::over(held.bytes(), self.counted.memory)
            {
                return Err(self.too_much(&what));
            }
            rows += batch.num_rows();
            batches.push(batch);
            if rows > count {
                break; // and is reported as other rows than were catalogued
            }
        }
        Ok(batches)
    }

    fn too_much(&self, what: &str) -> Error {
        Error::damage(format!(
            "{}: rows {}..{} of a row group: {what}; the file is damaged, or its writer states wrong sizes: write it anew, or \
             leave the file out",
            self.object.uri, self.rows.start, self.rows.end
        ))
    }
}

fn damaged(object: &ObjectRef, error: ParquetError) -> Error {
    Error::damage(format!("{}: its pages cannot be decoded: {error}; the file is damaged", object.uri))
        .with_source(error)
}

/// Selects the leaves that the catalog's `columns` need.
pub(super) fn projection(
    metadata: &ArrowReaderMetadata,
    source: &Schema,
    mapping: &Mapping,
    columns: &[usize],
) -> ProjectionMask {
    let descr = metadata.parquet_schema();
    let leaves = (0..descr.num_columns()).filter(|&leaf| {
        let root = descr.get_column_root_idx(leaf);
        columns.iter().any(|&column| {
            let origin = mapping.origins[column];
            let child = origin.child().and_then(|child| match source.field(origin.top_level()).data_type() {
                DataType::Struct(children) => Some(children[child].name().clone()),
                _ => None,
            });
            root == origin.top_level()
                && child.is_none_or(|child| descr.column(leaf).path().parts().get(1) == Some(&child))
        })
    });
    ProjectionMask::leaves(descr, leaves.collect::<Vec<_>>())
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::config(format!("{n} rows do not fit this machine's memory")))
}
