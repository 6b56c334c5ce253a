//! One stream of rows: a run of the engine over some strands, whose finished steps wait to be sent.
//!
//! ```text
//! places (request.places) ─▶ engine ─▶ Ready ─▶ next() ─▶ FinishedRows ──sent, dropped──▶ the place is free again
//! ```
//! So a rank that does not read stops the engine after as many steps as there are places.

use crate::memory::pages::Pages;
use crate::memory::row::{RowBuffers, RowMemory};
use crate::memory::slab::RowSlab;
use crate::run::handle::{Offers, Run};
use crate::run::job::{Destination, Finished, Map, Sink};
use crate::run::ready::Ready;
use crate::wire::RowHead;
use crate::{Error, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::Step;
use feedstock_ops::{RaggedRow, TensorSpec, Warnings};
use futures::future::BoxFuture;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The finished rows of one step, on their way out.
pub(crate) struct FinishedRows {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    pub(crate) heads: Vec<RowHead>,
    pub(crate) columns: RecordBatch,
    pub(crate) body: Box<dyn Body>,
}

/// The bytes of finished rows.
pub(crate) trait Body: Send + Sync {
    /// Those of one row in one mapped column; of rows that did not fail only.
    fn part(&self, row: usize, column: usize) -> &[u8];
}

/// What is sent: steps in order, for as long as there are any.
pub(crate) trait Lane: Send {
    /// The tensors of a row.
    fn specs(&self) -> &[TensorSpec];
    /// The next step's rows; `None` after the last. Nothing is lost if the wait is given up.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<FinishedRows>>>;
}

/// A lane that the engine makes.
pub(crate) struct EngineLane {
    specs: Arc<[TensorSpec]>,
    ready: Arc<Ready<Finished<LaneMemory>>>,
    run: Run<LaneMemory>,
    /// Counts what was made.
    samples: Arc<AtomicU64>,
    /// Given back with the lane.
    _reserved: Box<dyn Send>,
}

impl EngineLane {
    /// Starts it with `start`, which runs the engine into the given sink. `reserved` is held as long as the lane.
    pub(crate) fn start(
        maps: &[Map],
        places: u32,
        reserved: Box<dyn Send>,
        samples: Arc<AtomicU64>,
        start: impl FnOnce(Arc<dyn Sink<LaneMemory>>) -> Result<Run<LaneMemory>>,
    ) -> Result<Self> {
        let specs: Arc<[TensorSpec]> = maps.iter().map(|map| map.chain.output().clone()).collect();
        let ready = Arc::new(Ready::default());
        let run = start(ready.clone() as Arc<dyn Sink<LaneMemory>>)?;
        let (offers, buffers) = (run.offers(), Arc::new(RowBuffers::default()));
        for _ in 0..places {
            offers.offer(LaneMemory::new(specs.clone(), buffers.clone())?);
        }
        Ok(Self { specs, ready, run, samples, _reserved: reserved })
    }
}

impl Lane for EngineLane {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<FinishedRows>>> {
        Box::pin(async move {
            let finished = poll_fn(|cx| self.ready.poll(cx)).await;
            let Some(finished) = finished.transpose()? else { return Ok(None) };
            self.samples.fetch_add(finished.step.rows.len() as u64, Ordering::Relaxed);
            Ok(Some(rows(finished, self.run.offers())))
        })
    }
}

fn rows(finished: Finished<LaneMemory>, offers: Offers<LaneMemory>) -> FinishedRows {
    let Finished { step, columns, destination: place, failures, warnings, .. } = finished;
    let Step { epoch, position, rows, .. } = step;
    let mut heads: Vec<RowHead> = rows
        .iter()
        .enumerate()
        .map(|(row, planned)| RowHead {
            sample: planned.sample,
            failure: None,
            warnings: Warnings::default(),
            lengths: place.lengths(row),
        })
        .collect();
    for (row, error) in failures {
        heads[row].failure = Some(error);
    }
    for (row, warnings) in warnings {
        heads[row].warnings = warnings;
    }
    let body = Box::new(Sent { place: Some(place), offers });
    FinishedRows { epoch, position: position.0, heads, columns, body }
}

/// A place whose rows are being sent; it is offered again when they are.
struct Sent {
    place: Option<LaneMemory>,
    offers: Offers<LaneMemory>,
}

impl Body for Sent {
    fn part(&self, row: usize, column: usize) -> &[u8] {
        self.place.as_ref().map_or(&[], |place| place.part(row, column))
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.offers.offer(place);
        }
    }
}

/// Memory for one step's rows.
pub(crate) struct LaneMemory(RowSlab<Pages>);

impl LaneMemory {
    pub(crate) fn new(specs: Arc<[TensorSpec]>, buffers: Arc<RowBuffers>) -> Result<Self> {
        Ok(Self(RowSlab::new(specs, buffers, pages(0)?)))
    }

    /// The lengths of a row, by ragged column.
    fn lengths(&self, row: usize) -> Vec<usize> {
        let ragged = self.0.specs().iter().enumerate().filter(|(_, spec)| spec.is_ragged());
        ragged.map(|(column, _)| self.0.ragged(row, column).map_or(0, RaggedRow::length)).collect()
    }

    /// The bytes of a row in a column, once the step is finished.
    pub(crate) fn part(&self, row: usize, column: usize) -> &[u8] {
        self.0.bytes(row, column)
    }
}

fn pages(bytes: usize) -> Result<Arc<Pages>> {
    let message = || format!("no memory for {bytes} bytes of finished rows; ask for smaller steps");
    Pages::new(bytes).map(Arc::new).ok_or_else(|| Error::config(message()))
}

impl Destination for LaneMemory {
    fn begin(&mut self, rows: usize) -> Result<()> {
        self.0.begin(rows, pages)
    }

    fn take_row(&mut self, row: usize) -> RowMemory {
        self.0.take_row(row)
    }

    fn give_row(&mut self, row: usize, memory: RowMemory) {
        self.0.give_row(row, memory);
    }
}
