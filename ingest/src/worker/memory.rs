//! Bytes promised to streams: reserved for as long as a stream lives, or taken for steps and samples that need more.

use crate::run::job::own_stream_bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number of bytes that streams share.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<MemoryUse>);

#[derive(Debug)]
struct MemoryUse {
    limit: u64,
    /// What all streams together may reserve. The rest is only ever taken for a while, so that every stream gets it in turn.
    reservable: u64,
    /// What one stream may have in all, once it is its turn.
    stream_most: u64,
    share: StreamShare,
    used: Mutex<u64>,
    /// The number of requests that failed because other streams had the memory.
    shortages: AtomicU64,
}

/// Bytes promised to one stream; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Reserved {
    memory: Memory,
    bytes: u64,
}

/// The most that one stream may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamShare {
    /// Half of what is left, so that something is left for the next stream.
    Half,
    /// All that is left.
    All,
}

impl Memory {
    /// The memory of a worker, which any number of ranks share.
    pub(crate) fn new(limit: u64) -> Self {
        Self::with(limit, limit - limit / 4, limit, StreamShare::Half)
    }

    /// The memory of one rank's streams in its own process. They serve different strands and reserve their shares of half of
    /// `budget_bytes`. The other half is never reserved, but taken for what exceeds a share, and by streams that replace or race
    /// others. So each stream in turn can have half of `budget_bytes`, whatever the others have reserved.
    pub(crate) fn of_rank(budget_bytes: u64) -> Self {
        let most = own_stream_bytes(budget_bytes);
        Self::with(budget_bytes, budget_bytes - most, most, StreamShare::All)
    }

    /// Memory without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::with(u64::MAX, u64::MAX, u64::MAX, StreamShare::All)
    }

    fn with(limit: u64, reservable: u64, stream_most: u64, share: StreamShare) -> Self {
        let (used, shortages) = (Mutex::new(0), AtomicU64::new(0));
        Self(Arc::new(MemoryUse { limit, reservable, stream_most, share, used, shortages }))
    }

    /// What one stream may have in all, once it is its turn.
    pub(crate) fn stream_most(&self) -> u64 {
        self.0.stream_most
    }

    /// Reserves `bytes` bytes, or as much of them as one stream may have now.
    pub(crate) fn reserve(&self, bytes: u64) -> Reserved {
        let mut used = self.used();
        let left = self.0.reservable.saturating_sub(*used);
        let bytes = bytes.min(match self.0.share {
            StreamShare::Half => left.div_ceil(2),
            StreamShare::All => left,
        });
        *used += bytes;
        Reserved { memory: self.clone(), bytes }
    }

    /// Reserves exactly `bytes` bytes, if they are left.
    pub(crate) fn reserve_all(&self, bytes: u64) -> Option<Reserved> {
        self.promise(bytes, self.0.reservable)
    }

    /// Takes exactly `bytes` bytes for a while, if they are left.
    pub(crate) fn take(&self, bytes: u64) -> Option<Reserved> {
        self.promise(bytes, self.0.limit)
    }

    fn promise(&self, bytes: u64, most: u64) -> Option<Reserved> {
        let mut used = self.used();
        let Some(promised) = used.checked_add(bytes).filter(|promised| *promised <= most) else {
            self.lacks();
            return None;
        };
        *used = promised;
        Some(Reserved { memory: self.clone(), bytes })
    }

    /// Counts a stream that did not get enough.
    pub(crate) fn lacks(&self) {
        self.0.shortages.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests that failed because other streams had the memory.
    pub(crate) fn shortages(&self) -> u64 {
        self.0.shortages.load(Ordering::Relaxed)
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
    fn a_stream_reserves_half_of_what_is_left_and_gives_it_back() {
        let memory = Memory::new(12);
        let (first, second, third) = (memory.reserve(4), memory.reserve(7), memory.reserve(u64::MAX));
        assert_eq!((first.bytes(), second.bytes(), third.bytes()), (4, 3, 1));
        assert_eq!(memory.reserved(), 8);
        drop((first, second));
        assert_eq!(memory.reserve(u64::MAX).bytes(), 4);
        drop(third);
        assert_eq!(memory.reserved(), 0);
    }

    #[test]
    fn a_quarter_is_never_reserved() {
        let memory = Memory::new(100);
        let reserved: Vec<Reserved> = (0..20).map(|_| memory.reserve(u64::MAX)).collect();
        assert_eq!(memory.reserved(), 75, "{reserved:?}");
        assert!(memory.reserve_all(1).is_none() && memory.take(26).is_none());
        assert_eq!(memory.shortages(), 2);
        let taken = memory.take(25);
        assert!(taken.is_some() && memory.take(1).is_none());
        drop(taken);
        assert!(memory.take(1).is_some());
    }

    #[test]
    fn streams_of_a_rank_have_their_shares_and_room_for_their_successors_within_its_budget() {
        let memory = Memory::of_rank(200);
        let shares: Vec<Reserved> = [50, 25, 25].map(|share| memory.reserve(share)).into();
        let successors: Vec<Reserved> = [50, 25, 25].map(|share| memory.reserve(share)).into();
        let bytes = |streams: &[Reserved]| streams.iter().map(Reserved::bytes).collect::<Vec<_>>();
        assert_eq!((bytes(&shares), bytes(&successors)), (vec![50, 25, 25], vec![0, 0, 0]));
        assert_eq!(memory.stream_most(), 100);
        let taken = memory.take(100);
        assert!(taken.is_some(), "for steps that exceed their streams' shares");
        assert!(memory.take(1).is_none() && memory.reserved() == 200, "the budget is the bound");
        drop(taken);
        drop(shares);
        assert_eq!(memory.reserve(u64::MAX).bytes(), 100);
    }
}
