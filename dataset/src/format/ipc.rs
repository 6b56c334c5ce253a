//! Arrow IPC files and streams, as `datasets` saves and caches them.
//!
//! ```text
//! file: footer ─▶ batches     stream: message, message, … ─▶ batches ─▶ blocks (uncompressed batches cut by rows)
//! ```
//! A unit is one record batch: where it lies, its message, and its cuts. An uncompressed batch of plain columns is
//! read by the buffer ranges that the rows and columns asked for need (see [`super::ipc_slice`]); a compressed one,
//! or one with lists or dictionaries, is read whole and is one block.

use super::Cataloguing;
use super::columns::{Mapping, bug, map_columns, pick};
use super::features::{self, Features};
use super::guard::guarded;
use super::ipc_check;
use super::ipc_messages::{self, Found, Messages, Place, damaged};
use super::ipc_slice::{self, Cut, Shapes};
use super::sources::Sources;
use crate::blocks::RangeReader;
use crate::catalog::{BlockRow, BlockTableBuilder, Content, Draft, Objects, UnitStoreBuilder};
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{MetadataVersion, root_as_message};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// What the catalog keeps of a record batch; its message's metadata follows it in the unit.
#[derive(Debug, Serialize, Deserialize)]
struct Unit {
    batch: Place,
    dictionaries: Vec<Place>,
    /// Empty: read whole.
    cuts: Vec<Cut>,
}

/// One object's part of the catalog.
struct File {
    schema: SchemaRef,
    batches: Vec<Batch>,
}

/// A record batch: its unit, and its blocks as (first row, rows, bytes).
struct Batch {
    unit: Vec<u8>,
    blocks: Vec<(u64, u32, u64)>,
}

pub(super) async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let read = |object: ObjectRef| async move { read_object(&object, with).await };
    let files = with.read_shards(&mut sources, "reading IPC messages", read).await?;
    let files = with.of_one_schema(files, |file| &file.schema, &mut sources)?;
    let first = files.first().map(|file| file.schema.clone());
    let mut blocks = BlockTableBuilder::default();
    let mut units = UnitStoreBuilder::default();
    for (shard, file) in (0u32..).zip(files) {
        for batch in file.batches {
            let unit = units.push(&batch.unit)?;
            for (first_row, samples, bytes) in batch.blocks {
                blocks.push(BlockRow { shard, samples, bytes, unit, first_row })?;
            }
        }
    }
    let Some(schema) = first.filter(|_| blocks.samples() > 0) else {
        return Err(Error::config(format!(
            "{}: its IPC files hold no rows: the data set is empty",
            sources.uri
        )));
    };
    let found = hf_features(&schema, &sources, with.storage).await?;
    let mapping = map_columns(&schema, &found.class_names)?;
    Ok(Draft {
        objects: Objects::new(&sources.objects),
        blocks: blocks.finish(),
        schema: mapping.schema.clone(),
        payload: mapping.payload.clone(),
        audio: features::audio_of(&mapping.payload, &found.audio),
        content: Content::Units {
            units: units.finish(),
            source_schema: schema,
            mapping: Arc::new(mapping),
            added: None,
        },
        notes: sources.notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

/// Class names and audio columns: from the schema's own metadata, else from `dataset_info.json` beside the files.
async fn hf_features(schema: &Schema, sources: &Sources, storage: &Storage) -> Result<Features> {
    if let Some(json) = schema.metadata().get("huggingface") {
        return Ok(Features::of(json));
    }
    match storage.head(&format!("{}dataset_info.json", sources.root)).await {
        Ok(info) => {
            let json = storage.read(&info, 0..info.size).await?;
            Ok(std::str::from_utf8(&json).map(Features::of).unwrap_or_default())
        }
        Err(error) if error.kind() == ErrorKind::Gone => Ok(Features::default()),
        Err(error) => Err(error),
    }
}

async fn read_object(object: &ObjectRef, with: &Cataloguing<'_>) -> Result<File> {
    let Messages { schema, mut dictionaries, batches } =
        ipc_messages::of_object(object, with.storage).await?;
    let mut read = Vec::with_capacity(batches.len());
    for (found, known) in batches {
        let before = dictionaries.of_batch(known).map_err(|what| damaged(object, what))?;
        if let Some(batch) = cut_batch(found, before, &schema, object, with).await? {
            read.push(batch);
        }
    }
    Ok(File { schema, batches: read })
}

/// Cuts a batch into blocks; `None` for an empty one.
async fn cut_batch(
    found: Found,
    dictionaries: Vec<Place>,
    schema: &Schema,
    object: &ObjectRef,
    with: &Cataloguing<'_>,
) -> Result<Option<Batch>> {
    let message = root_as_message(&found.metadata).map_err(|e| damaged(object, e))?;
    let header =
        message.header_as_record_batch().ok_or_else(|| damaged(object, "a block that is no record batch"))?;
    let rows = u64::try_from(header.length()).map_err(|_| damaged(object, "a negative row count"))?;
    ipc_check::check(schema.fields(), &header, message.version(), found.place.body)
        .map_err(|e| damaged(object, e))?;
    if rows == 0 {
        return Ok(None);
    }
    let bytes = found.place.body;
    let cuts = match Shapes::of(schema, &header).map_err(|e| damaged(object, e))? {
        None => Vec::new(),
        Some(shapes) => {
            let body = found.place.offset + found.place.meta;
            let target = if bytes > 2 * with.block_bytes { with.block_bytes } else { u64::MAX };
            ipc_slice::cuts(&shapes, rows, body, target, object, with.storage).await?
        }
    };
    let too_many = || damaged(object, format!("a batch of {rows} rows"));
    let mut blocks = Vec::new();
    if cuts.is_empty() {
        blocks.push((0, u32::try_from(rows).map_err(|_| too_many())?, bytes));
    }
    for (i, cut) in cuts.iter().enumerate() {
        let end = cuts.get(i + 1).map_or(rows, |next| next.row);
        let held = if cuts.len() == 1 { bytes } else { cut.bytes };
        blocks.push((cut.row, u32::try_from(end - cut.row).map_err(|_| too_many())?, held));
    }
    let unit = Unit { batch: found.place, dictionaries, cuts };
    Ok(Some(Batch { unit: pack(&unit, &found.metadata)?, blocks }))
}

fn pack(unit: &Unit, metadata: &[u8]) -> Result<Vec<u8>> {
    let bug =
        |e: serde_json::Error| Error::new(ErrorKind::Bug, "a batch's description is not JSON").with_source(e);
    let json = serde_json::to_vec(unit).map_err(bug)?;
    let length = u32::try_from(json.len()).map_err(|_| Error::config("a batch with over 4 GiB of cuts"))?;
    Ok([&length.to_le_bytes(), json.as_slice(), metadata].concat())
}

/// A hash of a unit's message and of where it and its dictionaries lie.
pub(super) fn unit_digest(unit: &Bytes) -> Result<u64> {
    let (unit, metadata) = unpack(unit)?;
    let mut hash = twox_hash::XxHash64::default();
    for place in std::iter::once(&unit.batch).chain(&unit.dictionaries) {
        hash.write_u64(place.offset);
        hash.write_u64(place.meta);
        hash.write_u64(place.body);
    }
    hash.write(&metadata);
    Ok(hash.finish())
}

fn unpack(bytes: &Bytes) -> Result<(Unit, Bytes)> {
    let broken = || Error::new(ErrorKind::Bug, "a batch's description in the catalog cannot be parsed");
    let length = bytes.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).ok_or_else(broken)?;
    let end = 4 + length as usize;
    let json = bytes.get(4..end).ok_or_else(broken)?;
    Ok((serde_json::from_slice(json).map_err(|e| broken().with_source(e))?, bytes.slice(end..)))
}

/// Rows of one record batch, as the catalog's `columns`.
pub(crate) async fn read(
    unit: &Bytes,
    rows: Range<u64>,
    source_schema: &SchemaRef,
    mapping: &Mapping,
    columns: &[usize],
    object: ObjectRef,
    reader: &RangeReader,
) -> Result<RecordBatch> {
    let (unit, metadata) = unpack(unit)?;
    let message = root_as_message(&metadata).map_err(|e| damaged(&object, e))?;
    let header = message.header_as_record_batch().ok_or_else(|| damaged(&object, "no record batch"))?;
    let batch = if unit.cuts.is_empty() {
        let whole = read_whole(&unit, source_schema, message.version(), &object, reader).await?;
        let too_long = |_| damaged(&object, "more rows than this machine can address");
        let (start, end) =
            (usize::try_from(rows.start).map_err(too_long)?, usize::try_from(rows.end).map_err(too_long)?);
        if end > whole.num_rows() {
            return Err(damaged(&object, format!("a batch of {} rows, where {end} were", whole.num_rows())));
        }
        whole.slice(start, end - start)
    } else {
        let shapes = Shapes::of(source_schema, &header).map_err(|e| damaged(&object, e))?;
        let shapes = shapes.ok_or_else(|| damaged(&object, "a batch that cannot be cut was cut"))?;
        let origins: Vec<_> = columns.iter().map(|&c| mapping.origins[c]).collect();
        let body = unit.batch.offset + unit.batch.meta;
        let batch_rows = u64::try_from(header.length()).unwrap_or(0);
        let extents = match ipc_slice::extents_of_cuts(&rows, &unit.cuts, batch_rows) {
            Some(extents) => extents,
            None => shapes.extents(&origins, &rows, body, &object, reader).await?,
        };
        let (needed, pieces) = shapes.plan(&origins, &rows, &extents).map_err(|e| damaged(&object, e))?;
        let ranges: Vec<Range<u64>> = needed.iter().map(|r| body + r.start..body + r.end).collect();
        if ranges.iter().any(|r| r.end > unit.batch.range().end) {
            return Err(damaged(&object, "a buffer lies outside its batch"));
        }
        let bytes = reader.read_ranges(&object, &ranges).await?;
        ipc_slice::build(source_schema, &pieces, &bytes, &rows).map_err(|e| damaged(&object, e))?
    };
    pick(&batch, source_schema, mapping, columns)
}

async fn read_whole(
    unit: &Unit,
    schema: &SchemaRef,
    version: MetadataVersion,
    object: &ObjectRef,
    reader: &RangeReader,
) -> Result<RecordBatch> {
    let ranges: Vec<Range<u64>> =
        unit.dictionaries.iter().chain([&unit.batch]).map(|place| place.range()).collect();
    let mut bytes = reader.read_ranges(object, &ranges).await?;
    let batch = bytes.pop().ok_or_else(|| Error::new(ErrorKind::Bug, "no bytes for a batch"))?;
    let mut decoder = FileDecoder::new(schema.clone(), version);
    for (place, bytes) in unit.dictionaries.iter().zip(bytes) {
        let bad = |e| damaged(object, format!("a dictionary: {e}"));
        check_dictionary(schema, *place, &bytes).map_err(bad)?;
        let block = place.block()?;
        guarded(|| decoder.read_dictionary(&block, &Buffer::from(bytes))).map_err(bad)?;
    }
    let bad = |e| damaged(object, e);
    let metadata = ipc_messages::metadata(&batch).map_err(|e| damaged(object, e))?;
    let message = root_as_message(&metadata).map_err(|e| damaged(object, e))?;
    let header = message.header_as_record_batch().ok_or_else(|| damaged(object, "no record batch"))?;
    ipc_check::check(schema.fields(), &header, version, unit.batch.body).map_err(bad)?;
    ipc_check::check_lengths(&header, unit.batch.body_of(&batch)).map_err(bad)?;
    let (block, buffer) = (unit.batch.block()?, Buffer::from(batch.clone()));
    guarded(|| decoder.read_record_batch(&block, &buffer))
        .map_err(bad)?
        .ok_or_else(|| damaged(object, "no record batch"))
        .and_then(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).map_err(bug))
}

/// Checks a dictionary's message, whose only column is that of the schema's dictionary with its id.
fn check_dictionary(schema: &Schema, place: Place, bytes: &Bytes) -> Result<(), String> {
    let metadata = ipc_messages::metadata(bytes)?;
    let message = root_as_message(&metadata).map_err(|e| e.to_string())?;
    let dictionary = message.header_as_dictionary_batch().ok_or("no dictionary")?;
    let batch = dictionary.data().ok_or("a dictionary without values")?;
    #[expect(deprecated, reason = "the ids are those that arrow-ipc reads by")]
    let field = schema.fields_with_dict_id(dictionary.id()).first().copied();
    let Some(DataType::Dictionary(_, values)) = field.map(Field::data_type) else {
        return Err(format!("number {} is no column's", dictionary.id()));
    };
    let values = Fields::from(vec![Field::new("values", (**values).clone(), true)]);
    ipc_check::check(&values, &batch, message.version(), place.body)?;
    ipc_check::check_lengths(&batch, place.body_of(bytes))
}
