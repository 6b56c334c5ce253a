//! Streams of the caller, and which of them can use a batch.

use crate::driver::Driver;
use crate::handles::StreamId;
use feedstock_base::{Error, ErrorKind, Result};

/// A stream of the device, as CUDA's handle: `CudaStream::cu_stream()` or torch's `stream.cuda_stream`. 0 and 1 are the legacy
/// default stream. 2, the thread's default stream, is rejected: it is another stream on the thread that drops a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle(pub u64);

/// CUDA's number of the default stream of each thread.
const THREADS_OWN: u64 = 2;

impl StreamHandle {
    /// Returns the stream, if batches can be used on it.
    pub(crate) fn of(self, driver: &dyn Driver) -> Result<StreamId> {
        match self.0 {
            0 | 1 => Ok(StreamId::LEGACY),
            THREADS_OWN => {
                let message = "stream 2, the per-thread default one, is another stream on every thread, so the thread that \
                               drops the batch could not wait for it; use a stream that you created, or the legacy default \
                               one (1)";
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            handle => driver.check_stream(StreamId(handle)).map(|()| StreamId(handle)),
        }
    }
}

/// Rejects a stream that is being captured. Work submitted to it now would become part of the graph, whose replay would use
/// another batch.
pub(crate) fn refuse_capture(driver: &dyn Driver, stream: StreamId) -> Result<()> {
    match driver.is_capturing(stream)? {
        false => Ok(()),
        true => {
            let message = "a batch was taken on a stream while a graph is captured there; take batches before the capture, and \
                           use fixed addresses";
            Err(Error::new(ErrorKind::BadConfig, message))
        }
    }
}

/// Returns the error for using a batch in a child of the process that has its device.
pub(crate) fn forked() -> Error {
    let message = "this batch and its device belong to the parent process, before fork(), and cannot be used here; copy what a \
                   child needs to host memory first, or start processes with 'spawn' or 'forkserver'";
    Error::new(ErrorKind::BadConfig, message)
}
