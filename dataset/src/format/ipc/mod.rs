//! Arrow IPC files and streams, as `datasets` saves and caches them.
//!
//! ```text
//! file: footer ─▶ batches     stream: message, message, … ─▶ batches ─▶ blocks (uncompressed batches cut by rows)
//! ```
//! A unit is one record batch: its place, its message, and its cuts. An uncompressed batch of plain columns is read by the
//! buffer ranges that the requested rows and columns need (see [`slice`]), so a part of a block can be read. A compressed one, or
//! one with lists or dictionaries, is read whole and is one block.

mod check;
mod lengths;
mod messages;
mod slice;

use super::cataloguing::Cataloguing;
use super::contract::{Format, Seen};
use super::cut_units::{self, CutBlock, CutUnit};
use super::features::{self, Features};
use super::guard::guarded;
use super::kinds::{Kind, Named, file_name, kind_of};
use super::listing::Sources;
use super::partitions::note_partitions;
use super::sides::Side;
use super::units::UnitRows;
use crate::cache::RangeReader;
use crate::catalog::columns::{Mapping, bug, map_columns, pick};
use crate::catalog::{BlockTable, Content, Draft, Objects, Parts, UnitStore, VIEW_BYTES};
use crate::payload::own_all;
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{MetadataVersion, root_as_message};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use lengths::Buffers;
use messages::{Found, MESSAGE_READS, Messages, Place, damaged};
use serde::{Deserialize, Serialize};
use slice::{Cut, Pieces, Shapes};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// What the catalog keeps of a record batch; its message's metadata follows it in the unit.
#[derive(Debug, Serialize, Deserialize)]
struct Unit {
    batch: Place,
    dictionaries: Vec<Place>,
    /// Empty if the batch is read whole.
    cuts: Vec<Cut>,
}

/// Arrow IPC files and streams.
pub(super) struct Ipc;

#[async_trait]
impl Format for Ipc {
    fn layout(&self) -> Layout {
        Layout::ArrowIpc
    }

    fn is_data(&self, name: &str) -> bool {
        // `datasets` also stores indices and transform results there, as cache-*.arrow.
        kind_of(name) == Some(Kind::Ipc) && !file_name(name).starts_with("cache-")
    }

    async fn recognise(&self, seen: &Seen<'_>, _: &Storage) -> Result<Option<Layout>> {
        Ok(seen.has_only(Kind::Ipc).then_some(Layout::ArrowIpc))
    }

    fn is_recognised_by_names(&self) -> bool {
        true
    }

    fn note(&self, data: &[Named], _: &[Named]) -> Option<String> {
        note_partitions(data)
    }

    fn unit_digest(&self, unit: &Bytes) -> Result<u64> {
        unit_digest(unit)
    }

    async fn memory_of_stored(
        &self,
        blocks: BlockTable,
        units: &UnitStore,
        mapping: &Mapping,
        storage: &Storage,
    ) -> Result<Option<BlockTable>> {
        memory_of_stored(blocks, &units.all(storage).await?, mapping)
    }

    fn parts_of_stored(&self, units: &[Bytes]) -> Result<Parts> {
        for unit in units {
            let (unit, _) = unpack(unit)?;
            if unit.cuts.is_empty() {
                return Ok(Parts::None);
            }
        }
        Ok(Parts::Samples)
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
        let fetched = fetch(unit, source, mapping, columns, reader).await?;
        let _permit = reader.storage.io().making(making).await?;
        own_all(&fetched.decode(source, mapping, columns)?)
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

/// One object's part of the catalog.
struct File {
    schema: SchemaRef,
    batches: Vec<CutUnit>,
    /// Whether rows of any batch can be read without the rest of it.
    has_parts: bool,
}

async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let read = |object: ObjectRef| async move { read_object(&object, with).await };
    let files = with.read_shards(&mut sources, "reading IPC messages", read).await?;
    let files = with.of_one_schema(files, |file| &file.schema, &mut sources)?;
    let first = files.first().map(|file| file.schema.clone());
    let has_parts = files.iter().all(|file| file.has_parts);
    let (blocks, units) = cut_units::tables(files.into_iter().map(|file| file.batches))?;
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
        blocks: with_views(blocks, &mapping),
        schema: mapping.schema.clone(),
        payload: mapping.payload.clone(),
        audio: features::audio_of(&mapping.payload, &found.audio),
        content: Content::Units {
            units,
            source_schema: schema,
            mapping: Arc::new(mapping),
            added: None,
            parts: if has_parts { Parts::Samples } else { Parts::None },
        },
        notes: sources.notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

/// Adds the views of the payload columns to the blocks.
fn with_views(blocks: BlockTable, mapping: &Mapping) -> BlockTable {
    blocks.with_memory_per_sample(VIEW_BYTES * mapping.payload.len() as u64)
}

/// Returns the blocks of a catalog that was stored without their memory, if it follows from their bytes: no batch is
/// compressed or has dictionaries.
fn memory_of_stored(blocks: BlockTable, units: &[Bytes], mapping: &Mapping) -> Result<Option<BlockTable>> {
    for unit in units {
        let (unit, metadata) = unpack(unit)?;
        let message = root_as_message(&metadata).map_err(|e| Error::config(e.to_string()))?;
        let batch = message.header_as_record_batch();
        let is_plain = batch.is_some_and(|batch| batch.compression().is_none());
        if !is_plain || !unit.dictionaries.is_empty() {
            return Ok(None);
        }
    }
    Ok(Some(with_views(blocks, mapping)))
}

/// Reads class names and audio columns from the schema's metadata, else from `dataset_info.json` next to the files.
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
    let Messages { schema, mut dictionaries, batches } = messages::of_object(object, with.storage).await?;
    let memory = dictionaries.held_bytes(object, with.storage).await?;
    let mut found = Vec::with_capacity(batches.len());
    for (batch, known) in batches {
        let before = dictionaries.of_batch(known).map_err(|what| damaged(object, what))?;
        let bytes = before.iter().filter_map(|place| memory.get(&place.offset)).copied();
        let bytes = bytes.fold(0, u64::saturating_add);
        found.push((batch, (before, bytes)));
    }
    let cut = |(batch, before)| cut_batch(batch, before, &schema, object, with);
    let batches = stream::iter(found).map(cut).buffered(MESSAGE_READS);
    let batches: Vec<(CutUnit, bool)> =
        batches.try_filter_map(|batch| async move { Ok(batch) }).try_collect().await?;
    let has_parts = batches.iter().all(|(_, is_cut)| *is_cut);
    Ok(File { schema, batches: batches.into_iter().map(|(batch, _)| batch).collect(), has_parts })
}

/// Returns a batch's blocks, and whether its rows can be read separately; `None` for an empty one. `dictionaries` are those
/// that it uses, and their memory.
async fn cut_batch(
    found: Found,
    (dictionaries, dictionary_memory): (Vec<Place>, u64),
    schema: &Schema,
    object: &ObjectRef,
    with: &Cataloguing<'_>,
) -> Result<Option<(CutUnit, bool)>> {
    let message = root_as_message(&found.metadata).map_err(|e| damaged(object, e))?;
    let header = message
        .header_as_record_batch()
        .ok_or_else(|| damaged(object, "a block that is not a record batch"))?;
    let rows = u64::try_from(header.length()).map_err(|_| damaged(object, "a negative row count"))?;
    check::check(schema.fields(), &header, message.version(), found.place.body)
        .map_err(|e| damaged(object, e))?;
    if rows == 0 {
        return Ok(None);
    }
    let bytes = found.place.body;
    let body = found.place.body_range().start;
    let buffers = Buffers::of(&header).map_err(|e| damaged(object, e))?;
    let nodes = header.nodes().unwrap_or_default().len() as u64;
    let cuts = match Shapes::of(schema, &header).map_err(|e| damaged(object, e))? {
        None => Vec::new(),
        Some(shapes) => {
            let target = if bytes > 2 * with.block_bytes { with.block_bytes } else { u64::MAX };
            slice::cuts(&shapes, rows, body, target, object, with.storage).await?
        }
    };
    let too_many = || damaged(object, format!("a batch of {rows} rows"));
    let mut blocks = Vec::new();
    if cuts.len() < 2 {
        let held = buffers.held_bytes(found.place.body_range(), object, with.storage).await?;
        let rows = u32::try_from(rows).map_err(|_| too_many())?;
        blocks.push(CutBlock { first_row: 0, rows, bytes, memory: held.saturating_add(dictionary_memory) });
    } else {
        for (i, cut) in cuts.iter().enumerate() {
            let end = cuts.get(i + 1).map_or(rows, |next| next.row);
            let samples = end - cut.row;
            // Bits are not in the cut's bytes, nor is the last offset of each column.
            let more = nodes.saturating_mul(samples.div_ceil(8) + 8);
            let memory = cut.bytes.saturating_add(more);
            let rows = u32::try_from(samples).map_err(|_| too_many())?;
            blocks.push(CutBlock { first_row: cut.row, rows, bytes: cut.bytes, memory });
        }
    }
    let is_cut = !cuts.is_empty();
    let unit = Unit { batch: found.place, dictionaries, cuts };
    Ok(Some((CutUnit { description: pack(&unit, &found.metadata)?, blocks }, is_cut)))
}

fn pack(unit: &Unit, metadata: &[u8]) -> Result<Vec<u8>> {
    let bug =
        |e: serde_json::Error| Error::new(ErrorKind::Bug, "a batch's description is not JSON").with_source(e);
    let json = serde_json::to_vec(unit).map_err(bug)?;
    let length = u32::try_from(json.len()).map_err(|_| Error::config("a batch with over 4 GiB of cuts"))?;
    Ok([&length.to_le_bytes(), json.as_slice(), metadata].concat())
}

/// Hashes a unit's message and the places of it and its dictionaries.
fn unit_digest(unit: &Bytes) -> Result<u64> {
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

/// The bytes of rows of one record batch.
pub(crate) struct Fetched {
    object: ObjectRef,
    rows: Range<u64>,
    counted: u64,
    bytes: FetchedBytes,
}

enum FetchedBytes {
    /// The bytes of the dictionaries, then those of the batch.
    Whole { unit: Unit, version: MetadataVersion, bytes: Vec<Bytes> },
    /// The bytes of the buffers of the columns that are read.
    Cut { pieces: Pieces, bytes: Vec<Bytes> },
}

/// Fetches the catalog's `columns` of rows of one record batch.
async fn fetch(
    unit: UnitRows,
    source_schema: &SchemaRef,
    mapping: &Mapping,
    columns: &[usize],
    reader: &RangeReader,
) -> Result<Fetched> {
    let UnitRows { object, number, description, rows, counted, sides, .. } = unit;
    let (unit, metadata) = unpack(&description)?;
    let message = root_as_message(&metadata).map_err(|e| damaged(&object, e))?;
    let header = message.header_as_record_batch().ok_or_else(|| damaged(&object, "no record batch"))?;
    let bytes = if unit.cuts.is_empty() {
        let ranges: Vec<Range<u64>> =
            unit.dictionaries.iter().chain([&unit.batch]).map(|place| place.range()).collect();
        let bytes = reader.read_ranges(&object, &ranges).await?;
        FetchedBytes::Whole { unit, version: message.version(), bytes }
    } else {
        let shapes = Shapes::of(source_schema, &header).map_err(|e| damaged(&object, e))?;
        let shapes = shapes.ok_or_else(|| damaged(&object, "a batch that cannot be cut was cut"))?;
        let origins: Vec<_> = columns.iter().map(|&c| mapping.origins[c]).collect();
        let body = unit.batch.offset + unit.batch.meta;
        let batch_rows = u64::try_from(header.length()).unwrap_or(0);
        let (extents, side) = match slice::extents_of_cuts(&rows, &unit.cuts, batch_rows) {
            Some(extents) => (extents, Side::default()),
            None => {
                let small = shapes.small(&origins, batch_rows, body..unit.batch.range().end);
                let small = small.map_err(|e| damaged(&object, e))?;
                let side = sides.of_unit(number, &object, &small, reader).await?;
                (shapes.extents(&origins, &rows, body, &object, (&side, reader)).await?, side)
            }
        };
        let (needed, pieces) = shapes.plan(&origins, &rows, &extents).map_err(|e| damaged(&object, e))?;
        let ranges: Vec<Range<u64>> = needed.iter().map(|r| body + r.start..body + r.end).collect();
        if ranges.iter().any(|r| r.end > unit.batch.range().end) {
            return Err(damaged(&object, "a buffer is outside its batch"));
        }
        let bytes = side.read_ranges(&object, &ranges, reader).await?;
        FetchedBytes::Cut { pieces, bytes }
    };
    Ok(Fetched { object, rows, counted: counted.memory, bytes })
}

impl Fetched {
    /// Returns the rows as the catalog's `columns`, which were fetched.
    pub(crate) fn decode(
        self,
        source_schema: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
    ) -> Result<RecordBatch> {
        let Self { object, rows, counted, bytes } = self;
        let batch = match bytes {
            FetchedBytes::Cut { pieces, bytes } => {
                slice::build(source_schema, &pieces, &bytes, &rows).map_err(|e| damaged(&object, e))?
            }
            FetchedBytes::Whole { unit, version, bytes } => {
                let whole = decode_whole(&unit, bytes, source_schema, version, counted, &object)?;
                let too_long = |_| damaged(&object, "more rows than this machine can address");
                let start = usize::try_from(rows.start).map_err(too_long)?;
                let end = usize::try_from(rows.end).map_err(too_long)?;
                if end > whole.num_rows() {
                    let has = whole.num_rows();
                    return Err(damaged(&object, format!("a batch of {has} rows; the catalog needs {end}")));
                }
                whole.slice(start, end - start)
            }
        };
        pick(&batch, source_schema, mapping, columns)
    }
}

fn decode_whole(
    unit: &Unit,
    mut bytes: Vec<Bytes>,
    schema: &SchemaRef,
    version: MetadataVersion,
    counted: u64,
    object: &ObjectRef,
) -> Result<RecordBatch> {
    let batch = bytes.pop().ok_or_else(|| Error::new(ErrorKind::Bug, "no bytes for a batch"))?;
    let mut decoder = FileDecoder::new(schema.clone(), version);
    let mut claimed = 0u64;
    for (place, bytes) in unit.dictionaries.iter().zip(bytes) {
        let bad = |e| damaged(object, format!("a dictionary: {e}"));
        claimed = claimed.saturating_add(check_dictionary(schema, *place, &bytes).map_err(bad)?);
        check_claim(claimed, counted).map_err(bad)?;
        let block = place.block()?;
        guarded(|| decoder.read_dictionary(&block, &Buffer::from(bytes))).map_err(bad)?;
    }
    let bad = |e| damaged(object, e);
    let metadata = messages::metadata(&batch).map_err(|e| damaged(object, e))?;
    let message = root_as_message(&metadata).map_err(|e| damaged(object, e))?;
    let header = message.header_as_record_batch().ok_or_else(|| damaged(object, "no record batch"))?;
    check::check(schema.fields(), &header, version, unit.batch.body).map_err(bad)?;
    let lengths = check::check_lengths(&header, unit.batch.body_of(&batch)).map_err(bad)?;
    check_claim(claimed.saturating_add(lengths), counted).map_err(bad)?;
    let (block, buffer) = (unit.batch.block()?, Buffer::from(batch.clone()));
    guarded(|| decoder.read_record_batch(&block, &buffer))
        .map_err(bad)?
        .ok_or_else(|| damaged(object, "no record batch"))
        .and_then(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).map_err(bug))
}

/// Rejects buffers that claim more than they did when the data set was catalogued.
fn check_claim(claimed: u64, counted: u64) -> Result<(), String> {
    match claimed > counted {
        true => Err(format!("{claimed} bytes when decompressed, where {counted} were catalogued")),
        false => Ok(()),
    }
}

/// Checks a dictionary's message, whose only column must be that of the schema's dictionary with its id. Returns the bytes
/// of its buffers once decompressed.
fn check_dictionary(schema: &Schema, place: Place, bytes: &Bytes) -> Result<u64, String> {
    let metadata = messages::metadata(bytes)?;
    let message = root_as_message(&metadata).map_err(|e| e.to_string())?;
    let dictionary = message.header_as_dictionary_batch().ok_or("no dictionary")?;
    let batch = dictionary.data().ok_or("a dictionary without values")?;
    #[expect(deprecated, reason = "the ids are those that arrow-ipc reads by")]
    let field = schema.fields_with_dict_id(dictionary.id()).first().copied();
    let Some(DataType::Dictionary(_, values)) = field.map(Field::data_type) else {
        return Err(format!("no column has id {}", dictionary.id()));
    };
    let values = Fields::from(vec![Field::new("values", (**values).clone(), true)]);
    check::check(&values, &batch, message.version(), place.body)?;
    check::check_lengths(&batch, place.body_of(bytes))
}
