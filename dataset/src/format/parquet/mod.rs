//! Parquet files as on the Hugging Face hub.
//!
//! ```text
//! footers (in parallel) ─▶ one schema ─▶ row groups ─▶ blocks, cut along pages ─▶ units: one small footer each
//! block ─▶ its unit's footer (from the catalog) ─▶ the pages of the selected columns, one coalesced read ─▶ views
//! ```
//! A row group over twice `block_bytes` is cut where pages of its largest column begin. If a file has no offset index, the
//! page headers are walked once ([`pages`]) and the index is kept in the catalog. A page is the smallest block: cutting it
//! by rows would read and hold the same bytes several times. Pages of repeated columns may begin within a row ([`page_rows`]);
//! two blocks read such a page if it holds rows of both.
//!
//! No footer is read again: a unit is a footer of one row group with its offset index, without statistics of byte columns.
//! The memory of a block differs from its bytes: see [`memory`].

mod check;
mod footer;
mod levels;
mod memory;
mod page_header;
mod page_rows;
mod pages;
pub(crate) mod read;
mod regular;
mod thrift;
mod thrift_check;
mod virtual_group;

use super::cataloguing::Cataloguing;
use super::contract::{Format, Seen};
use super::cut_units::{self, CutBlock, CutUnit};
use super::features::{self, Features};
use super::kinds::{Kind, Named, kind_of};
use super::listing::Sources;
use super::partitions::note_partitions;
use super::units::UnitRows;
use crate::cache::RangeReader;
use crate::catalog::columns::{Mapping, Origin, is_list_of_encoded, map_columns, view_schema};
use crate::catalog::{Content, Draft, Objects};
use crate::payload::own_views;
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use footer::unreadable;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use page_rows::GroupPages;
use pages::Walks;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{
    FileMetaData, ParquetMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::statistics::Statistics;
use regular::Regular;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Limit on the rows of a block. Pages of runs hold millions of rows in a few bytes, and a row takes up to 16 bytes for
/// each column in memory: 256 MiB. A block of row groups that writers make by default has up to 2²⁰ rows.
const MAX_BLOCK_ROWS: u64 = 1 << 24;
/// Parquet files.
pub(super) struct Parquet;

#[async_trait]
impl Format for Parquet {
    fn layout(&self) -> Layout {
        Layout::HfParquet
    }

    fn is_data(&self, name: &str) -> bool {
        kind_of(name) == Some(Kind::Parquet)
    }

    async fn recognise(&self, seen: &Seen<'_>, _: &Storage) -> Result<Option<Layout>> {
        Ok(seen.has_only(Kind::Parquet).then_some(Layout::HfParquet))
    }

    fn is_recognised_by_names(&self) -> bool {
        true
    }

    fn note(&self, data: &[Named], _: &[Named]) -> Option<String> {
        note_partitions(data)
    }

    /// 1: the columns that statistics prove to have nulls are listed. 2: blocks have their memory, which only footers
    /// state. 3: pages that begin within a row are marked, which a program that ignores the marks would misread. 4: the samples of
    /// a page are stated, if it can be read without the rest of its row group.
    fn columns_version(&self) -> u32 {
        4
    }

    fn has_statistics(&self) -> bool {
        true
    }

    fn unit_digest(&self, unit: &Bytes) -> Result<u64> {
        read::unit_digest(unit)
    }

    async fn read_unit(
        &self,
        unit: UnitRows,
        source: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
        reader: &RangeReader,
    ) -> Result<RecordBatch> {
        let making = unit.counted.making;
        let fetched = read::fetch(unit, source, mapping, columns, reader).await?;
        let _permit = reader.storage.io().making(making).await?;
        own_views(&fetched.decode(source, mapping, columns)?)
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

/// One file's part of the catalog.
struct File {
    schema: SchemaRef,
    features: Features,
    groups: Vec<(CutUnit, Option<Regular>)>,
    /// Paths of the leaves that statistics prove to have nulls.
    nulls: BTreeSet<Vec<String>>,
}

async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let walks = &Walks::new(with);
    let files = with.read_shards(&mut sources, "reading footers", |object| async move {
        read_file(&object, with, walks).await.map_err(|e| name_file(e, &object))
    });
    let files = files.await?;
    let files = with.of_one_schema(files, |file| &file.schema, &mut sources)?;
    let first = files.first().map(|file| (file.schema.clone(), file.features.clone()));
    let mut nulls: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut divided = Vec::new();
    let groups = files.into_iter().map(|file| {
        nulls.extend(file.nulls);
        let (groups, its): (Vec<_>, Vec<_>) = file.groups.into_iter().unzip();
        divided.extend(its);
        groups
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
    let has_lists = mapping.schema.fields().iter().any(|field| is_list_of_encoded(field.data_type()));
    if mapping.payload.is_empty() && !has_lists {
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
        content: Content::Units {
            units,
            source_schema,
            mapping: Arc::new(mapping),
            added: None,
            parts: regular::parts(&divided),
        },
        notes,
        copied_from: None,
    })
}

fn name_file(error: Error, object: &ObjectRef) -> Error {
    if error.message().contains(&object.uri) { error } else { error.context(&object.uri) }
}

async fn read_file(object: &ObjectRef, with: &Cataloguing<'_>, walks: &Walks<'_>) -> Result<File> {
    let metadata = footer::read(object, with.storage).await?;
    let options = ArrowReaderOptions::new();
    let arrow =
        ArrowReaderMetadata::try_new(Arc::new(metadata), options).map_err(|e| unreadable(object, e))?;
    let metadata = arrow.metadata().clone();
    let schema = view_schema(arrow.schema());
    let schema = Arc::new(Schema::new(schema.fields().clone()));
    let mapping = map_columns(&schema, &HashMap::new())?;
    let payload = (mapping.schema.fields().len() - mapping.payload.len()..mapping.schema.fields().len())
        .collect::<Vec<_>>();
    let payload = &read::projection(&arrow, &schema, &mapping, &payload);

    let groups = metadata.row_groups().iter().enumerate().filter(|(_, group)| group.num_rows() > 0);
    let groups = groups.map(|(i, group)| {
        let known = metadata.offset_index().and_then(|index| index.get(i)).cloned();
        cut_group(&metadata, group, (known, payload), object, with, walks).boxed()
    });
    let groups: Vec<_> = groups.collect();
    let groups = stream::iter(groups).buffered(with.reads_at_once()).try_collect().await?;
    let counted = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let nulls = counted.filter(|column| {
        column.statistics().and_then(Statistics::null_count_opt).is_some_and(|nulls| nulls > 0)
    });
    let nulls = nulls.map(|column| column.column_path().parts().to_vec()).collect();
    Ok(File { schema, features: hf_features(&metadata), groups, nulls })
}

/// Returns the catalog's columns that have nulls, from the paths of the leaves that do.
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

/// Cuts a row group into blocks and writes a footer for it alone. `known` is its offset index, if it has one; `payload` selects
/// the payload's leaves.
async fn cut_group(
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    (known, payload): (Option<Vec<OffsetIndexMetaData>>, &ProjectionMask),
    object: &ObjectRef,
    with: &Cataloguing<'_>,
    walks: &Walks<'_>,
) -> Result<(CutUnit, Option<Regular>)> {
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    let whole: u64 =
        group.columns().iter().map(|c| held_bytes(c, c.byte_range().1)).fold(0, u64::saturating_add);
    let known = known.filter(|index| index.iter().all(|column| !column.page_locations().is_empty()));
    let known = known.map(GroupPages::aligned);
    let found = known.as_ref().and_then(|index| Regular::of(group, index, payload));
    let (pages, sizes) = match known {
        Some(index) => (Some(index), Vec::new()),
        None if whole > 2 * with.block_bytes => {
            let walked = walks.group(group, object).await?.map(|walked| (walked.pages, walked.sizes));
            let (pages, sizes) = walked.unzip();
            (pages, sizes.unwrap_or_default())
        }
        None => (None, Vec::new()),
    };
    let cuts = match &pages {
        Some(pages) if whole > 2 * with.block_bytes => page_cuts(group, pages, rows, with.block_bytes),
        _ => capped(0..rows).collect(),
    };
    let memory = match &pages {
        Some(pages) if cuts.len() > 1 => {
            let sizes = sizes.into_iter().map(Some).collect();
            let of = (object, with.storage);
            memory::of_cuts(group, pages, sizes, &cuts, with.block_bytes, of).await?
        }
        _ => vec![memory::of_group(group); cuts.len()],
    };
    let blocks = cuts
        .into_iter()
        .zip(memory)
        .map(|(cut, memory)| {
            let bytes = if cut == (0..rows) { whole } else { cut_bytes(group, pages.as_ref(), &cut, rows) };
            let samples = u32::try_from(cut.end - cut.start).map_err(|_| {
                Error::config(format!("{}: {} rows in one block, over 2^32", object.uri, cut.end - cut.start))
            })?;
            Ok(CutBlock { first_row: cut.start, rows: samples, bytes, memory })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok((CutUnit { description: own_footer(metadata, group, pages)?, blocks }, found))
}

/// Returns what stored bytes of a column occupy in memory: decompressed if that is more.
fn held_bytes(column: &parquet::file::metadata::ColumnChunkMetaData, stored: u64) -> u64 {
    let (packed, plain) = (column.compressed_size().max(1), column.uncompressed_size());
    if plain <= packed {
        return stored;
    }
    let held = u128::from(stored) * u128::from(plain.unsigned_abs()) / u128::from(packed.unsigned_abs());
    u64::try_from(held).unwrap_or(u64::MAX)
}

/// Returns row ranges that begin where pages of the largest column begin and aim at `block_bytes`.
fn page_cuts(group: &RowGroupMetaData, pages: &GroupPages, rows: u64, block_bytes: u64) -> Vec<Range<u64>> {
    let largest =
        group.columns().iter().enumerate().max_by_key(|(_, c)| c.byte_range().1).map_or(0, |(i, _)| i);
    let pages = pages.column(largest).locations;
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

/// Splits `rows` into runs of at most [`MAX_BLOCK_ROWS`].
fn capped(rows: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = rows.end;
    let step = MAX_BLOCK_ROWS;
    (0..(end - rows.start).div_ceil(step)).map(move |i| {
        let start = rows.start + i * step;
        start..end.min(start + step)
    })
}

/// Returns the bytes of all pages that hold some of `cut`'s rows, and of the dictionaries; the rows' share if pages are
/// unknown.
fn cut_bytes(group: &RowGroupMetaData, pages: Option<&GroupPages>, cut: &Range<u64>, rows: u64) -> u64 {
    let Some(pages) = pages else {
        let share =
            |bytes: u64| u128::from(bytes) * u128::from(cut.end - cut.start) / u128::from(rows.max(1));
        let shares = group.columns().iter().map(|column| share(held_bytes(column, column.byte_range().1)));
        return shares.fold(0, |total, share| total.saturating_add(u64::try_from(share).unwrap_or(u64::MAX)));
    };
    let mut total = 0u64;
    for (column, pages) in group.columns().iter().zip(pages.columns()) {
        let first = pages.locations.first();
        let dictionary = first.map_or(0, |p| p.offset.unsigned_abs().saturating_sub(column.byte_range().0));
        let own = pages.locations[pages.of_rows(cut)].iter();
        let stored = own.map(|page| u64::from(page.compressed_page_size.unsigned_abs())).sum::<u64>();
        total = total.saturating_add(held_bytes(column, dictionary + stored));
    }
    total
}

/// Returns the footer of a file that consists of `group` alone.
fn own_footer(
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    pages: Option<GroupPages>,
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
            let slim = if pages::is_bytes(column) { slim.clear_statistics() } else { slim };
            slim.build()
        })
        .collect::<ParquetResult<Vec<_>>>()
        .map_err(bug)?;
    let group = group.clone().into_builder().set_column_metadata(columns).build().map_err(bug)?;
    let file = metadata.file_metadata();
    let created_by = file.created_by().map(str::to_owned); // identifies old writers with wrong statistics
    let file = FileMetaData::new(
        file.version(),
        group.num_rows(),
        created_by,
        pages.as_ref().and_then(GroupPages::marks),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let metadata = ParquetMetaDataBuilder::new(file)
        .add_row_group(group)
        .set_offset_index(pages.map(|pages| vec![pages.index]))
        .build();
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish().map_err(bug)?;
    Ok(footer)
}

/// Reads class names and audio columns from the `huggingface` features JSON.
fn hf_features(metadata: &ParquetMetaData) -> Features {
    let entry = metadata
        .file_metadata()
        .key_value_metadata()
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == "huggingface"))
        .and_then(|pair| pair.value.as_deref());
    entry.map(Features::of).unwrap_or_default()
}
