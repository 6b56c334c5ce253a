//! Manifests: a CSV, TSV or Parquet table with a column of URIs.
//!
//! The column is the first of `uri`, `url`, `path`, `file`, `file_name`, `filename`, `image`, `audio` that is text; in a
//! `metadata.csv` of Hugging Face it is `file_name` (`metadata_table.rs`). Its values are absolute, or relative to the
//! folder of the manifest. The other columns are metadata. The files' bytes are the payload `image` if all are images,
//! `audio` if all are audio, else `data`. The size and ETag of every file are requested once (in parallel); a missing file
//! is an error that names its row. Samples are in the manifest's order. If its URLs are signed, the catalog is not stored,
//! because a stored one would lack the signatures.

use super::cataloguing::Cataloguing;
use super::contract::{Format, Seen, Splits};
use super::kinds::{Kind, extension, is_audio, is_picture, kind_of};
use super::listing::{Sources, without_query};
use super::located::{BlockCut, Row};
use super::relative::{is_relative, resolve};
use super::{metadata_table, tars};
use crate::catalog::columns::{bug, payload_field};
use crate::catalog::{Content, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::storage::{shown, without_credentials};
use crate::{Error, Layout, ObjectRef, Result, Storage};
use arrow::array::{Array, ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow::compute::{cast, concat_batches};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as Csv;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

const URI_COLUMNS: [&str; 8] = ["uri", "url", "path", "file", "file_name", "filename", "image", "audio"];
/// Files whose size and ETag are requested at a time; storage may limit its requests to fewer.
const HEADS: usize = 64;
/// Rows from which column types are inferred.
const INFERRED_ROWS: usize = 10_000;
/// Limit on a manifest, which is held in memory while it is read: ten million rows of 200 bytes.
const MAX_MANIFEST_BYTES: u64 = 2 << 30;
/// Rows that are one run of the sample table.
const CHUNK_ROWS: usize = 1 << 16;

/// A table of URIs.
pub(super) struct Manifest;

#[async_trait]
impl Format for Manifest {
    fn layout(&self) -> Layout {
        Layout::Manifest
    }

    fn is_data(&self, name: &str) -> bool {
        matches!(kind_of(name), Some(Kind::Table | Kind::Parquet))
    }

    async fn recognise(&self, seen: &Seen<'_>, _: &Storage) -> Result<Option<Layout>> {
        let is_table = !seen.has_files() && !seen.has_shards() && seen.tables() == 1;
        Ok(is_table.then_some(Layout::Manifest))
    }

    fn is_recognised_by_names(&self) -> bool {
        true
    }

    fn splits(&self) -> Splits {
        Splits::Absent
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let [manifest] = sources.objects.as_slice() else {
        return Err(Error::config(format!(
            "{}: {} manifests ({} …); give the URI of one",
            sources.uri,
            sources.objects.len(),
            sources.names[0]
        )));
    };
    if manifest.size > MAX_MANIFEST_BYTES {
        return Err(Error::config(format!(
            "{}: a manifest of {} bytes, over the limit of {MAX_MANIFEST_BYTES}; split it",
            manifest.uri, manifest.size
        )));
    }
    let bytes = with.storage.read(manifest, 0..manifest.size).await?;
    let object = manifest.clone();
    let table = tars::blocking(with.storage.io(), move || parse(&object, bytes)).await?;
    let column = uri_column(manifest, table.schema_ref())?;
    let uris = cast(table.column(column), &DataType::Utf8).map_err(bug)?;
    let uris: &StringArray = arrow::array::AsArray::as_string(&uris);
    let (objects, object_of_row) = find_files(manifest, uris, with).await?;
    let table = match with.storage.has_signed_objects() {
        true => without_signatures(&table, column, uris)?,
        false => table,
    };
    draft(&sources, &table, column, objects, &object_of_row, with.block_bytes)
}

/// Returns the table with URLs that lack their signatures.
fn without_signatures(table: &RecordBatch, column: usize, uris: &StringArray) -> Result<RecordBatch> {
    let bare: StringArray = uris.iter().map(|uri| uri.map(|uri| without_credentials(uri.trim()))).collect();
    let mut columns = table.columns().to_vec();
    columns[column] = cast(&bare, table.schema_ref().field(column).data_type()).map_err(bug)?;
    RecordBatch::try_new(table.schema(), columns).map_err(bug)
}

fn parse(manifest: &ObjectRef, bytes: Bytes) -> Result<RecordBatch> {
    let bad =
        |e: &dyn std::fmt::Display| Error::config(format!("{}: not a readable manifest: {e}", manifest.uri));
    let (schema, batches) = match extension(&manifest.uri).as_str() {
        "parquet" => {
            let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|e| bad(&e))?;
            let schema = builder.schema().clone();
            let reader = builder.build().map_err(|e| bad(&e))?;
            (schema, reader.collect::<Result<Vec<_>, _>>().map_err(|e| bad(&e))?)
        }
        other => {
            let delimiter = if other == "tsv" { b'\t' } else { b',' };
            let format = Csv::default().with_header(true).with_delimiter(delimiter);
            let inferred = format.infer_schema(Cursor::new(&bytes), Some(INFERRED_ROWS));
            let (schema, _) = inferred.map_err(|e| bad(&e))?;
            let schema = Arc::new(schema);
            let reader = ReaderBuilder::new(schema.clone()).with_format(format).build(Cursor::new(bytes));
            (schema, reader.map_err(|e| bad(&e))?.collect::<Result<Vec<_>, _>>().map_err(|e| bad(&e))?)
        }
    };
    let table = concat_batches(&schema, &batches).map_err(|e| bad(&e))?;
    if table.num_rows() == 0 {
        return Err(Error::config(format!(
            "{}: the manifest has no rows: the data set is empty",
            manifest.uri
        )));
    }
    Ok(table)
}

fn uri_column(manifest: &ObjectRef, schema: &Schema) -> Result<usize> {
    let is_text = |i: usize| {
        matches!(schema.field(i).data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    };
    let first = metadata_table::is_named(without_query(&manifest.uri)).then_some(&metadata_table::FILE_NAME);
    let mut names = first.into_iter().chain(&URI_COLUMNS);
    let found = names.find_map(|name| schema.index_of(name).ok().filter(|&i| is_text(i)));
    found.ok_or_else(|| {
        let columns: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        Error::config(format!(
            "{}: no column names the files: one of {} must hold text; its columns are: {}",
            manifest.uri,
            URI_COLUMNS.join(", "),
            columns.join(", ")
        ))
    })
}

/// Returns the manifest and the files in order of first mention, and each row's file.
async fn find_files(
    manifest: &ObjectRef,
    uris: &StringArray,
    with: &Cataloguing<'_>,
) -> Result<(Vec<ObjectRef>, Vec<u32>)> {
    let folder = folder_of(&manifest.uri);
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut distinct: Vec<(usize, String)> = Vec::new();
    let mut rows = Vec::with_capacity(uris.len());
    for row in 0..uris.len() {
        if uris.is_null(row) || uris.value(row).trim().is_empty() {
            return Err(Error::config(format!("{} row {}: it names no file", manifest.uri, row + 1)));
        }
        let next = u32::try_from(distinct.len() + 1)
            .map_err(|_| Error::config("more than 2^32 files in a manifest"))?;
        let object = *known.entry(uris.value(row)).or_insert(next); // 0 is the manifest
        if object == next {
            distinct.push((row, uris.value(row).trim().to_owned()));
        }
        rows.push(object);
    }
    let total = Some(distinct.len() as u64);
    let mut heads = stream::iter(distinct)
        .map(|(row, name)| async move {
            let uri = with.storage.keep_object_credentials(&resolve(folder, &name));
            let found = with.storage.head(&uri).await;
            let advice = if is_relative(&name) { ", a path relative to the manifest's folder" } else { "" };
            found.map_err(|e| {
                e.context(format!("{} row {} names `{}`{advice}", manifest.uri, row + 1, shown(&name)))
            })
        })
        .buffered(HEADS);
    let mut objects = vec![manifest.clone()];
    while let Some(object) = heads.try_next().await? {
        objects.push(object);
        with.options.report("asking for sizes", objects.len() as u64 - 1, total);
    }
    Ok((objects, rows))
}

/// Returns the URI of the folder that holds the object, with its `/`.
fn folder_of(uri: &str) -> &str {
    let path = without_query(uri);
    &path[..path.rfind('/').map_or(0, |slash| slash + 1)]
}

fn draft(
    sources: &Sources,
    table: &RecordBatch,
    uri_column: usize,
    objects: Vec<ObjectRef>,
    object_of_row: &[u32],
    block_bytes: u64,
) -> Result<Draft> {
    let all = |kind: fn(&str) -> bool| objects[1..].iter().all(|o| kind(&extension(without_query(&o.uri))));
    let payload = match (all(is_picture), all(is_audio)) {
        (true, _) => "image",
        (_, true) => "audio",
        _ => "data",
    };
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (i, field) in table.schema().fields().iter().enumerate() {
        let taken = field.name() == payload || field.name() == crate::catalog::SAMPLE_ID;
        let name = if taken { format!("{}_path", field.name()) } else { field.name().clone() };
        if i == uri_column {
            columns.push(cast(table.column(i), &DataType::Utf8).map_err(bug)?);
            fields.push(Arc::new(Field::new(name, DataType::Utf8, false)));
        } else {
            columns.push(table.column(i).clone());
            fields.push(Arc::new(Field::new(name, field.data_type().clone(), true)));
        }
    }
    let metadata = RecordBatch::try_new(Arc::new(Schema::new(fields.clone())), columns).map_err(bug)?;
    fields.push(payload_field(payload));
    let mut cut = BlockCut::new(block_bytes);
    let mut chunks = Vec::new();
    for (i, rows) in object_of_row.chunks(CHUNK_ROWS).enumerate() {
        let sizes: Vec<u64> = rows.iter().map(|&o| objects[o as usize].size).collect();
        for &bytes in &sizes {
            cut.add(Row { shard: 0, bytes })?;
        }
        cut.close()?;
        let places = Places::new(
            UInt32Array::from(rows.to_vec()),
            vec![(UInt64Array::from(vec![0; rows.len()]), UInt64Array::from(sizes))],
        );
        chunks.push(SampleChunk { metadata: metadata.slice(i * CHUNK_ROWS, rows.len()), places });
    }
    Ok(Draft {
        objects: Objects::new(&objects),
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(chunks, None)?),
        schema: Arc::new(Schema::new(fields)),
        payload: vec![payload.to_owned()],
        audio: if payload == "audio" { vec![payload.to_owned()] } else { Vec::new() },
        notes: sources.notes.clone(),
        null_columns: Vec::new(),
        copied_from: None,
    })
}
