//! A rank's batches for a trainer that seeks, is resized, and saves its state.
//!
//! ```text
//! Loader ──first batch──▶ RankIterator ──seek or resize──▶ dropped; the next batch starts another at the new position
//! ```
//! A loader is a position in the order and, once a batch or prefetching was requested, the run that delivers from there. A
//! new position or share ends that run. Data that it had prefetched is fetched again if it is needed.

mod load_state;
mod steps;

pub use load_state::OnChange;
pub use steps::SamplePlace;

use crate::batch_size::BatchSize;
use crate::ledger::Ledger;
use crate::next::{Next, block};
use crate::pipeline::Pipeline;
use crate::policy::SkipReport;
use crate::rank::{RankIterator, RankStats, SLOW_WAIT, next_step};
use crate::rank_builder::PreparedRank;
use crate::staging::DevicePlan;
use crate::warnings::WarningReport;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Plan, Position, Rank, StepShape};
use feedstock_device::Place;
use feedstock_device::open::OpenedDevice;
use std::time::Duration;

/// One rank's share of a pipeline, for trainers.
///
/// Iterating yields the batches of one epoch, then `None`. Iterating again continues with the next epoch. Nothing runs before
/// the first batch is requested, so that state can be loaded first. [`start_prefetch`](Self::start_prefetch) begins earlier.
///
/// ```
/// use feedstock_dataset::{Rank, Shuffle};
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
/// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
/// let mut loader = pipeline.epochs(2).loader(Rank::new(0, 1))?;
/// let steps = loader.by_ref().count();
/// assert_eq!((steps, loader.steps_in(0)), (4, 4));
/// assert_eq!(loader.state().epoch, 1); // the next epoch follows
/// assert_eq!(loader.by_ref().count(), 4);
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    pipeline: Pipeline,
    rank: Rank,
    /// The order of delivery, with the groups of the saved cursor if one was loaded.
    plan: Plan,
    shape: StepShape,
    ops: u64,
    /// Where the next run begins. Meaningless during a run.
    from: Cursor,
    run: Option<RankIterator>,
    /// Opened once, so that fixed addresses stay the same from run to run.
    device: Option<OpenedDevice>,
    /// Whether a run that was ended had delivered a whole epoch, whose end was not returned yet.
    end_untold: bool,
    /// Samples skipped by runs that were ended.
    skips: SkipReport,
    warnings: WarningReport,
}

impl Pipeline {
    /// Returns one rank's share, for a trainer that seeks, is resized and saves its state: see [`Loader`].
    ///
    /// # Errors
    /// As [`RankBuilder::start`](crate::RankBuilder::start).
    pub fn loader(&self, rank: Rank) -> Result<Loader> {
        Loader::new(self.clone(), rank)
    }
}

impl Loader {
    fn new(pipeline: Pipeline, rank: Rank) -> Result<Self> {
        Self::with_device(pipeline, rank, DevicePlan::open)
    }

    /// Returns a loader whose device `open` opens.
    pub(crate) fn with_device(
        pipeline: Pipeline,
        rank: Rank,
        open: impl FnOnce(&DevicePlan) -> Result<OpenedDevice>,
    ) -> Result<Self> {
        let PreparedRank { job, settings, device, .. } = pipeline.rank(rank).prepare()?;
        let device = device.as_ref().map(open).transpose()?;
        let (plan, ops) = (job.plan, settings.ops);
        let from = plan.cursor(0, Position(0)).with_ops(ops);
        Ok(Self {
            pipeline,
            rank,
            plan,
            shape: job.shape,
            ops,
            from,
            run: None,
            device,
            end_untold: false,
            skips: SkipReport::default(),
            warnings: WarningReport::default(),
        })
    }

    /// Returns the next batch and waits at most `timeout`: see [`RankIterator::next_within`].
    ///
    /// # Errors
    /// As the iterator's. After an error, the next call tries again from the batch that could not be delivered.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Next> {
        self.next_by(|run| run.next_within(timeout))
    }

    /// Returns the next batch for a caller that takes batches ahead: see [`RankIterator::next_ahead`].
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within), except the deadline.
    pub fn next_ahead(&mut self, timeout: Duration) -> Result<Next> {
        self.next_by(|run| run.next_ahead(timeout))
    }

    /// Counts `time` as a wait for the caller's functions: see [`RankIterator::add_function_wait`]. Does nothing without a run.
    pub fn add_function_wait(&mut self, time: Duration) {
        if let Some(run) = &mut self.run {
            run.add_function_wait(time);
        }
    }

    fn next_by(&mut self, take: impl FnOnce(&mut RankIterator) -> Result<Next>) -> Result<Next> {
        if std::mem::take(&mut self.end_untold) {
            return Ok(Next::EpochEnd);
        }
        let Some(run) = self.running()? else { return Ok(Next::EpochEnd) };
        let next = take(run);
        if run.has_failed() {
            self.end_run();
        }
        next
    }

    /// Starts fetching and decoding, for a caller that has other work before the first batch, such as building its model.
    /// Delivers nothing and does not change the state. Does nothing during a run.
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within).
    pub fn start_prefetch(&mut self) -> Result<()> {
        self.running().map(|_| ())
    }

    /// Returns the run, and starts it if there is none; `None` at the pipeline's end.
    fn running(&mut self) -> Result<Option<&mut RankIterator>> {
        if self.run.is_none() && !self.is_over(self.from.epoch) {
            let share = self.pipeline.rank(self.rank).resume(self.from.clone());
            let mut prepared = share.prepare()?;
            prepared.settings.skipped = (self.from.epoch, self.skips.listed_in(self.from.epoch));
            self.run = Some(share.run(prepared, self.device.clone())?);
        }
        Ok(self.run.as_mut())
    }

    /// Whether the pipeline ends before `epoch`.
    fn is_over(&self, epoch: u64) -> bool {
        self.pipeline.epochs.is_some_and(|end| epoch >= end)
    }

    /// After an epoch's last batch, continues with the next epoch without yielding `None` first: see
    /// [`RankIterator::begin_epoch`].
    pub fn begin_epoch(&mut self) -> bool {
        let ended = self.run.as_mut().is_some_and(RankIterator::begin_epoch);
        std::mem::take(&mut self.end_untold) || ended
    }

    /// Skips the rest of `epoch`. The next batch is the first of the following epoch, if there is one.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(0, 1))?;
    /// loader.next().unwrap()?;
    /// loader.abandon_epoch(0);
    /// let batch = loader.next().unwrap()?;
    /// assert_eq!((batch.epoch(), batch.position().0), (1, 0));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn abandon_epoch(&mut self, epoch: u64) {
        let next = self.plan.cursor(epoch + 1, Position(0)).with_ops(self.ops);
        self.end_run();
        (self.from, self.end_untold) = (next, false);
    }

    /// Returns the cursor after the batches that were delivered.
    pub fn state(&self) -> Cursor {
        self.run.as_ref().map_or_else(|| self.from.clone(), RankIterator::state)
    }

    /// Returns the cursor after `position` positions of `epoch`: that after the batch with this
    /// [`next_position`](crate::Batch::next_position). For callers that take batches before they pass them on.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(0, 1))?;
    /// let taken: Vec<_> = loader.by_ref().take(3).collect::<Result<_, _>>()?; // ahead of the training loop
    /// let trained = loader.state_at(taken[0].epoch(), taken[0].next_position());
    /// assert_eq!((trained.position.0, loader.state().position.0), (4, 12));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn state_at(&self, epoch: u64, position: Position) -> Cursor {
        let (epoch, position) = next_step(&self.plan, &self.shape, epoch, position);
        self.plan.cursor(epoch, position).with_ops(self.ops)
    }

    /// Moves to the start of `epoch`, unless the next batch already belongs to it. So a resumed loader keeps its position, and
    /// data prefetched across an epoch's end are kept.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.epochs(3).loader(Rank::new(0, 1))?;
    /// loader.set_epoch(2)?;
    /// assert_eq!(loader.next().unwrap()?.epoch(), 2);
    /// loader.set_epoch(2)?; // keeps its position in the epoch
    /// assert_eq!(loader.state().position.0, 4);
    /// assert_eq!(loader.set_epoch(3).unwrap_err().message(), "there is no epoch 3: the run ends before epoch 3");
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an epoch at or after the pipeline's end.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        if let Some(end) = self.pipeline.epochs.filter(|end| epoch >= *end) {
            let message = format!("there is no epoch {epoch}: the run ends before epoch {end}");
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        match self.state().epoch == epoch {
            true => Ok(()),
            false => self.load_state(self.plan.cursor(epoch, Position(0))),
        }
    }

    /// Moves to step `step` of `epoch`.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(0, 1))?;
    /// let first = loader.next().unwrap()?.sample_ids().to_vec();
    /// loader.seek(0, 3)?;
    /// assert_eq!(loader.next().unwrap()?.position().0, 12);
    /// loader.seek(0, 0)?;
    /// assert_eq!(loader.next().unwrap()?.sample_ids(), first);
    /// assert_eq!(loader.seek(0, 4).unwrap_err().message(), "epoch 0 has 4 steps, so step 4 does not exist");
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a step that the epoch does not have. The loader then keeps its position.
    pub fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.load_state(self.plan.cursor(epoch, self.position_of(epoch, step)?))
    }

    /// Takes another share from the same position in the order, after a change of the world size or for another batch size.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(0, 1))?;
    /// loader.next().unwrap()?;
    /// loader.reconfigure(Rank::new(0, 2), Some(BatchSize::global(6)))?; // a second rank joined
    /// let batch = loader.next().unwrap()?;
    /// assert_eq!((batch.position().0, batch.len()), (4, 3)); // the same order, from where it was
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pipeline::loader`]. The loader then stays unchanged.
    pub fn reconfigure(&mut self, rank: Rank, batch: Option<BatchSize>) -> Result<()> {
        let mut pipeline = self.pipeline.clone();
        if let Some(batch) = batch {
            pipeline = pipeline.batch(batch);
        }
        self.restart(pipeline, self.state(), rank)
    }

    fn restart(&mut self, pipeline: Pipeline, from: Cursor, rank: Rank) -> Result<()> {
        let PreparedRank { job, .. } = pipeline.rank(rank).resume(from).prepare()?;
        self.end_run();
        if let Some(device) = self.device.as_mut().filter(|_| job.shape.rows() != self.shape.rows()) {
            device.move_fixed();
        }
        self.from = job.plan.cursor(job.epoch, job.position).with_ops(self.ops);
        (self.pipeline, self.rank, self.plan, self.shape) = (pipeline, rank, job.plan, job.shape);
        Ok(())
    }

    /// Ends the run and frees its memory, except that of held batches and of fixed addresses. The next batch starts a new run
    /// at the same position.
    pub fn stop(&mut self) {
        self.end_run();
        if let Some(device) = &self.device {
            device.release_idle();
        }
    }

    fn end_run(&mut self) {
        self.from = self.state();
        if let Some(run) = self.run.take() {
            self.end_untold |= run.is_epoch_done();
            self.skips.merge(run.skip_report().clone());
            self.warnings.merge(run.warning_report().clone());
        }
    }

    /// Returns the rank whose share it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns how an epoch is divided into steps.
    pub fn shape(&self) -> &StepShape {
        &self.shape
    }

    /// Returns where batches arrive. This is host memory if the requested device does not exist.
    pub fn place(&self) -> Place {
        self.device.as_ref().map_or(Place::Host, OpenedDevice::place)
    }

    /// Returns the pipeline, with the current batch size.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Returns the current run, for its ledger and reports; `None` before the first request and after a seek.
    pub fn run(&self) -> Option<&RankIterator> {
        self.run.as_ref()
    }

    /// Returns the ledger of the current run: see [`RankIterator::ledger`].
    pub fn ledger(&self) -> Option<Ledger> {
        self.run.as_ref().map(RankIterator::ledger)
    }

    /// Returns the statistics of the current run.
    pub fn stats(&self) -> Option<RankStats> {
        self.run.as_ref().map(RankIterator::stats)
    }

    /// Returns the samples skipped since the loader was made.
    pub fn skip_report(&self) -> SkipReport {
        let mut report = self.skips.clone();
        if let Some(run) = &self.run {
            report.merge(run.skip_report().clone());
        }
        report
    }

    /// Returns the decoders' warnings about the samples delivered since the loader was made.
    pub fn warning_report(&self) -> WarningReport {
        let mut report = self.warnings.clone();
        if let Some(run) = &self.run {
            report.merge(run.warning_report().clone());
        }
        report
    }
}

impl Iterator for Loader {
    type Item = Result<crate::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        block(|| self.next_within(SLOW_WAIT))
    }
}
