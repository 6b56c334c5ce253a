//! The table of samples for layouts that need one: metadata columns, and where each payload lies.
//!
//! Kept in runs of about 64 k samples that no block straddles, so that a block's metadata is a slice, not a copy.

use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use std::ops::Range;
use std::sync::Arc;

/// Samples a run is filled up to: large enough that a query sees few batches, small enough to build in pieces.
const CHUNK_SAMPLES: usize = 1 << 16;

/// Where the payloads of a run of samples lie.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The object that holds all payloads of a sample.
    object: UInt32Array,
    /// For each payload column, offset and length; a null length means that the sample has no such payload.
    ranges: Vec<(UInt64Array, UInt64Array)>,
}

impl Places {
    pub(crate) fn new(object: UInt32Array, ranges: Vec<(UInt64Array, UInt64Array)>) -> Self {
        assert!(ranges.iter().all(|(o, l)| o.len() == object.len() && l.len() == object.len()));
        Self { object, ranges }
    }

    pub(crate) fn object(&self, row: usize) -> usize {
        self.object.value(row) as usize
    }

    /// The byte range of payload `payload` of a sample, if it has one.
    pub(crate) fn range(&self, payload: usize, row: usize) -> Option<Range<u64>> {
        let (offsets, lengths) = &self.ranges[payload];
        lengths.is_valid(row).then(|| {
            let start = offsets.value(row);
            start..start.saturating_add(lengths.value(row))
        })
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
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(bug)
    }

    fn from_batch(batch: &RecordBatch, payloads: usize) -> Result<Self, String> {
        if batch.num_columns() != 1 + 2 * payloads {
            return Err(format!("{} columns of places for {payloads} payloads", batch.num_columns()));
        }
        let object = batch.column(0).as_primitive_opt::<UInt32Type>().ok_or("objects are not u32")?.clone();
        let u64s =
            |i: usize| batch.column(i).as_primitive_opt::<UInt64Type>().cloned().ok_or("places are not u64");
        let ranges = (0..payloads)
            .map(|p| Ok((u64s(1 + 2 * p)?, u64s(2 + 2 * p)?)))
            .collect::<Result<Vec<_>, &str>>()?;
        Ok(Self { object, ranges })
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
}

impl SampleTable {
    /// Joins small runs; `chunks` end where blocks end.
    pub(crate) fn new(chunks: Vec<SampleChunk>, key: Option<usize>) -> Result<Self> {
        let mut packed = Vec::new();
        let mut run: Vec<SampleChunk> = Vec::new();
        let mut rows = 0;
        for chunk in chunks {
            rows += chunk.metadata.num_rows();
            run.push(chunk);
            if rows >= CHUNK_SAMPLES {
                packed.push(join(std::mem::take(&mut run))?);
                rows = 0;
            }
        }
        if !run.is_empty() {
            packed.push(join(run)?);
        }
        Ok(Self::from_packed(packed, key))
    }

    fn from_packed(chunks: Vec<SampleChunk>, key: Option<usize>) -> Self {
        let mut starts = vec![0u64];
        let mut total = 0;
        for chunk in &chunks {
            total += chunk.metadata.num_rows() as u64;
            starts.push(total);
        }
        Self { chunks: chunks.into(), starts: starts.into(), key }
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

    /// The run that holds a block's samples, and the block's rows in it.
    pub(crate) fn slice(&self, samples: Range<u64>) -> (&SampleChunk, Range<usize>) {
        let chunk = self.starts.partition_point(|&s| s <= samples.start) - 1;
        let start = self.starts[chunk];
        assert!(samples.end <= self.starts[chunk + 1], "no block straddles two runs of samples");
        #[expect(clippy::cast_possible_truncation, reason = "a row of an in-memory batch")]
        let rows = (samples.start - start) as usize..(samples.end - start) as usize;
        (&self.chunks[chunk], rows)
    }

    /// The object of a sample, and its name within it.
    pub(crate) fn describe(&self, sample: u64) -> (usize, Option<String>) {
        let (chunk, rows) = self.slice(sample..sample + 1);
        let key = self.key.and_then(|key| {
            let column = chunk.metadata.column(key).as_string_opt::<i32>()?;
            column.is_valid(rows.start).then(|| column.value(rows.start).to_owned())
        });
        (chunk.places.object(rows.start), key)
    }

    pub(crate) fn metadata_batches(&self) -> Vec<RecordBatch> {
        self.chunks.iter().map(|c| c.metadata.clone()).collect()
    }

    pub(crate) fn place_batches(&self) -> Result<Vec<RecordBatch>> {
        self.chunks.iter().map(|c| c.places.to_batch()).collect()
    }

    /// Back from stored tables; refuses those that do not fit each other.
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
            if places.object.values().iter().any(|&o| o as usize >= objects) {
                return Err("a sample lies in an object that is not listed".into());
            }
            chunks.push(SampleChunk { metadata, places });
        }
        if key.is_some_and(|k| chunks.iter().any(|c| k >= c.metadata.num_columns())) {
            return Err("the key column is missing".into());
        }
        Ok(Self::from_packed(chunks, key))
    }
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
