//! Owners of the memory of tensors.

use super::stream::StreamHandle;
use crate::driver::{Driver, Host};
use feedstock_base::Result;
use std::any::Any;

/// Owns a tensor's memory, and orders its use.
pub trait Owner: Send + Sync {
    /// Orders later work of `stream` after the memory's filling. The memory is written again only after that work.
    ///
    /// # Errors
    /// As [`DeviceTensor::use_on`](super::DeviceTensor::use_on).
    fn use_on(&self, stream: StreamHandle) -> Result<()>;

    /// Returns the driver of its device.
    fn driver(&self) -> &dyn Driver;
}

/// Owns the memory of a batch that stays in host memory, where it was made.
pub struct InPlace {
    host: Host,
    _held: Box<dyn Any + Send + Sync>,
}

impl InPlace {
    /// Keeps `held`, which owns the memory.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { host: Host::default(), _held: Box::new(held) }
    }
}

impl Owner for InPlace {
    fn use_on(&self, stream: StreamHandle) -> Result<()> {
        stream.of(&self.host).map(|_| ())
    }

    fn driver(&self) -> &dyn Driver {
        &self.host
    }
}
