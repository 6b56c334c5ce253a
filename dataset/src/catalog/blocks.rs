//! The table of blocks, as plain columns: 44 bytes a block.
//!
//! A block has two sizes. `bytes` is its encoded size: windows and blocks are cut by it, so it decides the order and is
//! part of the hash of the cut. `memory` is what the fetched block holds in memory: only budgets count it.

use crate::{BlockId, Error, ErrorKind, Result, SampleId};
use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use std::ops::Range;
use std::sync::Arc;

/// Block ids are `u32`, and callers may use one value as "none".
pub(crate) const MAX_BLOCKS: usize = u32::MAX as usize - 1;

/// Bytes of a view: what a payload or text takes in a block in addition to its own bytes.
pub(crate) const VIEW_BYTES: u64 = 16;

/// The stored column of the blocks' memory.
const MEMORY: &str = "memory_bytes";

/// One block as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) shard: u32,
    pub(crate) samples: u32,
    /// Encoded bytes: they decide the order.
    pub(crate) bytes: u64,
    /// Bytes that the fetched block holds in memory, all columns together; at least `bytes`.
    pub(crate) memory: u64,
    /// The unit (row group, record batch) of the [`super::UnitStore`] that it is cut from; 0 for located layouts.
    pub(crate) unit: u32,
    /// Its first row within that unit.
    pub(crate) first_row: u64,
}

/// All blocks, in catalog order.
#[derive(Debug, Clone)]
pub(crate) struct BlockTable {
    shard: ScalarBuffer<u32>,
    starts: ScalarBuffer<u64>, // blocks + 1
    bytes: ScalarBuffer<u64>,
    memory: ScalarBuffer<u64>,
    unit: ScalarBuffer<u32>,
    first_row: ScalarBuffer<u64>,
}

impl BlockTable {
    pub(crate) fn len(&self) -> usize {
        self.shard.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
        (0..self.len() as u32).map(BlockId)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn starts(&self) -> &[u64] {
        &self.starts
    }

    pub(crate) fn row(&self, id: BlockId) -> BlockRow {
        let i = id.0 as usize;
        let samples = self.starts[i + 1] - self.starts[i];
        #[expect(clippy::cast_possible_truncation, reason = "the builder takes u32 samples a block")]
        let samples = samples as u32;
        BlockRow {
            shard: self.shard[i],
            samples,
            bytes: self.bytes[i],
            memory: self.memory[i],
            unit: self.unit[i],
            first_row: self.first_row[i],
        }
    }

    pub(crate) fn samples_of(&self, id: BlockId) -> Range<u64> {
        let i = id.0 as usize;
        self.starts[i]..self.starts[i + 1]
    }

    pub(crate) fn block_of(&self, sample: SampleId) -> BlockId {
        assert!(sample.0 < self.samples(), "sample {sample} of {}", self.samples());
        let after = self.starts.partition_point(|&start| start <= sample.0);
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
        BlockId((after - 1) as u32)
    }

    /// Returns the first sample of an object, by its index; the blocks of an object are consecutive.
    pub(crate) fn first_sample_of_shard(&self, shard: u32) -> u64 {
        self.starts[self.shard.partition_point(|&s| s < shard)]
    }

    /// Whether all blocks are in existing units and objects.
    pub(crate) fn units_fit(&self, units: usize, objects: usize) -> bool {
        let unit = self.unit.last().is_none_or(|&u| (u as usize) < units);
        unit && self.shard.last().is_none_or(|&s| (s as usize) < objects)
    }

    /// Returns the columns that describe the cut; its hash covers them.
    pub(crate) fn to_batch(&self) -> Result<RecordBatch> {
        let starts = self.starts.slice(0, self.len());
        let ends = self.starts.slice(1, self.len());
        let samples: UInt64Array = ends.iter().zip(starts.iter()).map(|(e, s)| e - s).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::new(self.shard.clone(), None)),
            Arc::new(samples),
            Arc::new(UInt64Array::new(self.bytes.clone(), None)),
            Arc::new(UInt32Array::new(self.unit.clone(), None)),
            Arc::new(UInt64Array::new(self.first_row.clone(), None)),
        ];
        let fields = [
            ("shard", DataType::UInt32),
            ("samples", DataType::UInt64),
            ("bytes", DataType::UInt64),
            ("unit", DataType::UInt32),
            ("first_row", DataType::UInt64),
        ];
        let fields: Vec<Field> = fields.into_iter().map(|(n, t)| Field::new(n, t, false)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(not_a_table)
    }

    /// Returns all columns, as they are stored.
    pub(crate) fn to_stored(&self) -> Result<RecordBatch> {
        let cut = self.to_batch()?;
        let mut fields: Vec<FieldRef> = cut.schema().fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(MEMORY, DataType::UInt64, false)));
        let mut columns = cut.columns().to_vec();
        columns.push(Arc::new(UInt64Array::new(self.memory.clone(), None)));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(not_a_table)
    }

    /// Adds `bytes_per_sample` for each sample to the memory of each block.
    pub(crate) fn with_memory_per_sample(self, bytes_per_sample: u64) -> Self {
        let samples = self.starts.windows(2).map(|pair| pair[1] - pair[0]);
        let memory = self.memory.iter().zip(samples);
        let memory: Vec<u64> = memory
            .map(|(bytes, samples)| bytes.saturating_add(samples.saturating_mul(bytes_per_sample)))
            .collect();
        Self { memory: memory.into(), ..self }
    }

    /// Returns the maximum over all blocks of `of`, which gets a block's encoded bytes and its memory.
    pub(crate) fn most(&self, of: impl Fn(u64, u64) -> u64) -> u64 {
        self.bytes
            .iter()
            .zip(self.memory.iter())
            .map(|(bytes, memory)| of(*bytes, *memory))
            .max()
            .unwrap_or(0)
    }

    /// Whether a stored table has the blocks' memory: releases before 0.2 stored none.
    pub(crate) fn has_memory(batch: &RecordBatch) -> bool {
        batch.column_by_name(MEMORY).is_some()
    }

    /// Reads a stored table; rejects one that breaks the invariants. Without a memory column, the memory is the encoded bytes.
    pub(crate) fn from_batch(batch: &RecordBatch) -> Result<Self, String> {
        let samples = column::<UInt64Type>(batch, "samples")?;
        let mut starts = Vec::with_capacity(samples.len() + 1);
        let mut total = 0u64;
        starts.push(0);
        for &n in samples.iter() {
            if n == 0 || n > u64::from(u32::MAX) {
                return Err(format!("a block has {n} samples"));
            }
            total = total.checked_add(n).ok_or("more than 2^64 samples")?;
            starts.push(total);
        }
        let shard = column::<UInt32Type>(batch, "shard")?;
        let unit = column::<UInt32Type>(batch, "unit")?;
        if !shard.is_sorted() || !unit.is_sorted() || shard.len() > MAX_BLOCKS {
            return Err("blocks are out of order".into());
        }
        let bytes = column::<UInt64Type>(batch, "bytes")?;
        let memory = match Self::has_memory(batch) {
            true => column::<UInt64Type>(batch, MEMORY)?,
            false => bytes.clone(),
        };
        if memory.iter().zip(bytes.iter()).any(|(memory, bytes)| memory < bytes) {
            return Err("a block has less memory than bytes".into());
        }
        Ok(Self {
            shard,
            starts: starts.into(),
            bytes,
            memory,
            unit,
            first_row: column::<UInt64Type>(batch, "first_row")?,
        })
    }
}

fn not_a_table(e: ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "blocks do not make a table").with_source(e)
}

/// Returns a non-null primitive column of a stored table.
pub(crate) fn column<T: arrow::datatypes::ArrowPrimitiveType>(
    batch: &RecordBatch,
    name: &str,
) -> Result<ScalarBuffer<T::Native>, String> {
    let array = batch.column_by_name(name).ok_or_else(|| format!("no column {name}"))?;
    let array = array
        .as_any()
        .downcast_ref::<arrow::array::PrimitiveArray<T>>()
        .ok_or_else(|| format!("column {name} is {}", array.data_type()))?;
    if arrow::array::Array::null_count(array) != 0 {
        return Err(format!("column {name} has nulls"));
    }
    Ok(array.values().clone())
}

/// Collects blocks in catalog order.
#[derive(Debug, Default)]
pub(crate) struct BlockTableBuilder {
    shard: Vec<u32>,
    ends: Vec<u64>,
    bytes: Vec<u64>,
    memory: Vec<u64>,
    unit: Vec<u32>,
    first_row: Vec<u64>,
}

impl BlockTableBuilder {
    pub(crate) fn push(&mut self, row: BlockRow) -> Result<()> {
        assert!(row.samples > 0, "a block holds at least one sample");
        if self.shard.len() >= MAX_BLOCKS {
            return Err(Error::config(format!(
                "more than {MAX_BLOCKS} blocks; open the data set with larger block_bytes"
            )));
        }
        let before = self.samples();
        self.shard.push(row.shard);
        self.ends.push(before + u64::from(row.samples));
        self.bytes.push(row.bytes);
        self.memory.push(row.memory.max(row.bytes));
        self.unit.push(row.unit);
        self.first_row.push(row.first_row);
        Ok(())
    }

    pub(crate) fn samples(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(crate) fn finish(self) -> BlockTable {
        let mut starts = Vec::with_capacity(self.ends.len() + 1);
        starts.push(0);
        starts.extend(self.ends);
        assert!(self.shard.is_sorted() && self.unit.is_sorted(), "blocks come in catalog order");
        BlockTable {
            shard: self.shard.into(),
            starts: starts.into(),
            bytes: self.bytes.into(),
            memory: self.memory.into(),
            unit: self.unit.into(),
            first_row: self.first_row.into(),
        }
    }
}
