//! A rank's batches for a trainer that seeks, is resized, and saves its state.
//!
//! ```text
//! Loader ──first batch──▶ RankIterator ──seek or resize──▶ dropped; the next batch starts another at the new position
//! ```
//! A loader is a position in the order and, once a batch or prefetching was requested, the run that delivers from there. A
//! new position or share ends that run. Data that it had prefetched is fetched again if it is needed.

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
use feedstock_dataset::{Carried, Cursor, Plan, Position, Rank, SampleId, StepShape, StepSize};
use feedstock_device::Place;
use feedstock_device::open::OpenedDevice;
use std::str::FromStr;
use std::time::Duration;

/// What [`Loader::load_state_with`] does if the data changed since the state was saved.
///
/// ```
/// use feedstock_trainer_bridge::OnChange;
///
/// assert_eq!("remap".parse(), Ok(OnChange::Remap));
/// assert_eq!("ignore".parse::<OnChange>(), Err("must be error, next_epoch or remap; got ignore".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Returns an error that names what changed.
    #[default]
    Error,
    /// Begins the next epoch, with the current data. Samples of the saved epoch that were not delivered are left out. A state
    /// at an epoch's start loses nothing.
    NextEpoch,
    /// Finishes the epoch with its remaining samples that still exist, in their old order. The next epoch has the current data.
    /// A sample still exists if a file of the same name and size has it at the same place. Needs the catalog of the old data,
    /// which is kept for 30 days, and 14 bytes of memory for each remaining sample.
    Remap,
}

impl FromStr for OnChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "next_epoch" => Ok(Self::NextEpoch),
            "remap" => Ok(Self::Remap),
            _ => Err(format!("must be error, next_epoch or remap; got {text}")),
        }
    }
}

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

    /// Continues where `cursor` was taken, with any rank, world size or batch size.
    ///
    /// ```
    /// # use feedstock_dataset::{Rank, Shuffle};
    /// # use feedstock_trainer_bridge::{BatchSize, Dataset};
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
    /// let saved = loader.state();
    /// let next = loader.next().unwrap()?.sample_ids().to_vec();
    ///
    /// let mut resumed = pipeline.loader(Rank::new(0, 1))?;
    /// resumed.load_state(saved.clone())?;
    /// assert_eq!(resumed.next().unwrap()?.sample_ids(), next);
    ///
    /// let mut other = pipeline.shuffle(Shuffle::seeded(8)).loader(Rank::new(0, 1))?;
    /// assert!(other.load_state(saved).unwrap_err().message().contains("its seed is 7, this pipeline's is 8"));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a cursor of another order, naming the field that differs. The loader then keeps its position.
    pub fn load_state(&mut self, cursor: Cursor) -> Result<()> {
        self.load_state_with(cursor, OnChange::Error)
    }

    /// As [`load_state`](Self::load_state), with a choice for data that changed since `cursor` was saved: files added,
    /// removed or replaced. A copy of the data, or other times and inodes, do not count as a change.
    ///
    /// # Errors
    /// As [`load_state`](Self::load_state). [`OnChange::NextEpoch`] and [`OnChange::Remap`] still reject what changed data
    /// do not explain: another seed, shuffle, mix or bucketing. `Gone` if the catalog of the data with which the epoch began
    /// is no longer kept. That applies to [`OnChange::Remap`], and to a state saved later in an epoch that was remapped.
    pub fn load_state_with(&mut self, cursor: Cursor, on_change: OnChange) -> Result<()> {
        let has_other_lengths = self.plan.fingerprint().has_other_lengths(&cursor.fingerprint);
        let cursor = match self.plan.is_of_same_data(&cursor) {
            true if has_other_lengths && on_change == OnChange::NextEpoch => {
                self.after_change(cursor, on_change)? // the same files, whose durations another release reads differently
            }
            true => cursor,
            false => self.after_change(cursor, on_change)?,
        };
        let pipeline = self.pipeline_of(&cursor)?;
        self.restart(pipeline, cursor, self.rank)?;
        self.end_untold = false;
        Ok(())
    }

    /// Returns the pipeline with the order of `cursor`. It includes the rest of an epoch that began with other data.
    fn pipeline_of(&self, cursor: &Cursor) -> Result<Pipeline> {
        let known = self.pipeline.rest().map(|rest| (rest.epoch(), rest.carried()));
        match cursor.carried.is_empty() {
            true if known.is_none_or(|(epoch, _)| epoch < cursor.epoch) => Ok(self.pipeline.clone()),
            true => Ok(self.pipeline.carrying_nothing()),
            false if known == Some((cursor.epoch, cursor.carried.as_slice())) => Ok(self.pipeline.clone()),
            false => self.pipeline.carrying(cursor.epoch, cursor.carried.clone(), self.rank),
        }
    }

    /// Returns the cursor to continue from, for a cursor of data that have changed since.
    fn after_change(&self, cursor: Cursor, on_change: OnChange) -> Result<Cursor> {
        let dataset = self.pipeline.dataset();
        let changes = || {
            let changes = futures::executor::block_on(dataset.changes_since(&cursor.fingerprint));
            changes.map_or_else(String::new, |changes| format!(" ({changes})"))
        };
        match on_change {
            OnChange::Error => {
                let error = self.plan.check(&cursor).err();
                let message = error.map_or_else(String::new, |error| error.to_string());
                let advice = "to finish its epoch with the remaining samples that still exist, load it with \
                              on_change=remap; to leave them out, with on_change=next_epoch";
                Err(Error::new(ErrorKind::BadConfig, format!("{message}{}; {advice}", changes())))
            }
            OnChange::NextEpoch => {
                let next = self.plan.next_epoch_of(&cursor)?;
                let left_out = match next.epoch == cursor.epoch {
                    true => String::new(),
                    false => format!(
                        "the samples of epoch {} after position {} are left out; ",
                        cursor.epoch, cursor.position
                    ),
                };
                tracing::warn!(
                    "the data set changed since the state was saved{}: {left_out}epoch {} begins",
                    changes(),
                    next.epoch
                );
                Ok(next)
            }
            OnChange::Remap if cursor.position == Position(0) && cursor.carried.is_empty() => {
                Ok(self.plan.next_epoch_of(&cursor)?) // nothing of it was delivered
            }
            OnChange::Remap => {
                self.plan.fingerprint().check_settings(&cursor.fingerprint)?;
                tracing::warn!(
                    "the data set changed since the state was saved{}: epoch {} continues with the remaining samples that \
                     still exist",
                    changes(),
                    cursor.epoch
                );
                let Cursor { fingerprint, epoch, position, ops, mut carried } = cursor;
                carried.push(Carried { fingerprint, position });
                Ok(Cursor { ops, carried, ..self.plan.cursor(epoch, Position(0)) })
            }
        }
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

    /// Returns the sample ids of every rank's batch at step `step` of `epoch`, including padding.
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
    /// let mut loader = pipeline.loader(Rank::new(1, 2))?;
    /// let step = loader.samples_in(0, 0)?; // by rank; nothing is read
    /// assert_eq!(step.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    /// assert_eq!(loader.next().unwrap()?.sample_ids(), step[1]);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a step that the epoch does not have.
    pub fn samples_in(&self, epoch: u64, step: u64) -> Result<Vec<Vec<SampleId>>> {
        let position = self.position_of(epoch, step)?;
        let mut order = self.plan.epoch(epoch);
        let ranks = 0..self.rank.world_size;
        let shapes =
            ranks.map(|rank| StepShape { rank: Rank::new(rank, self.rank.world_size), ..self.shape });
        Ok(shapes
            .map(|shape| order.step(position, &shape).map_or(Vec::new(), |step| step.rows))
            .map(|rows| rows.iter().map(|row| row.sample).collect())
            .collect())
    }

    fn position_of(&self, epoch: u64, step: u64) -> Result<Position> {
        let position = match self.shape.size {
            StepSize::Rows(rows) => step.checked_mul(rows).map(Position),
            StepSize::Total { .. } => {
                let mut order = self.plan.epoch(epoch);
                let mut next = Some(Position(0));
                for _ in 0..step {
                    next = next.and_then(|next| order.step(next, &self.shape)).map(|step| step.next);
                    if next.is_none() {
                        break;
                    }
                }
                next
            }
        };
        position.filter(|position| self.shape.has_step(self.plan.len_of(epoch), *position)).ok_or_else(|| {
            let steps = self.plan.steps_left(epoch, Position(0), &self.shape);
            Error::new(
                ErrorKind::BadConfig,
                format!("epoch {epoch} has {steps} steps, so step {step} does not exist"),
            )
        })
    }

    /// Returns the number of batches in `epoch`, the same on all ranks. It is the same in all epochs, unless a total bounds
    /// batches.
    pub fn steps_in(&self, epoch: u64) -> u64 {
        self.steps_after(&self.plan.cursor(epoch, Position(0)))
    }

    /// Returns the number of batches from `cursor` to the end of its epoch.
    pub fn steps_after(&self, cursor: &Cursor) -> u64 {
        match self.is_over(cursor.epoch) {
            true => 0,
            false => self.plan.steps_left(cursor.epoch, cursor.position, &self.shape),
        }
    }

    /// Whether an epoch never ends, as in a mix without end.
    pub fn is_endless(&self) -> bool {
        self.plan.is_endless()
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
