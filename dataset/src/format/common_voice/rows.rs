//! Makes samples and blocks from rows of TSVs and places of audio clips.

use super::super::json::kind::unify;
use super::super::json::widen;
use super::super::kinds::{counted, extension, is_audio};
use super::super::located::{BlockCut, Row};
use super::tsv::{Durations, Table, file_name};
use crate::catalog::columns::{bug, payload_field};
use crate::catalog::{Content, DURATION, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, StringArray, UInt32Array, UInt64Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use std::sync::Arc;

/// Rows that are one run of the sample table.
const CHUNK_ROWS: usize = 1 << 16;

/// Where an audio clip is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) object: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// One TSV with its audio clips.
pub(super) struct Part {
    /// The TSV's name in errors.
    pub(super) name: String,
    pub(super) split: String,
    /// For rows without a locale.
    pub(super) locale: Option<String>,
    pub(super) table: Table,
    /// One for each row; `None` if the audio clip is missing.
    pub(super) places: Vec<Option<Place>>,
    pub(super) durations: Option<Durations>,
    /// The object that its blocks are assigned to.
    pub(super) shard: u32,
}

/// The order in which a TSV's rows become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As in the TSV: for audio clips that are separate files.
    Listed,
    /// As the audio clips are stored in their tars, so that a block is one read; rows without one come last.
    Stored,
}

/// Returns the place of each row's audio clip; appends `.mp3` to names without an audio extension.
pub(super) fn find_clips(table: &mut Table, find: impl Fn(&str) -> Option<Place>) -> Vec<Option<Place>> {
    for path in &mut table.paths {
        if !is_audio(&extension(path)) {
            path.push_str(".mp3");
        }
    }
    table.paths.iter().map(|path| find(path).or_else(|| find(file_name(path)))).collect()
}

/// Returns the catalog of `parts`, whose shards rise.
pub(super) fn draft(
    parts: Vec<Part>,
    objects: Objects,
    order: RowOrder,
    mut notes: Vec<String>,
    block_bytes: u64,
) -> Result<Draft> {
    note_missing(&parts, &mut notes)?;
    let schema = metadata_schema(&parts);
    let path = schema.index_of("path").map_err(bug)?;
    let mut cut = BlockCut::new(block_bytes);
    let mut chunks = Vec::new();
    let mut lists = Vec::with_capacity(parts.len());
    for (list, part) in (0u32..).zip(parts) {
        let rows = ordered(&part, order)?;
        let metadata = metadata(&part, &schema)?;
        let mut shard = part.shard; // rises from run to run
        for run in rows.chunks(CHUNK_ROWS) {
            let run = UInt32Array::from(run.to_vec());
            chunks.push(chunk(&part, list, &metadata, &run, order, &mut shard, &mut cut)?);
        }
        lists.push(part.name);
    }
    let samples = SampleTable::new(chunks, Some(path))?;
    let samples = samples.with_lists(lists).map_err(|why| Error::new(ErrorKind::Bug, why))?;
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    fields.push(payload_field("audio"));
    Ok(Draft {
        objects,
        blocks: cut.finish()?,
        content: Content::Located(samples),
        schema: Arc::new(Schema::new(fields)),
        payload: vec!["audio".to_owned()],
        audio: vec!["audio".to_owned()],
        notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

fn note_missing(parts: &[Part], notes: &mut Vec<String>) -> Result<()> {
    let mut found = 0;
    for part in parts {
        let missing = part.places.iter().filter(|p| p.is_none()).count();
        found += part.places.len() - missing;
        if let Some(first) = part.places.iter().position(Option::is_none) {
            notes.push(format!(
                "{}: {} of {} rows name audio clips that do not exist, the first in line {} ({}); they stay, as samples \
                 without audio",
                part.name,
                missing,
                part.places.len(),
                part.table.lines[first],
                part.table.paths[first]
            ));
        }
        if let Some(durations) = &part.durations {
            let known = |path: &&String| durations.contains_key(file_name(path));
            let unknown = part.table.paths.len() - part.table.paths.iter().filter(known).count();
            if unknown > 0 {
                notes.push(format!(
                    "{}: {} without a duration in the list of durations",
                    part.name,
                    counted(unknown, "row")
                ));
            }
        }
    }
    match parts.first() {
        Some(part) if found == 0 && !part.places.is_empty() => Err(Error::config(format!(
            "{}: none of its audio clips exists, the first being {}; copy them into a folder clips/ next to it",
            part.name, part.table.paths[0]
        ))),
        _ => Ok(()),
    }
}

/// Returns the columns of all parts, each of a type that holds the values of all.
fn metadata_schema(parts: &[Part]) -> SchemaRef {
    let mut columns: Vec<(String, DataType)> = Vec::new();
    let mut add = |name: &str, kind: &DataType| match columns.iter_mut().find(|(n, _)| n == name) {
        Some((_, known)) => *known = unify(known, kind),
        None => columns.push((name.to_owned(), kind.clone())),
    };
    for part in parts {
        let mut names = part.table.names.iter().zip(&part.table.columns);
        if let Some((first, column)) = names.next().filter(|(n, _)| *n == "client_id") {
            add(first, column.data_type());
        }
        add("path", &DataType::Utf8);
        for (name, column) in part.table.names.iter().zip(&part.table.columns) {
            add(name, column.data_type());
        }
    }
    if parts.iter().any(|p| p.locale.is_some()) {
        add("locale", &DataType::Utf8);
    }
    add("split", &DataType::Utf8);
    if parts.iter().any(|p| p.durations.is_some()) {
        columns.retain(|(name, _)| name != DURATION);
        columns.push((DURATION.to_owned(), DataType::Float64));
    }
    let field = |(name, kind): (String, DataType)| {
        let never_null = name == "path" || name == "split";
        Field::new(name, kind, !never_null)
    };
    Arc::new(Schema::new(columns.into_iter().map(field).collect::<Vec<_>>()))
}

/// Returns a part's columns in the TSV's order.
fn metadata(part: &Part, schema: &SchemaRef) -> Result<RecordBatch> {
    let rows = part.table.paths.len();
    let own = |name: &str| part.table.names.iter().position(|n| n == name).map(|i| &part.table.columns[i]);
    let column = |field: &FieldRef| -> Result<ArrayRef> {
        Ok(match field.name().as_str() {
            "path" => Arc::new(StringArray::from_iter_values(&part.table.paths)),
            "split" => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(&part.split, rows))),
            "locale" => locales(own("locale"), part.locale.as_deref(), rows)?,
            DURATION if part.durations.is_some() => {
                let durations = part.durations.as_ref();
                let seconds = |path: &String| durations.and_then(|d| d.get(file_name(path)).copied());
                Arc::new(part.table.paths.iter().map(seconds).collect::<Float64Array>())
            }
            // Another TSV has a list of durations, and the durations in this one are text.
            DURATION if own(DURATION).is_some_and(|own| own.data_type() == &DataType::Utf8) => {
                widen(None, field.data_type(), rows)?
            }
            name => widen(own(name), field.data_type(), rows)?,
        })
    };
    let columns = schema.fields().iter().map(column).collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(schema.clone(), columns).map_err(bug)
}

/// Returns the rows' languages: the folder's where a row has none.
fn locales(own: Option<&ArrayRef>, folder: Option<&str>, rows: usize) -> Result<ArrayRef> {
    let own = own.map(|own| cast(own, &DataType::Utf8)).transpose().map_err(bug)?;
    let own = own.as_ref().map(|own| own.as_string::<i32>());
    let of = |row: usize| own.filter(|own| own.is_valid(row)).map(|own| own.value(row)).or(folder);
    Ok(Arc::new((0..rows).map(of).collect::<StringArray>()))
}

fn ordered(part: &Part, order: RowOrder) -> Result<Vec<u32>> {
    let rows = u32::try_from(part.places.len())
        .map_err(|_| Error::config(format!("{}: over 2^32 rows; split it", part.name)))?;
    let mut rows: Vec<u32> = (0..rows).collect();
    if order == RowOrder::Stored {
        let place = |row: u32| part.places[row as usize].map(|p| (p.object, p.offset));
        rows.sort_by_key(|&row| (place(row).is_none(), place(row)));
    }
    Ok(rows)
}

/// Returns a run of samples and cuts their blocks. `shard` is the object of the sample before: a row without an audio clip
/// belongs to it, since blocks come in the order of their objects.
fn chunk(
    part: &Part,
    list: u32,
    metadata: &RecordBatch,
    rows: &UInt32Array,
    order: RowOrder,
    shard: &mut u32,
    cut: &mut BlockCut,
) -> Result<SampleChunk> {
    let mut objects = Vec::with_capacity(rows.len());
    for &row in rows.values() {
        let place = part.places[row as usize];
        let object = place.map_or(*shard, |p| p.object);
        if order == RowOrder::Stored && object != *shard {
            cut.close()?; // no block straddles two tars
            *shard = object;
        }
        objects.push(object);
        cut.add(Row { shard: *shard, bytes: place.map_or(0, |p| p.bytes) })?;
    }
    cut.close()?;
    let place = |row: &u32| part.places[*row as usize];
    let offsets =
        UInt64Array::from_iter_values(rows.values().iter().map(|r| place(r).map_or(0, |p| p.offset)));
    let lengths: UInt64Array = rows.values().iter().map(|r| place(r).map(|p| p.bytes)).collect();
    let lines = UInt32Array::from_iter_values(rows.values().iter().map(|&r| part.table.lines[r as usize]));
    let lists = UInt32Array::from(vec![list; rows.len()]);
    let places = Places::new(UInt32Array::from(objects), vec![(offsets, lengths)]).with_lines(lists, lines);
    Ok(SampleChunk { metadata: take_record_batch(metadata, rows).map_err(bug)?, places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectRef;

    /// More rows without an audio clip than one run has, after the audio clips of two tars, and then a second TSV.
    #[test]
    fn rows_without_clips_stay_with_the_last_tar_in_later_runs() {
        let part = |name: &str, tars: [u32; 2], missing: usize| {
            let clip =
                |i: u32| Place { object: tars[i as usize % 2], offset: u64::from(i) * 1024, bytes: 600 };
            let there = (0..2_000).map(|i| Some(clip(i)));
            let places: Vec<Option<Place>> = there.chain(std::iter::repeat_n(None, missing)).collect();
            let paths = (0..places.len()).map(|i| format!("{name}{i}.mp3")).collect();
            let lines = (0u32..).take(places.len()).map(|i| i + 2).collect();
            Part {
                name: format!("transcript/{name}/train.tsv"),
                split: "train".into(),
                locale: Some(name.into()),
                table: Table { names: Vec::new(), columns: Vec::new(), paths, lines },
                places,
                durations: None,
                shard: tars[0],
            }
        };
        let tar = |i: u32| ObjectRef { uri: format!("{i}.tar"), size: 10 << 20, etag: None };
        let objects = Objects::new(&(0..4).map(tar).collect::<Vec<_>>());
        let parts = vec![part("de", [0, 1], 2 * CHUNK_ROWS), part("fr", [2, 3], 10)];
        let draft = draft(parts, objects, RowOrder::Stored, Vec::new(), 1 << 20).unwrap();
        let Content::Located(samples) = &draft.content else { panic!("samples are located") };
        let found: Vec<usize> = samples
            .chunks()
            .flat_map(|(_, chunk)| (0..chunk.metadata.num_rows()).map(|row| chunk.places.object(row)))
            .collect();
        let count = |object| found.iter().filter(|&&o| o == object).count();
        assert!(found.is_sorted());
        assert_eq!([0, 1, 2, 3].map(count), [1_000, 1_000 + 2 * CHUNK_ROWS, 1_000, 1_010]);
    }
}
