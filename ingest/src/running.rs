//! One step being written: its rows run on the pool, the last one to finish completes it.

use crate::driver::Event;
use crate::engine::{Destination, Finished, Map, Sink};
use crate::pool::Task;
use crate::row::{RowMemory, RowPlace};
use crate::share::Sharing;
use crate::stats::{Shared, add_time};
use crate::value::value;
use crate::watchdog::AtWork;
use crate::{Error, ErrorKind, Result, SampleContext};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use feedstock_dataset::{Block, Catalog, PlannedRow, Step, declared_array};
use feedstock_ops::{SampleSeed, Scratch, Warnings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// What all steps of a run have in common.
pub(crate) struct Context<D> {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) maps: Vec<Map>,
    /// The columns that no map consumes.
    pub(crate) columns: SchemaRef,
    pub(crate) seed: u64,
    /// What other runs of the process make as well.
    pub(crate) sharing: Option<Sharing>,
    pub(crate) sink: Arc<dyn Sink<D>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: UnboundedSender<Event<D>>,
}

/// A step under way.
pub(crate) struct Running<D> {
    context: Arc<Context<D>>,
    pub(crate) index: u64,
    pub(crate) step: Step,
    left: AtomicUsize,
    at_work: AtWork,
    parts: Mutex<Parts<D>>,
}

struct Parts<D> {
    destination: Option<D>,
    /// Where each row came from, for the columns that ride along.
    sources: Vec<Option<(Arc<Block>, usize)>>,
    failures: Vec<(usize, Error)>,
    warnings: Vec<(usize, Warnings)>,
}

impl<D: Destination> Running<D> {
    pub(crate) fn new(context: Arc<Context<D>>, index: u64, step: Step, destination: D) -> Arc<Self> {
        let rows = step.rows.len();
        let parts = Parts {
            destination: Some(destination),
            sources: vec![None; rows],
            failures: Vec::new(),
            warnings: Vec::new(),
        };
        let (left, at_work) = (AtomicUsize::new(rows), AtWork::default());
        Arc::new(Self { context, index, step, left, at_work, parts: Mutex::new(parts) })
    }

    /// Rows not yet written.
    pub(crate) fn rows_left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Warns, once, of each sample that has run for unusually long.
    pub(crate) fn warn_of_stuck(&self, now: Instant) {
        for (row, ran) in self.at_work.stuck(now) {
            tracing::warn!(
                "stuck: {} has run for {:.0} s and still runs; the limits of decode_image and decode_audio bound what a \
                 sample may cost",
                self.name(row),
                ran.as_secs_f64()
            );
        }
    }

    /// The row's sample, as people find it.
    fn name(&self, row: usize) -> String {
        let sample = self.step.rows[row].sample;
        format!("{} (sample {sample})", self.context.catalog.describe_sample(sample))
    }

    /// The task that writes `row` from row `block_row` of `block`.
    pub(crate) fn task(self: &Arc<Self>, row: usize, block: Arc<Block>, block_row: usize) -> Task {
        let memory = {
            // The catalog's word against the plan's: a block that brought other rows than it should never passes.
            let (found, planned) = (block.sample(block_row), self.step.rows[row].sample);
            assert!(
                found == planned && block_row < block.rows.num_rows(),
                "sample {planned} was planned, the block brought {found} of {} rows",
                block.rows.num_rows()
            );
            let mut parts = self.parts();
            parts.sources[row] = Some((block.clone(), block_row));
            parts.destination.as_mut().map(|destination| destination.take_row(row))
        };
        let guard = RowGuard { running: self.clone(), row, memory, outcome: None };
        Box::new(move |scratch| guard.run(&block, block_row, scratch))
    }

    fn parts(&self) -> MutexGuard<'_, Parts<D>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // every change is a single push or store
    }

    fn write(
        &self,
        row: usize,
        memory: Option<&mut RowMemory>,
        block: &Block,
        block_row: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Some(memory) = memory else {
            return Err(Error::new(ErrorKind::Bug, "a row was started after its step was complete"));
        };
        let planned = &self.step.rows[row];
        let epoch = ops_epoch(self.step.epoch, planned);
        let seed = row_seed(self.context.seed, self.step.epoch, planned);
        let sharing = self.context.sharing.as_ref();
        if sharing.is_some_and(|sharing| sharing.take(epoch, planned.sample, memory)) {
            return Ok(());
        }
        scratch.take_warnings(); // of a sample that failed
        for (index, map) in self.context.maps.iter().enumerate() {
            let name = || self.name(row);
            let about = |error: Error| {
                error.with_sample(SampleContext {
                    sample: planned.sample,
                    uri: self.context.catalog.sample_uri(planned.sample),
                    column: Some(map.column.clone()),
                })
            };
            let encoded = value(&block.rows, &map.column, block_row).map_err(|problem| {
                about(Error::new(
                    ErrorKind::BadSample,
                    format!("{}: {problem}; correct the file or set on_error=skip", name()),
                ))
            })?;
            let written = match memory.column(index) {
                RowPlace::Fixed(out) => map.chain.apply(encoded, seed, scratch, out),
                RowPlace::Ragged(out) => map.chain.apply_ragged(encoded, seed, scratch, out),
            };
            written.map_err(|e| about(e.context(name())))?;
        }
        memory.set_warnings(scratch.take_warnings());
        if let Some(sharing) = sharing {
            sharing.give(epoch, planned.sample, memory);
        }
        Ok(())
    }

    fn row_done(&self, row: usize, memory: Option<RowMemory>, outcome: Result<()>) {
        let shared = &self.context.shared;
        shared.samples.fetch_add(1, Ordering::Relaxed);
        {
            let mut parts = self.parts();
            if let Err(error) = outcome {
                shared.bad_samples.fetch_add(1, Ordering::Relaxed);
                parts.failures.push((row, error));
            } else if let Some(warnings) = memory.as_ref().map(RowMemory::warnings).filter(|w| !w.is_empty())
            {
                parts.warnings.push((row, warnings));
            }
            if let (Some(destination), Some(memory)) = (&mut parts.destination, memory) {
                destination.give_row(row, memory);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && !shared.stopped() {
            self.complete();
        }
    }

    fn complete(&self) {
        let (destination, sources, mut failures, mut warnings) = {
            let mut parts = self.parts();
            (
                parts.destination.take(),
                std::mem::take(&mut parts.sources),
                std::mem::take(&mut parts.failures),
                std::mem::take(&mut parts.warnings),
            )
        };
        let Some(destination) = destination else { return };
        failures.sort_by_key(|(row, _)| *row);
        warnings.sort_by_key(|(row, _)| *row);
        let sources: Vec<(Arc<Block>, usize)> = sources.into_iter().flatten().collect();
        assert_eq!(sources.len(), self.step.rows.len(), "every row has been started");
        match gather(&sources, &self.context.columns) {
            Ok(columns) => {
                let step = self.step.clone();
                let finished = Finished { index: self.index, step, columns, destination, failures, warnings };
                self.context.shared.steps.fetch_add(1, Ordering::Relaxed);
                self.context.sink.finished(finished);
            }
            Err(error) => self.context.sink.failed(self.index, error),
        }
        // Nobody listens once the run is dropped.
        let _unheard = self.context.events.send(Event::StepDone(self.index));
    }
}

/// Counts a row down whatever becomes of its task, a panic included.
struct RowGuard<D: Destination> {
    running: Arc<Running<D>>,
    row: usize,
    memory: Option<RowMemory>,
    outcome: Option<Result<()>>,
}

impl<D: Destination> RowGuard<D> {
    fn run(mut self, block: &Block, block_row: usize, scratch: &mut Scratch) {
        let shared = &self.running.context.shared;
        if shared.stopped() {
            self.outcome = Some(Ok(()));
            return;
        }
        let begun = Instant::now();
        self.running.at_work.begin(self.row, begun);
        let outcome = self.running.write(self.row, self.memory.as_mut(), block, block_row, scratch);
        add_time(&shared.ops_ns, begun);
        self.outcome = Some(outcome);
    }
}

impl<D: Destination> Drop for RowGuard<D> {
    fn drop(&mut self) {
        if let Some(ran) = self.running.at_work.end(self.row, Instant::now()) {
            let name = self.running.name(self.row);
            tracing::warn!("{name}, reported as stuck, has ended after {:.0} s", ran.as_secs_f64());
        }
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let name = self.running.name(self.row);
            Err(Error::new(ErrorKind::Bug, format!("{name}: an op panicked; please report it")))
        });
        self.running.row_done(self.row, self.memory.take(), outcome);
    }
}

/// Rows picked from several blocks, in order.
pub(crate) fn gather(sources: &[(Arc<Block>, usize)], columns: &SchemaRef) -> Result<RecordBatch> {
    let mut blocks: Vec<&Arc<Block>> = Vec::new();
    let mut indices = Vec::with_capacity(sources.len());
    for (block, row) in sources {
        // Rows come by lane, so a block repeats in runs and a backward search is short.
        let at = blocks.iter().rposition(|known| Arc::ptr_eq(known, block)).unwrap_or_else(|| {
            blocks.push(block);
            blocks.len() - 1
        });
        indices.push((at, *row));
    }
    let bug = |e: ArrowError| Error::new(ErrorKind::Bug, format!("cannot gather a batch's columns: {e}"));
    let arrays = columns.fields().iter().map(|field| {
        let parts: Vec<&dyn Array> = blocks
            .iter()
            .map(|block| block.rows.column_by_name(field.name()).map(|array| &**array))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::new(ErrorKind::Bug, format!("a block lacks column {}", field.name())))?;
        compact(interleave(&parts, &indices).map_err(bug)?, field.data_type())
    });
    let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(sources.len()));
    RecordBatch::try_new_with_options(columns.clone(), arrays, &options).map_err(bug)
}

/// A copy of the type `declared` that holds its own bytes: views would keep whole blocks alive beyond the budget. Blocks hold
/// texts as views, which are written out here.
fn compact(array: ArrayRef, declared: &DataType) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        held if held != declared => declared_array(&array, declared)?,
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        _ => array,
    })
}

/// The epoch that ops see: passes of a mix are epochs of their parts, the first of which keeps the epoch's own randomness.
fn ops_epoch(epoch: u64, row: &PlannedRow) -> u64 {
    epoch ^ row.pass.rotate_left(u32::BITS)
}

/// The seed of a planned row, in a job seeded with `seed`: the same for all columns. Chains add what sets their column's
/// draws apart ([`Chain::seed`](feedstock_ops::Chain::seed)), and so do finishes on devices.
pub fn row_seed(seed: u64, epoch: u64, row: &PlannedRow) -> SampleSeed {
    SampleSeed::new(seed, ops_epoch(epoch, row), row.sample.0)
}
