//! The I/O threads.
//!
//! All I/O runs on a tokio runtime that feedstock owns, never on the caller's. A pooled HTTP connection is driven by the
//! runtime that opened it: a caller that iterates batches inside a single-threaded runtime would block the very task that
//! its next block depends on.

use crate::process::PerProcess;
use crate::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One thread decompresses a block while another serves sockets; more CPUs may have more data sets open.
const IO_THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// CPUs for each I/O thread, within these bounds.
const CPUS_PER_IO_THREAD: usize = 8;

/// Limit on the memory that blocks take while they are decompressed and copied, in addition to what they hold. Eight blocks
/// of the default size take it with their compressed bytes and decompressed pages. The budget reserves what a larger block
/// takes beyond it ([`Catalog::reserve_bytes`](crate::Catalog::reserve_bytes)).
pub(crate) const MAKING_BYTES: u64 = 64 << 20;

const PERMIT_BYTES: u64 = 1 << 10;
const PERMITS: usize = (MAKING_BYTES / PERMIT_BYTES) as usize;

static SHARED: PerProcess<Owned> = PerProcess::new();

/// feedstock's I/O runtime; clones share it, and its threads end with the last clone.
#[derive(Clone)]
pub struct IoRuntime(Arc<Owned>);

struct Owned {
    runtime: Option<Runtime>,
    /// The memory that blocks being made may take, by [`PERMIT_BYTES`].
    making: Arc<Semaphore>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // a plain drop panics inside an async caller
        }
    }
}

impl IoRuntime {
    /// Returns the runtime of all data sets that this process has open. Its threads end with the last of them.
    ///
    /// # Errors
    /// `Retryable` if the system has no thread left.
    pub fn shared() -> Result<Self> {
        let mut shared = SHARED.lock();
        if let Some(running) = shared.upgrade() {
            return Ok(Self(running));
        }
        let made = Self::new()?;
        *shared = Arc::downgrade(&made.0);
        Ok(made)
    }

    /// Starts threads that nothing else uses: one for each 8 CPUs, at least 2 and at most 8.
    ///
    /// # Errors
    /// `Retryable` if the system has no thread left.
    pub fn new() -> Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cpus / CPUS_PER_IO_THREAD).clamp(*IO_THREADS.start(), *IO_THREADS.end());
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("feedstock-io")
            .enable_all()
            .build()
            .map_err(|e| Error::new(ErrorKind::Retryable, "cannot start the I/O threads").with_source(e))?;
        let making = Arc::new(Semaphore::new(PERMITS));
        Ok(Self(Arc::new(Owned { runtime: Some(runtime), making })))
    }

    /// Returns the handle that spawns onto these threads.
    pub fn handle(&self) -> &Handle {
        #[expect(clippy::expect_used, reason = "taken in Drop only")]
        self.0.runtime.as_ref().expect("runtime lives as long as its owner").handle()
    }

    /// Waits until a block that takes `bytes` in addition to what it holds may be made. Blocks being made take at most
    /// [`MAKING_BYTES`] together; a larger one is made alone. A task that holds a permit waits neither for storage nor for
    /// another permit.
    pub(crate) async fn making(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "65,536 permits")]
        let permits = permits.clamp(1, PERMITS as u32);
        let permit = self.0.making.clone().acquire_many_owned(permits).await;
        permit.map_err(|e| Error::new(ErrorKind::Bug, "the I/O threads have ended").with_source(e))
    }

    /// Runs `future` on these threads and waits for it; dropping the wait cancels it.
    pub async fn run<T, F>(&self, future: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut task = AbortOnDrop(self.handle().spawn(future));
        (&mut task.0).await.unwrap_or_else(|e| {
            Err(Error::new(ErrorKind::Bug, format!("an I/O task ended without a result: {e}")))
        })
    }

    /// Runs `future` on these threads and blocks the caller's until it is done. Call it inside any other runtime, which it
    /// stalls meanwhile, but not on one of these threads.
    ///
    /// ```
    /// use feedstock_dataset::{ErrorKind, IoRuntime, Storage, StorageOptions};
    ///
    /// let io = IoRuntime::shared()?;
    /// let storage = Storage::new(StorageOptions::default(), io.clone())?;
    /// let found = io.block_on(async move { storage.head("/no/such/file.tar").await }); // from a plain thread
    /// assert_eq!(found.unwrap_err().kind(), ErrorKind::Gone);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    pub fn block_on<T, F>(&self, future: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.handle().spawn(async move {
            // If the waiting thread is gone, the result is dropped.
            let _unheard = done.send(future.await);
        });
        result
            .recv()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Bug, "an I/O task ended without a result")))
    }
}

impl std::fmt::Debug for IoRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoRuntime")
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_share_one_runtime() {
        let (one, other) = (IoRuntime::shared().unwrap(), IoRuntime::shared().unwrap());
        assert!(Arc::ptr_eq(&one.0, &other.0));
        assert!(!Arc::ptr_eq(&one.0, &IoRuntime::new().unwrap().0));
    }

    #[test]
    fn a_large_block_is_made_alone_and_small_ones_together() {
        let io = IoRuntime::new().unwrap();
        let waiting = |bytes| futures::FutureExt::now_or_never(io.making(bytes)).is_none();
        let small = futures::executor::block_on(io.making(8 << 20)).unwrap();
        assert!(!waiting(56 << 20));
        assert!(waiting(57 << 20) && waiting(1 << 40));
        drop(small);
        let large = futures::executor::block_on(io.making(1 << 40)).unwrap();
        assert!(waiting(1));
        drop(large);
        assert!(!waiting(0));
    }
}
