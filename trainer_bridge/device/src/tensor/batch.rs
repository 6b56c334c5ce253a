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
    /// Gone once the batch has moved to the fixed place; never there for a batch that stays in its slot.
    hold: Option<Arc<Hold>>,
    fixed: Option<Arc<FixedBuffer>>,
}

impl DeviceBatch {
    /// `hold` is None for a batch that stays in its slot, `fixed` where addresses may change from batch to batch.
    pub fn new(tensors: Vec<DeviceTensor>, hold: Option<Arc<Hold>>, fixed: Option<Arc<FixedBuffer>>) -> Self {
        Self { tensors, hold, fixed }
    }

    /// The columns.
    pub fn tensors(&self) -> &[DeviceTensor] {
        &self.tensors
    }

    /// The batch goes to the caller.
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

    /// Where addresses are to be the same at every step: copies the batch there, in the order of `stream`, and gives its
    /// own buffer back. Else as [`use_on`](Self::use_on).
    ///
    /// # Errors
    /// As [`use_on`](Self::use_on); `BadConfig` where the columns are not those of the first batch, or not of its shapes.
    pub fn settle(&mut self, stream: StreamHandle) -> Result<()> {
        let (Some(fixed), Some(hold)) = (&self.fixed, &self.hold) else { return self.use_on(stream) };
        hold.use_on(stream)?;
        let stream = stream.of(fixed.driver())?;
        // SAFETY: the buffer is filled before (`use_on`), and is written again only behind the event that dropping `hold`
        // puts behind this copy.
        let places = unsafe { fixed.settle(&self.tensors, hold.start(), stream)? };
        for (tensor, place) in self.tensors.iter_mut().zip(places) {
            tensor.start = place;
            tensor.owner = fixed.clone();
        }
        self.hold = None;
        Ok(())
    }
}
