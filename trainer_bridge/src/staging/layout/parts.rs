//! The parts of a layout.

use super::super::decoding::Undecoded;
use crate::batch::Tensor;
use crate::{Error, Result};
use feedstock_device::finish::CompiledFeatures;
use feedstock_device::handles::Address;
use feedstock_ops::{DType, TensorSpec};

/// The source of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySource {
    /// A mapped column, by its index in the batch, and the first of its bytes.
    Column(usize, usize),
    /// The first of the staged bytes.
    Staged(usize),
}

/// A copy of (part of) a mapped column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) from: CopySource,
    /// The offset in the buffer.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// The places of the staged inputs of a column's kernels.
pub(super) enum KernelInputs {
    Nothing,
    Picture { plan: Address },
    Features { lengths: Address, scales: Address, masks: Address },
}

/// The rows of a column of which the device decodes some.
pub(super) struct SplitRows {
    /// The tensor of a row of pixels.
    pub(super) spec: TensorSpec,
    pub(super) rows: usize,
    /// The rows that are pixels already, and their source.
    pub(super) pixels: Vec<(usize, CopySource)>,
    pub(super) undecoded: Vec<Undecoded>,
    /// [`CropRow`] × `count`.
    pub(super) table: Address,
    pub(super) count: u32,
}

/// A mapped column in the form of the batch, even if its slot has images that are not decoded yet. Rows first.
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

/// Returns the number of frames of the longest row.
pub(super) fn frames_of(shape: &[usize], finish: &CompiledFeatures) -> usize {
    shape[1 + usize::from(finish.feature_major)]
}

/// Returns the strides of a dense tensor, in elements.
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
