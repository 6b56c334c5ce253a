//! A rank's batches for a trainer that jumps, is resized, and saves its state.
//!
//! ```text
//! Loader ──first batch──▶ RankIterator ──jump or resize──▶ dropped; the next batch starts another at the new place
//! ```
//! A loader is a place in the order and, once a batch was asked for (or prefetching was), the run that delivers from
//! there. Whatever moves the place or changes the share ends that run: what it had prefetched is fetched again where it is
//! needed.

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

/// What [`Loader::load_state_with`] does where the data changed since the state was saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// An error that names what changed.
    #[default]
    Error,
    /// Begins the next epoch, of the data as they are now: samples of the saved epoch that were not delivered are left
    /// out. A state at an epoch's start loses nothing.
    NextEpoch,
    /// Finishes the epoch with those of its samples that were left and are still there, in the order that they had; the
    /// next epoch is of the data as they are now. Samples are the same where they lie at the same place in a file of the
    /// same name and size. Needs the catalog of the data as they were, which is kept for 30 days, and 14 bytes of memory
    /// for each sample that is left.
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

/// One rank's share of a pipeline, as trainers use it.
///
/// Iterating yields the batches of one epoch, then `None`; iterating again goes on with the next epoch. Nothing runs
/// before the first batch is asked for, so that state can be loaded first, unless [`start_prefetch`](Self::start_prefetch)
/// begins earlier.
#[derive(Debug)]
pub struct Loader {
    pipeline: Pipeline,
    rank: Rank,
    /// The order as it is delivered: with the groups of a saved cursor, where one was loaded.
    plan: Plan,
    shape: StepShape,
    ops: u64,
    /// Where the next run begins; meaningless while one runs.
    from: Cursor,
    run: Option<RankIterator>,
    /// Opened once, so that fixed addresses stay from run to run.
    device: Option<OpenedDevice>,
    /// An epoch was handed out whole by a run that was ended, and its end was not returned yet.
    end_untold: bool,
    /// Samples skipped by runs that were ended.
    skips: SkipReport,
    warnings: WarningReport,
}

impl Pipeline {
    /// One rank's share of it, for a trainer that jumps, is resized and saves its state: see [`Loader`].
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

    /// With the device as `open` opens it.
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

    /// The next batch, waiting no longer than `timeout`: see [`RankIterator::next_within`].
    ///
    /// # Errors
    /// As the iterator's. After one, the next call tries again from the batch that could not be delivered.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Next> {
        self.next_by(|run| run.next_within(timeout))
    }

    /// The next batch for a caller that takes batches ahead: see [`RankIterator::next_ahead`].
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within), but for the deadline.
    pub fn next_ahead(&mut self, timeout: Duration) -> Result<Next> {
        self.next_by(|run| run.next_ahead(timeout))
    }

    /// Counts `time` as waited for the caller's own functions: see [`RankIterator::add_function_wait`]. Nothing happens
    /// where nothing runs.
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

    /// Begins to fetch and decode, for a caller that has other work before it asks for the first batch, such as building
    /// its model. Nothing is handed out, and the state stays; where batches are made already, nothing happens.
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within).
    pub fn start_prefetch(&mut self) -> Result<()> {
        self.running().map(|_| ())
    }

    /// The run, started if there is none; `None` at the pipeline's end.
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

    /// After an epoch's last batch, goes on to the next epoch without yielding `None` first: see
    /// [`RankIterator::begin_epoch`].
    pub fn begin_epoch(&mut self) -> bool {
        let ended = self.run.as_mut().is_some_and(RankIterator::begin_epoch);
        std::mem::take(&mut self.end_untold) || ended
    }

    /// Leaves out what is left of `epoch`: the next batch is the first of the epoch after it, if there is one.
    pub fn abandon_epoch(&mut self, epoch: u64) {
        let next = self.plan.cursor(epoch + 1, Position(0)).with_ops(self.ops);
        self.end_run();
        (self.from, self.end_untold) = (next, false);
    }

    /// The cursor after the batches that were handed out.
    pub fn state(&self) -> Cursor {
        self.run.as_ref().map_or_else(|| self.from.clone(), RankIterator::state)
    }

    /// The cursor after `position` positions of `epoch`, as after the batch whose
    /// [`next_position`](crate::Batch::next_position) that is: for callers who hand batches on later than they took
    /// them.
    pub fn state_at(&self, epoch: u64, position: Position) -> Cursor {
        let (epoch, position) = next_step(&self.plan, &self.shape, epoch, position);
        self.plan.cursor(epoch, position).with_ops(self.ops)
    }

    /// Goes on where `cursor` was taken, with any rank, world size or batch size.
    ///
    /// # Errors
    /// `BadConfig` for a cursor of another order, naming the field that differs; the loader stays where it was.
    pub fn load_state(&mut self, cursor: Cursor) -> Result<()> {
        self.load_state_with(cursor, OnChange::Error)
    }

    /// As [`load_state`](Self::load_state), with a choice for data that changed since `cursor` was saved: files added,
    /// removed or replaced. A copy of the data, or other times and inodes, are no change.
    ///
    /// # Errors
    /// As [`load_state`](Self::load_state); with [`OnChange::NextEpoch`] and [`OnChange::Remap`] for what a change of the
    /// data does not explain: another seed, shuffle, mix or bucketing. `Gone` where the catalog of data that the epoch was
    /// begun with is not kept: with [`OnChange::Remap`], and for a state that was saved after such a remap in its epoch.
    pub fn load_state_with(&mut self, cursor: Cursor, on_change: OnChange) -> Result<()> {
        let has_other_lengths = self.plan.fingerprint().has_other_lengths(&cursor.fingerprint);
        let cursor = match self.plan.is_of_same_data(&cursor) {
            true if has_other_lengths && on_change == OnChange::NextEpoch => {
                self.after_change(cursor, on_change)? // of the same files, whose durations another release reads differently
            }
            true => cursor,
            false => self.after_change(cursor, on_change)?,
        };
        let pipeline = self.pipeline_of(&cursor)?;
        self.restart(pipeline, cursor, self.rank)?;
        self.end_untold = false;
        Ok(())
    }

    /// The pipeline whose order `cursor` is of: with what is left of its epoch, if that began with other data.
    fn pipeline_of(&self, cursor: &Cursor) -> Result<Pipeline> {
        let known = self.pipeline.rest().map(|rest| (rest.epoch(), rest.carried()));
        match cursor.carried.is_empty() {
            true if known.is_none_or(|(epoch, _)| epoch < cursor.epoch) => Ok(self.pipeline.clone()),
            true => Ok(self.pipeline.carrying_nothing()),
            false if known == Some((cursor.epoch, cursor.carried.as_slice())) => Ok(self.pipeline.clone()),
            false => self.pipeline.carrying(cursor.epoch, cursor.carried.clone(), self.rank),
        }
    }

    /// The cursor to go on from, for one of data that changed since.
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
                let advice = "to finish its epoch with the samples that were left and are still there, load it with \
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
                Ok(self.plan.next_epoch_of(&cursor)?) // of which nothing was delivered
            }
            OnChange::Remap => {
                self.plan.fingerprint().check_settings(&cursor.fingerprint)?;
                tracing::warn!(
                    "the data set changed since the state was saved{}: epoch {} goes on with the samples that were left and \
                     are still there",
                    changes(),
                    cursor.epoch
                );
                let Cursor { fingerprint, epoch, position, ops, mut carried } = cursor;
                carried.push(Carried { fingerprint, position });
                Ok(Cursor { ops, carried, ..self.plan.cursor(epoch, Position(0)) })
            }
        }
    }

    /// Goes to the start of `epoch`, unless the next batch belongs to it anyway: so a resumed loader stays in place, and
    /// what is prefetched over an epoch's end is kept.
    ///
    /// # Errors
    /// `BadConfig` for an epoch at or beyond the pipeline's last.
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

    /// Goes to step `step` of `epoch`.
    ///
    /// # Errors
    /// `BadConfig` for a step that the epoch does not have; the loader stays where it was.
    pub fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.load_state(self.plan.cursor(epoch, self.position_of(epoch, step)?))
    }

    /// Takes another share, from the same place in the order: after the world was resized, or for another batch size.
    ///
    /// # Errors
    /// As [`Pipeline::loader`]; the loader stays as it was.
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

    /// Ends what runs, and gives its memory back but that of batches still held, and the place of fixed addresses, which
    /// stay; the next batch starts it again, where it was.
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

    /// The sample ids of every rank's batch at step `step` of `epoch`, padding included.
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
                format!("epoch {epoch} has {steps} steps, so none of number {step}"),
            )
        })
    }

    /// Batches in the whole of `epoch`, the same on all ranks; in all epochs as many, unless bounded by a total.
    pub fn steps_in(&self, epoch: u64) -> u64 {
        self.steps_after(&self.plan.cursor(epoch, Position(0)))
    }

    /// Batches from the place of `cursor` to the end of its epoch.
    pub fn steps_after(&self, cursor: &Cursor) -> u64 {
        match self.is_over(cursor.epoch) {
            true => 0,
            false => self.plan.steps_left(cursor.epoch, cursor.position, &self.shape),
        }
    }

    /// Whether an epoch never ends: a mix without end.
    pub fn is_endless(&self) -> bool {
        self.plan.is_endless()
    }

    /// Whose share it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How an epoch is cut into steps.
    pub fn shape(&self) -> &StepShape {
        &self.shape
    }

    /// Where batches arrive: host memory, too, where a device was asked for and there is none.
    pub fn place(&self) -> Place {
        self.device.as_ref().map_or(Place::Host, OpenedDevice::place)
    }

    /// The pipeline, with the current batch size.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The current run, for its ledger and reports; `None` before anything was asked for and after a jump.
    pub fn run(&self) -> Option<&RankIterator> {
        self.run.as_ref()
    }

    /// The ledger of the run under way: see [`RankIterator::ledger`].
    pub fn ledger(&self) -> Option<Ledger> {
        self.run.as_ref().map(RankIterator::ledger)
    }

    /// What the run under way has done.
    pub fn stats(&self) -> Option<RankStats> {
        self.run.as_ref().map(RankIterator::stats)
    }

    /// Samples skipped since the loader was made.
    pub fn skip_report(&self) -> SkipReport {
        let mut report = self.skips.clone();
        if let Some(run) = &self.run {
            report.merge(run.skip_report().clone());
        }
        report
    }

    /// What decoders warned of in the samples delivered since the loader was made.
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
