//! The messages of an Arrow IPC file or stream: where each is stored, and what it states.
//!
//! ```text
//! file: footer ─▶ places, compared with the messages there     stream: message, message, …
//! ```
//! Messages neither overlap nor leave their object, so together they are no larger than it. A file costs a request for each
//! message, [`MESSAGE_READS`] at a time. A stream costs one for each message whose body is larger than a few KiB, one after
//! another, and one for each MiB of smaller ones.

use super::super::guard::guarded;
use super::lengths::Buffers;
use crate::{Error, ObjectRef, Result, Storage};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::{Block as IpcBlock, MessageHeader, root_as_footer, root_as_message};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

const MAGIC: &[u8] = b"ARROW1";
/// Footer length and magic at a file's end.
const TRAILER_BYTES: u64 = 10;
/// Bytes read at a message's start: the message of a batch of ten columns is about 1 KiB.
const MESSAGE_BYTES: u64 = 4 << 10;
/// Limit on one read if messages and their bodies are small: 10,000 messages of 100 bytes.
const WINDOW_BYTES: u64 = 1 << 20;
/// A longer message is damage.
const MAX_MESSAGE_BYTES: u64 = 256 << 20;
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Messages of a file that are read at a time.
pub(super) const MESSAGE_READS: usize = 16;
/// Limit on the parts that are added to one dictionary, which a block concatenates one by one.
const MAX_DELTAS: usize = 1 << 10;
/// The catalog keeps the places of a batch's dictionaries with the batch, 60 bytes each. A batch's message has at least 48
/// bytes for each dictionary; only dictionaries that grow from batch to batch have more places than that.
const BYTES_PER_PLACE: u64 = 48;
/// Limit on the places beyond that in one object: 4 MiB, or 360 batches, each with an addition to one dictionary.
const SPARE_PLACES: u64 = 1 << 16;

/// Where one message is stored: its prefix and metadata, then its body.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) meta: u64,
    pub(super) body: u64,
}

impl Place {
    pub(super) fn range(self) -> Range<u64> {
        self.offset..self.offset + self.meta + self.body
    }

    pub(super) fn body_range(self) -> Range<u64> {
        self.offset + self.meta..self.range().end
    }

    /// Returns the body, from the bytes of the [`range`](Self::range).
    pub(super) fn body_of(self, bytes: &[u8]) -> &[u8] {
        usize::try_from(self.meta).ok().and_then(|meta| bytes.get(meta..)).unwrap_or_default()
    }

    pub(super) fn block(self) -> Result<IpcBlock> {
        let too_big = |_| Error::config("an IPC message over 2 GiB of metadata or 8 EiB of body");
        Ok(IpcBlock::new(
            0,
            i32::try_from(self.meta).map_err(too_big)?,
            i64::try_from(self.body).map_err(too_big)?,
        ))
    }
}

/// A message found in an object.
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) metadata: Bytes,
}

/// The messages of one object.
pub(super) struct Messages {
    pub(super) schema: SchemaRef,
    pub(super) dictionaries: Dictionaries,
    /// Batches, each with the number of dictionary messages before it.
    pub(super) batches: Vec<(Found, usize)>,
}

pub(super) fn damaged(object: &ObjectRef, what: impl std::fmt::Display) -> Error {
    Error::damage(format!(
        "{}: not a readable Arrow IPC file or stream ({} bytes): {what}; it may be truncated: copy it again",
        object.uri, object.size
    ))
}

/// Returns the metadata of the message at the beginning of `bytes`, which begin with its length.
pub(super) fn metadata(bytes: &Bytes) -> Result<Bytes, String> {
    let (prefix, length) = length_of(bytes).ok_or("a message that is cut short")?;
    let end = usize::try_from(length).ok().and_then(|length| prefix.checked_add(length));
    let end = end.filter(|end| *end <= bytes.len()).ok_or("a message that is cut short")?;
    Ok(bytes.slice(prefix..end))
}

/// Returns the bytes of a message's prefix, and of its metadata.
fn length_of(bytes: &[u8]) -> Option<(usize, u64)> {
    let word = |i: usize| bytes.get(i..i + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let prefix = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
    Some((prefix, u64::from(word(prefix - 4)?)))
}

/// Reads the messages of `object`.
pub(super) async fn of_object(object: &ObjectRef, storage: &Storage) -> Result<Messages> {
    if object.size < 8 {
        return Err(damaged(object, "it is empty"));
    }
    let start = storage.read(object, 0..object.size.min(MESSAGE_BYTES)).await?;
    if start.starts_with(MAGIC) {
        from_file(object, storage).await
    } else {
        from_stream(object, storage, start).await
    }
}

fn schema_of(schema: arrow_ipc::Schema<'_>, object: &ObjectRef) -> Result<SchemaRef> {
    let schema = guarded(|| Ok::<_, String>(Arc::new(arrow_ipc::convert::fb_to_schema(schema))));
    schema.map_err(|e| damaged(object, format!("its schema: {e}")))
}

async fn from_file(object: &ObjectRef, storage: &Storage) -> Result<Messages> {
    let trailer_at = object.size.saturating_sub(TRAILER_BYTES);
    let trailer = storage.read(object, trailer_at..object.size).await?;
    if !trailer.ends_with(MAGIC) {
        return Err(damaged(object, "it begins as an IPC file but has no footer"));
    }
    let length = u64::from(u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]));
    let start =
        trailer_at.checked_sub(length).ok_or_else(|| damaged(object, "its footer is longer than it"))?;
    let bytes = storage.read(object, start..trailer_at).await?;
    let footer = root_as_footer(&bytes).map_err(|e| damaged(object, format!("its footer: {e}")))?;
    let schema = footer.schema().ok_or_else(|| damaged(object, "its footer has no schema"))?;
    let schema = schema_of(schema, object)?;
    let blocks = |found: Option<Vec<IpcBlock>>| found.unwrap_or_default();
    let dictionaries = blocks(footer.dictionaries().map(|v| v.iter().copied().collect()));
    let batches = blocks(footer.recordBatches().map(|v| v.iter().copied().collect()));
    let first_batch = dictionaries.len();
    let places: Option<Vec<Place>> =
        dictionaries.iter().chain(&batches).map(|block| place_of(block, start)).collect();
    let places = places.ok_or_else(|| damaged(object, "its footer points outside it"))?;
    if !are_apart(&places) {
        return Err(damaged(object, "its footer names bytes twice"));
    }
    let mut found: Vec<Found> = stream::iter(places)
        .map(|place| message_at(place, object, storage))
        .buffered(MESSAGE_READS)
        .try_collect()
        .await?;
    let batches: Vec<Found> = found.split_off(first_batch);
    let mut dictionaries = Dictionaries::new(&schema, object);
    for message in found {
        dictionaries.add(&message).map_err(|what| damaged(object, what))?;
    }
    let batches = batches.into_iter().map(|batch| (batch, first_batch)).collect();
    Ok(Messages { schema, dictionaries, batches })
}

/// Returns the place that a footer gives, which must end by byte `end`.
fn place_of(block: &IpcBlock, end: u64) -> Option<Place> {
    let place = Place {
        offset: u64::try_from(block.offset()).ok()?,
        meta: u64::try_from(block.metaDataLength()).ok()?,
        body: u64::try_from(block.bodyLength()).ok()?,
    };
    let stop = place.offset.checked_add(place.meta)?.checked_add(place.body)?;
    (stop <= end && place.meta >= 8 && place.meta <= MAX_MESSAGE_BYTES).then_some(place)
}

/// Whether no two places share a byte. If a footer named one message many times, its bytes would be read as often.
fn are_apart(places: &[Place]) -> bool {
    let mut ranges: Vec<Range<u64>> = places.iter().map(|place| place.range()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.windows(2).all(|pair| pair[0].end <= pair[1].start)
}

/// Reads the message at a place that a footer gives.
async fn message_at(place: Place, object: &ObjectRef, storage: &Storage) -> Result<Found> {
    let bytes = storage.read(object, place.offset..place.offset + place.meta).await?;
    let at = |what: &str| damaged(object, format!("the message at byte {}: {what}", place.offset));
    let metadata = metadata(&bytes).map_err(|what| at(&what))?;
    let (prefix, _) = length_of(&bytes).unwrap_or_default();
    if (prefix + metadata.len()) as u64 != place.meta {
        return Err(at("it has another length than the footer states"));
    }
    Ok(Found { place, metadata })
}

async fn from_stream(object: &ObjectRef, storage: &Storage, start: Bytes) -> Result<Messages> {
    let mut window = Window { object, storage, start: 0, bytes: start };
    let mut at = 0;
    let mut known: Option<(SchemaRef, Dictionaries)> = None;
    let mut batches = Vec::new();
    let mut count = 0;
    while let Some(found) = next_message(at, &mut window).await? {
        at = found.place.range().end;
        let message =
            root_as_message(&found.metadata).map_err(|e| damaged(object, format!("a message: {e}")))?;
        match (message.header_type(), &mut known) {
            (MessageHeader::Schema, None) => {
                let header =
                    message.header_as_schema().ok_or_else(|| damaged(object, "its schema is empty"))?;
                let schema = schema_of(header, object)?;
                let dictionaries = Dictionaries::new(&schema, object);
                known = Some((schema, dictionaries));
            }
            (MessageHeader::DictionaryBatch, Some((_, dictionaries))) => {
                dictionaries.add(&found).map_err(|what| damaged(object, what))?;
                count += 1;
            }
            (MessageHeader::RecordBatch, Some(_)) => batches.push((found, count)),
            (MessageHeader::RecordBatch | MessageHeader::DictionaryBatch, None) => {
                return Err(damaged(object, "it does not begin with a schema"));
            }
            _ => {}
        }
    }
    let (schema, dictionaries) = known.ok_or_else(|| damaged(object, "it has no schema"))?;
    Ok(Messages { schema, dictionaries, batches })
}

/// The bytes of a stream that were read last.
struct Window<'a> {
    object: &'a ObjectRef,
    storage: &'a Storage,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// Returns the bytes that are held from byte `at` on.
    fn held(&self, at: u64) -> Bytes {
        let from = at.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        from.filter(|from| *from <= self.bytes.len()).map_or_else(Bytes::new, |from| self.bytes.slice(from..))
    }

    /// Returns at least `wanted` bytes from byte `at` on, or all up to the object's end. If messages follow one another
    /// closely, each read is twice as long as the one before.
    async fn read(&mut self, at: u64, wanted: u64) -> Result<Bytes> {
        let held = self.held(at);
        let end = self.object.size;
        if held.len() as u64 >= wanted.min(end - at) {
            return Ok(held);
        }
        let is_close = at >= self.start && at <= self.start + self.bytes.len() as u64;
        let ahead = if is_close { (2 * self.bytes.len() as u64).min(WINDOW_BYTES) } else { 0 };
        let length = wanted.max(ahead).max(MESSAGE_BYTES).min(end - at);
        self.bytes = self.storage.read(self.object, at..at + length).await?;
        self.start = at;
        Ok(self.bytes.clone())
    }
}

/// Returns the message at byte `at`; `None` at the stream's end.
async fn next_message(at: u64, window: &mut Window<'_>) -> Result<Option<Found>> {
    let object = window.object;
    if at >= object.size {
        return Ok(None); // writers that were closed in a hurry leave the end marker out
    }
    let head = window.read(at, 8).await?;
    let (prefix, length) = length_of(&head)
        .ok_or_else(|| damaged(object, format!("it ends within the message at byte {at}")))?;
    if length == 0 {
        return Ok(None);
    }
    let end = at + prefix as u64 + length;
    if length > MAX_MESSAGE_BYTES || end > object.size {
        return Err(damaged(object, format!("the message at byte {at} claims {length} bytes")));
    }
    let bytes = window.read(at, end - at).await?;
    let bad = |e: &dyn std::fmt::Display| damaged(object, format!("the message at byte {at}: {e}"));
    let metadata = metadata(&bytes).map_err(|e| bad(&e))?;
    let metadata = Bytes::copy_from_slice(&metadata); // the window is much larger than most messages
    let message = root_as_message(&metadata).map_err(|e| bad(&e))?;
    let body = u64::try_from(message.bodyLength()).map_err(|_| damaged(object, "a negative body length"))?;
    if end.checked_add(body).is_none_or(|e| e > object.size) {
        return Err(damaged(object, format!("the batch at byte {at} has {body} bytes, past the end")));
    }
    Ok(Some(Found { place: Place { offset: at, meta: end - at, body }, metadata }))
}

/// The dictionary messages of one object.
pub(super) struct Dictionaries {
    ids: BTreeSet<i64>,
    list: Vec<Dictionary>,
    /// The messages of `list` before `taken` that are current: the last whole dictionary of each id, and its additions.
    current: BTreeMap<i64, Vec<usize>>,
    taken: usize,
    /// The number of places that the catalog may still keep.
    left: u64,
}

struct Dictionary {
    id: i64,
    is_delta: bool,
    place: Place,
    buffers: Buffers,
}

impl Dictionaries {
    fn new(schema: &Schema, object: &ObjectRef) -> Self {
        #[expect(deprecated, reason = "the ids are those that arrow-ipc reads by")]
        let ids = schema.flattened_fields().into_iter().filter_map(|field| field.dict_id()).collect();
        let left = object.size / BYTES_PER_PLACE + SPARE_PLACES;
        Self { ids, list: Vec::new(), current: BTreeMap::new(), taken: 0, left }
    }

    fn add(&mut self, found: &Found) -> Result<(), String> {
        let message = root_as_message(&found.metadata).map_err(|e| format!("a dictionary: {e}"))?;
        let dictionary = message.header_as_dictionary_batch().ok_or("a block that is not a dictionary")?;
        let (id, is_delta) = (dictionary.id(), dictionary.isDelta());
        if !self.ids.contains(&id) {
            return Err(format!("a dictionary with id {id}, which no column has"));
        }
        let batch = dictionary.data().ok_or("a dictionary without values")?;
        let buffers = Buffers::of(&batch)?;
        self.list.push(Dictionary { id, is_delta, place: found.place, buffers });
        Ok(())
    }

    /// Returns the bytes of each dictionary message's buffers once decompressed, by its offset.
    pub(super) async fn held_bytes(
        &self,
        object: &ObjectRef,
        storage: &Storage,
    ) -> Result<HashMap<u64, u64>> {
        let held = self.list.iter().map(|Dictionary { place, buffers, .. }| async move {
            Ok((place.offset, buffers.held_bytes(place.body_range(), object, storage).await?))
        });
        stream::iter(held.collect::<Vec<_>>()).buffered(MESSAGE_READS).try_collect().await
    }

    /// Returns the places of the dictionaries of a batch that has `known` dictionary messages before it, in their order. It
    /// must be called for the batches in their order.
    pub(super) fn of_batch(&mut self, known: usize) -> Result<Vec<Place>, String> {
        for (index, dictionary) in self.list.iter().enumerate().take(known).skip(self.taken) {
            let parts = self.current.entry(dictionary.id).or_default();
            if !dictionary.is_delta {
                parts.clear();
            }
            parts.push(index);
            if parts.len() > MAX_DELTAS {
                let id = dictionary.id;
                return Err(format!("dictionary {id} has over {MAX_DELTAS} additions; write the file anew"));
            }
        }
        self.taken = self.taken.max(known);
        let count = self.current.values().map(Vec::len).sum::<usize>() as u64;
        let left = self.left.checked_sub(count);
        self.left = left.ok_or("its batches have too many additions to dictionaries; write the file anew")?;
        let mut parts: Vec<usize> = self.current.values().flatten().copied().collect();
        parts.sort_unstable();
        Ok(parts.into_iter().map(|index| self.list[index].place).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field};

    fn place(offset: u64) -> Place {
        Place { offset, meta: 8, body: 8 }
    }

    /// Dictionary messages of ids 0 and 1, each 100 bytes after the one before.
    fn dictionaries(list: &[(i64, bool)], object_bytes: u64) -> Dictionaries {
        let schema = Schema::new(vec![Field::new("x", DataType::Int32, false)]);
        let object = ObjectRef { uri: "x.arrow".into(), size: object_bytes, etag: None };
        let mut all = Dictionaries::new(&schema, &object);
        let listed = (0u64..).zip(list);
        all.list.extend(listed.map(|(i, &(id, is_delta))| Dictionary {
            id,
            is_delta,
            place: place(100 * i),
            buffers: Buffers::default(),
        }));
        all
    }

    fn offsets(places: Vec<Place>) -> Vec<u64> {
        places.iter().map(|place| place.offset).collect()
    }

    #[test]
    fn a_batch_has_the_last_dictionary_of_each_id_and_its_additions() {
        let list = [(0, false), (1, false), (0, true), (0, false), (1, true), (0, true)];
        let mut all = dictionaries(&list, 1000);
        assert_eq!(offsets(all.of_batch(3).unwrap()), [0, 100, 200]);
        assert_eq!(offsets(all.of_batch(3).unwrap()), [0, 100, 200]);
        assert_eq!(offsets(all.of_batch(4).unwrap()), [100, 300]);
        assert_eq!(offsets(all.of_batch(6).unwrap()), [100, 300, 400, 500]);
    }

    #[test]
    fn what_a_catalog_keeps_of_dictionaries_is_bounded_by_the_file() {
        let list: Vec<(i64, bool)> = (0..5000).map(|i| (0, i > 0)).collect();
        let error = dictionaries(&list, 1 << 20).of_batch(5000).unwrap_err();
        assert!(error.contains("1024 additions"), "{error}");
        let mut all = dictionaries(&list[..1000], 1 << 20);
        let kept = (0..10_000).map_while(|_| all.of_batch(1000).ok()).count();
        assert_eq!(kept, ((1 << 20) / 48 + 65_536) / 1000);
    }

    #[test]
    fn places_that_share_bytes_are_not_apart() {
        assert!(are_apart(&[place(16), place(0), place(32)]));
        assert!(!are_apart(&[place(0), place(32), place(0)]));
        assert!(!are_apart(&[place(0), place(15)]));
    }
}
