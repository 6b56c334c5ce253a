//! ILSVRC's tars, read in place.
//!
//! `ILSVRC2012_img_train.tar` holds a tar for each class, `n########.tar`. Columns: `label` (index of the wnid among the
//! sorted ones), `wnid`, `path`, `image`, with absolute ranges into the inner tars. `ILSVRC2012_img_val.tar` is flat. Its
//! labels come from the devkit (`ILSVRC2012_validation_ground_truth.txt`, ILSVRC ids that `meta.mat` maps to wnids) if that
//! is next to it, in `data/` or in `ILSVRC2012_devkit_t12/data/`. Otherwise there is no label column, and a note states
//! what is missing.

mod matlab;

use super::cataloguing::Cataloguing;
use super::contract::{Format, Splits};
use super::kinds::{Kind, kind_of};
use super::listing::Sources;
use super::located::{BlockCut, Row};
use super::tars::{self, Member};
use crate::catalog::columns::{bug, label_field, payload_field};
use crate::catalog::{Content, Draft, Objects, Places, SampleChunk, SampleTable};
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use arrow::array::{ArrayRef, Int64Array, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TRUTH: &str = "ILSVRC2012_validation_ground_truth.txt";
const META: &str = "meta.mat";
/// Where a devkit is looked for, below the folder of the tar.
const DEVKIT_FOLDERS: [&str; 3] = ["", "data/", "ILSVRC2012_devkit_t12/data/"];
/// The largest id of a class; larger ones are inner nodes of WordNet.
const CLASSES: i64 = 1000;

/// ILSVRC's tars.
pub(super) struct Ilsvrc;

#[async_trait]
impl Format for Ilsvrc {
    fn layout(&self) -> Layout {
        Layout::IlsvrcTar
    }

    fn is_data(&self, name: &str) -> bool {
        kind_of(name) == Some(Kind::Tar)
    }

    fn splits(&self) -> Splits {
        Splits::Absent
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let [object] = sources.objects.as_slice() else {
        return Err(Error::config(format!(
            "{}: {} tars ({}); open training and validation separately: give the URI of one",
            sources.uri,
            sources.objects.len(),
            sources.names.join(", ")
        )));
    };
    let outer = tars::members_once(object, 0..object.size, with).await?;
    if outer.is_empty() {
        return Err(Error::config(format!("{}: the tar holds no files: the data set is empty", object.uri)));
    }
    let mut notes = sources.notes.clone();
    if outer.iter().all(|m| m.name.ends_with(".tar")) {
        let samples = train(object, outer, with).await?;
        draft(object, samples, notes, with.block_bytes)
    } else {
        let truth = devkit(&sources.root, with.storage).await?;
        if truth.is_none() {
            notes.push(format!(
                "no labels: {TRUTH} and {META} were not found next to {}; copy the devkit's data folder there",
                object.uri
            ));
        }
        let samples = validation(object, outer, truth)?;
        draft(object, samples, notes, with.block_bytes)
    }
}

/// One image; its wnid if it is known.
struct Sample {
    wnid: Option<String>,
    member: Member,
}

async fn train(object: &ObjectRef, outer: Vec<Member>, with: &Cataloguing<'_>) -> Result<Vec<Sample>> {
    let total = Some(outer.len() as u64);
    let mut inner = stream::iter(outer)
        .map(|tar| async move {
            let range = tar.offset..tar.offset + tar.bytes;
            let members = tars::members_once(object, range, with).await;
            let members = members.map_err(|e| e.context(format!("inner tar {}", tar.name)))?;
            let name = tar.name.rsplit('/').next().unwrap_or(&tar.name);
            Ok::<_, Error>((name.trim_end_matches(".tar").to_owned(), members))
        })
        .buffered(with.reads_at_once());
    let mut samples = Vec::new();
    let mut done = 0;
    while let Some((wnid, members)) = inner.try_next().await? {
        samples.extend(members.into_iter().map(|member| Sample { wnid: Some(wnid.clone()), member }));
        done += 1;
        with.options.report("reading inner tars", done, total);
    }
    Ok(samples)
}

/// Returns the images with their wnids: that of `ILSVRC2012_val_00000001.JPEG` is on line 1 of the ground truth.
fn validation(object: &ObjectRef, outer: Vec<Member>, truth: Option<Vec<String>>) -> Result<Vec<Sample>> {
    outer
        .into_iter()
        .map(|member| {
            let Some(truth) = &truth else { return Ok(Sample { wnid: None, member }) };
            let digits = member.name.rsplit('_').next().and_then(|n| n.split('.').next()).unwrap_or_default();
            let line = digits.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
            let wnid = line.and_then(|line| truth.get(line)).cloned().ok_or_else(|| {
                Error::config(format!(
                    "{} member {}: {TRUTH} has {} lines and none for it",
                    object.uri,
                    member.name,
                    truth.len()
                ))
            })?;
            Ok(Sample { wnid: Some(wnid), member })
        })
        .collect()
}

/// Returns the wnid of every validation image, if a devkit is next to the tar.
async fn devkit(root: &str, storage: &Storage) -> Result<Option<Vec<String>>> {
    let (Some(truth), Some(meta)) = (beside(root, TRUTH, storage).await?, beside(root, META, storage).await?)
    else {
        return Ok(None);
    };
    let ids = storage.read(&truth, 0..truth.size).await?;
    let meta_bytes = storage.read(&meta, 0..meta.size).await?;
    let bad = |what: &str, at: &ObjectRef| Error::config(format!("{}: {what}", at.uri));
    let wnids: BTreeMap<i64, String> = matlab::synsets(&meta_bytes)
        .map_err(|e| bad(&e, &meta))?
        .into_iter()
        .filter(|(id, _)| *id <= CLASSES)
        .collect();
    let ids = std::str::from_utf8(&ids).map_err(|_| bad("not a text file", &truth))?;
    let wnid = |line: &str| {
        let id: i64 =
            line.trim().parse().map_err(|_| bad(&format!("'{line}' is not an ILSVRC id"), &truth))?;
        wnids.get(&id).cloned().ok_or_else(|| bad(&format!("id {id} is not in {META}"), &truth))
    };
    ids.lines().filter(|l| !l.trim().is_empty()).map(wnid).collect::<Result<Vec<_>>>().map(Some)
}

async fn beside(root: &str, name: &str, storage: &Storage) -> Result<Option<ObjectRef>> {
    for folder in DEVKIT_FOLDERS {
        match storage.head(&format!("{root}{folder}{name}")).await {
            Ok(object) => return Ok(Some(object)),
            Err(error) if error.kind() == ErrorKind::Gone => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn draft(object: &ObjectRef, samples: Vec<Sample>, notes: Vec<String>, block_bytes: u64) -> Result<Draft> {
    let wnids: BTreeSet<&String> = samples.iter().filter_map(|s| s.wnid.as_ref()).collect();
    let labels: BTreeMap<&String, i64> = wnids.iter().copied().zip(0..).collect();
    let names: Vec<String> = wnids.iter().map(|w| (*w).clone()).collect();
    let mut columns: Vec<ArrayRef> = Vec::new();
    let mut fields: Vec<FieldRef> = Vec::new();
    if !names.is_empty() {
        let of = |s: &Sample| s.wnid.as_ref().and_then(|w| labels.get(w)).copied().unwrap_or(-1);
        fields.push(label_field(&Field::new("label", DataType::Int64, false), Some(&names))?);
        columns.push(Arc::new(Int64Array::from_iter_values(samples.iter().map(of))));
        fields.push(Arc::new(Field::new("wnid", DataType::Utf8, false)));
        let wnid = samples.iter().map(|s| s.wnid.as_deref().unwrap_or_default());
        columns.push(Arc::new(StringArray::from_iter_values(wnid)));
    }
    fields.push(Arc::new(Field::new("path", DataType::Utf8, false)));
    columns.push(Arc::new(StringArray::from_iter_values(samples.iter().map(|s| &s.member.name))));
    let key = columns.len() - 1;
    let metadata = RecordBatch::try_new(Arc::new(Schema::new(fields.clone())), columns).map_err(bug)?;
    fields.push(payload_field("image"));

    let mut cut = BlockCut::new(block_bytes);
    for sample in &samples {
        cut.add(Row { shard: 0, bytes: sample.member.bytes })?;
    }
    let places = Places::new(
        UInt32Array::from(vec![0; samples.len()]),
        vec![(
            UInt64Array::from_iter_values(samples.iter().map(|s| s.member.offset)),
            UInt64Array::from_iter_values(samples.iter().map(|s| s.member.bytes)),
        )],
    );
    Ok(Draft {
        objects: Objects::new(std::slice::from_ref(object)),
        blocks: cut.finish()?,
        content: Content::Located(SampleTable::new(vec![SampleChunk { metadata, places }], Some(key))?),
        schema: Arc::new(Schema::new(fields)),
        payload: vec!["image".into()],
        audio: Vec::new(),
        notes,
        null_columns: Vec::new(),
        copied_from: None,
    })
}
