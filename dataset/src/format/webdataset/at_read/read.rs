//! Reads samples of a tar, and finds their members by the headers among their bytes.

use super::unit::Unit;
use crate::cache::RangeReader;
use crate::catalog::columns::{Mapping, bug, pick, views_of};
use crate::format::kinds::is_picture;
use crate::format::tars::{self, Member, Walked};
use crate::format::units::UnitRows;
use crate::format::webdataset::names::{is_meta, last_part, split_key};
use crate::payload::own_views;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The metadata of a source column that has the members' extension.
pub(super) const EXTENSION_KEY: &str = "extension";
/// Parts of a unit that are walked at a time. Each is one thread and up to 2 MiB of buffers, and a query reads two units for each CPU.
const HOPS: usize = 8;
/// Fewer samples are one part: small ones are read together.
const HOP_SAMPLES: usize = 64;
/// Extensions without a column that are logged by a process.
const NOTED_EXTENSIONS: usize = 16;

/// Reads `columns` of rows of one unit.
pub(in crate::format::webdataset) async fn read_unit(
    unit: UnitRows,
    source: &SchemaRef,
    mapping: &Mapping,
    columns: &[usize],
    reader: &RangeReader,
) -> Result<RecordBatch> {
    let tar = &unit.object;
    let description = Unit::parse(&unit.description)?;
    let places = description.samples(&unit.rows)?;
    let fields: Vec<usize> = columns.iter().map(|&c| mapping.origins[c].top_level()).collect();
    let has_payload = fields.iter().any(|&f| source.field(f).metadata().contains_key(EXTENSION_KEY));
    if let Some(last) = places.last().filter(|last| last.end > tar.size) {
        return Err(misfit(tar, last, &format!("the tar has {} bytes", tar.size))); // a catalog of another machine
    }
    let mut fetched = None;
    let walked = match (has_payload, places.first(), places.last()) {
        (true, Some(first), Some(last)) => {
            let end = last.end + description.end_marker(last.end, tar.size);
            let read = reader.read_ranges(tar, std::slice::from_ref(&(first.start..end))).await?;
            let bytes = Part { start: first.start, bytes: read.into_iter().next().unwrap_or_default() };
            ends(tar, last, &bytes.of(&(last.end..end))?)?;
            let walk = |place: &Range<u64>| tars::walk_bytes(&bytes.of(place)?, place.start, tar);
            let walked = places.iter().map(|place| walk(place).map_err(|e| wrong(tar, place, e)));
            let walked = walked.collect::<Result<Vec<_>>>()?;
            fetched = Some(bytes);
            walked
        }
        (false, _, Some(last)) => {
            let walked = hop(tar, &places, &reader.storage).await?;
            let marker = last.end..last.end + description.end_marker(last.end, tar.size);
            if !marker.is_empty() {
                ends(tar, last, &reader.storage.read(tar, marker).await?)?;
            }
            walked
        }
        _ => Vec::new(),
    };
    let sample =
        |(walked, place): (&Walked, &Range<u64>)| Sample::of(walked).map_err(|why| misfit(tar, place, &why));
    let samples: Vec<Sample> = walked.iter().zip(&places).map(sample).collect::<Result<_>>()?;
    samples.iter().for_each(|sample| sample.note_others(source, tar));
    let _permit = reader.storage.io().making(unit.counted.making).await?;
    let column = |&field: &usize| column(source.field(field), &samples, fetched.as_ref());
    let arrays = fields.iter().map(column).collect::<Result<Vec<ArrayRef>>>()?;
    let schema = Arc::new(source.project(&fields).map_err(bug)?);
    let options = RecordBatchOptions::new().with_row_count(Some(samples.len()));
    let rows = RecordBatch::try_new_with_options(schema, arrays, &options).map_err(bug)?;
    own_views(&pick(&rows, source, mapping, columns)?)
}

/// Checks that the tar ends after its last sample: `marker` is the record there.
fn ends(tar: &ObjectRef, last: &Range<u64>, marker: &[u8]) -> Result<()> {
    match marker.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(misfit(tar, last, "the tar goes on after it, and it should be the last one")),
    }
}

/// Walks samples from header to header, several parts of them at a time.
async fn hop(tar: &ObjectRef, places: &[Range<u64>], storage: &Storage) -> Result<Vec<Walked>> {
    let parts = places.chunks(places.len().div_ceil(HOPS).max(HOP_SAMPLES)).map(<[Range<u64>]>::to_vec);
    let walk = |part: Vec<Range<u64>>| async move {
        let span = part.first().map_or(0, |place| place.start)..part.last().map_or(0, |place| place.end);
        let walked = tars::walk_parts(tar, part, |_| false, storage).await;
        walked.map_err(|error| wrong(tar, &span, error))
    };
    let walked: Vec<Vec<Walked>> = stream::iter(parts).map(walk).buffered(HOPS).try_collect().await?;
    Ok(walked.into_iter().flatten().collect())
}

/// Makes one column of the samples.
fn column(field: &Field, samples: &[Sample], fetched: Option<&Part>) -> Result<ArrayRef> {
    let Some(extension) = field.metadata().get(EXTENSION_KEY) else {
        return Ok(Arc::new(StringArray::from_iter_values(samples.iter().map(|sample| &sample.key))));
    };
    let payload = |sample: &Sample| {
        let Some(member) = sample.member(field.name(), extension) else { return Ok(None) };
        let bytes = fetched.map(|part| part.of(&(member.offset..member.offset + member.bytes)));
        bytes.transpose()
    };
    Ok(Arc::new(views_of(&samples.iter().map(payload).collect::<Result<Vec<_>>>()?)?))
}

/// Bytes of a tar.
struct Part {
    start: u64,
    bytes: Bytes,
}

impl Part {
    /// Returns the bytes of `range`.
    fn of(&self, range: &Range<u64>) -> Result<Bytes> {
        let at = |byte: u64| byte.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        let range = at(range.start).zip(at(range.end)).filter(|(_, end)| *end <= self.bytes.len());
        let (start, end) =
            range.ok_or_else(|| Error::new(ErrorKind::Bug, "a member is outside of its sample"))?;
        Ok(self.bytes.slice(start..end))
    }
}

/// One sample, by its headers.
#[derive(Debug)]
pub(super) struct Sample {
    key: String,
    /// Members with their extensions.
    pub(super) members: Vec<(String, Member)>,
}

impl Sample {
    /// Returns the sample that a walk through its bytes found, or why these bytes are not one sample.
    pub(super) fn of(walked: &Walked) -> Result<Self, String> {
        if !walked.to_end {
            return Err("the tar ends in it".to_owned());
        }
        let (mut first, mut members): (Option<&str>, Vec<(String, Member)>) = (None, Vec::new());
        for member in walked.members.iter().filter(|member| !is_meta(&member.name)) {
            let Some((key, extension)) = split_key(&member.name) else { continue };
            if let Some(first) = first.filter(|first| *first != key) {
                return Err(format!("members of two samples are in it, {first} and {key}"));
            }
            if members.iter().any(|(other, _)| *other == extension) {
                return Err(format!("its member {} is there twice", member.name));
            }
            first = Some(key);
            members.push((extension, member.clone()));
        }
        let key = first.ok_or("no member in it has a key and an extension")?.to_owned();
        Ok(Self { key, members })
    }

    /// Returns the member that a column holds: that of its extension, or for `image` a sample's only image of the same kind: `x.png`
    /// for `x.jpg`, not `x.mask.png`.
    fn member(&self, column: &str, extension: &str) -> Option<&Member> {
        let exact = self.members.iter().find(|(own, _)| own == extension);
        let is_alike = |own: &str| is_picture(&last_part(own)) && kind(own) == kind(extension);
        let mut images = self.members.iter().filter(|(own, _)| column == "image" && is_alike(own));
        let image = images.next().filter(|_| images.next().is_none());
        exact.or(image).map(|(_, member)| member)
    }

    /// Logs the first member of each extension that no column holds.
    fn note_others(&self, source: &Schema, tar: &ObjectRef) {
        static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let held = |member: &Member| {
            let mut columns = source.fields().iter();
            columns.any(|field| {
                let extension = field.metadata().get(EXTENSION_KEY);
                let own = extension.and_then(|extension| self.member(field.name(), extension));
                own.is_some_and(|own| own.offset == member.offset)
            })
        };
        for (extension, member) in self.members.iter().filter(|(_, member)| !held(member)) {
            let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
            if noted.len() < NOTED_EXTENSIONS && noted.insert(extension.clone()) {
                tracing::warn!(
                    tar = crate::storage::shown(&tar.uri),
                    "{}: no column has members .{extension}, which the first sample lacks; they are ignored, and no other \
                     warning names this extension. With tar_headers=\"open\" they are columns",
                    member.name
                );
            }
        }
    }
}

/// Returns what precedes the last part of an extension: `mask` of `mask.png`.
fn kind(of_member: &str) -> Option<&str> {
    of_member.rsplit_once('.').map(|(kind, _)| kind)
}

/// Returns the error of a sample whose walk failed.
pub(super) fn wrong(tar: &ObjectRef, place: &Range<u64>, error: Error) -> Error {
    match error.is_damage() {
        true => misfit(tar, place, error.message()).with_source(error),
        false => error,
    }
}

/// Returns the error of a sample that is not where the index states it.
pub(super) fn misfit(tar: &ObjectRef, place: &Range<u64>, why: &str) -> Error {
    let (uri, Range { start, end }) = (&tar.uri, place);
    Error::new(
        ErrorKind::Gone,
        format!(
            "{uri}: the index {uri}.idx states a sample at bytes {start} to {end}, but {why}. The tar was replaced or is \
             damaged, or the index belongs to another tar: write the index anew, and rebuild the catalog"
        ),
    )
}
