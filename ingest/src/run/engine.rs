//! [`Engine`] runs [`Job`]s, one for each rank, on the CPU threads of this process.

use crate::pool::{Pool, PoolShare};
use crate::run::driver::{Driver, RunMeans};
use crate::run::handle::Run;
use crate::run::job::{Destination, Job, Sink};
use crate::run::large::Spare;
use crate::run::row_indexes::{ROW_INDEX_BYTES, RowIndexes};
use crate::run::share::Sharing;
use crate::run::stats::RunStatus;
use crate::{Error, Result};
use feedstock_ops::DECODER_MEMORY;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A share of this process's CPU threads; clones, and all their runs, have it together.
#[derive(Clone)]
pub struct Engine {
    share: PoolShare,
    decoder_memory: u64,
    row_index_bytes: u64,
    /// Keeps the process's table between runs.
    rows: Arc<Mutex<Option<Arc<RowIndexes>>>>,
}

impl Engine {
    /// Creates an engine with at most `threads` CPU threads at work at once. They are those of the process's one pool, which has as
    /// many threads as the largest of its engines and ends with the last.
    ///
    /// ```
    /// use feedstock_ingest::Engine;
    ///
    /// assert_eq!(Engine::new(2)?.threads(), 2);
    /// assert_eq!(Engine::new(0).err().unwrap().message(), "threads must be at least 1; got 0");
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no threads; `Retryable` where the system has no thread left.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::config("threads must be at least 1; got 0"));
        }
        Ok(Self {
            share: Pool::shared(threads)?.share(threads),
            decoder_memory: DECODER_MEMORY,
            row_index_bytes: ROW_INDEX_BYTES,
            rows: Arc::default(),
        })
    }

    /// Sets the bytes of working memory that each thread may take for one sample, and keep for the next. Default 64 MiB. A
    /// sample that needs more borrows the rest from its run's budget, and its thread gives it back afterwards.
    #[must_use]
    pub fn decoder_memory(self, bytes: u64) -> Self {
        Self { decoder_memory: bytes, ..self }
    }

    /// Sets the bytes that this process keeps to remember where the rows of baseline JPEGs begin. Default 64 MiB, enough for some
    /// 240,000 images of 500 × 375 pixels; 0 remembers nothing.
    ///
    /// From the second epoch on, a crop is then decoded without the rows above it: with `random_resized_crop(224)` in 0.80 to
    /// 0.84 × the CPU time. The first epoch takes 2 to 4 % more. Images beyond the bound are decoded as in the first epoch.
    /// All engines of a process share one table, which has the largest of their bounds and is not part of any budget.
    #[must_use]
    pub fn row_index_bytes(self, bytes: u64) -> Self {
        Self { row_index_bytes: bytes, ..self }
    }

    fn rows(&self) -> Option<Arc<RowIndexes>> {
        if self.row_index_bytes == 0 {
            return None; // other engines may use what is held
        }
        let mut held = self.rows.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        *held = Some(RowIndexes::shared(self.row_index_bytes));
        held.clone()
    }

    /// Returns the maximum number of CPU threads at work at once.
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
        let shared = Arc::new(RunStatus::default());
        let means = RunMeans { sharing, spare, decoder_memory: self.decoder_memory, rows: self.rows() };
        let io = job.dataset.io().clone();
        let (driver, offers) =
            Driver::new(job, sink.clone(), self.share.turns(overdue), shared.clone(), means)?;
        Ok(Run::start(driver.run(), offers, sink, shared, io).holding(self.share.clone()))
    }
}
