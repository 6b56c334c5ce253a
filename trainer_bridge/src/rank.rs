//! The rank's iterator: batches in step order, epoch by epoch, and the state to go on from.

use crate::batch::Batch;
use crate::ledger::Ledger;
use crate::policy::{OnError, SkipReport, Skipped};
use crate::sink::{Assembled, Assembler};
use crate::slots::{Home, Slot, SlotShape};
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Plan, Position, StepShape};
use feedstock_ingest::{Engine, Job, Popped, Ready, Run, Sink, Stats};
use futures::Stream;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A wait this long is told in the log, once a batch.
const SLOW_WAIT: Duration = Duration::from_secs(10);

/// One rank's batches: a blocking iterator and a `Stream`.
///
/// It yields the batches of one epoch, then `None`; iterating again goes on with the next epoch. Every rank yields
/// the same number of batches. An error ends the epoch: it is yielded once, then `None`, and again if iterated again;
/// all but a wait past the deadline, after which the batch may still come.
pub struct RankIterator {
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
    epoch_done: bool,
    error: Option<Error>,
    error_told: bool,
    skips: SkipReport,
    on_error: OnError,
    slots: usize,
    deadline: Duration,
    waited: Duration,
    waiting_since: Option<Instant>,
    told_slow: bool,
}

/// What a rank keeps of its pipeline's settings.
pub(crate) struct Settings {
    pub(crate) slots: usize,
    pub(crate) on_error: OnError,
    pub(crate) deadline: Duration,
    /// The hash of the chains, kept in cursors.
    pub(crate) ops: u64,
}

/// What a rank's pipeline has done so far.
#[derive(Debug, Clone, Copy)]
pub struct RankStats {
    /// The engine's counts.
    pub engine: Stats,
    /// Time that the caller waited for batches.
    pub waited: Duration,
    /// Batches ready now.
    pub ready: usize,
    /// Slots held by the caller now.
    pub held: usize,
    /// Slots in all.
    pub slots: usize,
}

impl RankIterator {
    pub(crate) fn start(engine: &Engine, job: Job, settings: &Settings) -> Result<Self> {
        let Settings { slots, on_error, deadline, ops } = *settings;
        let tensors: Vec<_> =
            job.maps.iter().map(|map| (map.column.clone(), map.chain.output().clone())).collect();
        let row_bytes: Vec<usize> = tensors.iter().map(|(_, spec)| spec.bytes()).collect();
        let shape = usize::try_from(job.shape.rows()).ok().and_then(|rows| SlotShape::new(rows, &row_bytes));
        let shape = Arc::new(shape.ok_or_else(|| {
            let message =
                format!("a batch of {} rows of {row_bytes:?} bytes has no place in memory", job.shape.rows());
            Error::new(ErrorKind::BadConfig, message)
        })?);
        let home = Arc::new(Home::default());
        let assembler =
            Arc::new(Assembler { ready: Ready::default(), home: home.clone(), on_error, tensors });
        let (plan, step_shape, epoch, position) = (job.plan.clone(), job.shape, job.epoch, job.position);
        let end_epoch = job.end_epoch;
        let run = engine.run(job, assembler.clone() as Arc<dyn Sink<Slot>>)?;
        home.open(run.offers());
        for slot in 0..slots {
            let place = Slot::new(shape.clone()).ok_or_else(|| {
                let message = format!(
                    "no memory for slot {slot} of {slots}, {} bytes each; lower the batch size or slots",
                    shape.bytes
                );
                Error::new(ErrorKind::BadConfig, message)
            })?;
            home.offer(place);
        }
        Ok(Self {
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
            epoch_done: false,
            error: None,
            error_told: false,
            skips: SkipReport::default(),
            on_error,
            slots,
            deadline,
            waited: Duration::ZERO,
            waiting_since: None,
            told_slow: false,
        })
    }

    /// The cursor after the batches that were handed out; those only prefetched do not count.
    ///
    /// At an epoch's end it points at the next epoch, so that no run resumes into an empty one.
    pub fn state(&self) -> Cursor {
        match self.shape.steps(self.plan.len(), self.position) {
            0 => self.plan.cursor(self.epoch + 1, Position(0)).with_ops(self.ops),
            _ => self.plan.cursor(self.epoch, self.position).with_ops(self.ops),
        }
    }

    /// The epoch that the next batch belongs to (at an epoch's end: the one just finished).
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Batches left in this epoch; 0 once the last of all epochs is over.
    pub fn steps_left(&self) -> u64 {
        match self.end_epoch.is_some_and(|end| self.epoch >= end) {
            true => 0,
            false => self.shape.steps(self.plan.len(), self.position),
        }
    }

    /// Batches in a whole epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.shape.steps(self.plan.len(), Position(0))
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

    /// What has been done so far.
    pub fn stats(&self) -> RankStats {
        let ready = self.assembler.ready.len();
        RankStats {
            engine: self.run.stats(),
            waited: self.waited,
            ready,
            held: self.assembler.home.leased().saturating_sub(ready),
            slots: self.slots,
        }
    }

    /// Before a wait: what can be answered without one.
    fn settled(&mut self) -> Option<Option<Result<Batch>>> {
        if let Some(error) = &self.error {
            self.error_told = !self.error_told;
            return Some(self.error_told.then(|| Err(error.clone())));
        }
        if self.epoch_done {
            self.epoch_done = false;
            self.epoch += 1;
            self.position = Position(0);
            return Some(None);
        }
        None
    }

    fn deliver(&mut self, assembled: Assembled) -> Result<Batch> {
        let Assembled { batch, skipped } = assembled;
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
        self.skips.add(skipped);
        self.position = batch.next;
        self.epoch_done = self.steps_left() == 0;
        Ok(batch)
    }

    fn check_skips(&self, batch: &Batch, skipped: &[Skipped]) -> Result<()> {
        let OnError::Skip { max_fraction } = self.on_error else { return Ok(()) };
        let planned = self.shape.rows() * self.steps_per_epoch();
        let before = if self.ledger.epoch == batch.epoch { self.ledger.substituted } else { 0 };
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
        self.error = Some(error.clone());
        self.error_told = true;
        Err(error)
    }

    fn received(&mut self, result: Result<Assembled>) -> Option<Result<Batch>> {
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
        self.told_slow = false;
        let batch = result.and_then(|assembled| self.deliver(assembled));
        Some(batch.or_else(|error| self.fail(error)))
    }

    fn overdue(&self) -> Error {
        let held = self.stats().held;
        let advice = match held >= self.slots {
            true => format!(
                "all {} slots are held by batches that were not dropped; drop them or raise slots",
                self.slots
            ),
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

    fn tell_slow(&mut self) {
        if !std::mem::replace(&mut self.told_slow, true) {
            let (waiting, held) = (self.run.waiting(), self.stats().held);
            tracing::warn!(rank = %self.shape.rank, held, slots = self.slots, "no batch for 10 s: {waiting}");
        }
    }
}

impl Iterator for RankIterator {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(answer) = self.settled() {
            return answer;
        }
        let begun = Instant::now();
        self.waiting_since = Some(begun);
        loop {
            let left = self.deadline.saturating_sub(begun.elapsed());
            match self.assembler.ready.pop(left.min(SLOW_WAIT)) {
                Popped::Item(assembled) => return self.received(Ok(assembled)),
                Popped::Failed(error) => return self.received(Err(error)),
                Popped::Ended => {
                    self.waiting_since = None;
                    return None;
                }
                Popped::TimedOut if begun.elapsed() < self.deadline => self.tell_slow(),
                Popped::TimedOut => {
                    self.waiting_since = None;
                    self.waited += begun.elapsed();
                    return Some(Err(self.overdue())); // not final: the batch may still come
                }
            }
        }
    }
}

impl Stream for RankIterator {
    type Item = Result<Batch>;

    /// As [`Iterator::next`]; the deadline is the caller's (`tokio::time::timeout`).
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(answer) = this.settled() {
            return Poll::Ready(answer);
        }
        this.waiting_since.get_or_insert_with(Instant::now);
        match this.assembler.ready.poll(cx) {
            Poll::Ready(Some(result)) => Poll::Ready(this.received(result)),
            Poll::Ready(None) => {
                this.waiting_since = None;
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
