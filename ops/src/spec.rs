//! What a chain's output looks like: element type, shape, layout.

use serde::{Deserialize, Serialize};

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DType {
    /// Unsigned bytes, 0 … 255.
    U8,
    /// IEEE 754 single precision, in the machine's byte order.
    F32,
}

impl DType {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
        }
    }
}

/// The meaning of a tensor's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layout {
    /// Height, width, channel.
    Hwc,
    /// Channel, height, width.
    Chw,
}

/// Element type, shape and layout of one sample's tensor; rows of a batch stand one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorSpec {
    /// The element type.
    pub dtype: DType,
    /// Lengths of the axes of one sample, as `[224, 224, 3]`.
    pub shape: Vec<usize>,
    /// What the axes mean.
    pub layout: Layout,
}

impl TensorSpec {
    /// A tensor of `shape`, dense and in row-major order.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, layout: Layout) -> Self {
        Self { dtype, shape: shape.into(), layout }
    }

    /// Elements of one sample.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one sample.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}
