//! Images with COCO's file of annotations: `train2017/*.jpg` and `instances_train2017.json`.
//!
//! ```text
//! JSON ─▶ json: typed, without segmentations ─▶ images: ids checked, sorted ─▶ columns: lists of each image
//! ```
//! A sample for each of the file's `images`, sorted by `file_name`, so that the order is the same when the file is written
//! again in another sequence; a sample's annotations are in the sequence of the file. Columns: see
//! [`OpenOptions::annotations`](crate::OpenOptions::annotations). The first object is the file, the others are the images.
//! Cost while the catalog is built: the bytes of the file, at most [`MAX_ANNOTATIONS_BYTES`], and about 200 bytes an
//! annotation, plus captions and keypoints. The lists stay in memory as Arrow columns: 36 bytes an annotation with a box.

mod columns;
mod images;
mod json;

use super::bad_shards::BadShards;
use super::cataloguing::Cataloguing;
use super::contract::{Chosen, Format, Splits};
use super::kinds::{counted, extension, is_picture};
use super::listing::{Choice, Listing, Sources, name_below};
use super::located::{BlockCut, Row};
use super::splits::keep_split;
use super::tars;
use crate::catalog::columns::payload_field;
use crate::catalog::{Content, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::storage::shown;
use crate::{Error, Layout, ObjectRef, Result, Storage};
use arrow::array::{UInt32Array, UInt64Array};
use arrow::datatypes::{FieldRef, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use images::{Images, name_of};
use std::collections::HashMap;
use std::sync::Arc;

/// Limit on the file of annotations, which is held in memory while it is read: `instances_train2017.json` has 450 MB.
const MAX_ANNOTATIONS_BYTES: u64 = 2 << 30;
/// Samples whose metadata are one run of the sample table.
const CHUNK_SAMPLES: usize = 1 << 16;
/// Images without a file that an error or a note names.
const NAMED: usize = 3;

const PAYLOAD: &str = "image";

/// Images with COCO's file of annotations.
pub(super) struct Coco;

#[async_trait]
impl Format for Coco {
    fn layout(&self) -> Layout {
        Layout::Coco
    }

    fn is_data(&self, name: &str) -> bool {
        is_picture(&extension(name))
    }

    fn splits(&self) -> Splits {
        Splits::Absent
    }

    async fn choose(&self, listing: Listing, choice: &Choice<'_>, storage: &Storage) -> Result<Chosen> {
        if let Some(split) = choice.split {
            keep_split(&listing.uri, self, split, &mut Vec::new())?;
        }
        find(self, listing, choice.annotations.unwrap_or_default(), storage).await.map(Chosen::Sources)
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

/// Returns the file of annotations, then all images.
async fn find(format: &Coco, mut listing: Listing, annotations: &str, storage: &Storage) -> Result<Sources> {
    let uri = storage.keep_object_credentials(annotations);
    let file = storage.head(&uri).await.map_err(|error| {
        error.context("the file of annotations, a URI or a path relative to the data set's folder")
    })?;
    let mut objects = vec![(name_below(&listing.root, &file.uri), file)];
    let listed = std::mem::take(&mut listing.objects);
    objects.extend(listed.into_iter().filter(|(name, _)| format.is_data(name)));
    if objects.len() == 1 {
        return Err(Error::config(format!(
            "{}: no images (jpg, jpeg, png, webp) are there; give the folder that file_name is relative to",
            listing.uri
        )));
    }
    Ok(listing.sources(Layout::Coco, objects, Vec::new()))
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let file = sources.objects[0].clone();
    if file.size > MAX_ANNOTATIONS_BYTES {
        return Err(Error::config(format!(
            "{}: a file of {} bytes, over the limit of {MAX_ANNOTATIONS_BYTES}; remove its segmentations, which are not read",
            shown(&file.uri),
            file.size
        )));
    }
    with.options.report("reading annotations", 0, None);
    let bytes = with.storage.read(&file, 0..file.size).await?;
    let (block_bytes, bad_shards) = (with.block_bytes, with.bad_shards);
    tars::blocking(with.storage.io(), move || {
        let images = parse(&file, bytes)?;
        draft(sources, images, bad_shards, block_bytes)
    })
    .await
}

fn about(file: &ObjectRef, problem: impl std::fmt::Display) -> Error {
    Error::config(format!("{}: {problem}", shown(&file.uri)))
}

fn parse(file: &ObjectRef, bytes: Bytes) -> Result<Images> {
    let parsed = serde_json::from_slice(&bytes)
        .map_err(|error| about(file, format!("not a COCO annotations file: {error}")))?;
    drop(bytes);
    Images::of(parsed, &|problem| about(file, problem))
}

/// Returns the object of each image, and notes; images without a file are left out or are an error.
fn objects_of(sources: &mut Sources, images: &mut Images, bad_shards: BadShards) -> Result<Vec<ObjectRef>> {
    let file = sources.objects[0].clone();
    let names = std::mem::take(&mut sources.names);
    let listed = std::mem::take(&mut sources.objects);
    let by_name: HashMap<&str, &ObjectRef> = names.iter().map(String::as_str).zip(&listed).skip(1).collect();
    let all = images.images.len();
    let found: Vec<Option<&ObjectRef>> =
        images.images.iter().map(|image| by_name.get(name_of(image)).copied()).collect();
    let missing = found.iter().filter(|object| object.is_none()).count();
    if missing > 0 {
        let lacking = images.images.iter().zip(&found).filter(|(_, object)| object.is_none()).take(NAMED);
        let lacking: Vec<String> =
            lacking.map(|(image, _)| format!("`{}` of the image {}", image.file_name, image.id)).collect();
        let more = if missing > NAMED { ", …" } else { "" };
        let what = format!("{missing} of {all} images have no file: {}{more}", lacking.join(", "));
        if bad_shards == BadShards::Raise || missing == all {
            let root = shown(&sources.root);
            return Err(about(
                &file,
                format!(
                    "{what}; names are relative to {root}; open another folder, or set bad_shards=\"skip\" to leave these \
                     images out"
                ),
            ));
        }
        tracing::warn!(uri = shown(&sources.uri), "images are left out (bad_shards=skip): {what}");
        sources.notes.push(format!("left out (bad_shards=skip): {what}"));
        images.retain(&found.iter().map(Option::is_some).collect::<Vec<_>>());
    }
    let objects: Vec<ObjectRef> =
        std::iter::once(&file).chain(found.into_iter().flatten()).cloned().collect();
    if let unlisted @ 1.. = listed.len() - objects.len() {
        sources.notes.push(format!("{} ignored: not in the file of annotations", counted(unlisted, "image")));
    }
    Ok(objects)
}

fn draft(mut sources: Sources, mut images: Images, bad_shards: BadShards, block_bytes: u64) -> Result<Draft> {
    let file = sources.objects[0].clone();
    let objects = objects_of(&mut sources, &mut images, bad_shards)?;
    let metadata = columns::columns(&images, &|problem| about(&file, problem))?;
    drop(images);
    let objects = Objects::new(&objects);
    if u32::try_from(objects.len()).is_err() {
        return Err(about(&file, "more than 2^32 images in one data set"));
    }
    let mut cut = BlockCut::new(block_bytes);
    let mut chunks = Vec::new();
    for start in (0..metadata.num_rows()).step_by(CHUNK_SAMPLES) {
        let rows = CHUNK_SAMPLES.min(metadata.num_rows() - start);
        let own = start + 1..=start + rows; // 0 is the file of annotations
        let indices: UInt32Array = own.clone().map(|object| u32::try_from(object).ok()).collect();
        let sizes = UInt64Array::from_iter_values(own.map(|object| objects.size(object)));
        for (shard, bytes) in indices.values().iter().zip(sizes.values().iter()) {
            cut.add(Row { shard: *shard, bytes: *bytes })?;
        }
        cut.close()?; // a new run of the table starts a new block
        let places = Places::new(indices, vec![(UInt64Array::from(vec![0; rows]), sizes)]);
        chunks.push(SampleChunk { metadata: metadata.slice(start, rows), places });
    }
    let schema = metadata.schema();
    let fields = schema.fields().iter().cloned().chain([payload_field(PAYLOAD)]);
    Ok(Draft {
        objects,
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(chunks, None)?),
        schema: Arc::new(Schema::new(fields.collect::<Vec<FieldRef>>())),
        payload: vec![PAYLOAD.to_owned()],
        audio: Vec::new(),
        notes: sources.notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}
