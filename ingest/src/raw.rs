//! A rank's share, or everything, as Arrow record batches in plan order, without decoding.

use crate::memory::row::RowMemory;
use crate::run::engine::Engine;
use crate::run::handle::{Offers, Run};
use crate::run::job::{Destination, Finished, Job, Sink};
use crate::run::ready::{Popped, Ready};
use crate::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, Position, Rank, Shuffle, StepShape, StepSize, Tail};
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Batches gathered ahead of the caller: one in use, one ready, two being fetched.
const PLACES: usize = 4;

/// How to read without decoding.
///
/// ```
/// use feedstock_dataset::Rank;
/// use feedstock_ingest::{RawBatches, RawOptions};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let own = || OpenOptions {
/// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
/// #     ..OpenOptions::default()
/// # };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
/// let mut rows = Vec::new();
/// for rank in 0..2 {
///     let options = RawOptions { rank: Rank::new(rank, 2), ..RawOptions::default() };
///     for batch in RawBatches::start(&dataset, &options)? {
///         rows.push(batch?.num_rows());
///     }
/// }
/// assert_eq!(rows, [8, 8]); // half of the samples each
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// The order; [`Shuffle::none`] is the catalog's. Default: none.
    pub shuffle: Shuffle,
    /// Whose share. Default: everything, rank 0 of 1.
    pub rank: Rank,
    /// Rows of a record batch over all ranks. Default 256.
    pub batch_rows: u64,
    /// Which epoch's order. Default 0.
    pub epoch: u64,
    /// From where in the order. Default 0.
    pub position: Position,
    /// Bytes of blocks held in memory at most, decompressed, in addition to the four batches gathered from them. Default 1 GiB.
    pub budget_bytes: u64,
    /// The longest wait for a batch. Default 5 min.
    pub deadline: Duration,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self {
            shuffle: Shuffle::none(),
            rank: Rank::new(0, 1),
            batch_rows: 256,
            epoch: 0,
            position: Position(0),
            budget_bytes: 1 << 30,
            deadline: Duration::from_secs(300),
        }
    }
}

/// One epoch's record batches: a blocking iterator and a `Stream`.
///
/// Columns: `sample_id` (UInt64), then the data set's selected columns; encoded bytes as BinaryView. The last
/// batch may be shorter. Each sample comes once.
///
/// ```
/// use feedstock_ingest::{RawBatches, RawOptions};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let own = || OpenOptions {
/// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
/// #     ..OpenOptions::default()
/// # };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
/// let some = futures::executor::block_on(dataset.columns(&["label"])?.filter("sample_id < 3"))?;
/// let mut batches = RawBatches::start(&some, &RawOptions::default())?;
/// let batch = batches.next().unwrap()?;
/// let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!((names, batch.num_rows()), (vec!["sample_id".to_owned(), "label".to_owned()], 3));
/// assert!(batches.next().is_none());
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
pub struct RawBatches {
    run: Run<Nothing>,
    offers: Offers<Nothing>,
    ready: Arc<Ready<RecordBatch>>,
    deadline: Duration,
    done: bool,
}

impl RawBatches {
    /// Starts reading.
    ///
    /// # Errors
    /// `BadConfig` where the plan or the budget does not fit.
    pub fn start(dataset: &Dataset, options: &RawOptions) -> Result<Self> {
        let plan = dataset.plan(&options.shuffle)?;
        let shape =
            StepShape { size: StepSize::Rows(options.batch_rows), rank: options.rank, tail: Tail::Short };
        plan.check(&plan.cursor(options.epoch, options.position))?;
        let job = Job {
            dataset: dataset.clone(),
            plan,
            maps: Vec::new(),
            shape,
            strands: None,
            seed: 0,
            epoch: options.epoch,
            position: options.position,
            end_epoch: Some(options.epoch + 1),
            budget_bytes: options.budget_bytes,
            prefetch_bytes: options.budget_bytes,
            sample_bytes: 0, // nothing is decoded
        };
        let ready = Arc::new(Ready::default());
        let run = Engine::new(1)?.run(job, ready.clone() as Arc<dyn Sink<Nothing>>)?;
        let offers = run.offers();
        (0..PLACES).for_each(|_| offers.offer(Nothing));
        Ok(Self { run, offers, ready, deadline: options.deadline, done: false })
    }

    fn delivered(&mut self, batch: Result<RecordBatch>) -> Option<Result<RecordBatch>> {
        match &batch {
            Ok(_) => self.offers.offer(Nothing),
            Err(_) => self.done = true,
        }
        Some(batch)
    }
}

impl Iterator for RawBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.ready.pop(self.deadline) {
            Popped::Item(batch) => self.delivered(Ok(batch)),
            Popped::Failed(error) => self.delivered(Err(error)),
            Popped::Ended => None,
            Popped::TimedOut => {
                // Not final: the batch may still come.
                let message = format!("no record batch within {:?}: {}", self.deadline, self.run.waiting());
                Some(Err(Error::new(ErrorKind::Retryable, message)))
            }
        }
    }
}

impl Stream for RawBatches {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        match this.ready.poll(cx) {
            Poll::Ready(Some(batch)) => Poll::Ready(this.delivered(batch)),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// No memory: nothing is mapped.
struct Nothing;

impl Destination for Nothing {
    fn begin(&mut self, _rows: usize) -> Result<()> {
        Ok(())
    }

    fn take_row(&mut self, _row: usize) -> RowMemory {
        RowMemory::empty()
    }

    fn give_row(&mut self, _row: usize, _memory: RowMemory) {}
}

impl Sink<Nothing> for Ready<RecordBatch> {
    fn finished(&self, finished: Finished<Nothing>) {
        match with_ids(&finished) {
            Ok(batch) => self.push(finished.index, batch),
            Err(e) => {
                self.fail(finished.index, Error::new(ErrorKind::Bug, format!("cannot add sample ids: {e}")))
            }
        }
    }

    fn failed(&self, index: u64, error: Error) {
        self.fail(index, error);
    }

    fn ended(&self, steps: u64) {
        self.end(steps);
    }
}

/// The sample ids, followed by the gathered columns.
fn with_ids(finished: &Finished<Nothing>) -> Result<RecordBatch, arrow::error::ArrowError> {
    let ids: UInt64Array = finished.step.rows.iter().map(|row| row.sample.0).collect();
    let mut fields = vec![Arc::new(Field::new("sample_id", DataType::UInt64, false))];
    fields.extend(finished.columns.schema().fields().iter().cloned());
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids)];
    arrays.extend(finished.columns.columns().iter().cloned());
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
}
