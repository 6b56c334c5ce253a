//! WebDataset: tars whose consecutive members of one key make a sample.
//!
//! The key of a member is that of webdataset's `base_plus_ext`: the path up to the first dot of its file name. The rest, in
//! lower case, is the extension. Columns:
//! - `key`;
//! - `label` int64 from `.cls`; other webdataset integers (`.id`, `.index` …) under their own names;
//! - `text` from `.txt`;
//! - the top-level keys of `.json`, including lists and objects, of the types in `json`. A taken name gets the prefix
//!   `json_`. A `duration` written as text becomes float64 if all its values are numbers;
//! - `json` from a `.json` that is not an object;
//! - a payload from every other extension, named `image` or `audio` if it is the only one of its kind, else by its
//!   extension with dots as underscores.
//!
//! With [`TarHeaders::Read`], the catalog has where samples begin, and their headers are read with them (`at_read`).

mod at_read;
mod names;

use crate::cache::RangeReader;
use crate::catalog::columns::{Mapping, bug, payload_field};
use crate::catalog::{Content, DURATION, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::format::cataloguing::Cataloguing;
use crate::format::contract::{Format, Seen};
use crate::format::finished::Finished;
use crate::format::guard::guarded;
use crate::format::json::kind::{Flattened, fields_of, merge, settled};
use crate::format::json::{Cells, array_of, cells_of, is_numbers, widen};
use crate::format::kinds::{Kind, is_audio, kind_of};
use crate::format::listing::Sources;
use crate::format::located::{BlockCut, Row};
use crate::format::tar_headers::TarHeaders;
use crate::format::tars::index::{self, TarIndexes};
use crate::format::tars::recognise::recognise_tars;
use crate::format::tars::{self, Member, RECORD_BYTES};
use crate::format::units::UnitRows;
use crate::storage::shown;
use crate::{Error, Layout, ObjectRef, Result, Storage};
use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use names::{is_json, is_kept, is_meta, is_text, last_part, split_key};
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Limit on the columns that JSON members make, and on the fields of all their structs: a JSON object keyed by sample would
/// make one each. Payload extensions have the same limit.
const MAX_COLUMNS: usize = 1_000;

/// Limit on the text and keys of a run of samples: a text column holds less than 2 GiB. A number may take up to four times
/// its bytes in JSON as text, but not a column that is mostly text.
const RUN_TEXT_BYTES: usize = 1 << 30;

/// Values with their rows, in the order of the rows. Rows without a value are left out, so that they take no memory before
/// the number of columns is known.
type Sparse<T> = Vec<(usize, T)>;

/// One tar.
#[derive(Default)]
struct Tar {
    /// Its samples, in runs of at most about 1 GiB of text.
    runs: Vec<Run>,
    note: Option<String>,
}

/// Samples of one tar: their keys, payload places and metadata columns.
#[derive(Default)]
struct Run {
    /// The index of the tar.
    shard: u32,
    keys: Vec<String>,
    payloads: BTreeMap<String, Sparse<(u64, u64)>>,
    columns: BTreeMap<String, ArrayRef>,
    /// Bytes read for the catalog: the headers of all members, and the content of text members.
    read_bytes: u64,
    /// Columns whose lists or objects became text, with the reason.
    flattened: BTreeMap<String, &'static str>,
}

/// Tars whose members are grouped by key.
pub(in crate::format) struct WebDataset;

#[async_trait]
impl Format for WebDataset {
    fn layout(&self) -> Layout {
        Layout::WebDataset
    }

    fn is_data(&self, name: &str) -> bool {
        kind_of(name) == Some(Kind::Tar)
    }

    async fn recognise(&self, seen: &Seen<'_>, storage: &Storage) -> Result<Option<Layout>> {
        recognise_tars(seen, storage).await
    }

    fn has_indexes(&self) -> bool {
        true
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }

    /// 1: lists and objects of JSON members are columns.
    fn columns_version(&self) -> u32 {
        1
    }

    fn has_headers(&self) -> bool {
        true
    }

    fn unit_digest(&self, unit: &Bytes) -> Result<u64> {
        at_read::unit_digest(unit)
    }

    async fn read_unit(
        &self,
        unit: UnitRows,
        source: &SchemaRef,
        mapping: &Mapping,
        columns: &[usize],
        reader: &RangeReader,
    ) -> Result<RecordBatch> {
        at_read::read_unit(unit, source, mapping, columns, reader).await
    }
}

async fn catalog(mut sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    if with.tar_headers == TarHeaders::Read
        && let Some(draft) = at_read::catalog(&mut sources, with).await?
    {
        return Ok(draft);
    }
    let indexes = &TarIndexes::find(&sources, with.storage).await;
    let parts_at_once = with.reads_at_once() / sources.objects.len().max(1);
    let read = with.read_shards(&mut sources, "reading tar headers", |object| async move {
        let read = index::members(&object, indexes, is_kept, parts_at_once, with);
        let (members, unused) = Finished::or_read(with.finished, &object, 0..object.size, read).await?;
        let tar = tars::blocking(with.storage.io(), move || group(members, &object, RUN_TEXT_BYTES)).await?;
        Ok((tar, unused))
    });
    let (tars, unused): (Vec<Tar>, Vec<Option<String>>) = read.await?.into_iter().unzip();
    let mut notes = sources.notes;
    notes.extend(index::note(&unused.into_iter().flatten().collect::<Vec<_>>()));
    let mut runs = Vec::with_capacity(tars.len());
    for (shard, tar) in (0u32..).zip(tars) {
        notes.extend(tar.note);
        runs.extend(tar.runs.into_iter().map(|run| Run { shard, ..run }));
    }
    let (objects, block_bytes) = (sources.objects, with.block_bytes);
    tars::blocking(with.storage.io(), move || draft(runs, &objects, notes, block_bytes)).await
}

/// Groups consecutive members of one key into samples. A run of samples ends after `run_bytes` of text.
fn group(members: Vec<Member>, object: &ObjectRef, run_bytes: usize) -> Result<Tar> {
    let mut tar = Tar::default();
    let mut open = OpenRun::default();
    let mut extensions: HashSet<String> = HashSet::new();
    let mut without_key = 0usize;
    for member in members {
        let Some((key, extension)) = split_key(&member.name).filter(|_| !is_meta(&member.name)) else {
            without_key += 1;
            continue;
        };
        if open.run.keys.last().map(String::as_str) != Some(key) {
            if open.text_bytes >= run_bytes {
                tar.runs.push(std::mem::take(&mut open).close(object)?);
            }
            open.text_bytes += key.len();
            open.run.keys.push(key.to_owned());
            extensions.clear();
        }
        if !extensions.insert(extension.clone()) {
            return Err(Error::damage(format!(
                "{}: duplicate member {} in sample {key}; a key's extensions must differ",
                object.uri, member.name
            )));
        }
        let name = &member.name;
        let bad = |why: String| Error::damage(format!("{} member {name}: {why}", object.uri));
        open.add(extension, (member.offset, member.bytes), member.text.as_deref()).map_err(bad)?;
    }
    if !open.run.keys.is_empty() {
        tar.runs.push(open.close(object)?);
    }
    if without_key > 0 {
        tar.note = Some(format!(
            "{}: {without_key} members without a key and extension ignored",
            shown(&object.uri)
        ));
    }
    Ok(tar)
}

/// A run to which samples are added.
#[derive(Default)]
struct OpenRun {
    run: Run,
    values: BTreeMap<String, Sparse<Value>>,
    text_bytes: usize,
}

impl OpenRun {
    /// Adds a member to the last sample.
    fn add(&mut self, extension: String, place: (u64, u64), text: Option<&[u8]>) -> Result<(), String> {
        let row = self.run.keys.len() - 1;
        self.run.read_bytes += RECORD_BYTES;
        let Some(text) = text else {
            return put(&mut self.run.payloads, extension, row, place, "extensions");
        };
        self.text_bytes += text.len();
        self.run.read_bytes += (text.len() as u64).next_multiple_of(RECORD_BYTES);
        for (column, value) in text_values(&extension, text)? {
            put(&mut self.values, column, row, value, "keys of JSON members")?;
        }
        Ok(())
    }

    /// Turns the values into arrays.
    fn close(mut self, object: &ObjectRef) -> Result<Run> {
        let mut cells = Cells::of(self.run.read_bytes);
        for (name, values) in self.values {
            let array = guarded(|| array_of(self.run.keys.len(), &values, &mut cells));
            let (array, why) = array.map_err(|why| too_long(&name, object, &why))?;
            self.run.flattened.extend(why.map(|why| (name.clone(), why)));
            self.run.columns.insert(name, array);
        }
        Ok(self.run)
    }
}

/// Returns the error of a column that takes much more bytes than its text in the tar.
fn too_long(column: &str, object: &ObjectRef, why: &str) -> Error {
    let column = column.trim_start_matches('{');
    Error::config(format!(
        "{}: column {column} of a run of samples that has {RUN_TEXT_BYTES} bytes of text exceeds 2 GiB ({why}); make its values \
         of one type, or write smaller tars",
        object.uri
    ))
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

/// Returns the columns that a text member makes. Those of JSON are marked by a leading `{` until names are settled.
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
fn check_columns(runs: &[Run], objects: &[ObjectRef]) -> Result<()> {
    let (mut columns, mut extensions) = (BTreeSet::new(), BTreeSet::new());
    for run in runs {
        let object = &objects[run.shard as usize];
        columns.extend(run.columns.keys());
        extensions.extend(run.payloads.keys());
        for (names, what) in [(&columns, "keys of JSON members"), (&extensions, "extensions")] {
            if names.len() > MAX_COLUMNS {
                return Err(Error::config(format!("{}: {}", object.uri, too_many(what))));
            }
        }
    }
    Ok(())
}

/// Returns the payload extensions of all tars, with the columns that they become.
fn payload_names(runs: &[Run]) -> Vec<(String, String)> {
    names::payload_columns(&runs.iter().flat_map(|t| t.payloads.keys()).collect())
}

/// Returns the types of the metadata columns of all tars, and why lists or objects of one are text.
fn metadata_kinds(runs: &[Run]) -> BTreeMap<&String, (DataType, Flattened)> {
    let mut kinds: BTreeMap<&String, (DataType, Flattened)> = BTreeMap::new();
    for run in runs {
        for (name, array) in &run.columns {
            let (kind, why) = kinds.entry(name).or_insert((DataType::Null, None));
            *why = why.or_else(|| run.flattened.get(name).copied());
            *kind = merge(kind, array.data_type(), why);
        }
    }
    let mut left = MAX_COLUMNS.saturating_sub(kinds.len());
    let mut cells = Cells::of(runs.iter().map(|run| run.read_bytes).sum());
    for (name, (kind, why)) in kinds.iter_mut().filter(|(_, (kind, _))| kind.is_nested()) {
        let column = |run: &Run| cells_of(run.columns.get(*name), kind, run.keys.len());
        let needed = runs.iter().map(column).fold(0, u64::saturating_add);
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

/// Returns the metadata columns of all tars: draft name, final name, type.
fn metadata_names(
    runs: &[Run],
    payloads: &[(String, String)],
    notes: &mut Vec<String>,
) -> Vec<(String, String, DataType)> {
    let mut kinds = metadata_kinds(runs);
    for (name, (kind, _)) in &mut kinds {
        let arrays = || runs.iter().filter_map(|t| t.columns.get(*name));
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

fn draft(runs: Vec<Run>, objects: &[ObjectRef], mut notes: Vec<String>, block_bytes: u64) -> Result<Draft> {
    check_columns(&runs, objects)?;
    let payloads = payload_names(&runs);
    let metadata = metadata_names(&runs, &payloads, &mut notes);
    let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("key", DataType::Utf8, false))];
    fields.extend(metadata.iter().map(|(_, name, kind)| Arc::new(Field::new(name, kind.clone(), true))));
    let metadata_schema = Arc::new(Schema::new(fields.clone()));
    fields.extend(payloads.iter().map(|(_, name)| payload_field(name)));

    let mut cut = BlockCut::new(block_bytes);
    let mut chunks = Vec::with_capacity(runs.len());
    for run in runs {
        let (rows, shard) = (run.keys.len(), run.shard);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from_iter_values(&run.keys))];
        for (draft, name, kind) in &metadata {
            let column = guarded(|| widen(run.columns.get(draft), kind, rows));
            columns.push(column.map_err(|why| too_long(name, &objects[shard as usize], &why))?);
        }
        let mut bytes = vec![0u64; rows];
        let mut ranges = Vec::with_capacity(payloads.len());
        for (extension, _) in &payloads {
            let (mut offsets, mut lengths) = (vec![0; rows], vec![None; rows]);
            for (row, (offset, length)) in run.payloads.get(extension).into_iter().flatten() {
                bytes[*row] += length;
                (offsets[*row], lengths[*row]) = (*offset, Some(*length));
            }
            ranges.push((UInt64Array::from(offsets), UInt64Array::from(lengths)));
        }
        for bytes in bytes {
            cut.add(Row { shard, bytes })?;
        }
        cut.close()?; // no block straddles two tars, nor two runs
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
            .filter(|(e, _)| is_audio(&last_part(e)))
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

    fn members(samples: u64) -> Vec<Member> {
        let member = |name: String, offset, text: Option<String>| Member {
            name,
            offset,
            bytes: text.as_ref().map_or(100, |text| text.len() as u64),
            text: text.map(String::into_bytes),
        };
        let sample = |i: u64| {
            let value = if i == 7 { format!("{{\"n\": \"{i}\"}}") } else { format!("{{\"n\": {i}}}") };
            [
                member(format!("{i}.json"), 2048 * i + 512, Some(value)),
                member(format!("{i}.jpg"), 2048 * i + 1536, None),
            ]
        };
        (0..samples).flat_map(sample).collect()
    }

    /// A tar whose texts exceed what one column holds becomes several runs, with the samples, types and places of one.
    #[test]
    fn much_text_in_one_tar_makes_several_runs() {
        let object = ObjectRef { uri: "x.tar".into(), size: 1 << 20, etag: None };
        let samples = |run_bytes| {
            let runs = group(members(20), &object, run_bytes).unwrap().runs;
            let count = runs.len();
            let draft = draft(runs, std::slice::from_ref(&object), Vec::new(), 300).unwrap();
            let Content::Located(table) = draft.content else { panic!("tars have a table") };
            (count, table, draft.blocks, draft.schema)
        };
        let (one, whole, _, schema) = samples(usize::MAX);
        let (several, cut, blocks, same_schema) = samples(40);
        assert_eq!((one, schema), (1, same_schema));
        assert!(several > 3, "{several} runs");
        // Runs are joined again up to 64 k samples: only their text keeps them apart.
        assert_eq!((whole.len(), cut.len()), (20, 20));
        let rows = |table: &SampleTable| {
            let batches = table.metadata_batches();
            let rows = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
            let places: Vec<_> =
                (0..20).map(|i| table.describe(i, &Objects::new(std::slice::from_ref(&object)))).collect();
            (rows, places)
        };
        assert_eq!(rows(&whole), rows(&cut));
        // No block straddles two runs: each run of 3 or 4 samples of 100 bytes ends a block of at most 3.
        let sizes: Vec<u32> =
            (0..blocks.len()).map(|i| blocks.row(crate::BlockId(i as u32)).samples).collect();
        assert_eq!(sizes.iter().sum::<u32>(), 20);
        assert!(sizes.len() > 20_usize.div_ceil(3), "{sizes:?}");
    }
}
