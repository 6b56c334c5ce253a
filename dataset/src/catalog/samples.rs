//! The table of samples for layouts that need one: metadata columns, and the location of each payload.
//!
//! It is kept in runs of about 64 k samples. No block straddles two runs, so a block's metadata is a slice, not a copy.

use super::Objects;
use super::names::CLASS_NAMES_KEY;
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, UInt32Array, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// Runs are filled up to this number of samples: large enough that a query sees few batches, small enough to build in pieces.
const CHUNK_SAMPLES: usize = 1 << 16;
/// Maximum bytes of metadata in a run, unless one object alone has more: the offsets of a text column end at 2 GiB.
const CHUNK_BYTES: usize = 1 << 30;

/// The locations of the payloads of a run of samples.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The object that holds the first payload of a sample, and all others unless `others` has theirs.
    object: UInt32Array,
    /// The objects of the second payload column and of those after it; empty if one object holds all payloads of a sample.
    others: Vec<UInt32Array>,
    /// For each payload column, offset and length; a null length means that the sample has no such payload.
    ranges: Vec<(UInt64Array, UInt64Array)>,
    /// The table that lists each sample, and the line: for layouts whose samples are rows of TSVs.
    lines: Option<(UInt32Array, UInt32Array)>,
}

impl Places {
    pub(crate) fn new(object: UInt32Array, ranges: Vec<(UInt64Array, UInt64Array)>) -> Self {
        assert!(ranges.iter().all(|(o, l)| o.len() == object.len() && l.len() == object.len()));
        Self { object, others: Vec::new(), ranges, lines: None }
    }

    /// Sets the objects of the payload columns after the first, if each payload of a sample is in a separate object.
    pub(crate) fn with_others(self, others: Vec<UInt32Array>) -> Self {
        assert!(others.len() + 1 == self.ranges.len());
        assert!(others.iter().all(|other| other.len() == self.object.len()));
        Self { others, ..self }
    }

    /// Adds the table (an index into [`SampleTable::lists`]) and the line that each sample comes from.
    pub(crate) fn with_lines(self, list: UInt32Array, line: UInt32Array) -> Self {
        assert!(list.len() == self.object.len() && line.len() == self.object.len());
        Self { lines: Some((list, line)), ..self }
    }

    /// Returns the object that holds the first payload of a sample.
    pub(crate) fn object(&self, row: usize) -> usize {
        self.object.value(row) as usize
    }

    /// Returns the object that holds a payload of a sample.
    pub(crate) fn object_of(&self, payload: usize, row: usize) -> usize {
        let other = payload.checked_sub(1).and_then(|at| self.others.get(at));
        other.unwrap_or(&self.object).value(row) as usize
    }

    /// Returns the objects that hold the payloads of a sample: one, or one for each payload column.
    pub(crate) fn objects(&self, row: usize) -> impl Iterator<Item = usize> {
        std::iter::once(&self.object).chain(&self.others).map(move |objects| objects.value(row) as usize)
    }

    /// Whether each payload of a sample is in a separate object.
    pub(crate) fn is_spread(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns the byte range of payload `payload` of a sample, if it has one.
    pub(crate) fn range(&self, payload: usize, row: usize) -> Option<Range<u64>> {
        let (offsets, lengths) = &self.ranges[payload];
        lengths.is_valid(row).then(|| {
            let start = offsets.value(row);
            start..start.saturating_add(lengths.value(row))
        })
    }

    /// Hashes the ranges of a sample's payloads in its object.
    pub(crate) fn hash_ranges(&self, row: usize, hash: &mut impl Hasher) {
        for payload in 0..self.ranges.len() {
            let range = self.range(payload, row).unwrap_or(u64::MAX..u64::MAX);
            hash.write_u64(range.start);
            hash.write_u64(range.end);
        }
    }

    fn to_batch(&self) -> Result<RecordBatch> {
        let mut fields = vec![Field::new("object", DataType::UInt32, false)];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.object.clone())];
        for (i, (offset, length)) in self.ranges.iter().enumerate() {
            fields.push(Field::new(format!("{i}.offset"), DataType::UInt64, false));
            fields.push(Field::new(format!("{i}.length"), DataType::UInt64, true));
            columns.push(Arc::new(offset.clone()));
            columns.push(Arc::new(length.clone()));
        }
        for (i, other) in (1..).zip(&self.others) {
            fields.push(Field::new(format!("{i}.object"), DataType::UInt32, false));
            columns.push(Arc::new(other.clone()));
        }
        if let Some((list, line)) = &self.lines {
            fields.push(Field::new("list", DataType::UInt32, false));
            fields.push(Field::new("line", DataType::UInt32, false));
            columns.push(Arc::new(list.clone()));
            columns.push(Arc::new(line.clone()));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(bug)
    }

    fn from_batch(batch: &RecordBatch, payloads: usize) -> Result<Self, String> {
        let is_spread = batch.column_by_name("1.object").is_some();
        let others = if is_spread { payloads.saturating_sub(1) } else { 0 };
        let plain = 1 + 2 * payloads + others;
        if batch.num_columns() != plain && batch.num_columns() != plain + 2 {
            return Err(format!("{} columns of places for {payloads} payloads", batch.num_columns()));
        }
        let object = batch.column(0).as_primitive_opt::<UInt32Type>().ok_or("objects are not u32")?.clone();
        let u64s =
            |i: usize| batch.column(i).as_primitive_opt::<UInt64Type>().cloned().ok_or("places are not u64");
        let ranges = (0..payloads)
            .map(|p| Ok((u64s(1 + 2 * p)?, u64s(2 + 2 * p)?)))
            .collect::<Result<Vec<_>, &str>>()?;
        let u32s =
            |i: usize| batch.column(i).as_primitive_opt::<UInt32Type>().cloned().ok_or("places are not u32");
        let others = (plain - others..plain).map(u32s).collect::<Result<Vec<_>, _>>()?;
        let lines = match batch.num_columns() > plain {
            true => Some((u32s(plain)?, u32s(plain + 1)?)),
            false => None,
        };
        Ok(Self { object, others, ranges, lines })
    }
}

/// A run of samples.
#[derive(Debug, Clone)]
pub(crate) struct SampleChunk {
    pub(crate) metadata: RecordBatch,
    pub(crate) places: Places,
}

/// All samples, in catalog order.
#[derive(Debug, Clone)]
pub(crate) struct SampleTable {
    chunks: Arc<[SampleChunk]>,
    starts: Arc<[u64]>, // chunks + 1
    /// The metadata column that names a sample within its object (a tar's member or key), if there is one.
    key: Option<usize>,
    /// Names of the tables that list the samples.
    lists: Arc<[String]>,
}

impl SampleTable {
    /// Joins small runs; `chunks` end where blocks end.
    pub(crate) fn new(chunks: Vec<SampleChunk>, key: Option<usize>) -> Result<Self> {
        Ok(Self::from_packed(packed(chunks, CHUNK_BYTES)?, key))
    }

    fn from_packed(chunks: Vec<SampleChunk>, key: Option<usize>) -> Self {
        let mut starts = vec![0u64];
        let mut total = 0;
        for chunk in &chunks {
            total += chunk.metadata.num_rows() as u64;
            starts.push(total);
        }
        Self { chunks: chunks.into(), starts: starts.into(), key, lists: Arc::default() }
    }

    /// Sets the names of the tables that list the samples; rejects a sample whose table is not among them.
    pub(crate) fn with_lists(self, lists: Vec<String>) -> Result<Self, String> {
        let lines = self.chunks.iter().filter_map(|c| c.places.lines.as_ref());
        if lines.into_iter().any(|(list, _)| list.values().iter().any(|&l| l as usize >= lists.len())) {
            return Err("a sample is a line of a table that is not named".into());
        }
        Ok(Self { lists: lists.into(), ..self })
    }

    /// Returns the names of the tables that list the samples; empty for layouts without such tables.
    pub(crate) fn lists(&self) -> &[String] {
        &self.lists
    }

    pub(crate) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn key(&self) -> Option<usize> {
        self.key
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = (u64, &SampleChunk)> {
        self.starts.iter().copied().zip(self.chunks.iter())
    }

    /// Returns the run that holds a block's samples, and the block's rows in it.
    pub(crate) fn slice(&self, samples: Range<u64>) -> (&SampleChunk, Range<usize>) {
        let chunk = self.starts.partition_point(|&s| s <= samples.start) - 1;
        let start = self.starts[chunk];
        assert!(samples.end <= self.starts[chunk + 1], "no block straddles two runs of samples");
        #[expect(clippy::cast_possible_truncation, reason = "a row of an in-memory batch")]
        let rows = (samples.start - start) as usize..(samples.end - start) as usize;
        (&self.chunks[chunk], rows)
    }

    /// Returns an error's name for a sample: `clip.mp3`, `x.tar member 17`, `train.tsv line 5 (clip.mp3)`.
    pub(crate) fn describe(&self, sample: u64, objects: &Objects) -> String {
        let (chunk, rows) = self.slice(sample..sample + 1);
        let key = self.key.and_then(|key| {
            let column = chunk.metadata.column(key).as_string_opt::<i32>()?;
            column.is_valid(rows.start).then(|| column.value(rows.start).to_owned())
        });
        let row = rows.start;
        let object = objects.name(chunk.places.object(row));
        match (&chunk.places.lines, key) {
            (Some((list, line)), key) => {
                let absent = (0..chunk.places.ranges.len()).all(|p| chunk.places.range(p, row).is_none());
                let list = self.lists.get(list.value(row) as usize).map_or("", String::as_str);
                let clip = key.unwrap_or_default();
                let what = if absent { format!("no audio clip {clip}") } else { clip };
                format!("{list} line {} ({what})", line.value(row))
            }
            (None, Some(key)) => format!("{object} member {key}"),
            (None, None) => {
                let names: Vec<&str> = chunk.places.objects(row).map(|object| objects.name(object)).collect();
                names.join(" and ")
            }
        }
    }

    /// Returns the bytes of all payloads of a sample.
    pub(crate) fn payload_bytes(&self, sample: u64) -> u64 {
        let (chunk, rows) = self.slice(sample..sample + 1);
        let ranges =
            (0..chunk.places.ranges.len()).filter_map(|payload| chunk.places.range(payload, rows.start));
        ranges.map(|range| range.end - range.start).fold(0, u64::saturating_add)
    }

    /// Returns the index of the object that holds a sample.
    pub(crate) fn object_of(&self, sample: u64) -> usize {
        let (chunk, rows) = self.slice(sample..sample + 1);
        chunk.places.object(rows.start)
    }

    /// Whether `sample` and the one before it are in one object, and their places in one run.
    pub(crate) fn is_in_object_of_previous(&self, sample: u64) -> bool {
        let Some(previous) = sample.checked_sub(1).filter(|_| self.starts.binary_search(&sample).is_err())
        else {
            return false;
        };
        let (chunk, rows) = self.slice(previous..sample + 1);
        chunk.places.object(rows.start) == chunk.places.object(rows.start + 1)
    }

    /// Appends a metadata column with one value a sample.
    pub(crate) fn with_column(&self, name: &str, values: &Float64Array) -> Result<Self> {
        assert_eq!(values.len() as u64, self.len());
        let mut chunks = Vec::with_capacity(self.chunks.len());
        for (start, chunk) in self.chunks() {
            let start = usize::try_from(start)
                .map_err(|_| Error::config("more samples than this machine can address"))?;
            let mut fields: Vec<FieldRef> = chunk.metadata.schema().fields().iter().cloned().collect();
            fields.push(Arc::new(Field::new(name, DataType::Float64, true)));
            let mut columns = chunk.metadata.columns().to_vec();
            columns.push(Arc::new(values.slice(start, chunk.metadata.num_rows())));
            let metadata = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(bug)?;
            chunks.push(SampleChunk { metadata, places: chunk.places.clone() });
        }
        Ok(Self { chunks: chunks.into(), ..self.clone() })
    }

    pub(crate) fn metadata_batches(&self) -> Vec<RecordBatch> {
        self.chunks.iter().map(|c| c.metadata.clone()).collect()
    }

    pub(crate) fn place_batches(&self) -> Result<Vec<RecordBatch>> {
        self.chunks.iter().map(|c| c.places.to_batch()).collect()
    }

    /// Hashes the place of every sample, independently of the division into runs.
    pub(crate) fn hash_places(&self, hash: &mut impl Hasher) {
        for places in self.chunks.iter().map(|chunk| &chunk.places) {
            for row in 0..places.object.len() {
                hash.write_u32(places.object.value(row));
                places.hash_ranges(row, hash);
                places.others.iter().for_each(|other| hash.write_u32(other.value(row)));
            }
        }
    }

    /// Hashes the metadata of every sample but the column `except`, as text: independently of column types and runs.
    pub(crate) fn hash_values(&self, hash: &mut impl Hasher, except: &str) -> Result<()> {
        let unformatted = |e| Error::new(ErrorKind::Bug, "a metadata column has no text").with_source(e);
        let options = FormatOptions::new().with_null("\u{fffe}");
        let mut text = String::new();
        for metadata in self.chunks.iter().map(|chunk| &chunk.metadata) {
            let schema = metadata.schema();
            let columns =
                schema.fields().iter().zip(metadata.columns()).filter(|(field, _)| field.name() != except);
            let columns = columns
                .map(|(_, column)| ArrayFormatter::try_new(column, &options))
                .collect::<Result<Vec<_>, _>>()
                .map_err(unformatted)?;
            for row in 0..metadata.num_rows() {
                for column in &columns {
                    text.clear();
                    column.value(row).write(&mut text).map_err(unformatted)?;
                    hash.write(text.as_bytes());
                    hash.write_u8(0xff); // no UTF-8 text holds it
                }
            }
        }
        Ok(())
    }

    /// Hashes the class names of the metadata columns.
    pub(crate) fn hash_class_names(&self, hash: &mut impl Hasher) {
        let Some(chunk) = self.chunks.first() else { return };
        for field in chunk.metadata.schema().fields() {
            if let Some(names) = field.metadata().get(CLASS_NAMES_KEY) {
                hash.write(names.as_bytes());
                hash.write_u8(0xff); // no UTF-8 text holds it
            }
        }
    }

    /// Returns the number of objects that a block's samples span, counted by changes from sample to sample.
    pub(crate) fn objects_in(&self, samples: Range<u64>) -> usize {
        let (chunk, rows) = self.slice(samples);
        let objects = &chunk.places.object.values()[rows];
        let changes = objects.windows(2).filter(|pair| pair[0] != pair[1]).count();
        (1 + changes) * (1 + chunk.places.others.len())
    }

    /// Reads stored tables; rejects those that do not fit each other.
    pub(crate) fn from_batches(
        metadata: Vec<RecordBatch>,
        places: &[RecordBatch],
        payloads: usize,
        objects: usize,
        key: Option<usize>,
    ) -> Result<Self, String> {
        if metadata.len() != places.len() {
            return Err("samples and places differ in length".into());
        }
        let mut chunks = Vec::with_capacity(metadata.len());
        for (metadata, places) in metadata.into_iter().zip(places) {
            let places = Places::from_batch(places, payloads)?;
            if places.object.len() != metadata.num_rows() {
                return Err("samples and places differ in length".into());
            }
            let mut all = std::iter::once(&places.object).chain(&places.others);
            if all.any(|of| of.values().iter().any(|&o| o as usize >= objects)) {
                return Err("a sample is in an object that is not listed".into());
            }
            chunks.push(SampleChunk { metadata, places });
        }
        if key.is_some_and(|k| chunks.iter().any(|c| k >= c.metadata.num_columns())) {
            return Err("the key column is missing".into());
        }
        Ok(Self::from_packed(chunks, key))
    }
}

/// Packs chunks into runs of up to about [`CHUNK_SAMPLES`] samples and `most_bytes` of metadata.
fn packed(chunks: Vec<SampleChunk>, most_bytes: usize) -> Result<Vec<SampleChunk>> {
    let mut packed = Vec::new();
    let mut run: Vec<SampleChunk> = Vec::new();
    let (mut rows, mut bytes) = (0, 0);
    for chunk in chunks {
        let (more_rows, more_bytes) = (chunk.metadata.num_rows(), chunk.metadata.get_array_memory_size());
        if !run.is_empty() && (rows >= CHUNK_SAMPLES || bytes + more_bytes > most_bytes) {
            packed.push(join(std::mem::take(&mut run))?);
            (rows, bytes) = (0, 0);
        }
        (rows, bytes) = (rows + more_rows, bytes + more_bytes);
        run.push(chunk);
    }
    if !run.is_empty() {
        packed.push(join(run)?);
    }
    Ok(packed)
}

fn join(mut run: Vec<SampleChunk>) -> Result<SampleChunk> {
    if let [_] = run[..] {
        return Ok(run.remove(0));
    }
    let metadata = run.iter().map(|c| &c.metadata).collect::<Vec<_>>();
    let metadata = concat_batches(&metadata[0].schema(), metadata).map_err(bug)?;
    let payloads = run[0].places.ranges.len();
    let places = run.iter().map(|c| c.places.to_batch()).collect::<Result<Vec<_>>>()?;
    let places = concat_batches(&places[0].schema(), &places).map_err(bug)?;
    let places = Places::from_batch(&places, payloads).map_err(|e| Error::new(ErrorKind::Bug, e))?;
    Ok(SampleChunk { metadata, places })
}

fn bug(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "samples do not make a table").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::StringArray;

    fn chunk(texts: &[&str]) -> SampleChunk {
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let metadata = RecordBatch::try_from_iter([("text", column)]).unwrap();
        SampleChunk { places: Places::new(UInt32Array::from(vec![0; texts.len()]), Vec::new()), metadata }
    }

    #[test]
    fn runs_end_before_their_text_is_too_long() {
        let long = "x".repeat(3_000);
        let chunks = || vec![chunk(&["a", "b"]), chunk(&[&long]), chunk(&[&long, &long]), chunk(&["c"])];
        let rows = |most: usize| -> Vec<usize> {
            packed(chunks(), most).unwrap().iter().map(|run| run.metadata.num_rows()).collect()
        };
        assert_eq!(rows(usize::MAX), [6]);
        assert_eq!(rows(5_000), [3, 2, 1], "one object's samples stay together");
        assert_eq!(rows(1), [2, 1, 2, 1]);
    }
}
