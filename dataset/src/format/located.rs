//! Samples whose payloads are byte ranges of objects: folders, tars, manifests. Cuts them into blocks, and reads a block
//! back.

use super::tars::header::{HEADER_BYTES, Stated};
use crate::cache::RangeReader;
use crate::catalog::columns::{bug, views_of};
use crate::catalog::{BlockRow, BlockTable, BlockTableBuilder, Catalog, SampleChunk, SampleTable};
use crate::{Error, ObjectRef, Result, storage};
use arrow::array::{ArrayRef, AsArray};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Files of one block that are read at a time: a 4 MiB block of 110 KB images has 38. Storage may limit its requests to
/// fewer.
const FILE_READS: usize = 32;
/// Limit on the samples of a block, whatever their size: empty payloads would otherwise never fill one.
const MAX_BLOCK_SAMPLES: u32 = 1 << 14;
/// Limit on the files that a block spans: each costs a request, however small it is.
pub(crate) const MAX_BLOCK_OBJECTS: u32 = 256;

/// One sample to be added to a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The object that holds it.
    pub(super) shard: u32,
    /// The bytes that fetching it reads.
    pub(super) bytes: u64,
}

/// Cuts consecutive samples into blocks of at most `block_bytes`; only a block of a single large sample exceeds it.
pub(super) struct BlockCut {
    block_bytes: u64,
    open: Option<BlockRow>,
    /// The number of objects that the open block spans, and the first of its last sample.
    objects: (u32, u32),
    /// The number of objects of each sample; 1 unless each payload is in a separate object.
    objects_each: u32,
    blocks: BlockTableBuilder,
}

impl BlockCut {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self {
            block_bytes,
            open: None,
            objects: (0, 0),
            objects_each: 1,
            blocks: BlockTableBuilder::default(),
        }
    }

    /// Cuts samples that have this number of objects each.
    pub(super) fn of_objects(self, objects_each: u32) -> Self {
        Self { objects_each, ..self }
    }

    pub(super) fn add(&mut self, row: Row) -> Result<()> {
        let is_other = row.shard != self.objects.1;
        let full = self.open.is_some_and(|b| {
            b.samples >= MAX_BLOCK_SAMPLES
                || b.bytes.saturating_add(row.bytes) > self.block_bytes
                || (is_other && self.objects.0 + self.objects_each > MAX_BLOCK_OBJECTS)
        });
        if full {
            self.close()?;
        }
        self.objects = match self.open {
            Some(_) => (self.objects.0 + u32::from(is_other) * self.objects_each, row.shard),
            None => (self.objects_each, row.shard),
        };
        let block = self.open.get_or_insert(BlockRow {
            shard: row.shard,
            samples: 0,
            bytes: 0,
            memory: 0, // views are added when the number of payload columns is known
            unit: 0,
            first_row: 0,
        });
        block.samples += 1;
        block.bytes = block.bytes.saturating_add(row.bytes);
        block.memory = block.bytes;
        Ok(())
    }

    /// Ends the block: the next sample starts another one.
    pub(super) fn close(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |block| self.blocks.push(block))
    }

    pub(super) fn finish(mut self) -> Result<BlockTable> {
        self.close()?;
        Ok(self.blocks.finish())
    }
}

/// The payloads of a run of samples, as storage delivered them.
pub(crate) struct Fetched<'a> {
    chunk: &'a SampleChunk,
    rows: Range<usize>,
    /// By row, then by payload column; `None` is null.
    payloads: Vec<Option<Bytes>>,
}

/// Fetches the payloads of `samples`, those of one object together; with `has_headers`, compares the header before each.
pub(crate) async fn fetch<'a>(
    catalog: &Catalog,
    table: &'a SampleTable,
    samples: Range<u64>,
    (columns, has_headers): (&[usize], bool),
    reader: &RangeReader,
) -> Result<Fetched<'a>> {
    let first_sample = samples.start;
    let (chunk, rows) = table.slice(samples);
    let metadata_columns = chunk.metadata.num_columns();
    let payloads: Vec<usize> =
        columns.iter().filter(|&&c| c >= metadata_columns).map(|c| c - metadata_columns).collect();

    // `wanted[object]` = (slot, range): slot = row × payloads + payload
    let mut wanted: BTreeMap<usize, Vec<(usize, Range<u64>)>> = BTreeMap::new();
    let mut slots: Vec<Option<Bytes>> = vec![None; rows.len() * payloads.len()];
    for (row, at) in rows.clone().enumerate() {
        for (p, &payload) in payloads.iter().enumerate() {
            let slot = row * payloads.len() + p;
            match chunk.places.range(payload, at) {
                Some(range) if range.is_empty() => slots[slot] = Some(Bytes::new()),
                Some(range) => {
                    wanted.entry(chunk.places.object_of(payload, at)).or_default().push((slot, range))
                }
                None => {}
            }
        }
    }
    let keys = chunk.metadata.column_by_name("key").and_then(|keys| keys.as_string_opt::<i32>());
    let first = rows.start;
    let stated = |slot: usize, range: &Range<u64>| Stated {
        range: range.clone(),
        key: keys.map(|keys| keys.value(first + slot / payloads.len())),
        column: catalog.schema.field(metadata_columns + payloads[slot % payloads.len()]).name(),
    };
    let stated = &stated;
    // The error names the object; the sample's other objects are named, too.
    let about = |slot: usize, error: Error| match chunk.places.is_spread() {
        true => {
            let sample = first_sample + (slot / payloads.len()) as u64;
            error.context(format!("sample {sample} ({})", table.describe(sample, &catalog.objects)))
        }
        false => error,
    };
    let about = &about;
    let reads = stream::iter(wanted).map(|(object, wanted)| async move {
        let object = catalog.objects.get(object);
        match has_headers {
            true => read_members(reader, &object, wanted, stated).await,
            false => {
                let slot = wanted.first().map_or(0, |(slot, _)| *slot);
                read_object(reader, &object, wanted).await.map_err(|error| about(slot, error))
            }
        }
    });
    let mut reads = reads.buffer_unordered(FILE_READS);
    while let Some(found) = reads.try_next().await? {
        for (slot, bytes) in found {
            slots[slot] = Some(bytes);
        }
    }

    Ok(Fetched { chunk, rows, payloads: slots })
}

impl Fetched<'_> {
    /// Returns the catalog's `columns`, which were fetched: metadata columns are slices of the table, payloads views into
    /// what storage delivered.
    pub(crate) fn rows(mut self, catalog: &Catalog, columns: &[usize]) -> Result<RecordBatch> {
        let metadata_columns = self.chunk.metadata.num_columns();
        let payloads = columns.iter().filter(|&&c| c >= metadata_columns).count();
        let mut payload = 0;
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
        for &column in columns {
            if column < metadata_columns {
                arrays.push(self.chunk.metadata.column(column).slice(self.rows.start, self.rows.len()));
            } else {
                let of_column = self.payloads.iter_mut().skip(payload).step_by(payloads);
                let rows: Vec<Option<Bytes>> = of_column.map(Option::take).collect();
                arrays.push(Arc::new(views_of(&rows)?));
                payload += 1;
            }
        }
        let schema = Arc::new(catalog.schema.project(columns).map_err(bug)?);
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows.len()));
        RecordBatch::try_new_with_options(schema, arrays, &options).map_err(bug)
    }
}

/// Returns the requests and bytes of [`fetch`], without the disk cache, retries and hedges.
pub(crate) fn count_reads(
    catalog: &Catalog,
    table: &SampleTable,
    samples: Range<u64>,
    (columns, has_headers): (&[usize], bool),
) -> (u64, u64) {
    let (chunk, rows) = table.slice(samples);
    let payloads = columns.iter().filter_map(|column| column.checked_sub(chunk.metadata.num_columns()));
    let header = if has_headers { HEADER_BYTES as u64 } else { 0 };
    let mut wanted: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
    for payload in payloads {
        for row in rows.clone() {
            if let Some(range) = chunk.places.range(payload, row).filter(|range| !range.is_empty()) {
                let object = wanted.entry(chunk.places.object_of(payload, row)).or_default();
                object.push(range.start.saturating_sub(header)..range.end);
            }
        }
    }
    let local = catalog.is_local();
    let reads = wanted.values().map(|ranges| storage::count_reads(ranges, local));
    reads.fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1))
}

async fn read_object(
    reader: &RangeReader,
    object: &ObjectRef,
    wanted: Vec<(usize, Range<u64>)>,
) -> Result<Vec<(usize, Bytes)>> {
    let (slots, ranges): (Vec<usize>, Vec<Range<u64>>) = wanted.into_iter().unzip();
    let bytes = reader.read_ranges(object, &ranges).await?;
    Ok(slots.into_iter().zip(bytes).collect())
}

/// As [`read_object`], for members of a tar; checks that their headers are those of the samples.
async fn read_members<'a>(
    reader: &RangeReader,
    tar: &ObjectRef,
    wanted: Vec<(usize, Range<u64>)>,
    stated: impl Fn(usize, &Range<u64>) -> Stated<'a>,
) -> Result<Vec<(usize, Bytes)>> {
    let with_header = |(slot, range): &(usize, Range<u64>)| {
        (*slot, range.start.saturating_sub(HEADER_BYTES as u64)..range.end)
    };
    let found = read_object(reader, tar, wanted.iter().map(with_header).collect()).await?;
    let check = |((slot, range), (_, mut bytes)): ((usize, Range<u64>), (usize, Bytes))| {
        let payload_bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let header = bytes.split_to(bytes.len().saturating_sub(payload_bytes));
        stated(slot, &range).check(&header, tar)?;
        Ok((slot, bytes))
    };
    wanted.into_iter().zip(found).map(check).collect()
}
