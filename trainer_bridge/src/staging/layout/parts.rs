//! What a layout is put together from.

use super::super::decoding::Undecoded;
use crate::batch::Tensor;
use crate::{Error, Result};
use feedstock_device::finish::CompiledFeatures;
use feedstock_device::handles::Address;
use feedstock_ops::{DType, TensorSpec};

/// Where a copy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySource {
    /// A mapped column, by its index in the batch, and bytes of it.
    Column(usize, usize),
    /// Bytes of what is staged.
    Staged(usize),
}

/// A copy of (part of) a mapped column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) from: CopySource,
    /// In the buffer.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// Where what a column's kernels need is staged.
pub(super) enum KernelInputs {
    Nothing,
    Picture { plan: Address },
    Features { lengths: Address, scales: Address, masks: Address },
}

/// The rows of a column that is left to the device in part.
pub(super) struct SplitRows {
    /// Of a row, as pixels.
    pub(super) spec: TensorSpec,
    pub(super) rows: usize,
    /// Rows that are pixels, and where they are.
    pub(super) pixels: Vec<(usize, CopySource)>,
    pub(super) undecoded: Vec<Undecoded>,
    /// [`CropRow`] × `count`.
    pub(super) table: Address,
    pub(super) count: u32,
}

/// A mapped column as it will be, whatever its slot holds: rows first.
pub(super) struct MappedRows<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) lengths: Option<&'a [usize]>,
    pub(super) padded_axis: Option<usize>,
}

impl<'a> MappedRows<'a> {
    pub(super) fn new(tensor: &'a Tensor) -> Self {
        let (lengths, padded_axis) = (tensor.lengths(), tensor.padded_axis());
        Self { name: tensor.name(), dtype: tensor.dtype, shape: tensor.shape(), lengths, padded_axis }
    }

    /// Returns the rows of images that are not decoded yet.
    pub(super) fn pixels(tensor: &'a Tensor, spec: &TensorSpec) -> Self {
        let shape = std::iter::once(tensor.rows).chain(spec.shape.iter().copied()).collect();
        Self { name: tensor.name(), dtype: spec.dtype, shape, lengths: None, padded_axis: None }
    }
}

/// Frames of the longest row.
pub(super) fn frames_of(shape: &[usize], finish: &CompiledFeatures) -> usize {
    shape[1 + usize::from(finish.feature_major)]
}

/// Strides of a dense tensor, in elements.
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

pub(super) fn too_large() -> Error {
    Error::config("a batch is too large for the device's kernels; lower the batch size")
}

pub(super) fn narrow(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| too_large())
}
