//! Reuses the memory of large buffers.
//!
//! A fresh mapping costs a page fault and a cleared page for every 4 KiB, and a run allocates and drops blocks until it
//! ends: that was a fifth of all CPU time of a training chain. So a new block uses the memory of a dropped one.

use memmap2::{MmapMut, UncheckedAdvice};
use std::io;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Smaller buffers stay with the allocator: a process may have about 65,000 mappings.
pub(crate) const LEAST_BYTES: usize = 1 << 20;

/// Idle memory is capped at 1 / `KEPT_SHARE` of the memory in use, ...
const KEPT_SHARE: usize = 3;

/// ... clamped to these bounds: four and eight blocks of the default size. With images and 38 MiB of blocks, a cap of
/// 16 MiB instead of 32 takes 3 % more CPU time (14,500 page faults per 1,000 instead of 5,500); a larger budget avoids that.
const KEPT_BYTES: RangeInclusive<usize> = 16 << 20..=32 << 20;

/// Sizes are rounded up to a multiple of this, so that blocks of similar sizes fit each other's memory.
const GRAIN_BYTES: usize = 256 << 10;

/// A buffer may exceed the requested size by 1 / `SLACK` of it, or by a grain. A budget does not count the excess, so the
/// system gets it back.
const SLACK: usize = 8;

/// A smaller excess (1.5 % of a block of the default size) is not worth a system call.
const LEAST_REST_BYTES: usize = 64 << 10;

/// The largest page of a system that feedstock runs on.
const PAGE_BYTES: usize = 64 << 10;

static KEPT: Kept = Kept::new();

/// Bytes of all live buffers.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// A buffer of at least [`LEAST_BYTES`]; dropping it keeps its memory for the next.
#[derive(Debug)]
pub(crate) struct Recycled {
    /// `None` only while dropping.
    memory: Option<MmapMut>,
    len: usize,
}

/// Idle buffers, the longest kept first.
///
/// A caller that finds it locked does without: after `fork`, a thread that no longer exists may hold the lock.
struct Kept(Mutex<Vec<MmapMut>>);

impl Recycled {
    /// Returns a buffer of `len` bytes of arbitrary content.
    ///
    /// # Errors
    /// The system's, if there is no memory.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let kept = KEPT.take(len); // releases its lock
        let memory = match kept {
            Some(mut memory) => {
                give_back(&mut memory, len);
                memory
            }
            None => MmapMut::map_anon(len.max(1).next_multiple_of(GRAIN_BYTES))?,
        };
        IN_USE.fetch_add(memory.len(), Ordering::Relaxed);
        Ok(Self { memory: Some(memory), len })
    }
}

/// Returns the pages of a used buffer after its first `len` bytes to the system. They read as zeros when the buffer serves
/// a longer block.
fn give_back(memory: &mut MmapMut, len: usize) {
    let from = len.next_multiple_of(PAGE_BYTES);
    let rest = memory.len().saturating_sub(from);
    if rest >= LEAST_REST_BYTES {
        // SAFETY: the mapping is private and anonymous, so its pages read as zeros afterwards; the exclusive borrow shows that
        // no slice of it lives.
        let _refused = unsafe { memory.unchecked_advise_range(UncheckedAdvice::DontNeed, from, rest) };
    }
}

/// Returns the limit on idle memory while `in_use` bytes are in use.
fn most_kept(in_use: usize) -> usize {
    (in_use / KEPT_SHARE).clamp(*KEPT_BYTES.start(), *KEPT_BYTES.end())
}

impl Kept {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<MmapMut>>> {
        match self.0.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()), // pushed and removed whole
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the smallest buffer that holds `len` bytes and does not waste much.
    fn take(&self, len: usize) -> Option<MmapMut> {
        let mut kept = self.lock()?;
        let most = len.next_multiple_of(GRAIN_BYTES).max(len + len / SLACK);
        let fitting = kept.iter().enumerate().filter(|(_, memory)| (len..=most).contains(&memory.len()));
        let at = fitting.min_by_key(|(_, memory)| memory.len()).map(|(at, _)| at)?;
        Some(kept.remove(at))
    }

    /// Keeps `memory`, and drops the longest kept buffers beyond the limit of [`most_kept`].
    fn give(&self, memory: MmapMut, in_use: impl FnOnce() -> usize) {
        let Some(mut kept) = self.lock() else { return };
        let most = most_kept(in_use()); // read under the lock: the last caller decides
        let mut surplus = Vec::new();
        match memory.len() <= most {
            true => kept.push(memory),
            false => surplus.push(memory),
        }
        let mut bytes: usize = kept.iter().map(|memory| memory.len()).sum();
        while bytes > most {
            let oldest = kept.remove(0);
            bytes -= oldest.len();
            surplus.push(oldest);
        }
        drop(kept);
        drop(surplus); // unmapping takes a while, so not under the lock
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            IN_USE.fetch_sub(memory.len(), Ordering::Relaxed);
            KEPT.give(memory, || IN_USE.load(Ordering::Relaxed));
        }
    }
}

impl Deref for Recycled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.len])
    }
}

impl DerefMut for Recycled {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory[..self.len])
    }
}

impl AsRef<[u8]> for Recycled {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grains that may be kept when nothing is in use.
    const LEAST: usize = *KEPT_BYTES.start() / GRAIN_BYTES;

    fn of(grains: usize) -> MmapMut {
        MmapMut::map_anon(grains * GRAIN_BYTES).unwrap()
    }

    fn give(kept: &Kept, grains: usize) {
        kept.give(of(grains), || 0);
    }

    /// The sizes of the kept buffers, in grains.
    fn sizes(kept: &Kept) -> Vec<usize> {
        kept.lock().unwrap().iter().map(|memory| memory.len() / GRAIN_BYTES).collect()
    }

    #[test]
    fn the_smallest_that_fits_is_taken_and_none_that_wastes_much() {
        let kept = Kept::new();
        [22, 10, 11, 9].into_iter().for_each(|grains| give(&kept, grains));
        let taken = |len: usize| kept.take(len).map(|memory| memory.len() / GRAIN_BYTES);
        assert_eq!(taken(10 * GRAIN_BYTES), Some(10));
        assert_eq!(taken(10 * GRAIN_BYTES - 1), Some(11));
        assert_eq!(taken(10 * GRAIN_BYTES), None);
        assert_eq!(taken(20 * GRAIN_BYTES), Some(22));
        assert_eq!(taken(8 * GRAIN_BYTES + 1), Some(9));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_block_does_not_fill_is_no_memory() {
        let mut memory = of(10);
        memory.fill(1);
        let len = 9 * GRAIN_BYTES + 100;
        give_back(&mut memory, len);
        assert!(memory[..len].iter().all(|&byte| byte == 1));
        assert!(memory[len.next_multiple_of(PAGE_BYTES)..].iter().all(|&byte| byte == 0), "fresh pages");
        memory.fill(1);
        give_back(&mut memory, 10 * GRAIN_BYTES - 100);
        assert_eq!(memory.last(), Some(&1), "too little");
    }

    #[test]
    fn what_was_kept_longest_goes_and_what_is_too_large_is_not_kept() {
        let kept = Kept::new();
        [30, 25, 8].into_iter().for_each(|grains| give(&kept, grains));
        assert_eq!(sizes(&kept), [30, 25, 8]);
        give(&kept, 10);
        assert_eq!(sizes(&kept), [25, 8, 10]);
        give(&kept, LEAST + 1);
        assert_eq!(sizes(&kept), [25, 8, 10]);
    }

    #[test]
    fn what_waits_follows_what_is_in_use() {
        assert_eq!([0, 45 << 20, 60 << 20, 1 << 30].map(most_kept), [16 << 20, 16 << 20, 20 << 20, 32 << 20]);
        let kept = Kept::new();
        let much = || KEPT_SHARE * (2 * LEAST * GRAIN_BYTES);
        (0..3).for_each(|_| kept.give(of(LEAST - 4), much));
        assert_eq!(sizes(&kept), [LEAST - 4; 2]);
        kept.give(of(2 * LEAST), || 0);
        assert_eq!(
            sizes(&kept),
            [LEAST - 4],
            "a buffer that is too large evicts nothing, and the rest fits again"
        );
    }

    #[test]
    fn a_held_lock_is_not_waited_for() {
        let kept = Kept::new();
        give(&kept, 8);
        let held = kept.lock();
        assert!(kept.take(8 * GRAIN_BYTES).is_none());
        give(&kept, 4);
        drop(held);
        assert_eq!(sizes(&kept), [8]);
    }

    #[test]
    fn a_buffer_has_the_length_that_was_asked_for() {
        let mut buffer = Recycled::new(LEAST_BYTES + 7).unwrap();
        buffer.fill(3);
        assert_eq!(buffer.as_ref(), vec![3; LEAST_BYTES + 7]);
    }
}
