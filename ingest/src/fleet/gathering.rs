//! A step whose rows come from several streams into one place.

use crate::memory::row::RowMemory;
use crate::run::job::{Destination, Finished, Sink};
use crate::run::stats::RunStatus;
use crate::{Error, ErrorKind, Result};
use arrow::compute::interleave_record_batch;
use arrow::record_batch::RecordBatch;
use feedstock_dataset::Step;
use feedstock_ops::Warnings;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// What wakes the driver of a fleet's run.
pub(crate) enum FleetEvent<D> {
    /// The caller lends a place. Bounded by the caller's slots.
    Offered(D),
    /// All rows of this step are written. Bounded by the steps under way.
    StepDone(u64),
}

/// A step under way.
pub(crate) struct Gathering<D: Destination> {
    pub(crate) index: u64,
    pub(crate) step: Step,
    sink: Arc<dyn Sink<D>>,
    shared: Arc<RunStatus>,
    events: UnboundedSender<FleetEvent<D>>,
    parts: Mutex<GatheringParts<D>>,
    released: Notify,
}

struct GatheringParts<D> {
    destination: Option<D>,
    /// By row: its memory, while no stream writes it.
    memories: Vec<Option<RowMemory>>,
    written: Vec<bool>,
    left: usize,
    /// What rides along, and which rows it is of.
    columns: Vec<(Vec<usize>, RecordBatch)>,
    failures: Vec<(usize, Error)>,
    warnings: Vec<(usize, Warnings)>,
}

/// What becomes of rows that a stream brings.
pub(crate) enum Claim<D: Destination> {
    /// It may write them.
    Mine(Writing<D>),
    /// Another stream has written them.
    Written,
}

/// Rows that one stream writes: of those that it brings, the ones that no other has written. Dropped before they are done,
/// they are free for another.
pub(crate) struct Writing<D: Destination> {
    gathering: Arc<Gathering<D>>,
    rows: Vec<usize>,
    memories: Vec<Option<RowMemory>>,
}

impl<D: Destination> Gathering<D> {
    /// Takes all rows' memory from a place.
    pub(crate) fn new(
        index: u64,
        step: Step,
        mut destination: D,
        sink: Arc<dyn Sink<D>>,
        shared: Arc<RunStatus>,
        events: UnboundedSender<FleetEvent<D>>,
    ) -> Result<Arc<Self>> {
        let rows = step.rows.len();
        destination.begin(rows)?;
        let memories = (0..rows).map(|row| Some(destination.take_row(row))).collect();
        let parts = GatheringParts {
            destination: Some(destination),
            memories,
            written: vec![false; rows],
            left: rows,
            columns: Vec::new(),
            failures: Vec::new(),
            warnings: Vec::new(),
        };
        let (parts, released) = (Mutex::new(parts), Notify::new());
        Ok(Arc::new(Self { index, step, sink, shared, events, parts, released }))
    }

    /// The right to write `rows`, once no other stream has it.
    pub(crate) async fn claim(self: &Arc<Self>, rows: &[usize]) -> Claim<D> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if let Some(claim) = self.try_claim(rows) {
                return claim;
            }
            released.await;
        }
    }

    fn try_claim(self: &Arc<Self>, rows: &[usize]) -> Option<Claim<D>> {
        let mut parts = self.parts();
        if rows.iter().all(|&row| parts.written[row]) {
            return Some(Claim::Written);
        }
        if rows.iter().any(|&row| parts.memories[row].is_none() && !parts.written[row]) {
            return None; // another stream is at it
        }
        let memories = rows.iter().map(|&row| parts.memories[row].take()).collect();
        Some(Claim::Mine(Writing { gathering: self.clone(), rows: rows.to_vec(), memories }))
    }

    /// Whether some of the rows are there.
    pub(crate) fn has_begun(&self) -> bool {
        self.parts().left < self.step.rows.len()
    }

    fn parts(&self) -> MutexGuard<'_, GatheringParts<D>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // changes are stores and pushes
    }

    fn complete(&self) {
        let (destination, columns, mut failures, mut warnings) = {
            let mut parts = self.parts();
            (
                parts.destination.take(),
                std::mem::take(&mut parts.columns),
                std::mem::take(&mut parts.failures),
                std::mem::take(&mut parts.warnings),
            )
        };
        let Some(destination) = destination else { return };
        failures.sort_by_key(|(row, _)| *row);
        warnings.sort_by_key(|(row, _)| *row);
        match in_order(columns, self.step.rows.len()) {
            Ok(columns) => {
                self.shared.steps.fetch_add(1, Ordering::Relaxed);
                let (index, step) = (self.index, self.step.clone());
                self.sink.finished(Finished { index, step, columns, destination, failures, warnings });
            }
            Err(error) => self.sink.failed(self.index, error),
        }
        // No driver listens once the run is dropped.
        let _unheard = self.events.send(FleetEvent::StepDone(self.index));
    }
}

impl<D: Destination> Writing<D> {
    /// The memory of the `nth` of the brought rows; `None` where another stream has written it.
    pub(crate) fn memory(&mut self, nth: usize) -> Option<&mut RowMemory> {
        self.memories.get_mut(nth)?.as_mut()
    }

    /// All claimed rows are written, but for the failures, by their place among the brought ones.
    pub(crate) fn done(mut self, columns: RecordBatch, mut failures: Vec<(usize, Error)>) {
        let gathering = self.gathering.clone();
        let shared = &gathering.shared;
        failures.retain(|(nth, _)| self.memories[*nth].is_some());
        shared.bad_samples.fetch_add(failures.len() as u64, Ordering::Relaxed);
        let complete = {
            let mut parts = gathering.parts();
            for (&row, memory) in self.rows.iter().zip(self.memories.drain(..)) {
                let Some(memory) = memory else { continue };
                if !memory.warnings().is_empty() {
                    parts.warnings.push((row, memory.warnings()));
                }
                if let Some(destination) = &mut parts.destination {
                    destination.give_row(row, memory);
                }
                parts.written[row] = true;
                parts.left -= 1;
                shared.samples.fetch_add(1, Ordering::Relaxed);
            }
            parts.failures.extend(failures.into_iter().map(|(nth, error)| (self.rows[nth], error)));
            parts.columns.push((std::mem::take(&mut self.rows), columns));
            parts.left == 0
        };
        gathering.released.notify_waiters();
        if complete && !shared.stopped() {
            gathering.complete();
        }
    }
}

impl<D: Destination> Drop for Writing<D> {
    fn drop(&mut self) {
        if self.memories.is_empty() {
            return;
        }
        {
            let mut parts = self.gathering.parts.lock().unwrap_or_else(PoisonError::into_inner);
            for (&row, memory) in self.rows.iter().zip(self.memories.drain(..)) {
                if memory.is_some() {
                    parts.memories[row] = memory;
                }
            }
        }
        self.gathering.released.notify_waiters();
    }
}

/// Parts put together in the step's order.
fn in_order(parts: Vec<(Vec<usize>, RecordBatch)>, rows: usize) -> Result<RecordBatch> {
    let bug = |e: arrow::error::ArrowError| {
        Error::new(ErrorKind::Bug, format!("cannot put a step's columns together: {e}"))
    };
    let mut places = vec![(usize::MAX, 0); rows];
    for (part, (of, _)) in parts.iter().enumerate() {
        of.iter().enumerate().for_each(|(at, &row)| places[row] = (part, at));
    }
    assert!(places.iter().all(|(part, _)| *part < parts.len()), "every row came");
    let batches: Vec<&RecordBatch> = parts.iter().map(|(_, batch)| batch).collect();
    match &batches[..] {
        [one] => Ok((*one).clone()), // one stream's rows come in order
        [first, ..] if first.num_columns() == 0 => Ok(RecordBatch::try_new_with_options(
            first.schema(),
            Vec::new(),
            &arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(rows)),
        )
        .map_err(bug)?),
        _ => interleave_record_batch(&batches, &places).map_err(bug),
    }
}
