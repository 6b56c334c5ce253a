//! Memory and streams of a device, which are freed when they are dropped.

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
    /// Allocates `size` bytes of unspecified content.
    ///
    /// ```
    /// use feedstock_device::Device;
    /// use feedstock_device::memory::DeviceMemory;
    /// use feedstock_device::open::OpenedDevice;
    ///
    /// let driver = OpenedDevice::new(Device::host(), false).driver();
    /// let memory = DeviceMemory::new(&driver, 1 << 20)?; // freed when it is dropped
    /// assert_eq!((memory.size(), memory.start().0 % 256), (1 << 20, 0));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Driver::allocate`].
    pub fn new(driver: &Arc<dyn Driver>, size: usize) -> Result<Self> {
        Ok(Self { driver: driver.clone(), start: driver.allocate(size)?, size })
    }

    /// Returns its start.
    pub fn start(&self) -> Address {
        self.start
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: its owner has waited for the work that used it, or leaves that to the reaper.
        unsafe { self.driver.free(self.start) };
    }
}

/// A stream that feedstock owns.
pub(crate) struct OwnStream {
    driver: Arc<dyn Driver>,
    pub(crate) id: StreamId,
}

impl OwnStream {
    /// Makes a stream. If `is_urgent`, the device starts its work before that of other streams.
    pub(crate) fn new(driver: &Arc<dyn Driver>, is_urgent: bool) -> Result<Self> {
        Ok(Self { driver: driver.clone(), id: driver.new_stream(is_urgent)? })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: made by `new_stream`, and freed once. The driver finishes its pending work.
        unsafe { self.driver.free_stream(self.id) };
    }
}
