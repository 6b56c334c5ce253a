//! The rank's iterator: batches in step order, epoch by epoch, and the state to go on from.

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
use feedstock_ingest::{Job, Popped, Ready, Run, Sink, Stats, Waiting};
use futures::Stream;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A wait this long is logged, once for each batch.
pub(crate) const SLOW_WAIT: Duration = Duration::from_secs(10);

/// In a mix without end, a fraction of skipped samples is one of those delivered so far and of this many: early ones
/// must not count for more than they would in an epoch of 10,000.
const ENDLESS_GRACE: u64 = 10_000;

/// One rank's batches: a blocking iterator and a `Stream`.
///
/// It yields the batches of one epoch, then `None`; iterating again goes on with the next epoch. Every rank yields
/// the same number of batches. An error ends the epoch: it is yielded once, then `None`, and again if iterated again;
/// all but a wait past the deadline, after which the batch may still come.
pub struct RankIterator {
    /// Before the run, so that it ends first: it holds slots.
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
    /// The positions that the ledger covers: an epoch from 0 on, unless resumed in its middle.
    ledger_range: Range<Position>,
    phase: Phase,
    skips: SkipReport,
    warnings: WarningReport,
    /// By mapped column: elements along the padded axis that are samples' own, and all.
    padding: Vec<(u64, u64)>,
    on_error: OnError,
    skipped_before: (u64, u64),
    slots: usize,
    deadline: Duration,
    waited: Duration,
    /// The part of the caller's waits that [`add_function_wait`](Self::add_function_wait) recorded.
    waited_for_functions: Duration,
    /// Of the batch that is waited for: the time inside calls so far, not that between them.
    waiting: Duration,
    /// The same for the stream, which is polled.
    polled_since: Option<Instant>,
    has_warned_of_slow_wait: bool,
}

/// Where the iteration is.
#[derive(Debug)]
enum Phase {
    /// Batches of the epoch are left, or the epoch was not begun.
    Batches,
    /// The epoch's last batch was handed out; its end was not.
    EpochEnd,
    /// The run has failed. `None` and the error are returned in turns.
    Failed { error: Error, is_none_next: bool },
}

/// What can be returned without a wait.
enum Settled {
    EpochEnd,
    Failed(Error),
}

/// What a rank keeps of its pipeline's settings.
pub(crate) struct Settings {
    pub(crate) slots: usize,
    pub(crate) on_error: OnError,
    pub(crate) deadline: Duration,
    /// The hash of the chains, kept in cursors.
    pub(crate) ops: u64,
    /// The forms of columns of numbers.
    pub(crate) nulls: Arc<[NullRule]>,
    /// An epoch, and samples skipped in it by earlier runs of the same loader: they count towards its limit.
    pub(crate) skipped: (u64, u64),
}

/// What a rank's pipeline has done so far.
#[derive(Debug, Clone, Copy)]
pub struct RankStats {
    /// The engine's counts.
    pub engine: Stats,
    /// Time that the caller waited for batches, the wait under way included.
    pub waited: Duration,
    /// The part of it that the caller waited for its own functions on batches that it had taken already: see
    /// [`RankIterator::add_function_wait`]. More workers do not shorten it.
    pub waited_for_functions: Duration,
    /// Batches ready now.
    pub ready: usize,
    /// Slots held by the caller now; with a device, its buffers.
    pub held: usize,
    /// Slots in all; with a device, its buffers.
    pub slots: usize,
}

impl RankIterator {
    pub(crate) fn start(
        job: Job,
        columns: Vec<Column>,
        settings: &Settings,
        route: BatchRoute,
        run: impl FnOnce(Job, Arc<dyn Sink<Slot>>) -> Result<Run<Slot>>,
    ) -> Result<Self> {
        let Settings { slots, on_error, deadline, ops, skipped, .. } = *settings;
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
            Error::new(ErrorKind::BadConfig, "a batch has more rows than memory has addresses")
        })?;
        let BatchRoute { allocator, stage } = route;
        // All of them before any is offered: page-locked memory may not suffice for as many.
        let made = make_slots(&columns, &allocator, rows, slots)?;
        let slots = made.len();
        let run = run(job, assembler.clone() as Arc<dyn Sink<Slot>>)?;
        home.open(run.offers());
        made.into_iter().for_each(|slot| home.offer(slot));
        let stage = stage.map(|(opened, work)| Stage::start(assembler.clone(), opened, work)).transpose()?;
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
            padding: vec![(0, 0); columns.len()],
            on_error,
            skipped_before: skipped,
            slots,
            deadline,
            waited: Duration::ZERO,
            waited_for_functions: Duration::ZERO,
            waiting: Duration::ZERO,
            polled_since: None,
            has_warned_of_slow_wait: false,
        })
    }

    /// The cursor after the batches that were handed out; those only prefetched do not count.
    ///
    /// At an epoch's end it points at the next epoch, so that no run resumes into an empty one.
    pub fn state(&self) -> Cursor {
        let (epoch, position) = next_step(&self.plan, &self.shape, self.epoch, self.position);
        self.plan.cursor(epoch, position).with_ops(self.ops)
    }

    /// The epoch that the next batch belongs to (at an epoch's end: the one just finished).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Batches left in this epoch; 0 once the last of all epochs is over. Where batches are bounded by a total, the
    /// first call in an epoch walks its plan: about 0.2 µs a sample.
    pub fn steps_left(&self) -> u64 {
        match self.end_epoch.is_some_and(|end| self.epoch >= end) {
            true => 0,
            false => self.plan.steps_left(self.epoch, self.position, &self.shape),
        }
    }

    /// Batches in the whole of this epoch; all epochs have as many, unless batches are bounded by a total.
    pub fn steps_per_epoch(&self) -> u64 {
        self.plan.steps_left(self.epoch, Position(0), &self.shape)
    }

    /// The ledger of the current epoch up to the last batch, or of the epoch just finished. Computing the planned
    /// side walks the plan: about 0.1 µs a sample.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        let mut order = self.plan.epoch(self.ledger.epoch);
        let Range { start, end } = self.ledger_range;
        for step in order.steps(start, &self.shape).take_while(|step| step.position < end) {
            step.rows.iter().filter(|row| row.valid).for_each(|row| ledger.planned.add(row.sample));
        }
        ledger
    }

    /// Samples skipped so far.
    pub fn skip_report(&self) -> &SkipReport {
        &self.skips
    }

    /// What decoders warned of in the batches so far.
    pub fn warning_report(&self) -> &WarningReport {
        &self.warnings
    }

    /// The share of tensor `output` that was padding in the batches so far, 0.0 to 1.0; `None` where its rows are equal
    /// by nature, or nothing was delivered. What bucketing by length is for.
    pub fn padding_share(&self, output: &str) -> Option<f64> {
        let index = self.assembler.columns.iter().position(|column| column.name == output)?;
        let (own, all) = self.padding[index];
        (all > 0).then(|| 1.0 - own as f64 / all as f64)
    }

    /// What has been done so far.
    pub fn stats(&self) -> RankStats {
        let ready = self.ready().len();
        let lent = self.stage.as_ref().and_then(Stage::lent);
        let (held, slots) =
            lent.unwrap_or_else(|| (self.assembler.home.leased().saturating_sub(ready), self.slots));
        let waited_for_functions = self.waited_for_functions;
        let waited = self.waited + self.waiting + waited_for_functions;
        RankStats { engine: self.run.stats(), waited, waited_for_functions, ready, held, slots }
    }

    /// Batches as the caller gets them, in step order.
    fn ready(&self) -> &Ready<Assembled> {
        self.stage.as_ref().map_or(&self.assembler.ready, Stage::output)
    }

    /// What the next batch waits for.
    pub fn waiting(&self) -> Waiting {
        self.run.waiting()
    }

    /// Once an epoch's last batch was handed out, goes on to the next epoch without yielding the `None` that marks its
    /// end, for callers who count batches; true if it did.
    pub fn begin_epoch(&mut self) -> bool {
        if !self.is_epoch_done() {
            return false;
        }
        self.phase = Phase::Batches;
        self.epoch += 1;
        self.position = Position(0);
        true
    }

    /// As [`Iterator::next`], but waits no longer than `timeout`: for callers who have to look up now and then, at
    /// signals for instance. Successive calls are one wait, to which the deadline applies.
    ///
    /// # Errors
    /// As the iterator's.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Next> {
        match self.settled() {
            Some(Settled::EpochEnd) => return Ok(Next::EpochEnd),
            Some(Settled::Failed(error)) => return Err(error),
            None => {}
        }
        let begun = Instant::now();
        let left = self.deadline.saturating_sub(self.waiting);
        let popped = self.ready().pop(left.min(timeout));
        self.waiting += begun.elapsed();
        match popped {
            Popped::TimedOut if self.waiting < self.deadline => {
                if self.waiting >= SLOW_WAIT {
                    self.warn_of_slow_wait();
                }
                Ok(Next::Pending)
            }
            Popped::TimedOut => {
                self.waited += std::mem::take(&mut self.waiting);
                Err(self.overdue()) // not final: the batch may still come
            }
            popped => self.taken(popped),
        }
    }

    /// As [`next_within`](Self::next_within), for a caller that takes batches ahead while its own functions run on earlier
    /// ones: the wait is not one for this batch, so it counts neither as waited nor towards the deadline.
    ///
    /// # Errors
    /// As the iterator's, but for the deadline.
    pub fn next_ahead(&mut self, timeout: Duration) -> Result<Next> {
        match self.settled() {
            Some(Settled::EpochEnd) => return Ok(Next::EpochEnd),
            Some(Settled::Failed(error)) => return Err(error),
            None => {}
        }
        let popped = self.ready().pop(timeout);
        self.taken(popped)
    }

    /// Counts `time` as waited: the caller waited so long for its own functions on batches that it had taken ahead.
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

    /// Whether it failed for good: it only returns the error again.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. })
    }

    /// Whether the epoch's last batch was handed out, and its end not yet.
    pub(crate) fn is_epoch_done(&self) -> bool {
        matches!(self.phase, Phase::EpochEnd)
    }

    /// Returns what needs no wait, if the iteration is there.
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
            "{count} of this rank's {planned} samples of epoch {} could not be decoded, over on_error=skip's \
             max_fraction of {max_fraction}; repair the data or raise it. The last: {last}",
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

    fn overdue(&self) -> Error {
        let RankStats { held, slots, .. } = self.stats();
        let advice = match held >= slots {
            true if self.stage.as_ref().is_some_and(|stage| stage.lent().is_some()) => format!(
                "all {slots} device buffers are held by batches that were not dropped; drop them or raise the depth"
            ),
            true => {
                format!(
                    "all {slots} slots are held by batches that were not dropped; drop them or raise slots"
                )
            }
            false => self.run.waiting().to_string(),
        };
        let message = format!(
            "rank {} waited {:.1} s for the batch at position {} of epoch {}: {advice}",
            self.shape.rank,
            self.deadline.as_secs_f64(),
            self.position,
            self.epoch
        );
        Error::new(ErrorKind::Retryable, message)
    }

    fn warn_of_slow_wait(&mut self) {
        if !std::mem::replace(&mut self.has_warned_of_slow_wait, true) {
            let (waiting, RankStats { held, slots, .. }) = (self.run.waiting(), self.stats());
            tracing::warn!(rank = %self.shape.rank, held, slots, "no batch for 10 s: {waiting}");
        }
    }
}

impl Iterator for RankIterator {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        block(|| self.next_within(SLOW_WAIT))
    }
}

/// Where the next step begins: here, or at the next epoch's start where nothing is left of this one, so that no run
/// begins with an empty epoch.
pub(crate) fn next_step(plan: &Plan, shape: &StepShape, epoch: u64, position: Position) -> (u64, Position) {
    match shape.has_step(plan.len_of(epoch), position) {
        true => (epoch, position),
        false => (epoch + 1, Position(0)),
    }
}

impl Stream for RankIterator {
    type Item = Result<Batch>;

    /// As [`Iterator::next`]; the deadline is the caller's (`tokio::time::timeout`).
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
