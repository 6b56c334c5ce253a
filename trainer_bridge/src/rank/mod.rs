//! The rank's iterator: batches in step order, epoch by epoch, and the state to resume from.

mod growth;
mod report;
mod waits;

pub use report::RankStats;

use crate::batch::Batch;
use crate::ledger::Ledger;
use crate::next::{Next, block};
use crate::nulls::NullRule;
use crate::policy::{OnError, SkipReport, Skipped};
use crate::sink::{Assembled, Assembler};
use crate::slots::{Column, Home, Slot, make_slots};
use crate::staging::{BatchRoute, Stage};
use crate::warnings::WarningReport;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Plan, Position, StepShape, StepSize};
use feedstock_ingest::{Job, Popped, Ready, RowBuffers, Run, Sink, Waiting};
use futures::Stream;
use growth::Growth;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A wait this long is logged, once for each batch.
pub(crate) const SLOW_WAIT: Duration = Duration::from_secs(10);

/// In a mix without end, the fraction of skipped samples is relative to the samples so far plus this number. Early skips must
/// not count for more than they would in an epoch of 10,000.
const ENDLESS_GRACE: u64 = 10_000;

/// One rank's batches: a blocking iterator and a `Stream`.
///
/// It yields the batches of one epoch, then `None`. Iterating again continues with the next epoch. Every rank yields the same
/// number of batches. An error ends the epoch: it is yielded once, then `None`, and again if iterated again. Only after a
/// wait past the deadline, or with all batches held, can the batch still come.
///
/// ```
/// use feedstock_dataset::Rank;
/// use feedstock_trainer_bridge::{BatchSize, Dataset};
///
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
/// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(8)).epochs(2);
/// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
/// for epoch in 0..2 {
///     for batch in &mut batches { // ends with the epoch
///         assert_eq!(batch?.epoch(), epoch);
///     }
/// }
/// assert!(batches.next().is_none()); // the run is over
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
pub struct RankIterator {
    /// Declared before the run, so that it is dropped first: it holds slots.
    stage: Option<Stage>,
    run: Run<Slot>,
    assembler: Arc<Assembler>,
    plan: Plan,
    shape: StepShape,
    epoch: u64,
    position: Position,
    end_epoch: Option<u64>,
    ops: u64,
    ledger: Ledger,
    /// The positions that the ledger covers: from the epoch's start, unless it was resumed in its middle.
    ledger_range: Range<Position>,
    phase: Phase,
    skips: SkipReport,
    warnings: WarningReport,
    /// By mapped column, the elements along the padded axis: those of samples, and all.
    padding: Vec<(u64, u64)>,
    on_error: OnError,
    skipped_before: (u64, u64),
    slots: usize,
    growth: Growth,
    deadline: Duration,
    waited: Duration,
    /// The part of the caller's waits that [`add_function_wait`](Self::add_function_wait) recorded.
    waited_for_functions: Duration,
    /// The time spent inside calls for the pending batch, without the time between calls.
    waiting: Duration,
    /// The start of the current wait of the stream, which is polled.
    polled_since: Option<Instant>,
    has_warned_of_slow_wait: bool,
}

/// Where the iteration is.
#[derive(Debug)]
enum Phase {
    /// The epoch was not begun, or has batches left.
    Batches,
    /// The epoch's last batch was delivered, but not its end.
    EpochEnd,
    /// The run has failed. Calls return `None` and the error alternately.
    Failed { error: Error, is_none_next: bool },
}

/// A result that needs no wait.
enum Settled {
    EpochEnd,
    Failed(Error),
}

/// The settings of its pipeline that a rank needs.
pub(crate) struct Settings {
    pub(crate) slots: usize,
    /// Bytes of batches that the caller may keep in added slots.
    pub(crate) held_bytes: u64,
    pub(crate) on_error: OnError,
    pub(crate) deadline: Duration,
    /// The hash of the chains, stored in cursors.
    pub(crate) ops: u64,
    /// The forms of columns of numbers.
    pub(crate) nulls: Arc<[NullRule]>,
    /// An epoch, and the number of samples that earlier runs of the same loader skipped in it. They count towards its limit.
    pub(crate) skipped: (u64, u64),
}

impl RankIterator {
    pub(crate) fn start(
        job: Job,
        columns: Vec<Column>,
        settings: &Settings,
        route: BatchRoute,
        run: impl FnOnce(Job, Arc<dyn Sink<Slot>>) -> Result<Run<Slot>>,
    ) -> Result<Self> {
        let Settings { slots, held_bytes, on_error, deadline, ops, skipped, .. } = *settings;
        let columns: Arc<[Column]> = columns.into();
        let home = Arc::new(Home::default());
        let assembler = Arc::new(Assembler {
            ready: Ready::default(),
            home: home.clone(),
            on_error,
            columns: columns.clone(),
            nulls: settings.nulls.clone(),
            catalog: job.dataset.catalog().clone(),
            device_seed: route.stage.is_some().then_some(job.seed),
        });
        let (plan, step_shape, epoch, position) = (job.plan.clone(), job.shape, job.epoch, job.position);
        let end_epoch = job.end_epoch;
        let rows = match job.shape.size {
            StepSize::Rows(_) => job.shape.rows(),
            StepSize::Total { .. } => 0, // slots grow to the largest step
        };
        let rows = usize::try_from(rows).map_err(|_| {
            Error::new(ErrorKind::BadConfig, "a batch has more rows than the address space allows")
        })?;
        let BatchRoute { allocator, stage } = route;
        // Make all slots before offering any: page-locked memory may not suffice for this number.
        let buffers = Arc::new(RowBuffers::default());
        let made = make_slots(&columns, &buffers, &allocator, rows, slots)?;
        let slots = made.len();
        let run = run(job, assembler.clone() as Arc<dyn Sink<Slot>>)?;
        home.open(run.offers());
        made.into_iter().for_each(|slot| home.offer(slot));
        let stage = stage.map(|(opened, work)| Stage::start(assembler.clone(), opened, work)).transpose()?;
        let padding = vec![(0, 0); columns.len()];
        let growth = Growth { columns, buffers, allocator, rows, held_bytes, since: None, has_grown: false };
        Ok(Self {
            stage,
            run,
            assembler,
            plan,
            shape: step_shape,
            epoch,
            position,
            end_epoch,
            ops,
            ledger: Ledger::new(epoch),
            ledger_range: position..position,
            phase: Phase::Batches,
            skips: SkipReport::default(),
            warnings: WarningReport::default(),
            padding,
            on_error,
            skipped_before: skipped,
            slots,
            growth,
            deadline,
            waited: Duration::ZERO,
            waited_for_functions: Duration::ZERO,
            waiting: Duration::ZERO,
            polled_since: None,
            has_warned_of_slow_wait: false,
        })
    }

    /// Returns the cursor after the batches that were delivered. Batches that were only prefetched do not count.
    ///
    /// At an epoch's end it points at the next epoch, so that no run resumes into an empty one.
    pub fn state(&self) -> Cursor {
        let (epoch, position) = next_step(&self.plan, &self.shape, self.epoch, self.position);
        self.plan.cursor(epoch, position).with_ops(self.ops)
    }

    /// Returns the epoch of the next batch (at an epoch's end, the epoch just finished).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the batches for the caller, in step order.
    fn ready(&self) -> &Ready<Assembled> {
        self.stage.as_ref().map_or(&self.assembler.ready, Stage::output)
    }

    /// Returns what the next batch waits for.
    pub fn waiting(&self) -> Waiting {
        self.run.waiting()
    }

    /// After an epoch's last batch, continues with the next epoch without yielding the `None` that marks the end. For callers
    /// that count batches. Returns whether it did.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(8));
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// for step in 0..6 { // a trainer that counts steps, not epochs
    ///     batches.begin_epoch();
    ///     assert_eq!(batches.next().unwrap()?.epoch(), step / 2);
    /// }
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn begin_epoch(&mut self) -> bool {
        if !self.is_epoch_done() {
            return false;
        }
        self.phase = Phase::Batches;
        self.epoch += 1;
        self.position = Position(0);
        true
    }

    /// As [`Iterator::next`], but waits at most `timeout`, for callers that must check for signals, for example. Successive
    /// calls are one wait, to which the deadline applies.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use feedstock_dataset::Rank;
    /// # use feedstock_trainer_bridge::{BatchSize, Dataset, Next};
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(8)).epochs(1);
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// let mut rows = 0;
    /// loop {
    ///     match batches.next_within(Duration::from_millis(10))? {
    ///         Next::Batch(batch) => rows += batch.len(),
    ///         Next::Pending => {} // check for signals here
    ///         Next::EpochEnd => break,
    ///     }
    /// }
    /// assert_eq!(rows, 16);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// As the iterator's. After a wait past the deadline, and after one with all batches held and no room for more
    /// (`BadConfig`), the next call goes on.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Next> {
        match self.settled() {
            Some(Settled::EpochEnd) => return Ok(Next::EpochEnd),
            Some(Settled::Failed(error)) => return Err(error),
            None => {}
        }
        self.wait(timeout)
    }

    /// As [`next_within`](Self::next_within), for a caller that takes batches ahead while its own functions run on earlier
    /// ones. The caller does not need this batch yet, so the wait counts neither as waited nor towards the deadline.
    ///
    /// # Errors
    /// As the iterator's, except the deadline.
    pub fn next_ahead(&mut self, timeout: Duration) -> Result<Next> {
        match self.settled() {
            Some(Settled::EpochEnd) => return Ok(Next::EpochEnd),
            Some(Settled::Failed(error)) => return Err(error),
            None => {}
        }
        let popped = self.ready().pop(timeout);
        self.taken(popped)
    }

    /// Counts `time` as waited: the time that the caller waited for its own functions on batches that it had taken ahead.
    pub fn add_function_wait(&mut self, time: Duration) {
        self.waited_for_functions += time;
    }

    fn taken(&mut self, popped: Popped<Assembled>) -> Result<Next> {
        match popped {
            Popped::Item(assembled) => self.received(Ok(assembled)).map(Next::Batch),
            Popped::Failed(error) => self.received(Err(error)).map(Next::Batch),
            Popped::Ended => {
                self.waiting = Duration::ZERO;
                Ok(Next::EpochEnd)
            }
            Popped::TimedOut => Ok(Next::Pending),
        }
    }

    /// Whether it failed permanently: it only returns the error again.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. })
    }

    /// Whether the epoch's last batch was delivered, but not yet its end.
    pub(crate) fn is_epoch_done(&self) -> bool {
        matches!(self.phase, Phase::EpochEnd)
    }

    /// Returns the result of the next call if it needs no wait.
    fn settled(&mut self) -> Option<Settled> {
        if let Phase::Failed { error, is_none_next } = &mut self.phase {
            return Some(match std::mem::replace(is_none_next, !*is_none_next) {
                true => Settled::EpochEnd,
                false => Settled::Failed(error.clone()),
            });
        }
        self.begin_epoch().then_some(Settled::EpochEnd)
    }

    fn deliver(&mut self, assembled: Assembled) -> Result<Batch> {
        let Assembled { batch, skipped, warned, .. } = assembled;
        self.check_skips(&batch, &skipped)?; // before anything counts as delivered
        if self.ledger.epoch != batch.epoch {
            self.ledger = Ledger::new(batch.epoch);
            self.ledger_range.start = batch.position;
        }
        self.ledger_range.end = batch.next;
        assert_eq!((batch.epoch, batch.position), (self.epoch, self.position), "batches come in plan order");
        for (sample, padding) in batch.sample_ids.iter().zip(&batch.padding) {
            self.ledger.deliver(*sample, *padding);
        }
        self.ledger.substituted += skipped.len() as u64;
        for ((more_own, more), (own, all)) in batch.padded.iter().zip(&mut self.padding) {
            (*own, *all) = (*own + more_own, *all + more);
        }
        if let Some(device) = &batch.device {
            device.lend();
        }
        self.skips.add(skipped);
        self.warnings.add(warned);
        self.position = batch.next;
        if !self.shape.has_step(self.plan.len_of(self.epoch), self.position) {
            self.phase = Phase::EpochEnd;
        }
        Ok(batch)
    }

    fn check_skips(&self, batch: &Batch, skipped: &[Skipped]) -> Result<()> {
        let OnError::Skip { max_fraction } = self.on_error else { return Ok(()) };
        let planned = match self.plan.is_endless() {
            true => self.ledger.delivered.samples + skipped.len() as u64 + ENDLESS_GRACE,
            false => self.shape.rows_per_epoch(self.plan.len_of(self.epoch)),
        };
        let (epoch, earlier) = self.skipped_before;
        let mut before = if epoch == batch.epoch { earlier } else { 0 };
        before += if self.ledger.epoch == batch.epoch { self.ledger.substituted } else { 0 };
        let (count, limit) = (before + skipped.len() as u64, (planned as f64 * max_fraction).floor());
        if skipped.is_empty() || count as f64 <= limit {
            return Ok(());
        }
        let last = skipped.last().map_or("", |skipped| &skipped.reason);
        let message = format!(
            "{count} of this rank's {planned} samples of epoch {} could not be decoded, more than on_error=skip's \
             max_fraction of {max_fraction}; repair the data or raise max_fraction. The last: {last}",
            self.epoch
        );
        Err(Error::new(ErrorKind::BadSample, message))
    }

    fn fail(&mut self, error: Error) -> Result<Batch> {
        self.phase = Phase::Failed { error: error.clone(), is_none_next: true };
        Err(error)
    }

    fn received(&mut self, result: Result<Assembled>) -> Result<Batch> {
        self.waited += std::mem::take(&mut self.waiting);
        self.waited += self.polled_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.has_warned_of_slow_wait = false;
        let batch = result.and_then(|assembled| self.deliver(assembled));
        batch.or_else(|error| self.fail(error))
    }
}

impl Iterator for RankIterator {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        block(|| self.next_within(SLOW_WAIT))
    }
}

/// Returns the start of the next step: here, or at the next epoch's start if this one has no steps left. So no run begins
/// with an empty epoch.
pub(crate) fn next_step(plan: &Plan, shape: &StepShape, epoch: u64, position: Position) -> (u64, Position) {
    match shape.has_step(plan.len_of(epoch), position) {
        true => (epoch, position),
        false => (epoch + 1, Position(0)),
    }
}

impl Stream for RankIterator {
    type Item = Result<Batch>;

    /// As [`Iterator::next`], but the caller sets the deadline (`tokio::time::timeout`).
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.settled() {
            Some(Settled::EpochEnd) => return Poll::Ready(None),
            Some(Settled::Failed(error)) => return Poll::Ready(Some(Err(error))),
            None => {}
        }
        this.polled_since.get_or_insert_with(Instant::now);
        match this.ready().poll(cx) {
            Poll::Ready(Some(result)) => Poll::Ready(Some(this.received(result))),
            Poll::Ready(None) => {
                this.polled_since = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for RankIterator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RankIterator(rank {}, epoch {}, position {})", self.shape.rank, self.epoch, self.position)
    }
}
