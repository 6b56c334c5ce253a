//! Open devices. Loaders share a device, and the last loader to drop it closes it.

use crate::driver::{Driver, Found, Host, cuda};
use crate::memory::LockedPool;
use crate::numa::Node;
use crate::place::Place;
use crate::tensor::FixedBuffer;
use feedstock_base::Result;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A device of this process, shared by all loaders that send batches there.
pub struct Device {
    driver: Arc<dyn Driver>,
    /// The host memory that it copies from.
    pool: Arc<LockedPool>,
}

/// The result of [`Device::cuda`].
pub enum Search {
    /// The device.
    Found(Arc<Device>),
    /// The machine has no CUDA device, for this reason.
    Absent(String),
}

/// Open devices by process id and ordinal. A child of `fork` has another process id, and must not use its parent's devices.
static OPEN: Mutex<BTreeMap<(u32, u32), Weak<Device>>> = Mutex::new(BTreeMap::new());

impl Device {
    /// Returns the device of `driver`, which copies from memory on machine node `node`.
    pub(crate) fn new(driver: Arc<dyn Driver>, node: Option<Node>) -> Arc<Self> {
        let pool = LockedPool::new(driver.clone(), node);
        Arc::new(Self { driver, pool })
    }

    /// Returns the device of `driver`, on any machine node.
    pub fn of(driver: Arc<dyn Driver>) -> Arc<Self> {
        Self::new(driver, None)
    }

    /// Returns host memory as a device.
    pub fn host() -> Arc<Self> {
        Self::of(Arc::new(Host::default()))
    }

    /// Returns CUDA's device `ordinal`, and opens it if necessary. Compiled kernels are stored in the folder `kernels`.
    ///
    /// # Errors
    /// - `BadConfig` if there are devices but not this one, or the driver is too old or does not start.
    /// - `Retryable` if the driver fails later.
    pub fn cuda(ordinal: u32, kernels: Option<PathBuf>) -> Result<Search> {
        shared(ordinal, || cuda::find(ordinal, kernels))
    }
}

/// Returns device `ordinal`, which `find` opens unless it is open already.
fn shared(ordinal: u32, find: impl FnOnce() -> Result<Found>) -> Result<Search> {
    let key = (std::process::id(), ordinal);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner); // each change is one call
    if let Some(device) = open.get(&key).and_then(Weak::upgrade) {
        return Ok(Search::Found(device));
    }
    match find()? {
        Found::Device(driver, node) => {
            let device = Device::new(driver, node);
            open.insert(key, Arc::downgrade(&device));
            Ok(Search::Found(device))
        }
        Found::Absent(why) => Ok(Search::Absent(why)),
    }
}

/// One loader's view of its device, over all of its runs.
#[derive(Clone)]
pub struct OpenedDevice {
    device: Arc<Device>,
    /// It belongs to the loader, not to a run, so that addresses stay the same when the loader seeks.
    fixed: Option<Arc<FixedBuffer>>,
}

impl OpenedDevice {
    /// Opens `device` for one loader. With `fixed_addresses`, all batches get the same addresses and must have one shape.
    pub fn new(device: Arc<Device>, fixed_addresses: bool) -> Self {
        let fixed = fixed_addresses.then(|| FixedBuffer::new(device.driver.clone()));
        Self { device, fixed }
    }

    /// Returns the device's name.
    pub fn place(&self) -> Place {
        self.device.driver.place()
    }

    /// Returns its driver.
    pub fn driver(&self) -> Arc<dyn Driver> {
        self.device.driver.clone()
    }

    /// Returns the host memory that it copies from.
    pub fn pool(&self) -> Arc<LockedPool> {
        self.device.pool.clone()
    }

    /// Returns the destination of batches with fixed addresses.
    pub fn fixed(&self) -> Option<Arc<FixedBuffer>> {
        self.fixed.clone()
    }

    /// Replaces the destination of batches with fixed addresses, for batches of another shape.
    pub fn move_fixed(&mut self) {
        self.fixed = self.fixed.take().map(|_| FixedBuffer::new(self.driver()));
    }

    /// Gives idle host memory back to the system.
    pub fn release_idle(&self) {
        self.device.pool.release_idle(0);
    }
}

impl fmt::Debug for OpenedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Simulated;

    #[test]
    fn a_device_is_opened_once_and_closed_behind_its_last_user() {
        let ordinal = 901; // no other test uses it
        let opened = std::cell::Cell::new(0);
        let open = || {
            let find = || {
                opened.set(opened.get() + 1);
                Ok(Found::Device(Simulated::new(1), None))
            };
            match shared(ordinal, find).unwrap() {
                Search::Found(device) => device,
                Search::Absent(why) => panic!("{why}"),
            }
        };
        let (first, second) = (open(), open());
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        drop(open());
        assert_eq!(opened.get(), 1);
        drop(second);
        open();
        assert_eq!(opened.get(), 2, "it was closed before");
        let absent = shared(ordinal, || Ok(Found::Absent("no driver".to_owned()))).unwrap();
        assert!(matches!(absent, Search::Absent(why) if why == "no driver"));
    }
}
