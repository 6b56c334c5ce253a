//! What a run is asked for, and what it gives back: the job, the memory of its steps, and the sink of its results.

use crate::memory::row::RowMemory;
use crate::run::ready::Ready;
use crate::run::views::MapViews;
use crate::{Error, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, Plan, Position, Step, StepShape, StrandSet};
use feedstock_ops::{Chain, Warnings};
use std::sync::Arc;

/// A column and the chain of ops that its samples go through.
#[derive(Clone)]
pub struct Map {
    /// The column that is read: encoded bytes (`image`, `audio`) or text (`sentence`).
    pub column: String,
    /// The name of the result.
    pub output: String,
    /// What is done to each sample.
    pub chain: Arc<Chain>,
    /// The index of the first image of the same joint map: other images and masks must have its size, boxes and keypoints follow it.
    pub partner: Option<usize>,
    /// For a column along boxes, the index of their map.
    pub along: Option<usize>,
    /// The index of the boxes that draw the crop of its `random_iou_crop`; `None` without that op.
    pub crop_boxes: Option<usize>,
    /// The views of one decoded image of which the result is one.
    pub views: Option<Arc<MapViews>>,
}

/// One rank's run through a plan.
#[derive(Clone)]
pub struct Job {
    /// Where the bytes come from.
    pub dataset: Dataset,
    /// The sample at each position.
    pub plan: Plan,
    /// The mapped columns; all other columns ride along as Arrow arrays.
    pub maps: Vec<Map>,
    /// The batch size and the rank.
    pub shape: StepShape,
    /// The strands of the order whose rows are requested; `None` for all. Steps without any are passed over.
    pub strands: Option<StrandSet>,
    /// Seed of the ops' randomness.
    pub seed: u64,
    /// The first epoch.
    pub epoch: u64,
    /// The first position in it.
    pub position: Position,
    /// The run ends before this epoch; `None` goes on until it is dropped.
    pub end_epoch: Option<u64>,
    /// Bytes of blocks held in memory at most, decompressed, and of working memory beyond [`Engine::decoder_memory`](crate::Engine::decoder_memory).
    pub budget_bytes: u64,
    /// Bytes fetched at most for steps that have no place yet, apart from the first two. Of local files, no more in all is kept for the
    /// next epoch.
    pub prefetch_bytes: u64,
    /// A sample that takes more working memory is bad. [`sample_bytes`] is the usual limit.
    pub sample_bytes: u64,
}

impl Job {
    /// Checks that the plan has the job's epoch and that its shape yields steps.
    ///
    /// # Errors
    /// `BadConfig` if one of them does not fit.
    pub(crate) fn check(&self) -> Result<()> {
        let catalog = self.dataset.catalog();
        self.plan.check_epoch(self.epoch)?;
        self.shape.check(&self.plan, &|sample| catalog.describe_sample(sample))
    }
}

/// Returns the most working memory of one sample, in bytes: what a thread has, and half of `budget_bytes`, which a stream of its run
/// may have. The other half is for the blocks of the batch, without which no sample is decoded. It follows from options alone, so
/// that all ranks and workers of a job that has the same ones find the same samples bad.
///
/// ```
/// use feedstock_ingest::sample_bytes;
///
/// let mib = 1 << 20;
/// assert_eq!(sample_bytes(64 * mib, 1_024 * mib), 576 * mib); // the defaults: an RGB image of 200 megapixels
/// ```
pub fn sample_bytes(decoder_memory: u64, budget_bytes: u64) -> u64 {
    decoder_memory.saturating_add(budget_bytes / 2)
}

/// Returns the most bytes of a rank's `budget_bytes` that one stream of the rank's machine has, where it and workers serve: two such
/// streams can have it at a time.
pub(crate) fn own_stream_bytes(budget_bytes: u64) -> u64 {
    budget_bytes / 2
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

impl<D: Destination> Sink<D> for Ready<Finished<D>> {
    fn finished(&self, finished: Finished<D>) {
        self.push(finished.index, finished);
    }

    fn failed(&self, index: u64, error: Error) {
        self.fail(index, error);
    }

    fn ended(&self, steps: u64) {
        self.end(steps);
    }
}
