//! A finished batch, viewed in place.

use crate::slots::Lease;
use crate::{Error, ErrorKind, Result};
use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, UInt8Array, UInt64Array,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Schema, UInt8Type};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Position, SampleId};
use feedstock_ops::{DType, TensorSpec};
use std::collections::HashMap;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// One rank's share of one global step.
///
/// Mapped columns are [`Tensor`]s in the batch's slot (`batch["image"]`); all others are Arrow arrays
/// ([`Batch::columns`]). Dropping the batch, and every view taken from it, frees the slot.
pub struct Batch {
    pub(crate) epoch: u64,
    pub(crate) position: Position,
    pub(crate) next: Position,
    pub(crate) sample_ids: Vec<SampleId>,
    pub(crate) padding: Vec<bool>,
    pub(crate) valid: Vec<bool>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) columns: RecordBatch,
    /// Held even where nothing is mapped: a batch is the credit for one step.
    pub(crate) _lease: Arc<Lease>,
}

impl Batch {
    /// Rows, padding and substitutes included.
    #[expect(clippy::len_without_is_empty, reason = "a batch has at least one row")]
    pub fn len(&self) -> usize {
        self.sample_ids.len()
    }

    /// The epoch it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The first global position of its step.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The sample that each row stands for, in row order.
    pub fn sample_ids(&self) -> &[SampleId] {
        &self.sample_ids
    }

    /// False for padding and for substitutes of unusable samples: leave such rows out of losses and counts.
    pub fn valid(&self) -> &[bool] {
        &self.valid
    }

    /// The mapped column `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// All mapped columns, in the order of the maps.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The columns that ride along: labels, paths, whatever the data set has.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// The column `name` that rides along.
    pub fn column(&self, name: &str) -> Option<&ArrayRef> {
        self.columns.column_by_name(name)
    }

    /// The batch as Arrow: `sample_id` (UInt64), `valid` (Boolean), the tensors as `arrow.fixed_shape_tensor`
    /// columns that view the slot without a copy, then the columns that ride along.
    ///
    /// The views keep the slot busy until they are dropped.
    pub fn to_record_batch(&self) -> Result<RecordBatch> {
        let ids: UInt64Array = self.sample_ids.iter().map(|id| id.0).collect();
        let mut fields = vec![
            Arc::new(Field::new("sample_id", DataType::UInt64, false)),
            Arc::new(Field::new("valid", DataType::Boolean, false)),
        ];
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(BooleanArray::from(self.valid.clone()))];
        for tensor in &self.tensors {
            let array = tensor.to_arrow()?;
            fields.push(Arc::new(tensor.field(array.data_type())));
            arrays.push(array);
        }
        fields.extend(self.columns.schema().fields().iter().cloned());
        arrays.extend(self.columns.columns().iter().cloned());
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot view the batch as Arrow: {e}")))
    }
}

impl Index<&str> for Batch {
    type Output = Tensor;

    /// The mapped column `name`.
    ///
    /// # Panics
    /// If no map has that name; [`Batch::tensor`] asks.
    fn index(&self, name: &str) -> &Tensor {
        match self.tensor(name) {
            Some(tensor) => tensor,
            #[expect(clippy::panic, reason = "indexing panics, as in std")]
            None => panic!("no mapped column '{name}' in this batch; it has {:?}", self.tensors),
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> = self.columns.schema().fields().iter().map(|f| f.name().clone()).collect();
        write!(f, "Batch(epoch {}, position {}, {} rows, ", self.epoch, self.position, self.len())?;
        write!(f, "{:?}, columns {columns:?})", self.tensors)
    }
}

/// A mapped column of a batch: rows × [`TensorSpec::shape`], row-major, contiguous, the first row on a page.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) name: String,
    pub(crate) spec: TensorSpec,
    pub(crate) rows: usize,
    pub(crate) offset: usize,
    pub(crate) lease: Arc<Lease>,
}

impl Tensor {
    /// The column's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// Rows first: `[256, 224, 224, 3]`.
    pub fn shape(&self) -> Vec<usize> {
        std::iter::once(self.rows).chain(self.spec.shape.iter().copied()).collect()
    }

    /// All bytes, row-major, in the machine's byte order.
    pub fn bytes(&self) -> &[u8] {
        let len = self.rows * self.spec.bytes();
        // SAFETY: the lease holds a finished slot, whose rows nobody writes, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.lease.at(self.offset).as_ptr(), len) }
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.spec.bytes();
        &self.bytes()[row * bytes..(row + 1) * bytes]
    }

    /// The elements, where they are `u8`.
    pub fn as_u8(&self) -> Option<&[u8]> {
        (self.spec.dtype == DType::U8).then(|| self.bytes())
    }

    /// The elements, where they are `f32`.
    pub fn as_f32(&self) -> Option<&[f32]> {
        let bytes = self.bytes();
        // SAFETY: page-aligned, initialised by the ops, and any bits are an f32.
        let floats = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<f32>(), bytes.len() / 4) };
        (self.spec.dtype == DType::F32).then_some(floats)
    }

    /// The column as a `FixedSizeList`, a view of the slot.
    fn to_arrow(&self) -> Result<ArrayRef> {
        match self.spec.dtype {
            DType::U8 => self.list::<UInt8Type>(|values| Arc::new(UInt8Array::new(values, None))),
            DType::F32 => self.list::<Float32Type>(|values| Arc::new(Float32Array::new(values, None))),
            other => Err(Error::new(ErrorKind::Bug, format!("no Arrow view for {other:?} tensors"))),
        }
    }

    fn list<T: ArrowPrimitiveType>(
        &self,
        array: impl Fn(ScalarBuffer<T::Native>) -> ArrayRef,
    ) -> Result<ArrayRef> {
        let bytes = self.rows * self.spec.bytes();
        let start = self.lease.at(self.offset);
        // SAFETY: `bytes` bytes at `start` are initialised and stay so while the lease, which Arrow now owns, lives.
        let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, self.lease.clone()) };
        let values = array(ScalarBuffer::from(buffer));
        let item = Arc::new(Field::new("item", T::DATA_TYPE, false));
        let bug =
            |what: String| Error::new(ErrorKind::Bug, format!("cannot view {} as Arrow: {what}", self.name));
        let width = i32::try_from(self.spec.elements()).map_err(|e| bug(e.to_string()))?;
        let list = FixedSizeListArray::try_new(item, width, values, None).map_err(|e| bug(e.to_string()))?;
        Ok(Arc::new(list))
    }

    fn field(&self, data_type: &DataType) -> Field {
        let shape = serde_json::json!({ "shape": self.spec.shape }).to_string();
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), shape),
        ]);
        Field::new(&self.name, data_type.clone(), false).with_metadata(metadata)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} {:?}", self.name, self.spec.dtype, self.shape())
    }
}
