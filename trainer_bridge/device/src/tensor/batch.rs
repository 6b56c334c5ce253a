//! A batch on a device.

use super::fixed::FixedBuffer;
use super::hold::Hold;
use super::owner::Owner;
use super::stream::StreamHandle;
use super::view::DeviceTensor;
use feedstock_base::Result;
use std::sync::Arc;

/// The columns of a batch on a device.
pub struct DeviceBatch {
    tensors: Vec<DeviceTensor>,
    /// `None` once the batch has moved to its fixed address, and for a batch that stays in its slot.
    hold: Option<Arc<Hold>>,
    fixed: Option<Arc<FixedBuffer>>,
}

impl DeviceBatch {
    /// Makes a batch. `hold` is `None` for a batch that stays in its slot. `fixed` is `None` if addresses may change from batch
    /// to batch.
    pub fn new(tensors: Vec<DeviceTensor>, hold: Option<Arc<Hold>>, fixed: Option<Arc<FixedBuffer>>) -> Self {
        Self { tensors, hold, fixed }
    }

    /// Returns the columns.
    pub fn tensors(&self) -> &[DeviceTensor] {
        &self.tensors
    }

    /// Notes that the caller has the batch.
    pub fn lend(&self) {
        if let Some(hold) = &self.hold {
            hold.lend();
        }
    }

    /// As [`DeviceTensor::use_on`], for all columns.
    ///
    /// # Errors
    /// As there.
    pub fn use_on(&self, stream: StreamHandle) -> Result<()> {
        self.tensors.iter().try_for_each(|tensor| tensor.use_on(stream))
    }

    /// With fixed addresses, copies the batch there in the order of `stream`, and returns its buffer to the ring. Otherwise as
    /// [`use_on`](Self::use_on).
    ///
    /// # Errors
    /// As [`use_on`](Self::use_on). `BadConfig` if the columns or their shapes differ from those of the first batch.
    pub fn settle(&mut self, stream: StreamHandle) -> Result<()> {
        let (Some(fixed), Some(hold)) = (&self.fixed, &self.hold) else { return self.use_on(stream) };
        hold.use_on(stream)?;
        let stream = stream.of(fixed.driver())?;
        // SAFETY: `use_on` orders this copy after the buffer's filling. Dropping `hold` records an event after this copy, and
        // the buffer is written again only after that event.
        let places = unsafe { fixed.settle(&self.tensors, hold.start(), stream)? };
        for (tensor, place) in self.tensors.iter_mut().zip(places) {
            tensor.start = place;
            tensor.owner = fixed.clone();
        }
        self.hold = None;
        Ok(())
    }
}
