//! Streams of the caller, and which of them may use a batch.

use crate::driver::Driver;
use crate::handles::StreamId;
use feedstock_base::{Error, ErrorKind, Result};

/// A stream of the device's, as CUDA's handle: what `CudaStream::cu_stream()` or torch's `stream.cuda_stream` is; 0 or 1
/// the legacy default stream. Not 2, the thread's own, which is another one on the thread that drops a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle(pub u64);

/// CUDA's number of the default stream of each thread.
const THREADS_OWN: u64 = 2;

impl StreamHandle {
    /// The stream, if batches may be used on it.
    pub(crate) fn of(self, driver: &dyn Driver) -> Result<StreamId> {
        match self.0 {
            0 | 1 => Ok(StreamId::LEGACY),
            THREADS_OWN => {
                let message = "stream 2, the per-thread default one, is another stream on every thread, so that its end could \
                               not be seen from where the batch is dropped; use a stream of your own, or the legacy default \
                               one (1)";
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            handle => driver.check_stream(StreamId(handle)).map(|()| StreamId(handle)),
        }
    }
}

/// Refuses a stream that is being captured: what it is told now would become part of the graph, and the batch be another one
/// when that is replayed.
pub(crate) fn refuse_capture(driver: &dyn Driver, stream: StreamId) -> Result<()> {
    match driver.is_capturing(stream)? {
        false => Ok(()),
        true => {
            let message = "a batch was taken on a stream while a graph is captured there; take batches before the capture, and \
                           ask for fixed addresses";
            Err(Error::new(ErrorKind::BadConfig, message))
        }
    }
}

/// The error of a batch in a child of the process that has its device.
pub(crate) fn forked() -> Error {
    let message = "this batch was made in another process, before fork(), where its device is; it cannot be used here: copy \
                   what a child needs to host memory before, or start processes with 'spawn' or 'forkserver'";
    Error::new(ErrorKind::BadConfig, message)
}
