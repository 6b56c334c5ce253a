//! The table of blocks, as plain columns: 36 bytes a block.

use crate::{BlockId, Error, ErrorKind, Result, SampleId};
use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Field, Schema, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use std::ops::Range;
use std::sync::Arc;

/// Block ids are `u32`, and one is kept back as "none" by those who need it.
pub(crate) const MAX_BLOCKS: usize = u32::MAX as usize - 1;

/// One block as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) shard: u32,
    pub(crate) samples: u32,
    pub(crate) bytes: u64,
    /// Which unit (row group, record batch) of the [`super::UnitStore`] it is cut from; 0 for located layouts.
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

    /// The first sample of an object, by its index; blocks of one object follow one another.
    pub(crate) fn first_sample_of_shard(&self, shard: u32) -> u64 {
        self.starts[self.shard.partition_point(|&s| s < shard)]
    }

    /// Do all blocks lie in existing units and objects?
    pub(crate) fn units_fit(&self, units: usize, objects: usize) -> bool {
        let unit = self.unit.last().is_none_or(|&u| (u as usize) < units);
        unit && self.shard.last().is_none_or(|&s| (s as usize) < objects)
    }

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
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
            .map_err(|e| Error::new(ErrorKind::Bug, "blocks do not make a table").with_source(e))
    }

    /// Back from a stored table; refuses one that breaks the invariants.
    pub(crate) fn from_batch(batch: &RecordBatch) -> Result<Self, String> {
        let samples = column::<UInt64Type>(batch, "samples")?;
        let mut starts = Vec::with_capacity(samples.len() + 1);
        let mut total = 0u64;
        starts.push(0);
        for &n in samples.iter() {
            if n == 0 || n > u64::from(u32::MAX) {
                return Err(format!("a block of {n} samples"));
            }
            total = total.checked_add(n).ok_or("more than 2^64 samples")?;
            starts.push(total);
        }
        let shard = column::<UInt32Type>(batch, "shard")?;
        let unit = column::<UInt32Type>(batch, "unit")?;
        if !shard.is_sorted() || !unit.is_sorted() || shard.len() > MAX_BLOCKS {
            return Err("blocks are out of order".into());
        }
        Ok(Self {
            shard,
            starts: starts.into(),
            bytes: column::<UInt64Type>(batch, "bytes")?,
            unit,
            first_row: column::<UInt64Type>(batch, "first_row")?,
        })
    }
}

/// A non-null primitive column of a stored table.
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
            unit: self.unit.into(),
            first_row: self.first_row.into(),
        }
    }
}
