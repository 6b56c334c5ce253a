//! The threads that wait for storage.
//!
//! All I/O runs on a tokio runtime that feedstock owns, never on the caller's: a pooled HTTP connection is
//! driven by the runtime that opened it, and a caller who iterates batches inside its own single-threaded
//! runtime would block the very task its next block depends on.

use crate::{Error, ErrorKind, Result};
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};

/// Two: one decompresses a block while the other serves sockets.
const IO_THREADS: usize = 2;

/// feedstock's I/O runtime; clones share it, and its threads end with the last clone.
#[derive(Clone)]
pub struct IoRuntime(Arc<Owned>);

struct Owned(Option<Runtime>);

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background(); // a plain drop panics inside an async caller
        }
    }
}

impl IoRuntime {
    /// Starts the threads.
    pub fn new() -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            .thread_name("feedstock-io")
            .enable_all()
            .build()
            .map_err(|e| Error::new(ErrorKind::Retryable, "cannot start the I/O threads").with_source(e))?;
        Ok(Self(Arc::new(Owned(Some(runtime)))))
    }

    /// The handle that spawns onto these threads.
    pub fn handle(&self) -> &Handle {
        #[expect(clippy::expect_used, reason = "taken in Drop only")]
        self.0.0.as_ref().expect("runtime lives as long as its owner").handle()
    }

    /// Runs `future` on these threads and waits for it in the caller's; dropping the wait cancels it.
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

    /// Runs `future` on these threads and blocks the caller's until it is done. Safe inside any other runtime,
    /// which it stalls meanwhile; not on one of these threads.
    pub fn block_on<T, F>(&self, future: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.handle().spawn(async move {
            // Nobody is left to tell if the waiting thread is gone.
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
