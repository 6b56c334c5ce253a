//! Bytes promised to streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number of bytes that streams share.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<MemoryUse>);

#[derive(Debug)]
struct MemoryUse {
    limit: u64,
    used: Mutex<u64>,
}

/// Bytes promised to one stream; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Reserved {
    memory: Memory,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(MemoryUse { limit, used: Mutex::new(0) }))
    }

    /// Reserves `wanted` bytes, or half of what is left, so that something is left for the next stream.
    pub(crate) fn reserve(&self, wanted: u64) -> Reserved {
        let mut used = self.used();
        let bytes = wanted.min((self.0.limit - *used).div_ceil(2));
        *used += bytes;
        Reserved { memory: self.clone(), bytes }
    }

    /// Reserves exactly `bytes` bytes, if they are left.
    pub(crate) fn take(&self, bytes: u64) -> Option<Reserved> {
        let mut used = self.used();
        *used = used.checked_add(bytes).filter(|used| *used <= self.0.limit)?;
        Some(Reserved { memory: self.clone(), bytes })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    pub(crate) fn reserved(&self) -> u64 {
        *self.used()
    }

    fn used(&self) -> MutexGuard<'_, u64> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner) // every change is one store
    }
}

impl Reserved {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        *self.memory.used() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_half_of_what_is_left_and_all_of_it_back() {
        let memory = Memory::new(10);
        let (first, second, third) = (memory.reserve(4), memory.reserve(7), memory.reserve(u64::MAX));
        assert_eq!((first.bytes(), second.bytes(), third.bytes()), (4, 3, 2));
        assert_eq!(memory.reserved(), 9);
        drop((first, second));
        assert_eq!(memory.reserve(u64::MAX).bytes(), 4);
        drop(third);
        assert_eq!(memory.reserved(), 0);
        assert!(memory.take(11).is_none());
        assert_eq!(memory.take(10).map(|all| all.bytes()), Some(10));
    }
}
