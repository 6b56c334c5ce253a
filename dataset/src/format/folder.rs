//! Folders of images or of audio: `class/*.jpg`, `class/*.flac`, or files without classes.
//!
//! Columns: `label` int64 and `class` text (if there are class folders; a label is the class name's index in the sorted
//! names), `path` text below the URI, `image` or `audio` the encoded bytes. A folder that holds both kinds is an error.
//! Blocks are runs of consecutive files.

use super::cataloguing::Cataloguing;
use super::contract::{Format, Seen, Splits};
use super::kinds::{Kind, Named, counted, extension, is_audio, kind_of};
use super::listing::Sources;
use super::located::{BlockCut, Row};
use super::splits::shared_split_folder;
use crate::catalog::columns::{label_field, payload_field};
use crate::catalog::{Content, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::{Error, Layout, Result, Storage};
use arrow::array::{ArrayRef, Int64Array, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files whose metadata are one run of the sample table.
const CHUNK_FILES: usize = 1 << 16;

/// Files of single samples.
pub(super) struct Folder;

#[async_trait]
impl Format for Folder {
    fn layout(&self) -> Layout {
        Layout::Folder
    }

    fn is_data(&self, name: &str) -> bool {
        matches!(kind_of(name), Some(Kind::Picture | Kind::Audio))
    }

    async fn recognise(&self, seen: &Seen<'_>, _: &Storage) -> Result<Option<Layout>> {
        Ok((seen.has_files() && !seen.has_shards()).then_some(Layout::Folder))
    }

    fn is_recognised_by_names(&self) -> bool {
        true
    }

    fn splits(&self) -> Splits {
        Splits::Folders
    }

    fn note(&self, _: &[Named], others: &[Named]) -> Option<String> {
        note_ignored(others)
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with)
    }
}

/// Notes the files without samples, by their extensions.
fn note_ignored(beside: &[Named]) -> Option<String> {
    if beside.is_empty() {
        return None;
    }
    let mut by_extension: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in beside {
        *by_extension.entry(extension(name)).or_default() += 1;
    }
    let found: Vec<String> = by_extension.iter().map(|(ext, n)| format!("{n} .{ext}")).collect();
    Some(format!("{} ignored, neither images nor audio: {}", counted(beside.len(), "file"), found.join(", ")))
}

fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let mut sources = sources;
    let payload = payload(&sources)?;
    let prefix = shared_split_folder(&sources.names).map_or(0, |split| split.len() + 1);
    let classes = number_classes(&mut sources, prefix);
    let labels: Option<Vec<String>> = (!classes.is_empty()).then(|| classes.keys().cloned().collect());
    let schema = schema(labels.as_deref(), payload)?;

    let objects = Objects::new(&sources.objects);
    sources.objects = Vec::new(); // 170 bytes a file; columns hold them now
    let mut cut = BlockCut::new(with.block_bytes);
    let mut chunks = Vec::new();
    let mut start = 0;
    for i in 0..objects.len() {
        let index = u32::try_from(i).map_err(|_| Error::config("more than 2^32 files in one data set"))?;
        // a new run of the table starts a new block
        if i - start == CHUNK_FILES {
            cut.close()?;
            chunks.push(chunk(&sources.names, &objects, start..i, &classes, prefix, &schema)?);
            start = i;
        }
        cut.add(Row { shard: index, bytes: objects.size(i) })?;
    }
    chunks.push(chunk(&sources.names, &objects, start..objects.len(), &classes, prefix, &schema)?);
    Ok(Draft {
        objects,
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(chunks, None)?),
        schema,
        payload: vec![payload.into()],
        audio: if payload == "audio" { vec![payload.into()] } else { Vec::new() },
        notes: sources.notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}

/// Returns the name of the payload column. The files must be of one kind.
fn payload(sources: &Sources) -> Result<&'static str> {
    let clips = sources.names.iter().filter(|n| is_audio(&extension(n))).count();
    match sources.names.len() - clips {
        0 => Ok("audio"),
        _ if clips == 0 => Ok("image"),
        pictures => Err(Error::config(format!(
            "{}: {} and {} in one folder; open one kind by a pattern, such as {}/**/*.{}",
            sources.uri,
            counted(pictures, "image"),
            counted(clips, "audio file"),
            sources.root.trim_end_matches('/'),
            extension(&sources.names[0])
        ))),
    }
}

/// Returns class names with their labels. Files outside class folders are dropped with a note; torchvision also drops them.
fn number_classes(sources: &mut Sources, prefix: usize) -> BTreeMap<String, i64> {
    let mut classes: BTreeMap<String, i64> = BTreeMap::new();
    for name in &sources.names {
        if let Some(class) = class_of(name, prefix) {
            classes.entry(class.to_owned()).or_default();
        }
    }
    for (label, number) in classes.values_mut().zip(0..) {
        *label = number;
    }
    let before = sources.names.len();
    if !classes.is_empty() {
        let keep: Vec<bool> = sources.names.iter().map(|n| class_of(n, prefix).is_some()).collect();
        let mut kept = keep.iter().copied();
        sources.objects.retain(|_| kept.next().unwrap_or(false));
        let mut kept = keep.iter().copied();
        sources.names.retain(|_| kept.next().unwrap_or(false));
    }
    let dropped = before - sources.names.len();
    if dropped > 0 {
        sources.notes.push(format!("{} ignored: not in a class folder", counted(dropped, "file")));
    }
    classes
}

fn class_of(name: &str, prefix: usize) -> Option<&str> {
    name[prefix..].split_once('/').map(|(class, _)| class)
}

fn schema(labels: Option<&[String]>, payload: &str) -> Result<SchemaRef> {
    let mut fields = Vec::new();
    if labels.is_some() {
        fields.push(label_field(&Field::new("label", DataType::Int64, false), labels)?);
        fields.push(Arc::new(Field::new("class", DataType::Utf8, false)));
    }
    fields.push(Arc::new(Field::new("path", DataType::Utf8, false)));
    fields.push(payload_field(payload));
    Ok(Arc::new(Schema::new(fields)))
}

fn chunk(
    names: &[String],
    objects: &Objects,
    files: std::ops::Range<usize>,
    classes: &BTreeMap<String, i64>,
    prefix: usize,
    schema: &SchemaRef,
) -> Result<SampleChunk> {
    let names = &names[files.clone()];
    let mut columns: Vec<ArrayRef> = Vec::new();
    if !classes.is_empty() {
        let class = |name: &String| class_of(name, prefix).unwrap_or_default().to_owned();
        let labels = names.iter().map(|n| classes.get(&class(n)).copied().unwrap_or(-1));
        columns.push(Arc::new(Int64Array::from_iter_values(labels)));
        columns.push(Arc::new(StringArray::from_iter_values(names.iter().map(class))));
    }
    columns.push(Arc::new(StringArray::from_iter_values(names)));
    let metadata: Vec<usize> = (0..columns.len()).collect();
    let metadata = schema.project(&metadata).map_err(crate::catalog::columns::bug)?;
    let metadata = RecordBatch::try_new(Arc::new(metadata), columns).map_err(crate::catalog::columns::bug)?;
    #[expect(clippy::cast_possible_truncation, reason = "file numbers were checked to be u32")]
    let object = UInt32Array::from_iter_values(files.clone().map(|i| i as u32));
    let sizes = UInt64Array::from_iter_values(files.clone().map(|i| objects.size(i)));
    let offsets = UInt64Array::from(vec![0; files.len()]);
    Ok(SampleChunk { metadata, places: Places::new(object, vec![(offsets, sizes)]) })
}
