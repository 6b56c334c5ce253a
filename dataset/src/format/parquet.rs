//! Parquet files as on the Hugging Face hub.
//!
//! ```text
//! footers (in parallel) ─▶ one schema ─▶ row groups ─▶ blocks, cut along pages ─▶ units: one small footer each
//! block ─▶ its unit's footer (from the catalog) ─▶ the pages of the selected columns, one coalesced read ─▶ views
//! ```
//! A row group over twice `block_bytes` is cut where pages of its largest column begin. Where a file has no offset
//! index the page headers are walked once ([`super::parquet_pages`]) and the index is kept in the catalog. A page is
//! the smallest block: cutting it by rows would read and hold the same bytes several times. A large row group with
//! nested columns and no offset index stays one block for the same reason.
//!
//! No footer is read again: a unit is a footer of one row group with its offset index, without statistics of byte
//! columns. What a block takes in memory is another number than its bytes: see [`super::parquet_memory`].

use super::cataloguing::Cataloguing;
use super::cut_units::{self, CutBlock, CutUnit};
use super::features::{self, Features};
use super::listing::Sources;
use super::parquet_footer::{self, unreadable};
use super::parquet_memory::{self, HeldBytes, PageRuns};
use super::parquet_pages;
use super::units::UnitRows;
use crate::cache::RangeReader;
use crate::catalog::columns::{Mapping, Origin, map_columns, pick, view_schema};
use crate::catalog::{Content, Counted, Draft, Objects};
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
use parquet::file::metadata::{
    FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder, ParquetMetaDataReader,
    ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::statistics::Statistics;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a block. Pages of runs hold millions of rows in a few bytes, and a row takes up to 16 bytes for each column in
/// memory: 256 MiB. A block of row groups that writers make by default has up to 2²⁰.
const MAX_BLOCK_ROWS: u64 = 1 << 24;
/// Rows that are decoded at a time. parquet reserves memory for all of them before it reads the first: 1 MiB a column.
const BATCH_ROWS: usize = 64 << 10;
/// Where values repeat prefixes, their memory is checked each time about this many bytes were decoded.
const PREFIX_BATCH_BYTES: u64 = 16 << 20;

/// One file's part of the catalog.
struct File {
    schema: SchemaRef,
    features: Features,
    groups: Vec<CutUnit>,
    /// Paths of the leaves that statistics prove to have nulls.
    nulls: BTreeSet<Vec<String>>,
}

pub(super) async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let files = with.read_shards(&mut sources, "reading footers", |object| async move {
        read_file(&object, with).await.map_err(|e| name_file(e, &object))
    });
    let files = files.await?;
    let files = with.of_one_schema(files, |file| &file.schema, &mut sources)?;
    let first = files.first().map(|file| (file.schema.clone(), file.features.clone()));
    let mut nulls: BTreeSet<Vec<String>> = BTreeSet::new();
    let groups = files.into_iter().map(|file| {
        nulls.extend(file.nulls);
        file.groups
    });
    let (blocks, units) = cut_units::tables(groups)?;
    let Some((source_schema, found)) = first else {
        return Err(Error::config(format!("{}: no Parquet file: the data set is empty", sources.uri)));
    };
    if blocks.samples() == 0 {
        return Err(Error::config(format!(
            "{}: its Parquet files hold no rows: the data set is empty",
            sources.uri
        )));
    }
    let mapping = map_columns(&source_schema, &found.class_names)?;
    let mut notes = sources.notes;
    if mapping.payload.is_empty() {
        notes.push(
            "no column holds encoded bytes; if one names files, open it with the layout manifest".into(),
        );
    }
    Ok(Draft {
        objects: Objects::new(&sources.objects),
        blocks,
        schema: mapping.schema.clone(),
        payload: mapping.payload.clone(),
        audio: features::audio_of(&mapping.payload, &found.audio),
        null_columns: null_columns(&nulls, &source_schema, &mapping),
        content: Content::Units { units, source_schema, mapping: Arc::new(mapping), added: None },
        notes,
        copied_from: None,
    })
}

fn name_file(error: Error, object: &ObjectRef) -> Error {
    if error.message().contains(&object.uri) { error } else { error.context(&object.uri) }
}

async fn read_file(object: &ObjectRef, with: &Cataloguing<'_>) -> Result<File> {
    let metadata = parquet_footer::read(object, with.storage).await?;
    let options = ArrowReaderOptions::new();
    let arrow =
        ArrowReaderMetadata::try_new(Arc::new(metadata), options).map_err(|e| unreadable(object, e))?;
    let metadata = arrow.metadata().clone();
    let schema = view_schema(arrow.schema());
    let schema = Arc::new(Schema::new(schema.fields().clone()));

    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for (i, group) in metadata.row_groups().iter().enumerate() {
        if group.num_rows() == 0 {
            continue;
        }
        let known = metadata.offset_index().and_then(|index| index.get(i)).cloned();
        groups.push(cut_group(&metadata, group, known, object, with).await?);
    }
    let counted = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let nulls = counted.filter(|column| {
        column.statistics().and_then(Statistics::null_count_opt).is_some_and(|nulls| nulls > 0)
    });
    let nulls = nulls.map(|column| column.column_path().parts().to_vec()).collect();
    Ok(File { schema, features: hf_features(&metadata), groups, nulls })
}

/// The catalog's columns that have nulls, from the paths of the leaves that do.
fn null_columns(nulls: &BTreeSet<Vec<String>>, source: &Schema, mapping: &Mapping) -> Vec<String> {
    let has_nulls = |origin: &Origin| {
        let field = source.field(origin.top_level());
        let child = match (origin.child(), field.data_type()) {
            (Some(child), DataType::Struct(children)) => Some(children[child].name()),
            _ => None,
        };
        nulls.iter().any(|path| {
            path.first() == Some(field.name()) && child.is_none_or(|child| path.get(1) == Some(child))
        })
    };
    let columns = mapping.schema.fields().iter().zip(&mapping.origins);
    columns.filter(|(_, origin)| has_nulls(origin)).map(|(field, _)| field.name().clone()).collect()
}

/// Cuts a row group into blocks and writes its own footer.
async fn cut_group(
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    known: Option<Vec<OffsetIndexMetaData>>,
    object: &ObjectRef,
    with: &Cataloguing<'_>,
) -> Result<CutUnit> {
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    let whole: u64 =
        group.columns().iter().map(|c| held_bytes(c, c.byte_range().1)).fold(0, u64::saturating_add);
    let known = known.filter(|index| index.iter().all(|column| !column.page_locations().is_empty()));
    let (index, sizes) = match known {
        Some(index) => (Some(index), Vec::new()),
        None if whole > 2 * with.block_bytes => {
            let walked = parquet_pages::offset_index(group, object, with.storage).await?;
            let (index, sizes) = walked.unzip();
            (index, sizes.unwrap_or_default())
        }
        None => (None, Vec::new()),
    };
    let cuts = match &index {
        Some(index) if whole > 2 * with.block_bytes => page_cuts(group, index, rows, with.block_bytes),
        _ => capped(0..rows).collect(),
    };
    let memory = match &index {
        Some(index) if cuts.len() > 1 => {
            let sizes = sizes.into_iter().map(Some).collect();
            let of = (object, with.storage);
            parquet_memory::of_cuts(group, index, sizes, &cuts, with.block_bytes, of).await?
        }
        _ => vec![parquet_memory::of_group(group); cuts.len()],
    };
    let blocks = cuts
        .into_iter()
        .zip(memory)
        .map(|(cut, memory)| {
            let bytes = if cut == (0..rows) { whole } else { cut_bytes(group, index.as_deref(), &cut, rows) };
            let samples = u32::try_from(cut.end - cut.start).map_err(|_| {
                Error::config(format!("{}: {} rows in one block, over 2^32", object.uri, cut.end - cut.start))
            })?;
            Ok(CutBlock { first_row: cut.start, rows: samples, bytes, memory })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(CutUnit { description: own_footer(metadata, group, index)?, blocks })
}

/// What stored bytes of a column occupy in memory: decompressed where that is more.
fn held_bytes(column: &parquet::file::metadata::ColumnChunkMetaData, stored: u64) -> u64 {
    let (packed, plain) = (column.compressed_size().max(1), column.uncompressed_size());
    if plain <= packed {
        return stored;
    }
    let held = u128::from(stored) * u128::from(plain.unsigned_abs()) / u128::from(packed.unsigned_abs());
    u64::try_from(held).unwrap_or(u64::MAX)
}

/// Row ranges that begin where pages of the largest column begin and aim at `block_bytes`.
fn page_cuts(
    group: &RowGroupMetaData,
    index: &[OffsetIndexMetaData],
    rows: u64,
    block_bytes: u64,
) -> Vec<Range<u64>> {
    let largest =
        group.columns().iter().enumerate().max_by_key(|(_, c)| c.byte_range().1).map_or(0, |(i, _)| i);
    let pages = index[largest].page_locations();
    let mut cuts = Vec::new();
    let mut start = 0u64;
    let mut bytes = 0u64;
    for page in pages {
        let size = held_bytes(group.column(largest), u64::from(page.compressed_page_size.unsigned_abs()));
        let first_row = page.first_row_index.unsigned_abs().min(rows);
        if bytes > 0 && bytes.saturating_add(size) > block_bytes && first_row > start {
            cuts.extend(capped(start..first_row));
            (start, bytes) = (first_row, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    cuts.extend(capped(start..rows));
    cuts
}

/// `rows` in runs of at most [`MAX_BLOCK_ROWS`].
fn capped(rows: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = rows.end;
    let step = MAX_BLOCK_ROWS;
    (0..(end - rows.start).div_ceil(step)).map(move |i| {
        let start = rows.start + i * step;
        start..end.min(start + step)
    })
}

/// Bytes of all pages that hold some of `cut`'s rows, and of the dictionaries; where pages are not known, the rows' share.
fn cut_bytes(
    group: &RowGroupMetaData,
    index: Option<&[OffsetIndexMetaData]>,
    cut: &Range<u64>,
    rows: u64,
) -> u64 {
    let Some(index) = index else {
        let share =
            |bytes: u64| u128::from(bytes) * u128::from(cut.end - cut.start) / u128::from(rows.max(1));
        let shares = group.columns().iter().map(|column| share(held_bytes(column, column.byte_range().1)));
        return shares.fold(0, |total, share| total.saturating_add(u64::try_from(share).unwrap_or(u64::MAX)));
    };
    let mut total = 0u64;
    for (column, index) in group.columns().iter().zip(index) {
        let pages = index.page_locations();
        let dictionary =
            pages.first().map_or(0, |p| p.offset.unsigned_abs().saturating_sub(column.byte_range().0));
        // rows rise from page to page, so that a cut costs no more than its own pages
        let first = pages.partition_point(|page| page.first_row_index.unsigned_abs() <= cut.start);
        let own = pages[first.saturating_sub(1)..].iter();
        let own = own.take_while(|page| page.first_row_index.unsigned_abs() < cut.end);
        let stored = own.map(|page| u64::from(page.compressed_page_size.unsigned_abs())).sum::<u64>();
        total = total.saturating_add(held_bytes(column, dictionary + stored));
    }
    total
}

/// The footer of a file that consists of `group` alone.
fn own_footer(
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    index: Option<Vec<OffsetIndexMetaData>>,
) -> Result<Vec<u8>> {
    let bug =
        |e: ParquetError| Error::new(ErrorKind::Bug, "a row group's footer cannot be written").with_source(e);
    let columns = group
        .columns()
        .iter()
        .map(|column| {
            let slim = column
                .clone()
                .into_builder()
                .set_column_index_offset(None)
                .set_column_index_length(None)
                .set_offset_index_offset(None)
                .set_offset_index_length(None)
                .clear_page_encoding_stats();
            let slim = if parquet_pages::is_bytes(column) { slim.clear_statistics() } else { slim };
            slim.build()
        })
        .collect::<ParquetResult<Vec<_>>>()
        .map_err(bug)?;
    let group = group.clone().into_builder().set_column_metadata(columns).build().map_err(bug)?;
    let file = metadata.file_metadata();
    let created_by = file.created_by().map(str::to_owned); // tells old writers' wrong statistics apart
    let file = FileMetaData::new(
        file.version(),
        group.num_rows(),
        created_by,
        None,
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let metadata = ParquetMetaDataBuilder::new(file)
        .add_row_group(group)
        .set_offset_index(index.map(|columns| vec![columns]))
        .build();
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish().map_err(bug)?;
    Ok(footer)
}

/// Class names and audio columns out of the `huggingface` features JSON.
fn hf_features(metadata: &ParquetMetaData) -> Features {
    let entry = metadata
        .file_metadata()
        .key_value_metadata()
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == "huggingface"))
        .and_then(|pair| pair.value.as_deref());
    entry.map(Features::of).unwrap_or_default()
}

/// A unit's footer, as its catalog keeps it.
pub(crate) fn parse_unit(bytes: &Bytes) -> Result<ParquetMetaData> {
    ParquetMetaDataReader::new()
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional)
        .parse_and_finish(bytes)
        .map_err(|e| Error::new(ErrorKind::Bug, "a footer in the catalog cannot be parsed").with_source(e))
}

/// A hash of a unit's fields; its bytes are another writer's with each release of the parquet crate.
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
}

/// Fetches the pages that hold the catalog's `columns` of rows of one row group.
pub(crate) async fn fetch(
    unit: UnitRows,
    source_schema: &SchemaRef,
    mapping: &Mapping,
    columns: &[usize],
    reader: &RangeReader,
) -> Result<Fetched> {
    let UnitRows { object, description, rows, counted } = unit;
    let metadata = parse_unit(&description)?;
    let group = metadata.row_group(0).clone();
    let options = ArrowReaderOptions::new().with_schema(held_schema(source_schema));
    let unfit = |e: ParquetError| damaged(&object, e);
    let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), options).map_err(unfit)?;
    let mask = projection(&metadata, source_schema, mapping, columns);
    let mut fetched = Fetched { object, rows, counted, group, runs: Vec::new(), metadata, mask };
    let mut decoder = fetched.decoder(usize::MAX)?;
    while let Asked::Pages(ranges) = asked(&mut decoder).map_err(|e| damaged(&fetched.object, e))? {
        let bytes = reader.read_ranges(&fetched.object, &ranges).await?;
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
    /// A decoder of the rows, `most` at a time.
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

    /// The rows as one batch of the catalog's `columns`, which were fetched. Texts are views.
    pub(crate) fn decode(
        self,
        source_schema: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
    ) -> Result<RecordBatch> {
        let pages = PageRuns { group: &self.group, runs: &self.runs, rows: self.rows.end - self.rows.start };
        let prefixes = parquet_memory::check(&pages, self.counted).map_err(|what| self.too_much(&what))?;
        // Values that repeat prefixes are as long as their page at most, so a few of them at a time are bounded.
        let most = prefixes
            .map_or(usize::MAX, |page| usize::try_from(PREFIX_BATCH_BYTES / page.max(1)).unwrap_or(1));
        let batches = self.batches(most.max(1))?;
        let batch = match batches.as_slice() {
            [only] => only.clone(),
            several => {
                let schema = several.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
                arrow::compute::concat_batches(&schema, several).map_err(crate::catalog::columns::bug)?
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

    /// The rows in batches of `most`, together within what the catalog counts.
    fn batches(&self, most: usize) -> Result<Vec<RecordBatch>> {
        let unfit = |e: ParquetError| damaged(&self.object, e);
        let mut decoder = self.decoder(most)?;
        let (ranges, bytes) = self.runs.iter().cloned().unzip();
        decoder.push_ranges(ranges, bytes).map_err(unfit)?;
        let reader = match asked(&mut decoder).map_err(unfit)? {
            Asked::Nothing(reader) => reader,
            Asked::Pages(_) => {
                let what = "pages that were not fetched are needed";
                return Err(Error::new(ErrorKind::Bug, format!("{}: {what}", self.object.uri)));
            }
        };
        let (mut batches, mut held, mut rows) = (Vec::new(), HeldBytes::default(), 0);
        let count = to_usize(self.rows.end - self.rows.start)?;
        for batch in reader.into_iter().flatten() {
            let batch = batch.map_err(|e| damaged(&self.object, e.into()))?;
            held.add(&batch);
            if most < usize::MAX
                && let Some(what) = parquet_memory::over(held.bytes(), self.counted.memory)
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

/// The leaves that the catalog's `columns` need.
fn projection(
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
                arrow::datatypes::DataType::Struct(children) => Some(children[child].name().clone()),
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
