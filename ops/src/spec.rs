//! The output of a chain: element type, shape, layout.

use serde::{Deserialize, Serialize};

/// The element type of a tensor.
///
/// ```
/// use feedstock_ops::DType;
///
/// let bytes = [DType::U8, DType::U16, DType::F32, DType::I64].map(DType::bytes);
/// assert_eq!(bytes, [1, 2, 4, 8]);
/// assert_eq!(serde_json::to_string(&DType::F32).unwrap(), r#""f32""#);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DType {
    /// Unsigned bytes, 0 … 255.
    U8,
    /// Unsigned integers of 16 bits in the machine's byte order, 0 … 65,535: grey values.
    U16,
    /// IEEE 754 single precision, in the machine's byte order.
    F32,
    /// Signed 64-bit integers, in the machine's byte order: token ids.
    I64,
}

impl DType {
    /// Returns the bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// The meaning of a tensor's axes. Several views of an image have an axis of views before them, and lists of images an axis of
/// images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layout {
    /// Height, width, channel.
    Hwc,
    /// Channel, height, width.
    Chw,
    /// Height, width: a mask.
    Hw,
    /// Time: a waveform, or the tokens of a text. Also what has a value for each box.
    T,
    /// Time, feature: one frame after the other. Also boxes and keypoints with their coordinates, and the rows of a matrix.
    Tf,
    /// Feature, time: one feature over all frames, then the next (what Whisper takes).
    Ft,
}

/// Element type, shape and layout of one sample's tensor.
///
/// The rows of a batch follow each other. A *ragged* tensor has one axis, time, whose length differs between samples; a
/// batch pads it to its longest row. A [list](Self::is_list) of images is not padded.
///
/// ```
/// use feedstock_ops::{DType, Layout, TensorSpec};
///
/// let image = TensorSpec::new(DType::U8, [224, 224, 3], Layout::Hwc);
/// assert_eq!((image.elements(), image.bytes()), (150_528, 150_528));
///
/// let frames = TensorSpec::new(DType::F32, [0, 80], Layout::Tf).ragged(0);
/// assert_eq!(frames.shape_at(500), [500, 80]);
/// assert_eq!(frames.bytes_at(500), Some(160_000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorSpec {
    /// The element type.
    pub dtype: DType,
    /// Lengths of the axes of one sample, as `[224, 224, 3]`; 0 for the ragged axis.
    pub shape: Vec<usize>,
    /// What the axes mean.
    pub layout: Layout,
    /// The axis whose length differs from sample to sample, if there is one.
    pub ragged_axis: Option<usize>,
}

impl TensorSpec {
    /// Creates a dense tensor of `shape`, in row-major order.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, layout: Layout) -> Self {
        Self { dtype, shape: shape.into(), layout, ragged_axis: None }
    }

    /// Returns the same tensor with `axis` ragged: each sample has its own length there.
    ///
    /// # Panics
    /// If there is no such axis.
    #[must_use]
    pub fn ragged(mut self, axis: usize) -> Self {
        self.shape[axis] = 0;
        self.ragged_axis = Some(axis);
        self
    }

    /// Returns true if the lengths of samples differ.
    pub fn is_ragged(&self) -> bool {
        self.ragged_axis.is_some()
    }

    /// Returns the tensor of a list of such images: one more axis, the first, which is ragged.
    ///
    /// ```
    /// use feedstock_ops::{DType, Layout, TensorSpec};
    ///
    /// let list = TensorSpec::new(DType::U8, [224, 224, 3], Layout::Hwc).list();
    /// assert_eq!((list.is_list(), list.shape_at(2)), (true, vec![2, 224, 224, 3]));
    /// ```
    #[must_use]
    pub fn list(&self) -> Self {
        let shape: Vec<usize> = std::iter::once(0).chain(self.shape.iter().copied()).collect();
        Self::new(self.dtype, shape, self.layout).ragged(0)
    }

    /// Returns true if a sample has any number of images. A batch has the images of its samples one after another, without
    /// padding, and the number of images of each sample.
    pub fn is_list(&self) -> bool {
        self.ragged_axis == Some(0) && matches!(self.layout, Layout::Hwc | Layout::Chw | Layout::Hw)
    }

    /// Returns the shape of a row whose ragged axis has `length` entries; for a fixed tensor, its shape.
    pub fn shape_at(&self, length: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(axis) = self.ragged_axis {
            shape[axis] = length;
        }
        shape
    }

    /// Returns the elements of one sample; 0 if it is ragged.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of one sample; 0 if it is ragged.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Returns the bytes of a row whose ragged axis has `length` entries; for a fixed tensor, those of every row. `None` if
    /// they exceed the address space.
    pub fn bytes_at(&self, length: usize) -> Option<usize> {
        self.shape_at(length).into_iter().try_fold(self.dtype.bytes(), usize::checked_mul)
    }
}
