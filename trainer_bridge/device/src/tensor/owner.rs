//! What keeps the memory of tensors.

use super::stream::StreamHandle;
use crate::driver::{Driver, Host};
use feedstock_base::Result;
use std::any::Any;

/// What keeps a tensor's memory, and orders its use.
pub trait Owner: Send + Sync {
    /// Work that `stream` is given from now on finds the memory filled, and is waited for before it is written again.
    ///
    /// # Errors
    /// As [`DeviceTensor::use_on`](super::DeviceTensor::use_on).
    fn use_on(&self, stream: StreamHandle) -> Result<()>;

    /// The device that it is on.
    fn driver(&self) -> &dyn Driver;
}

/// What keeps the memory of a batch that stays where it was made, in host memory.
pub struct InPlace {
    host: Host,
    _held: Box<dyn Any + Send + Sync>,
}

impl InPlace {
    /// Keeps `held`, which has the memory.
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
