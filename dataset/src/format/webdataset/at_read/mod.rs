//! Tars whose headers are read with their samples: the catalog has only where samples begin, from indexes.
//!
//! ```text
//! open    x.tar.idx, first header of each tar ─▶ units of up to 4,096 samples ─▶ blocks
//!         headers of the first sample          ─▶ columns: key, payloads
//! read    bytes of consecutive samples         ─▶ their headers ─▶ keys, payloads        only `key`: from header to header
//! ```
//! The identity of the data set has where its samples begin, and the name and size of each tar's first member: shards of samples of
//! one size that were shuffled anew are other data. Keys of further samples are not known when it is opened.
//!
//! An index gives no wrong samples. Each sample is walked alone when it is read: its headers must be intact, end where the
//! next sample begins, and have one key. After the last sample, the tar must end. If not, reading fails with an error that names
//! the tar, the sample and the index.
//!
//! Two requests a tar when it is opened, and 4 bytes a sample in the catalog.

mod read;
mod unit;

pub(super) use read::read_unit;
pub(super) use unit::digest as unit_digest;

use super::names::{is_kept, last_part, payload_columns};
use crate::catalog::columns::map_columns;
use crate::catalog::{Content, Draft, Objects, Parts, VIEW_BYTES};
use crate::format::cataloguing::Cataloguing;
use crate::format::cut_units::{self, CutBlock, CutUnit};
use crate::format::kinds::is_audio;
use crate::format::listing::Sources;
use crate::format::tars::index_offsets::{self, Indexed};
use crate::format::tars::index_read::Problem;
use crate::format::tars::{self, Member};
use crate::storage::shown;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::datatypes::{DataType, Field, Schema};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Samples of a unit: its description of 16 KiB is read for each of its samples, unless it is held.
const UNIT_SAMPLES: usize = 4096;

/// Catalogs tars by their indexes; `None`, with a note, if the contents of members are needed.
pub(super) async fn catalog(sources: &mut Sources, with: &Cataloguing<'_>) -> Result<Option<Draft>> {
    let listed = listed(sources);
    let listed = &listed;
    let index_of = |tar: ObjectRef| async move {
        let index = find(&tar, listed.as_ref(), with.storage).await?;
        offsets(&tar, &index, with.storage).await
    };
    let Some(first) = first_sample(sources, with, index_of).await? else { return Ok(None) };
    let extensions = match needs_no_contents(first) {
        Ok(extensions) => extensions,
        Err(why) => {
            let note = format!("headers of tars are read when the data set is opened, because {why}");
            tracing::info!(uri = shown(&sources.uri), "{note}");
            sources.notes.push(note);
            return Ok(None);
        }
    };
    let tars = with.read_shards(sources, "reading indexes of tars", index_of).await?;
    draft(sources, &tars, &extensions, with.block_bytes).map(Some)
}

/// The first sample of the data set, and its tar.
struct First {
    tar: ObjectRef,
    members: Vec<(String, Member)>,
}

/// Reads the headers of the data set's first sample. Passes over tars that are left out because they are damaged.
async fn first_sample<F: Future<Output = Result<Indexed>>>(
    sources: &Sources,
    with: &Cataloguing<'_>,
    index_of: impl Fn(ObjectRef) -> F,
) -> Result<Option<First>> {
    let mut damage = None;
    for tar in &sources.objects {
        let members = async { members_of_first(tar, &index_of(tar.clone()).await?, with.storage).await };
        match members.await {
            Ok(members) => return Ok(Some(First { tar: tar.clone(), members })),
            Err(error) if with.skips(&error) => damage = Some(error),
            Err(error) => return Err(error),
        }
    }
    damage.map_or(Ok(None), Err)
}

/// Returns the listed indexes by URI; `None` if nothing was listed.
fn listed(sources: &Sources) -> Option<HashMap<String, ObjectRef>> {
    let indexes = sources.indexes.as_ref()?;
    Some(indexes.iter().map(|(_, index)| (index.uri.clone(), index.clone())).collect())
}

/// Finds the index of a tar, in the listing if there is one.
async fn find(
    tar: &ObjectRef,
    listed: Option<&HashMap<String, ObjectRef>>,
    storage: &Storage,
) -> Result<ObjectRef> {
    let uri = format!("{}.idx", tar.uri);
    let found = match listed {
        Some(listed) => listed.get(&uri).cloned(),
        // The signature or query of a tar is not that of its index.
        None if storage.is_signed(&tar.uri) || tar.uri.contains('?') => None,
        None => match storage.head(&uri).await {
            Ok(index) => Some(index),
            Err(error) if error.kind() == ErrorKind::Gone => None,
            Err(error) => return Err(error),
        },
    };
    found.ok_or_else(|| {
        Error::config(format!(
            "{} has no index {}: with tar_headers=\"read\" each tar needs one, as Megatron Energon writes it; write it, or \
             open the data set with tar_headers=\"open\"",
            shown(&tar.uri),
            shown(&uri)
        ))
    })
}

async fn offsets(tar: &ObjectRef, index: &ObjectRef, storage: &Storage) -> Result<Indexed> {
    match index_offsets::samples(tar, index, storage).await {
        Ok(indexed) => Ok(indexed),
        Err(Problem::Failed(error)) => Err(error),
        Err(Problem::Unfit(why)) => Err(Error::damage(format!(
            "the index {} does not fit {}: {why}; write it anew, or open the data set with tar_headers=\"open\"",
            shown(&index.uri),
            shown(&tar.uri)
        ))),
    }
}

async fn members_of_first(
    tar: &ObjectRef,
    indexed: &Indexed,
    storage: &Storage,
) -> Result<Vec<(String, Member)>> {
    let [start, end, ..] = *indexed.offsets else { return Ok(Vec::new()) };
    let walked = tars::walk_range(tar, start..end, |_| false, storage).await;
    let sample = read::Sample::of(&walked.map_err(|e| read::wrong(tar, &(start..end), e))?);
    Ok(sample.map_err(|why| read::misfit(tar, &(start..end), &why))?.members)
}

/// Returns the extensions of a sample's members, or why their contents are needed.
fn needs_no_contents(First { tar, members }: First) -> Result<BTreeSet<String>, String> {
    let needs = |member: &(String, Member)| {
        let (extension, Member { name, .. }) = member;
        match extension {
            _ if is_kept(name) => Some(format!("{name} in {} makes columns of its content", shown(&tar.uri))),
            e if is_audio(&last_part(e)) => Some(format!("{name} in {} is audio", shown(&tar.uri))),
            _ => None,
        }
    };
    match members.iter().find_map(needs) {
        Some(why) => Err(why),
        None => Ok(members.into_iter().map(|(extension, _)| extension).collect()),
    }
}

fn draft(
    sources: &Sources,
    tars: &[Indexed],
    extensions: &BTreeSet<String>,
    block_bytes: u64,
) -> Result<Draft> {
    let mut fields = vec![Field::new("key", DataType::Utf8, false)];
    for (extension, column) in payload_columns(&extensions.iter().collect()) {
        let metadata = HashMap::from([(read::EXTENSION_KEY.to_owned(), extension)]);
        fields.push(Field::new(column, DataType::BinaryView, true).with_metadata(metadata));
    }
    let source_schema = Arc::new(Schema::new(fields));
    let mapping = map_columns(&source_schema, &HashMap::new())?;
    let tars = tars.iter().map(|tar| units(tar, block_bytes)).collect::<Result<Vec<_>>>()?;
    let (blocks, units) = cut_units::tables(tars.into_iter())?;
    Ok(Draft {
        objects: Objects::new(&sources.objects),
        blocks: blocks.with_memory_per_sample(VIEW_BYTES * mapping.payload.len() as u64),
        schema: mapping.schema.clone(),
        payload: mapping.payload.clone(),
        audio: Vec::new(),
        content: Content::Units {
            units,
            source_schema,
            mapping: Arc::new(mapping),
            added: None,
            parts: Parts::Samples,
        },
        notes: sources.notes.clone(),
        null_columns: Vec::new(),
        copied_from: None,
    })
}

/// Cuts the samples of a tar into units and blocks.
fn units(Indexed { offsets, first_header }: &Indexed, block_bytes: u64) -> Result<Vec<CutUnit>> {
    let samples = offsets.len().saturating_sub(1);
    let mut units = Vec::with_capacity(samples.div_ceil(UNIT_SAMPLES));
    for first in (0..samples).step_by(UNIT_SAMPLES) {
        let end = samples.min(first + UNIT_SAMPLES);
        let of_unit = &offsets[first..=end];
        let mut blocks: Vec<CutBlock> = Vec::new();
        for (row, sample) in (0..).zip(of_unit.windows(2)) {
            let bytes = sample[1] - sample[0];
            match blocks.last_mut().filter(|open| open.bytes.saturating_add(bytes) <= block_bytes) {
                Some(open) => (open.rows, open.bytes) = (open.rows + 1, open.bytes + bytes),
                None => blocks.push(CutBlock { first_row: row, rows: 1, bytes, memory: 0 }),
            }
        }
        blocks.iter_mut().for_each(|block| block.memory = block.bytes);
        units.push(CutUnit { description: unit::pack(of_unit, end == samples, *first_header)?, blocks });
    }
    Ok(units)
}
