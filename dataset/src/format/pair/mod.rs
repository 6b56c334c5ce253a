//! Folders of files that belong together by their names: `images/{}.jpg` and `annotations/{}.png`.
//!
//! ```text
//! listing ─▶ patterns: column and key of each file ─▶ samples by key ─▶ objects: a.jpg a.png b.jpg b.png …
//! ```
//! Columns: `key` text, then the files' bytes by the columns' names, sorted. Samples are sorted by key, and a sample's files
//! follow one another in the sequence of its columns, so an object's index states its sample. Blocks are runs of consecutive
//! samples. Cost: about 200 bytes a sample while the listing is read, 36 bytes and the key afterwards, with two columns.

mod patterns;

use super::bad_shards::BadShards;
use super::cataloguing::Cataloguing;
use super::contract::{Chosen, Format, Splits};
use super::kinds::{Named, counted};
use super::listing::{Choice, Listing, Sources};
use super::located::{BlockCut, Row};
use super::splits::keep_split;
use crate::catalog::columns::{bug, payload_field};
use crate::catalog::{Content, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::{Error, Layout, Result, Storage};
use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use patterns::{KEY, Pattern};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Samples whose metadata are one run of the sample table.
const CHUNK_SAMPLES: usize = 1 << 16;
/// Incomplete samples that an error or a note names.
const NAMED: usize = 3;

/// Files that belong together by their names.
pub(super) struct Pair;

#[async_trait]
impl Format for Pair {
    fn layout(&self) -> Layout {
        Layout::Pair
    }

    fn is_data(&self, _: &str) -> bool {
        true // it chooses its objects
    }

    fn splits(&self) -> Splits {
        Splits::Absent
    }

    async fn choose(&self, listing: Listing, choice: &Choice<'_>, _: &Storage) -> Result<Chosen> {
        if let Some(split) = choice.split {
            keep_split(&listing.uri, self, split, &mut Vec::new())?;
        }
        let patterns = patterns::parse(choice.pair.unwrap_or(&BTreeMap::new()))?;
        find(listing, &patterns, choice.bad_shards).map(Chosen::Sources)
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, &patterns::parse(with.pair)?, with.block_bytes)
    }
}

/// The files of a sample by column, as far as they were found.
type Files = Vec<Option<Named>>;

/// Returns the files of all samples, sorted by key, then by column.
fn find(mut listing: Listing, patterns: &[Pattern], bad_shards: BadShards) -> Result<Sources> {
    let mut samples: BTreeMap<String, Files> = BTreeMap::new();
    let (mut found, mut ignored) = (vec![0; patterns.len()], 0);
    let objects = std::mem::take(&mut listing.objects);
    let example = objects.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let listed = objects.len();
    for (name, object) in objects {
        let Some((column, key)) = column_of(&listing.uri, &name, patterns)? else {
            ignored += 1;
            continue;
        };
        found[column] += 1;
        let files = samples.entry(key).or_insert_with(|| vec![None; patterns.len()]);
        files[column] = Some((name, object));
    }
    if let Some((pattern, _)) = patterns.iter().zip(&found).find(|(_, found)| **found == 0) {
        return Err(Error::config(format!(
            "{}: no file matches the pattern `{}` of the column {}; {} there, such as {example}",
            listing.uri,
            pattern.text(),
            pattern.column,
            match listed {
                1 => "1 file is".to_owned(),
                n => format!("{n} files are"),
            },
        )));
    }
    let mut notes = Vec::new();
    if ignored > 0 {
        notes.push(format!("{} ignored: no pattern matches", counted(ignored, "file")));
    }
    notes.extend(without_incomplete(&listing.uri, &mut samples, patterns, bad_shards)?);
    let files = samples.into_values().flatten().flatten().collect();
    Ok(listing.sources(Layout::Pair, files, notes))
}

/// Returns the column that a file belongs to, and the key of its sample.
fn column_of(uri: &str, name: &str, patterns: &[Pattern]) -> Result<Option<(usize, String)>> {
    let mut columns =
        patterns.iter().enumerate().filter_map(|(column, pattern)| Some((column, pattern.key(name)?)));
    let Some((column, key)) = columns.next() else { return Ok(None) };
    match columns.next() {
        None => Ok(Some((column, key.to_owned()))),
        Some((other, _)) => Err(Error::config(format!(
            "{uri}: the file {name} matches two patterns, `{}` of the column {} and `{}` of the column {}; put the files into \
             separate folders, or give them different endings",
            patterns[column].text(),
            patterns[column].column,
            patterns[other].text(),
            patterns[other].column,
        ))),
    }
}

/// Leaves out samples that lack a file, and returns a note of them; an error unless that is requested.
fn without_incomplete(
    uri: &str,
    samples: &mut BTreeMap<String, Files>,
    patterns: &[Pattern],
    bad_shards: BadShards,
) -> Result<Option<String>> {
    let (mut lacking, mut incomplete, all) = (Vec::new(), 0, samples.len());
    for (key, files) in samples.iter() {
        if let Some((pattern, _)) = patterns.iter().zip(files).find(|(_, file)| file.is_none()) {
            incomplete += 1;
            if lacking.len() < NAMED {
                let there = files.iter().flatten().next().map_or("", |(name, _)| name);
                lacking.push(format!("{there} without {}", pattern.name(key)));
            }
        }
    }
    if lacking.is_empty() {
        return Ok(None);
    }
    let more = if incomplete > NAMED { ", …" } else { "" };
    let what = format!("{incomplete} of {all} samples lack a file: {}{more}", lacking.join(", "));
    if bad_shards == BadShards::Raise {
        return Err(Error::config(format!(
            "{uri}: {what}; add the files, or set bad_shards=\"skip\" to leave these samples out"
        )));
    }
    samples.retain(|_, files| files.iter().all(Option::is_some));
    if samples.is_empty() {
        return Err(Error::config(format!("{uri}: {what}: the data set is empty")));
    }
    tracing::warn!(uri = crate::storage::shown(uri), "samples are left out (bad_shards=skip): {what}");
    Ok(Some(format!("left out (bad_shards=skip): {what}")))
}

fn catalog(mut sources: Sources, patterns: &[Pattern], block_bytes: u64) -> Result<Draft> {
    let columns = patterns.len();
    let keys: Vec<&str> =
        sources.names.chunks(columns).map(|files| patterns[0].key(&files[0]).unwrap_or_default()).collect();
    let objects = Objects::new(&sources.objects);
    sources.objects = Vec::new(); // 170 bytes a file; columns hold them now
    if u32::try_from(objects.len()).is_err() {
        return Err(Error::config(format!("{}: more than 2^32 files in one data set", sources.uri)));
    }
    let schema = schema(patterns);
    let each = u32::try_from(columns).map_err(|_| Error::config("pair has more than 2^32 columns"))?;
    let mut cut = BlockCut::new(block_bytes).of_objects(each);
    let mut chunks = Vec::new();
    for start in (0..keys.len()).step_by(CHUNK_SAMPLES) {
        let samples = start..keys.len().min(start + CHUNK_SAMPLES);
        for sample in samples.clone() {
            let files = sample * columns..(sample + 1) * columns;
            let bytes = files.map(|file| objects.size(file)).fold(0, u64::saturating_add);
            cut.add(Row { shard: index(sample * columns), bytes })?;
        }
        cut.close()?; // a new run of the table starts a new block
        chunks.push(chunk(&keys, &objects, samples, columns, &schema)?);
    }
    let named = |pattern: &Pattern| pattern.column.clone();
    Ok(Draft {
        objects,
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(chunks, None)?),
        schema,
        payload: patterns.iter().map(named).collect(),
        audio: patterns.iter().filter(|pattern| pattern.is_audio()).map(named).collect(),
        notes: sources.notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

fn schema(patterns: &[Pattern]) -> SchemaRef {
    let key = std::iter::once(Arc::new(Field::new(KEY, DataType::Utf8, false)));
    let fields = key.chain(patterns.iter().map(|pattern| payload_field(&pattern.column)));
    Arc::new(Schema::new(fields.collect::<Vec<FieldRef>>()))
}

/// Returns the number of a file; all were checked to be u32.
fn index(file: usize) -> u32 {
    u32::try_from(file).unwrap_or(u32::MAX)
}

fn chunk(
    keys: &[&str],
    objects: &Objects,
    samples: Range<usize>,
    columns: usize,
    schema: &SchemaRef,
) -> Result<SampleChunk> {
    let key: ArrayRef = Arc::new(StringArray::from_iter_values(&keys[samples.clone()]));
    let metadata = Arc::new(schema.project(&[0]).map_err(bug)?);
    let metadata = RecordBatch::try_new(metadata, vec![key]).map_err(bug)?;
    let files = |column: usize| samples.clone().map(move |sample| sample * columns + column);
    let mut of_columns = (0..columns).map(|column| UInt32Array::from_iter_values(files(column).map(index)));
    let first = of_columns.next().unwrap_or_else(|| UInt32Array::from(Vec::<u32>::new()));
    let ranges = (0..columns).map(|column| {
        let sizes = UInt64Array::from_iter_values(files(column).map(|file| objects.size(file)));
        (UInt64Array::from(vec![0; sizes.len()]), sizes)
    });
    let places = Places::new(first, ranges.collect()).with_others(of_columns.collect());
    Ok(SampleChunk { metadata, places })
}
