//! A pool of page-locked memory. Locking costs about as much as filling, and batches of padded rows keep changing in size.

use crate::driver::Driver;
use crate::handles::HostAddress;
use crate::numa::{self, Node};
use feedstock_base::{Error, ErrorKind, PAGE_BYTES, Result};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Idle memory that is kept even if less is in use: the staging memory of many batches.
const KEPT_BYTES: usize = 64 << 20;

/// A block serves requests of at least 1/`FIT` of its size.
const FIT: usize = 2;

/// Page-locked blocks of one device's machine node, in use and idle.
pub struct LockedPool {
    driver: Arc<dyn Driver>,
    node: Option<Node>,
    state: Mutex<PoolBlocks>,
}

#[derive(Default)]
struct PoolBlocks {
    idle: Vec<(HostAddress, usize)>,
    idle_bytes: usize,
    used_bytes: usize,
}

impl LockedPool {
    /// Makes a pool of blocks that any device can copy from, on machine node `node`.
    pub(crate) fn new(driver: Arc<dyn Driver>, node: Option<Node>) -> Arc<Self> {
        Arc::new(Self { driver, node, state: Mutex::default() })
    }

    /// Returns at least `bytes` bytes of unspecified content, aligned to a page.
    ///
    /// ```
    /// use feedstock_device::Device;
    /// use feedstock_device::open::OpenedDevice;
    ///
    /// let pool = OpenedDevice::new(Device::host(), false).pool();
    /// let block = pool.take(100_000)?;
    /// assert!(block.size() >= 100_000);
    /// let start = block.start();
    /// drop(block);
    /// assert_eq!(pool.take(100_000)?.start(), start); // idle blocks are reused
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if no more memory can be locked, even after idle memory was freed. Otherwise the driver's error.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Locked> {
        let size = size_class(bytes).ok_or_else(|| self.no_memory(bytes, "more than the address space"))?;
        if let Some(block) = self.reuse(size) {
            return Ok(block);
        }
        let is_full = |error: &Error| error.kind() == ErrorKind::BadConfig;
        let allocated = self.allocate(size).or_else(|error| match is_full(&error) {
            true => {
                self.release_idle(0);
                self.allocate(size)
            }
            false => Err(error),
        });
        // An error of the device is not a lack of memory, and is returned unchanged.
        let start = allocated.map_err(|error| match is_full(&error) {
            true => self.no_memory(size, error),
            false => error,
        })?;
        self.lock().used_bytes += size;
        Ok(Locked { pool: self.clone(), start, size })
    }

    fn allocate(&self, size: usize) -> Result<HostAddress> {
        // The system takes pages from the node of the CPU that requests them.
        let _on_node = self.node.as_ref().and_then(numa::run_on);
        self.driver.allocate_host(size)
    }

    fn reuse(self: &Arc<Self>, size: usize) -> Option<Locked> {
        let mut state = self.lock();
        let fits = |have: usize| (size..=size.saturating_mul(FIT)).contains(&have);
        let best = state.idle.iter().enumerate().filter(|(_, (_, have))| fits(*have));
        let index = best.min_by_key(|(_, (_, have))| *have)?.0;
        let (start, size) = state.idle.swap_remove(index);
        state.idle_bytes -= size;
        state.used_bytes += size;
        Some(Locked { pool: self.clone(), start, size })
    }

    fn give(&self, start: HostAddress, size: usize) {
        let most = {
            let mut state = self.lock();
            state.used_bytes -= size;
            state.idle_bytes += size;
            state.idle.push((start, size));
            KEPT_BYTES.max(state.used_bytes)
        };
        self.release_idle(most);
    }

    /// Frees idle blocks, the longest idle first, down to `most` bytes.
    pub fn release_idle(&self, most: usize) {
        loop {
            let (start, _) = {
                let mut state = self.lock();
                if state.idle.is_empty() || state.idle_bytes <= most {
                    return;
                }
                let block = state.idle.remove(0);
                state.idle_bytes -= block.1;
                block
            };
            // SAFETY: it was idle, so nothing uses it and no copy from it is pending. It is no longer in the list.
            unsafe { self.driver.free_host(start) };
        }
    }

    /// Returns the bytes in use and the idle bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let state = self.lock();
        (state.used_bytes, state.idle_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, PoolBlocks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // each change is a few stores
    }

    fn no_memory(&self, bytes: usize, says: impl std::fmt::Display) -> Error {
        let used = self.lock().used_bytes;
        let message = format!(
            "cannot page-lock {bytes} bytes in addition to {used} ({says}); the limits are the free memory of the machine or \
             its container and `ulimit -l` ({}): raise them, or lower slots or the batch size",
            lock_limit()
        );
        Error::new(ErrorKind::BadConfig, message)
    }
}

impl Drop for LockedPool {
    fn drop(&mut self) {
        self.release_idle(0);
    }
}

/// Returns the system's limit of locked memory.
fn lock_limit() -> String {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown").to_owned()
}

/// Rounds up to a size class. There are four from one power of two to the next.
fn size_class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(PAGE_BYTES);
    let quarter = (1usize << bytes.ilog2()) / 4;
    bytes.checked_next_multiple_of(quarter.max(PAGE_BYTES))
}

/// A block of page-locked memory, which is idle again once dropped.
pub struct Locked {
    pool: Arc<LockedPool>,
    start: HostAddress,
    size: usize,
}

impl Locked {
    /// Returns its start.
    pub fn start(&self) -> NonNull<u8> {
        self.start.0
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.pool.give(self.start, self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Simulated;

    #[test]
    fn blocks_are_locked_once_and_reused() {
        let driver = Simulated::new(1);
        let pool = LockedPool::new(driver.clone(), None);
        let first = pool.take(5 << 20).unwrap();
        let start = first.start();
        assert_eq!((start.addr().get() % PAGE_BYTES, first.size()), (0, 5 << 20));
        drop(first);
        assert_eq!(pool.take(3 << 20).unwrap().start(), start, "half of it still fits");
        assert_ne!(pool.take(2 << 20).unwrap().start(), start, "less than half would waste it");
        assert_eq!(driver.host_allocations(), 2);
        for mib in [30, 40, 50] {
            pool.take(mib << 20).unwrap();
        }
        let (used, idle) = pool.bytes();
        assert!(used == 0 && idle <= KEPT_BYTES, "{idle}");
    }

    #[test]
    fn a_limit_is_told_after_idle_memory_was_given_up() {
        let driver = Simulated::new(1);
        driver.limit_host_bytes(10 << 20);
        let pool = LockedPool::new(driver, None);
        drop(pool.take(6 << 20).unwrap());
        let held = pool.take(8 << 20).unwrap();
        let error = pool.take(4 << 20).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        let text = error.to_string();
        assert!(
            text.contains("4194304 bytes in addition to 8388608") && text.contains("ulimit -l"),
            "{text}"
        );
        drop(held);
        assert!(pool.take(usize::MAX).is_err());
    }

    #[test]
    fn a_device_in_trouble_is_no_lack_of_memory() {
        let driver = Simulated::new(1);
        let pool = LockedPool::new(driver.clone(), None);
        drop(pool.take(6 << 20).unwrap());
        driver.refuse("allocate_host", 1);
        let error = pool.take(1 << 20).err().unwrap();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::Retryable, "allocate_host was refused".to_owned())
        );
        assert_eq!(pool.bytes(), (0, 6 << 20), "idle memory was not freed in vain");
        pool.take(1 << 20).unwrap();
    }
}
