//! Bytes promised to streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number of bytes that streams share.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<MemoryUse>);

#[derive(Debug)]
struct MemoryUse {
    limit: u64,
    /// The part of the limit that a stream leaves to later ones.
    kept: KeptFree,
    used: Mutex<u64>,
}

/// Bytes promised to one stream; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Reserved {
    memory: Memory,
    bytes: u64,
}

/// What a stream leaves to later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptFree {
    /// Half of what is left: any number of ranks may come.
    Half,
    /// A quarter of the limit: one stream does nearly all the work.
    Quarter,
}

impl Memory {
    /// The memory of a worker, which any number of ranks share.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(MemoryUse { limit, kept: KeptFree::Half, used: Mutex::new(0) }))
    }

    /// The budget of one rank, whose streams follow each other or serve different strands.
    pub(crate) fn of_rank(limit: u64) -> Self {
        Self(Arc::new(MemoryUse { limit, kept: KeptFree::Quarter, used: Mutex::new(0) }))
    }

    /// Memory without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Reserves `bytes` bytes, or fewer, so that something is left for the next stream.
    pub(crate) fn reserve(&self, bytes: u64) -> Reserved {
        let mut used = self.used();
        let (left, half) = (self.0.limit - *used, (self.0.limit - *used).div_ceil(2));
        let most = match self.0.kept {
            KeptFree::Half => half,
            KeptFree::Quarter => half.max(left.saturating_sub(self.0.limit / 4)),
        };
        let bytes = bytes.min(most);
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

    #[test]
    fn the_first_stream_of_a_rank_gets_three_quarters() {
        let memory = Memory::of_rank(100);
        let (first, second) = (memory.reserve(u64::MAX), memory.reserve(u64::MAX));
        assert_eq!((first.bytes(), second.bytes()), (75, 13));
        drop(first);
        assert_eq!(memory.reserve(u64::MAX).bytes(), 62);
    }
}
