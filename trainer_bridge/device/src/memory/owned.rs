//! Memory and streams of a device, given back when they are dropped.

use crate::driver::Driver;
use crate::handles::{Address, StreamId};
use feedstock_base::Result;
use std::sync::Arc;

/// Device memory.
pub struct DeviceMemory {
    driver: Arc<dyn Driver>,
    start: Address,
    size: usize,
}

impl DeviceMemory {
    /// `size` bytes of unspecified content.
    ///
    /// # Errors
    /// As [`Driver::allocate`].
    pub fn new(driver: &Arc<dyn Driver>, size: usize) -> Result<Self> {
        Ok(Self { driver: driver.clone(), start: driver.allocate(size)?, size })
    }

    /// Where it begins.
    pub fn start(&self) -> Address {
        self.start
    }

    /// How many bytes there are.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for what used it, or leaves that to the reaper.
        unsafe { self.driver.free(self.start) };
    }
}

/// A stream of our own.
pub(crate) struct OwnStream {
    driver: Arc<dyn Driver>,
    pub(crate) id: StreamId,
}

impl OwnStream {
    /// With `is_urgent`, the device starts its work before that of other streams.
    pub(crate) fn new(driver: &Arc<dyn Driver>, is_urgent: bool) -> Result<Self> {
        Ok(Self { driver: driver.clone(), id: driver.new_stream(is_urgent)? })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: made by `new_stream`, given back once; the driver finishes what it still has.
        unsafe { self.driver.free_stream(self.id) };
    }
}
