//! The door of this crate: an [`Engine`] runs [`Job`]s, one a rank, into places that the caller offers.

use crate::memory::row::RowMemory;
use crate::pool::{Pool, PoolShare};
use crate::run::driver::{Driver, Event, Means};
use crate::run::large::Spare;
use crate::run::share::Sharing;
use crate::run::stats::{Shared, Stats, Waiting};
use crate::{Error, ErrorKind, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, IoRuntime, Plan, Position, Step, StepShape, StrandSet};
use feedstock_ops::{Chain, DECODER_MEMORY, Warnings};
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// A column and the chain of ops that its samples go through.
#[derive(Clone)]
pub struct Map {
    /// The column that is read: encoded bytes (`image`, `audio`) or text (`sentence`).
    pub column: String,
    /// The name of the result.
    pub output: String,
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
    /// The strands of the order whose rows are wanted; `None` for all. Steps without any are passed over.
    pub strands: Option<StrandSet>,
    /// Seed of the ops' randomness.
    pub seed: u64,
    /// The first epoch.
    pub epoch: u64,
    /// The first position in it.
    pub position: Position,
    /// The run ends before this epoch; `None` goes on until it is dropped.
    pub end_epoch: Option<u64>,
    /// Bytes of blocks held in memory at most, decompressed, and of working memory beyond [`Engine::decoder_memory`].
    pub budget_bytes: u64,
    /// A sample that takes more working memory is bad. [`sample_bytes`] is the usual limit.
    pub sample_bytes: u64,
}

/// The most working memory of one sample: what a thread has, and half of the budget. The other half is for the blocks of the
/// batch, without which no sample is decoded. It follows from options alone, so that all ranks and workers of a job that has
/// the same ones find the same samples bad.
pub fn sample_bytes(decoder_memory: u64, budget_bytes: u64) -> u64 {
    decoder_memory.saturating_add(budget_bytes / 2)
}

/// A place for one step's rows: a slot, or nothing where no column is mapped.
pub trait Destination: Send + 'static {
    /// Makes room for a step of `rows` rows; asked once a step, before the first of them.
    ///
    /// # Errors
    /// Where there is no memory for it.
    fn begin(&mut self, rows: usize) -> Result<()>;
    /// The memory of `row`; asked once a step for each row.
    fn take_row(&mut self, row: usize) -> RowMemory;
    /// The same memory back, written unless the row is among the step's failures.
    fn give_row(&mut self, row: usize, memory: RowMemory);
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
    /// Rows whose sample is used although something is unusual about it, in the order of the rows.
    pub warnings: Vec<(usize, Warnings)>,
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

/// A share of this process's CPU threads; clones, and all their runs, have it together.
#[derive(Clone)]
pub struct Engine {
    share: PoolShare,
    decoder_memory: u64,
}

impl Engine {
    /// An engine with at most `threads` CPU threads at work at once. They are those of the process's one pool, which has as
    /// many threads as the largest of its engines and ends with the last.
    ///
    /// # Errors
    /// `BadConfig` for no threads; `Retryable` where the system has no thread left.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::new(ErrorKind::BadConfig, "threads must be at least 1"));
        }
        Ok(Self { share: Pool::shared(threads)?.share(threads), decoder_memory: DECODER_MEMORY })
    }

    /// The same share of the threads, each of which may take so many bytes of working memory for one sample, and keep them
    /// for the next. A sample that takes more borrows the rest from its run's budget, and its thread gives it back afterwards.
    /// Default 64 MiB.
    #[must_use]
    pub fn decoder_memory(self, bytes: u64) -> Self {
        Self { decoder_memory: bytes, ..self }
    }

    /// CPU threads at work at once, at most.
    pub fn threads(&self) -> usize {
        self.share.most()
    }

    /// Returns the time that rows have taken in this process so far, added up over its CPU threads.
    pub fn busy(&self) -> Duration {
        self.share.busy()
    }

    /// Starts `job`: it prefetches at once, and decodes as places are offered.
    ///
    /// # Errors
    /// `BadConfig` where the shape yields no step, the budget holds no batch, or a map names no payload column.
    pub fn run<D: Destination>(&self, job: Job, sink: Arc<dyn Sink<D>>) -> Result<Run<D>> {
        self.run_shared(job, sink, None, None, 0)
    }

    /// As [`run`](Self::run), with blocks and samples that other runs hold, and memory beyond the budget for a sample that
    /// needs it. The first `overdue` steps are made before what
    /// other runs have ahead.
    pub(crate) fn run_shared<D: Destination>(
        &self,
        job: Job,
        sink: Arc<dyn Sink<D>>,
        sharing: Option<Sharing>,
        spare: Option<Spare>,
        overdue: u32,
    ) -> Result<Run<D>> {
        let shared = Arc::new(Shared::default());
        let means = Means { sharing, spare, decoder_memory: self.decoder_memory };
        let io = job.dataset.io().clone();
        let (driver, events) =
            Driver::new(job, sink.clone(), self.share.turns(overdue), shared.clone(), means)?;
        let task = io.handle().spawn(async move {
            if AssertUnwindSafe(driver.run()).catch_unwind().await.is_err() {
                // Whoever waits must hear of it; index 0 comes before every step not yet handed over.
                sink.failed(0, Error::new(ErrorKind::Bug, "the driver of a run panicked; please report it"));
            }
        });
        Ok(Run { events, shared, task, _share: Some(self.share.clone()), _io: io })
    }
}

/// A job under way; dropping it stops the job.
pub struct Run<D: Destination> {
    events: UnboundedSender<Event<D>>,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
    _share: Option<PoolShare>,
    /// The task's threads: the data set may be dropped before.
    _io: IoRuntime,
}

/// Lends places to a run, also from other threads.
pub struct Offers<D: Destination>(UnboundedSender<Event<D>>);

impl<D: Destination> Offers<D> {
    /// Lends a place for one step. This is the only thing that starts decoding.
    pub fn offer(&self, destination: D) {
        // After the last step nobody listens, and the place is dropped.
        let _unused = self.0.send(Event::Offered(destination));
    }
}

impl<D: Destination> Run<D> {
    /// A run whose rows others make.
    pub(crate) fn of_fleet(
        events: UnboundedSender<Event<D>>,
        shared: Arc<Shared>,
        task: tokio::task::JoinHandle<()>,
        io: IoRuntime,
    ) -> Self {
        Self { events, shared, task, _share: None, _io: io }
    }

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

impl<D: Destination> Drop for Run<D> {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release); // queued rows pass without work
        self.task.abort(); // and with it all fetches
    }
}
