//! The door of this crate: an [`Engine`] runs [`Job`]s, one a rank, into places that the caller offers.

use crate::driver::{Driver, Event};
use crate::pool::Pool;
use crate::stats::{Shared, Stats, Waiting};
use crate::{Error, ErrorKind, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, Plan, Position, Step, StepShape};
use feedstock_ops::Chain;
use futures::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::UnboundedSender;

/// A payload column and the chain of ops that its samples go through.
#[derive(Clone)]
pub struct Map {
    /// The payload column (`image`), and the name of the result.
    pub column: String,
    /// What is done to each sample.
    pub chain: Arc<Chain>,
}

/// One rank's run through a plan.
#[derive(Clone)]
pub struct Job {
    /// Where the bytes come from.
    pub dataset: Dataset,
    /// Which sample stands where.
    pub plan: Plan,
    /// The mapped columns; all other columns ride along as Arrow arrays.
    pub maps: Vec<Map>,
    /// The batch size and the rank.
    pub shape: StepShape,
    /// Seed of the ops' randomness.
    pub seed: u64,
    /// The first epoch.
    pub epoch: u64,
    /// The first position in it.
    pub position: Position,
    /// The run ends before this epoch; `None` goes on until it is dropped.
    pub end_epoch: Option<u64>,
    /// Encoded bytes held in memory at most.
    pub budget_bytes: u64,
}

/// The memory of one row in every mapped column, in the order of [`Job::maps`].
pub struct RowMemory {
    columns: Vec<(NonNull<u8>, usize)>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the constructor's contract makes these ranges this value's alone, so moving it to another thread moves
// exclusive access.
unsafe impl Send for RowMemory {}

impl RowMemory {
    /// Lends `columns` (start, bytes) to one task.
    ///
    /// # Safety
    /// Each range is valid for reads and writes while `owner` lives, and nothing else reads or writes it until
    /// this value is dropped.
    pub unsafe fn new(columns: Vec<(NonNull<u8>, usize)>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { columns, _owner: owner }
    }

    /// The memory of a row where nothing is mapped.
    pub fn empty() -> Self {
        Self { columns: Vec::new(), _owner: Arc::new(()) }
    }

    /// The row's bytes in mapped column `index`.
    pub fn column(&mut self, index: usize) -> &mut [u8] {
        let (start, bytes) = self.columns[index];
        // SAFETY: `new`'s contract; `&mut self` excludes a second borrow.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
    }
}

/// A place for one step's rows: a slot, or nothing where no column is mapped.
pub trait Destination: Send + 'static {
    /// The memory of `row`; asked once a step for each row.
    fn take_row(&mut self, row: usize) -> RowMemory;
}

/// A step whose rows are all written.
pub struct Finished<D> {
    /// 0 for the run's first step, then rising by one; steps finish out of order.
    pub index: u64,
    /// What was planned.
    pub step: Step,
    /// The columns that no map consumes, one row a sample, as planned.
    pub columns: RecordBatch,
    /// The place, given back.
    pub destination: D,
    /// Rows whose sample could not be used, and why. Their memory holds unspecified bytes.
    pub failures: Vec<(usize, Error)>,
}

/// Where a run's results go; called from CPU and I/O threads, so it must not block.
pub trait Sink<D>: Send + Sync + 'static {
    /// A step is complete.
    fn finished(&self, finished: Finished<D>);
    /// Step `index` can never be completed; the steps before it still come.
    fn failed(&self, index: u64, error: Error);
    /// The plan's last step has been handed over.
    fn ended(&self, steps: u64);
}

/// The CPU threads that all ranks of this process share.
#[derive(Clone)]
pub struct Engine {
    pool: Pool,
}

impl Engine {
    /// An engine with `threads` CPU threads.
    ///
    /// # Errors
    /// `BadConfig` for no threads; `Retryable` where the system has no thread left.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::new(ErrorKind::BadConfig, "threads must be at least 1"));
        }
        Ok(Self { pool: Pool::new(threads)? })
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Starts `job`: it prefetches at once, and decodes as places are offered.
    ///
    /// # Errors
    /// `BadConfig` where the shape yields no step, the budget holds no batch, or a map names no payload column.
    pub fn run<D: Destination>(&self, job: Job, sink: Arc<dyn Sink<D>>) -> Result<Run<D>> {
        let shared = Arc::new(Shared::default());
        let io = job.dataset.io().clone();
        let (driver, events) = Driver::new(job, sink.clone(), self.pool.clone(), shared.clone())?;
        let task = io.handle().spawn(async move {
            if AssertUnwindSafe(driver.run()).catch_unwind().await.is_err() {
                // Whoever waits must hear of it; index 0 comes before every step not yet handed over.
                sink.failed(0, Error::new(ErrorKind::Bug, "the driver of a run panicked; please report it"));
            }
        });
        Ok(Run { events, shared, task, _pool: self.pool.clone() })
    }
}

/// A job under way; dropping it stops the job.
pub struct Run<D> {
    events: UnboundedSender<Event<D>>,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
    _pool: Pool,
}

/// Lends places to a run, also from other threads.
pub struct Offers<D>(UnboundedSender<Event<D>>);

impl<D> Offers<D> {
    /// Lends a place for one step. This is the only thing that starts decoding.
    pub fn offer(&self, destination: D) {
        // After the last step nobody listens, and the place is dropped.
        let _unused = self.0.send(Event::Offered(destination));
    }
}

impl<D: Destination> Run<D> {
    /// The way to lend places; it may outlive the run.
    pub fn offers(&self) -> Offers<D> {
        Offers(self.events.clone())
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// What the oldest unfinished step waits for.
    pub fn waiting(&self) -> Waiting {
        self.shared.waiting()
    }
}

impl<D> Drop for Run<D> {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release); // queued rows pass without work
        self.task.abort(); // and with it all fetches
    }
}
