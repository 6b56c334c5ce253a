//! A run under way, and how its caller lends memory to it.

use crate::Error;
use crate::pool::PoolShare;
use crate::run::job::{Destination, Sink};
use crate::run::stats::{RunStatus, Stats, Waiting};
use feedstock_dataset::IoRuntime;
use futures::FutureExt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

/// A job under way; dropping it stops the job.
pub struct Run<D: Destination> {
    offers: Offers<D>,
    shared: Arc<RunStatus>,
    task: JoinHandle<()>,
    /// The CPU threads that decode for it; none where workers do.
    _threads: Option<PoolShare>,
    /// The task's threads: the data set may be dropped before.
    _io: IoRuntime,
}

impl<D: Destination> Run<D> {
    /// Starts `driver` on the I/O threads. If it panics, the run fails: its caller would wait forever.
    pub(crate) fn start(
        driver: impl Future<Output = ()> + Send + 'static,
        offers: Offers<D>,
        sink: Arc<dyn Sink<D>>,
        shared: Arc<RunStatus>,
        io: IoRuntime,
    ) -> Self {
        let task = io.handle().spawn(async move {
            if AssertUnwindSafe(driver).catch_unwind().await.is_err() {
                // Index 0 comes before every step that was not handed over.
                sink.failed(0, Error::bug("the driver of a run panicked; please report it"));
            }
        });
        Self { offers, shared, task, _threads: None, _io: io }
    }

    /// Holds `threads` until the run is dropped.
    pub(crate) fn holding(mut self, threads: PoolShare) -> Self {
        self._threads = Some(threads);
        self
    }

    /// Returns the handle that lends places; it may outlive the run.
    pub fn offers(&self) -> Offers<D> {
        self.offers.clone()
    }

    /// Returns what has been done so far.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns what the oldest unfinished step waits for.
    pub fn waiting(&self) -> Waiting {
        self.shared.waiting()
    }
}

impl<D: Destination> Drop for Run<D> {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release); // queued rows pass without work
        self.task.abort(); // and with it all fetches
    }
}

/// Sends a place to the driver of a run.
type SendPlace<D> = dyn Fn(D) + Send + Sync + UnwindSafe + RefUnwindSafe;

/// Lends places to a run, also from other threads.
pub struct Offers<D: Destination>(Arc<SendPlace<D>>);

impl<D: Destination> Clone for Offers<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Destination> Offers<D> {
    /// Sends each place to the driver of a run, as the event that `event` makes of it.
    pub(crate) fn new<E: Send + 'static>(driver: UnboundedSender<E>, event: fn(D) -> E) -> Self {
        Self(Arc::new(move |destination| {
            // After the last step no driver listens, and the place is dropped.
            let _unused = driver.send(event(destination));
        }))
    }

    /// Lends a place for one step. This is the only thing that starts decoding.
    pub fn offer(&self, destination: D) {
        (self.0)(destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::row::RowMemory;
    use crate::run::job::Finished;
    use crate::{ErrorKind, Result};
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    struct Place;

    impl Destination for Place {
        fn begin(&mut self, _rows: usize) -> Result<()> {
            Ok(())
        }

        fn take_row(&mut self, _row: usize) -> RowMemory {
            RowMemory::empty()
        }

        fn give_row(&mut self, _row: usize, _memory: RowMemory) {}
    }

    struct Failures(Mutex<Sender<(u64, Error)>>);

    impl Sink<Place> for Failures {
        fn finished(&self, _finished: Finished<Place>) {}

        fn failed(&self, index: u64, error: Error) {
            self.0.lock().unwrap().send((index, error)).unwrap();
        }

        fn ended(&self, _steps: u64) {}
    }

    #[test]
    fn a_driver_that_panics_fails_its_run() {
        let (sender, failures) = channel();
        let (driver, _events) = tokio::sync::mpsc::unbounded_channel::<Place>();
        let sink = Arc::new(Failures(Mutex::new(sender)));
        let io = IoRuntime::new().unwrap();
        let panics = async { panic!("as a test") };
        let run = Run::start(panics, Offers::new(driver, |place| place), sink, Arc::default(), io);
        let (index, error) = failures.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((index, error.kind()), (0, ErrorKind::Bug));
        drop(run);
    }
}
