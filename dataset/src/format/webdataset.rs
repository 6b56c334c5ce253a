//! WebDataset: tars whose consecutive members of one key make a sample.
//!
//! The key of a member is what webdataset's `base_plus_ext` says: the path up to the first dot of its file name; the
//! rest, in lower case, is the extension. Columns: `key`; `label` int64 from `.cls`; other webdataset integers
//! (`.id`, `.index` …) under their own names; `.txt` as `text`; the top-level keys of `.json` (a name that is taken gets
//! the prefix `json_`; a `duration` written as text becomes float64 where all of it are numbers), lists and objects
//! included, of the types in `json.rs`; a `.json` that is not an object as `json`; every other extension is a payload,
//! named `image` if it is the only kind of picture and `audio` if it is the only kind of audio, else by its extension
//! with dots as underscores.

use super::Cataloguing;
use super::columns::{bug, payload_field};
use super::json::{Cells, array_of, cells_of, is_numbers, widen};
use super::json_kind::{Flattened, fields_of, merge, settled};
use super::located::{BlockCut, Row};
use super::sources::{Sources, extension, is_audio, is_picture};
use super::tars::{self, Member};
use crate::catalog::{Content, DURATION, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::storage::shown;
use crate::{Error, ObjectRef, Result};
use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Columns that JSON members may make, and fields of all their structs: a JSON object keyed by sample would make one each. As
/// many extensions may be payloads.
const MAX_COLUMNS: usize = 1_000;
/// A member's header, and what its content is padded to.
const RECORD_BYTES: u64 = 512;
/// The extensions that webdataset decodes as integers.
const INTEGERS: [&str; 6] = ["cls", "class", "count", "index", "inx", "id"];

/// Values with their rows, in the order of the rows. Rows without a value are left out, so that a column takes no memory for
/// them before it is known how many columns there are.
type Sparse<T> = Vec<(usize, T)>;

/// One tar: its samples' keys, payload places and metadata columns.
#[derive(Default)]
struct Tar {
    keys: Vec<String>,
    payloads: BTreeMap<String, Sparse<(u64, u64)>>,
    columns: BTreeMap<String, ArrayRef>,
    /// Read for the catalog: the headers of all members, and what is in those of text.
    read_bytes: u64,
    /// Columns whose lists or objects became text, and why.
    flattened: BTreeMap<String, &'static str>,
    note: Option<String>,
}

/// `(key, extension)`; `None` for a name without one.
fn split_key(name: &str) -> Option<(&str, String)> {
    let file = name.rfind('/').map_or(0, |at| at + 1);
    let dot = name[file..].find('.')? + file;
    if dot > file {
        return Some((&name[..dot], name[dot + 1..].to_ascii_lowercase()));
    }
    // `dir/.ext`: the regular expression then takes `dir/` as the key, if that has no dot
    let folder = name[..file].trim_end_matches('/').rsplit('/').next()?;
    (!folder.is_empty() && !folder.contains('.'))
        .then(|| (&name[..file], name[dot + 1..].to_ascii_lowercase()))
}

fn is_json(extension: &str) -> bool {
    matches!(extension, "json" | "jsn")
}

fn is_text(extension: &str) -> bool {
    matches!(extension, "txt" | "text" | "transcript")
}

fn is_kept(name: &str) -> bool {
    split_key(name).is_some_and(|(_, e)| is_json(&e) || is_text(&e) || INTEGERS.contains(&e.as_str()))
}

/// webdataset skips its own members, such as `__meta__/…`.
fn is_meta(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or(name);
    first.len() > 4 && first.starts_with("__") && first.ends_with("__")
}

pub(super) async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let read = with.read_shards(&mut sources, "reading tar headers", |object| async move {
        let members = tars::members(&object, 0..object.size, is_kept, with.storage).await?;
        tars::blocking(with.storage.io(), move || group(members, &object)).await
    });
    let mut read = read.await?;
    let mut notes = sources.notes;
    notes.extend(read.iter_mut().filter_map(|tar| tar.note.take()));
    let (objects, block_bytes) = (sources.objects, with.block_bytes);
    tars::blocking(with.storage.io(), move || draft(read, &objects, notes, block_bytes)).await
}

/// Groups consecutive members of one key.
fn group(members: Vec<Member>, object: &ObjectRef) -> Result<Tar> {
    let mut tar = Tar::default();
    let mut values: BTreeMap<String, Sparse<Value>> = BTreeMap::new();
    let mut extensions: HashSet<String> = HashSet::new();
    let mut without_key = 0usize;
    for member in members {
        let Some((key, extension)) = split_key(&member.name).filter(|_| !is_meta(&member.name)) else {
            without_key += 1;
            continue;
        };
        if tar.keys.last().map(String::as_str) != Some(key) {
            tar.keys.push(key.to_owned());
            extensions.clear();
        }
        if !extensions.insert(extension.clone()) {
            return Err(Error::damage(format!(
                "{}: duplicate member {} in sample {key}; a key's extensions must differ",
                object.uri, member.name
            )));
        }
        let row = tar.keys.len() - 1;
        let bad = |why: String| Error::damage(format!("{} member {}: {why}", object.uri, member.name));
        tar.read_bytes += RECORD_BYTES;
        match &member.text {
            Some(text) => {
                tar.read_bytes += (text.len() as u64).next_multiple_of(RECORD_BYTES);
                for (column, value) in text_values(&extension, text).map_err(bad)? {
                    put(&mut values, column, row, value, "keys of JSON members").map_err(bad)?;
                }
            }
            None => {
                let place = (member.offset, member.bytes);
                put(&mut tar.payloads, extension, row, place, "extensions").map_err(bad)?;
            }
        }
    }
    let mut cells = Cells::of(tar.read_bytes);
    for (name, values) in values {
        let (array, why) = array_of(tar.keys.len(), &values, &mut cells)?;
        tar.flattened.extend(why.map(|why| (name.clone(), why)));
        tar.columns.insert(name, array);
    }
    if without_key > 0 {
        tar.note = Some(format!(
            "{}: {without_key} members without a key and extension ignored",
            shown(&object.uri)
        ));
    }
    Ok(tar)
}

/// Adds a sample's value to a column, which is new or one of at most [`MAX_COLUMNS`].
fn put<T>(
    columns: &mut BTreeMap<String, Sparse<T>>,
    name: String,
    row: usize,
    value: T,
    what: &str,
) -> std::result::Result<(), String> {
    let count = columns.len();
    let column = match columns.entry(name) {
        Entry::Vacant(_) if count == MAX_COLUMNS => return Err(too_many(what)),
        entry => entry.or_default(),
    };
    if column.last().is_some_and(|(last, _)| *last == row) {
        return Err("another member of the sample makes the same column; keep one of them".to_owned());
    }
    column.push((row, value));
    Ok(())
}

fn too_many(what: &str) -> String {
    format!(
        "with it there are more than {MAX_COLUMNS} different {what}, each a column; put keys of samples into values"
    )
}

/// The columns that a text member makes. JSON's are marked by a leading `{`, until names are settled.
fn text_values(extension: &str, text: &[u8]) -> Result<Vec<(String, Value)>, String> {
    let text = std::str::from_utf8(text).map_err(|e| format!("not UTF-8: {e}"))?;
    if is_json(extension) {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
        return Ok(match value {
            Value::Object(object) => object.into_iter().map(|(k, v)| (format!("{{{k}"), v)).collect(),
            Value::Null => Vec::new(),
            other => vec![("{json".to_owned(), other)],
        });
    }
    if is_text(extension) {
        let name = if extension == "txt" { "text" } else { extension };
        return Ok(vec![(name.to_owned(), Value::from(text))]);
    }
    let number =
        text.trim().parse::<i64>().map_err(|e| format!("'{}' is not a whole number: {e}", text.trim()))?;
    let name = if extension == "cls" { "label" } else { extension };
    Ok(vec![(name.to_owned(), Value::from(number))])
}

/// Checks that all tars together have at most [`MAX_COLUMNS`] columns of each sort.
fn check_columns(tars: &[Tar], objects: &[ObjectRef]) -> Result<()> {
    let (mut columns, mut extensions) = (BTreeSet::new(), BTreeSet::new());
    for (tar, object) in tars.iter().zip(objects) {
        columns.extend(tar.columns.keys());
        extensions.extend(tar.payloads.keys());
        for (names, what) in [(&columns, "keys of JSON members"), (&extensions, "extensions")] {
            if names.len() > MAX_COLUMNS {
                return Err(Error::config(format!("{}: {}", object.uri, too_many(what))));
            }
        }
    }
    Ok(())
}

/// Payload extensions of all tars with the columns they become.
fn payload_names(tars: &[Tar]) -> Vec<(String, String)> {
    let extensions: BTreeSet<&String> = tars.iter().flat_map(|t| t.payloads.keys()).collect();
    let last = |e: &str| extension(&format!("x.{e}"));
    let pictures = extensions.iter().filter(|e| is_picture(&last(e))).count();
    let clips = extensions.iter().filter(|e| is_audio(&last(e))).count();
    let name = |e: &str| match last(e) {
        last if pictures == 1 && is_picture(&last) => "image".to_owned(),
        last if clips == 1 && is_audio(&last) => "audio".to_owned(),
        _ => e.replace('.', "_"),
    };
    extensions.into_iter().map(|e| (e.clone(), name(e))).collect()
}

/// Types of the metadata columns of all tars, and why lists or objects of one are text.
fn metadata_kinds(tars: &[Tar]) -> BTreeMap<&String, (DataType, Flattened)> {
    let mut kinds: BTreeMap<&String, (DataType, Flattened)> = BTreeMap::new();
    for tar in tars {
        for (name, array) in &tar.columns {
            let (kind, why) = kinds.entry(name).or_insert((DataType::Null, None));
            *why = why.or_else(|| tar.flattened.get(name).copied());
            *kind = merge(kind, array.data_type(), why);
        }
    }
    let mut left = MAX_COLUMNS.saturating_sub(kinds.len());
    let mut cells = Cells::of(tars.iter().map(|tar| tar.read_bytes).sum());
    for (name, (kind, why)) in kinds.iter_mut().filter(|(_, (kind, _))| kind.is_nested()) {
        let column = |tar: &Tar| cells_of(tar.columns.get(*name), kind, tar.keys.len());
        let needed = tars.iter().map(column).fold(0, u64::saturating_add);
        *kind = cells.take(kind.clone(), needed, why);
        match left.checked_sub(fields_of(kind)) {
            Some(rest) => left = rest,
            None => {
                *kind = DataType::Utf8;
                why.get_or_insert("the columns before it have 1,000 fields already");
            }
        }
    }
    kinds
}

/// Metadata columns of all tars: draft name, final name, type.
fn metadata_names(
    tars: &[Tar],
    payloads: &[(String, String)],
    notes: &mut Vec<String>,
) -> Vec<(String, String, DataType)> {
    let mut kinds = metadata_kinds(tars);
    for (name, (kind, _)) in &mut kinds {
        let arrays = || tars.iter().filter_map(|t| t.columns.get(*name));
        if name.trim_start_matches('{') == DURATION && *kind == DataType::Utf8 && arrays().all(is_numbers) {
            *kind = DataType::Float64;
        }
    }
    let mut taken: HashSet<String> = payloads.iter().map(|(_, name)| name.clone()).collect();
    taken.extend(["key".to_owned(), crate::catalog::SAMPLE_ID.to_owned()]);
    taken.extend(kinds.keys().filter(|n| !n.starts_with('{')).map(|n| (*n).clone()));
    let settle = |(draft, (kind, why)): (&String, (DataType, Flattened))| {
        let mut name = draft.strip_prefix('{').unwrap_or(draft).to_owned();
        if draft.starts_with('{') {
            while !taken.insert(name.clone()) {
                name = format!("json_{name}");
            }
        }
        if let Some(why) = why {
            notes.push(format!("column {name}: lists or objects in it are kept as JSON text, because {why}"));
        }
        (draft.clone(), name, settled(kind))
    };
    kinds.into_iter().map(settle).collect()
}

fn draft(tars: Vec<Tar>, objects: &[ObjectRef], mut notes: Vec<String>, block_bytes: u64) -> Result<Draft> {
    check_columns(&tars, objects)?;
    let payloads = payload_names(&tars);
    let metadata = metadata_names(&tars, &payloads, &mut notes);
    let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("key", DataType::Utf8, false))];
    fields.extend(metadata.iter().map(|(_, name, kind)| Arc::new(Field::new(name, kind.clone(), true))));
    let metadata_schema = Arc::new(Schema::new(fields.clone()));
    fields.extend(payloads.iter().map(|(_, name)| payload_field(name)));

    let mut cut = BlockCut::new(block_bytes);
    let mut chunks = Vec::with_capacity(tars.len());
    for (shard, tar) in (0u32..).zip(tars) {
        let rows = tar.keys.len();
        if rows == 0 {
            continue;
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from_iter_values(&tar.keys))];
        for (draft, _, kind) in &metadata {
            columns.push(widen(tar.columns.get(draft), kind, rows)?);
        }
        let mut bytes = vec![0u64; rows];
        let mut ranges = Vec::with_capacity(payloads.len());
        for (extension, _) in &payloads {
            let (mut offsets, mut lengths) = (vec![0; rows], vec![None; rows]);
            for (row, (offset, length)) in tar.payloads.get(extension).into_iter().flatten() {
                bytes[*row] += length;
                (offsets[*row], lengths[*row]) = (*offset, Some(*length));
            }
            ranges.push((UInt64Array::from(offsets), UInt64Array::from(lengths)));
        }
        for bytes in bytes {
            cut.add(Row { shard, bytes })?;
        }
        cut.close()?; // no block straddles two tars
        let metadata = RecordBatch::try_new(metadata_schema.clone(), columns).map_err(bug)?;
        let object = UInt32Array::from(vec![shard; rows]);
        chunks.push(SampleChunk { metadata, places: Places::new(object, ranges) });
    }
    Ok(Draft {
        objects: Objects::new(objects),
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(chunks, Some(0))?),
        schema: Arc::new(Schema::new(fields)),
        audio: payloads
            .iter()
            .filter(|(e, _)| is_audio(&extension(&format!("x.{e}"))))
            .map(|(_, name)| name.clone())
            .collect(),
        payload: payloads.into_iter().map(|(_, name)| name).collect(),
        notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_webdatasets_regular_expression() {
        let key = |name: &str| split_key(name).map(|(k, e)| (k.to_owned(), e));
        let some = |k: &str, e: &str| Some((k.to_owned(), e.to_owned()));
        assert_eq!(key("a/b/c.JPG"), some("a/b/c", "jpg"));
        assert_eq!(key("a.d/c.seg.png"), some("a.d/c", "seg.png"));
        assert_eq!(key("c"), None);
        assert_eq!(key("a.b/c"), None);
        assert_eq!(key("a/b/.x"), some("a/b/", "x"));
        assert_eq!(key("a.b/.x"), None);
        assert_eq!(key(".x"), None);
        assert_eq!(key("./c.jpg"), some("./c", "jpg"));
    }
}
