//! Finds the batch that owns an address, for callers that have views of a batch but not the batch.

use super::owner::Owner;
use super::stream::StreamHandle;
use crate::handles::Address;
use feedstock_base::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// The owner of the memory, as long as it lives.
type WeakOwner = Weak<dyn Owner>;

/// The memory of batches by its start: its size in bytes and its owner. Addresses of all devices and of host memory are
/// distinct.
static LENT: Mutex<BTreeMap<u64, (usize, WeakOwner)>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<u64, (usize, WeakOwner)>> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner) // each change is one call
}

pub(super) fn insert(start: Address, bytes: usize, owner: WeakOwner) {
    lock().insert(start.0, (bytes, owner));
}

pub(super) fn remove(start: Address) {
    lock().remove(&start.0);
}

/// As [`DeviceTensor::use_on`](super::DeviceTensor::use_on), for the batch whose memory contains `address`. Returns whether
/// there is such a batch that is still held. For callers that only have views of it.
///
/// # Errors
/// As [`DeviceTensor::use_on`](super::DeviceTensor::use_on).
pub fn use_address_on(address: u64, stream: StreamHandle) -> Result<bool> {
    let owner = {
        let lent = lock();
        let found = lent.range(..=address).next_back();
        found
            .filter(|(start, (bytes, _))| address - **start < *bytes as u64)
            .map(|(_, (_, owner))| owner.clone())
    };
    match owner.and_then(|owner| owner.upgrade()) {
        Some(owner) => owner.use_on(stream).map(|()| true),
        None => Ok(false),
    }
}
