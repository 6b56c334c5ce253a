//! The CUDA devices that this process has open: loaders share a device, and the last one to drop it closes it.

use super::driver::Driver;
use super::numa::Node;
use super::open::Device;
use crate::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a search for a device found.
pub(crate) enum Found {
    /// The device, and the node of the machine that it is attached to.
    Device(Arc<dyn Driver>, Option<Node>),
    /// The machine has no device, for this reason.
    Absent(String),
}

/// Open devices by process id and number. A child of `fork` has another process id, and must not use its parent's devices.
static OPEN: Mutex<BTreeMap<(u32, u32), Weak<Device>>> = Mutex::new(BTreeMap::new());

/// Returns device `ordinal`, which `find` opens unless it is open already.
///
/// # Errors
/// Those of `find`. The inner error is the reason why the machine has no device.
pub(crate) fn shared(
    ordinal: u32,
    find: impl FnOnce() -> Result<Found>,
) -> Result<Result<Arc<Device>, String>> {
    let key = (std::process::id(), ordinal);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner); // each change is one call
    if let Some(device) = open.get(&key).and_then(Weak::upgrade) {
        return Ok(Ok(device));
    }
    match find()? {
        Found::Device(driver, node) => {
            let device = Device::new(driver, node);
            open.insert(key, Arc::downgrade(&device));
            Ok(Ok(device))
        }
        Found::Absent(why) => Ok(Err(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated::Simulated;
    use super::*;

    #[test]
    fn a_device_is_opened_once_and_closed_behind_its_last_user() {
        let ordinal = 901; // of no other test
        let opened = std::cell::Cell::new(0);
        let open = || {
            let find = || {
                opened.set(opened.get() + 1);
                Ok(Found::Device(Simulated::new(1), None))
            };
            shared(ordinal, find).unwrap().unwrap()
        };
        let (first, second) = (open(), open());
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        drop(open());
        assert_eq!(opened.get(), 1);
        drop(second);
        open();
        assert_eq!(opened.get(), 2, "no loader had it");
        let absent = shared(ordinal, || Ok(Found::Absent("no driver".to_owned()))).unwrap();
        assert_eq!(absent.err().unwrap(), "no driver");
    }
}
