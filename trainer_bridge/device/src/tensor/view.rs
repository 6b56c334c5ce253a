//! A column of a batch on a device.

use super::owner::Owner;
use super::stream::StreamHandle;
use crate::element::Element;
use crate::handles::Address;
use crate::place::Place;
use feedstock_base::Result;
use std::fmt;
use std::sync::Arc;

/// The layout of a column in a batch's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// Lengths of the axes, rows first.
    pub shape: Vec<usize>,
    /// Elements from one entry of an axis to the next.
    pub strides: Vec<usize>,
    /// The length of each row along `padded_axis`; without such an axis, the number of images of each row in a list.
    pub lengths: Option<Arc<[usize]>>,
    /// The axis along which short rows are padded.
    pub padded_axis: Option<usize>,
    /// The offset in bytes from the start of the batch.
    pub offset: usize,
}

/// A column of a batch on a device, rows first. It is a view of the batch's buffer. The buffer is not written again while any
/// view lives, nor before the streams that used it ([`use_on`](Self::use_on)) have run the work they had when the last view
/// was dropped.
#[derive(Clone)]
pub struct DeviceTensor {
    pub(super) column: Column,
    /// Its current address.
    pub(super) start: Address,
    pub(super) owner: Arc<dyn Owner>,
}

impl DeviceTensor {
    /// Makes a view of `column` of the batch that begins at `base`, whose memory `owner` keeps.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use feedstock_device::Element;
    /// # use feedstock_device::handles::Address;
    /// # use feedstock_device::tensor::{Column, DeviceTensor, InPlace, StreamHandle};
    /// let labels: Vec<i64> = vec![3, 1, 2];
    /// let base = Address(labels.as_ptr() as u64);
    /// let column = Column {
    ///     name: "label".into(),
    ///     element: Element::I64,
    ///     shape: vec![3],
    ///     strides: vec![1],
    ///     lengths: None,
    ///     padded_axis: None,
    ///     offset: 0, // bytes from the start of the batch
    /// };
    /// let tensor = DeviceTensor::new(column, base, Arc::new(InPlace::new(labels)));
    /// assert_eq!((tensor.shape(), tensor.byte_len()), (&[3][..], 24));
    /// assert_eq!(tensor.to_host(StreamHandle(0))?[..8], 3i64.to_ne_bytes());
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn new(column: Column, base: Address, owner: Arc<dyn Owner>) -> Self {
        Self { start: base.at(column.offset), column, owner }
    }

    /// Returns the column's name.
    pub fn name(&self) -> &str {
        &self.column.name
    }

    /// Returns the type of its elements.
    pub fn element(&self) -> Element {
        self.column.element
    }

    /// Returns the lengths of the axes, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.column.shape
    }

    /// Returns the elements from one entry of an axis to the next. For images with channels last, the channel's stride is 1.
    pub fn strides(&self) -> &[usize] {
        &self.column.strides
    }

    /// Returns the length of each row along [`padded_axis`](Self::padded_axis). For lists of images, which have no such axis, it
    /// returns the number of images of each row.
    pub fn lengths(&self) -> Option<&[usize]> {
        self.column.lengths.as_deref()
    }

    /// Returns the axis along which short rows are padded.
    pub fn padded_axis(&self) -> Option<usize> {
        self.column.padded_axis
    }

    /// Returns its device.
    pub fn place(&self) -> Place {
        self.owner.driver().place()
    }

    /// Returns its address on that device.
    pub fn address(&self) -> u64 {
        self.start.0
    }

    /// Returns the bytes of all elements.
    pub fn byte_len(&self) -> usize {
        self.column.shape.iter().product::<usize>() * self.column.element.bytes()
    }

    /// Prepares `stream` for work that uses the tensor; call it before submitting that work. The stream waits for the copy. The
    /// buffer is written again only after the work that the stream has when the last view is dropped. No thread waits.
    ///
    /// # Errors
    /// - `Retryable` if the device fails.
    /// - `BadConfig` if the stream belongs to another device, is the per-thread default one or is being captured, and in a
    ///   child after `fork`.
    pub fn use_on(&self, stream: StreamHandle) -> Result<()> {
        self.owner.use_on(stream)
    }

    /// Waits until `stream` has finished its work so far, and returns the tensor's bytes. For tests and for inspecting data.
    ///
    /// # Errors
    /// As [`use_on`](Self::use_on).
    pub fn to_host(&self, stream: StreamHandle) -> Result<Vec<u8>> {
        self.use_on(stream)?;
        let mut bytes = vec![0; self.byte_len()];
        let driver = self.owner.driver();
        // SAFETY: the tensor's memory, which is filled before this copy runs on `stream`.
        unsafe { driver.copy_out(&mut bytes, self.start, stream.of(driver)?)? };
        Ok(bytes)
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} {:?} on {}",
            self.column.name,
            self.column.element.name(),
            self.column.shape,
            self.place()
        )
    }
}
