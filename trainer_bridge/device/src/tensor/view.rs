//! A column of a batch on a device.

use super::owner::Owner;
use super::stream::StreamHandle;
use crate::element::Element;
use crate::handles::Address;
use crate::place::Place;
use feedstock_base::Result;
use std::fmt;
use std::sync::Arc;

/// A column as it lies in a batch's memory.
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
    /// The rows' own lengths along `padded_axis`.
    pub lengths: Option<Arc<[usize]>>,
    /// The axis along which short rows are padded.
    pub padded_axis: Option<usize>,
    /// Bytes from the start of the batch.
    pub offset: usize,
}

/// A column of a batch on a device: rows first. It views the batch's buffer, which is not written again while any view
/// lives, nor before the streams that used it ([`use_on`](Self::use_on)) have passed the place where the last was dropped.
#[derive(Clone)]
pub struct DeviceTensor {
    pub(super) column: Column,
    /// Where it lies now.
    pub(super) start: Address,
    pub(super) owner: Arc<dyn Owner>,
}

impl DeviceTensor {
    /// `column` of the batch that begins at `base`, whose memory `owner` keeps.
    pub fn new(column: Column, base: Address, owner: Arc<dyn Owner>) -> Self {
        Self { start: base.at(column.offset), column, owner }
    }

    /// The column's name.
    pub fn name(&self) -> &str {
        &self.column.name
    }

    /// The type of its elements.
    pub fn element(&self) -> Element {
        self.column.element
    }

    /// Lengths of the axes, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.column.shape
    }

    /// Elements from one entry of an axis to the next: of pictures with channels last, the channel's is 1.
    pub fn strides(&self) -> &[usize] {
        &self.column.strides
    }

    /// The rows' own lengths along [`padded_axis`](Self::padded_axis).
    pub fn lengths(&self) -> Option<&[usize]> {
        self.column.lengths.as_deref()
    }

    /// The axis along which short rows are padded.
    pub fn padded_axis(&self) -> Option<usize> {
        self.column.padded_axis
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        self.owner.driver().place()
    }

    /// Its address there.
    pub fn address(&self) -> u64 {
        self.start.0
    }

    /// Bytes of all elements.
    pub fn byte_len(&self) -> usize {
        self.column.shape.iter().product::<usize>() * self.column.element.bytes()
    }

    /// To be called before `stream` is given work that uses the tensor: the stream waits for the copy, and the buffer is
    /// not written again before the stream has passed the place where the last view is dropped. No thread waits.
    ///
    /// # Errors
    /// `Retryable` for a fault of the device; `BadConfig` where the stream is not one of this device, is the thread's own
    /// default one, or is being captured, and in a child after `fork`.
    pub fn use_on(&self, stream: StreamHandle) -> Result<()> {
        self.owner.use_on(stream)
    }

    /// Its bytes in host memory, once `stream` has come so far; waits. For tests and looking at data.
    ///
    /// # Errors
    /// As [`use_on`](Self::use_on).
    pub fn to_host(&self, stream: StreamHandle) -> Result<Vec<u8>> {
        self.use_on(stream)?;
        let mut bytes = vec![0; self.byte_len()];
        let driver = self.owner.driver();
        // SAFETY: the tensor's memory, filled before what `stream` does now.
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
