//! One step being written: its rows run on the pool, the last one to finish completes it.

use crate::memory::row::{RowMemory, RowPlace};
use crate::pool::Task;
use crate::run::columns::gather;
use crate::run::images::write_images;
use crate::run::job::{Destination, Finished, Map, Sink};
use crate::run::joint::{DrawnCrop, Fault, check_size, write_annotation};
use crate::run::large::{Loan, too_large};
use crate::run::row_indexes::RunRowIndexes;
use crate::run::share::Sharing;
use crate::run::stats::{RunStatus, add_time};
use crate::run::watchdog::AtWork;
use crate::value::{unusable, value};
use crate::{Error, ErrorKind, Result, SampleContext};
use arrow::datatypes::SchemaRef;
use feedstock_dataset::{Block, Catalog, PlannedRow, Step};
use feedstock_ops::{SampleSeed, Scratch, Warnings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// What all steps of a run have in common.
pub(crate) struct Context<D: Destination> {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) maps: Vec<Map>,
    /// The columns that no map consumes.
    pub(crate) columns: SchemaRef,
    pub(crate) seed: u64,
    /// Working memory of a thread for one sample, and the most of a sample.
    pub(crate) decoder_memory: u64,
    pub(crate) sample_bytes: u64,
    /// Where the rows of images begin, as earlier epochs have noted.
    pub(crate) rows: Option<RunRowIndexes>,
    /// What other runs of the process make as well.
    pub(crate) sharing: Option<Sharing>,
    pub(crate) sink: Arc<dyn Sink<D>>,
    pub(crate) shared: Arc<RunStatus>,
    pub(crate) events: UnboundedSender<Event<D>>,
}

/// What wakes the driver.
pub(crate) enum Event<D: Destination> {
    /// The caller lends a place. Bounded by the caller's slots.
    Offered(D),
    /// All rows of this step are written. Bounded by the running steps.
    StepDone(u64),
    /// A row needs more working memory than its thread has. Bounded by the rows of the running steps, as are the next two.
    Parked(Parked<D>),
    /// All rows of a step that are left wait for memory.
    Stalled,
    /// A row gives back these bytes of the budget.
    Returned(u64),
}

/// A step under way.
pub(crate) struct RunningStep<D: Destination> {
    context: Arc<Context<D>>,
    pub(crate) index: u64,
    pub(crate) step: Step,
    left: AtomicUsize,
    /// Rows that wait for memory; see `large.rs`.
    parked: AtomicUsize,
    at_work: AtWork,
    parts: Mutex<RunningParts<D>>,
}

struct RunningParts<D> {
    destination: Option<D>,
    /// Where each row came from, for the columns that ride along.
    sources: Vec<Option<(Arc<Block>, usize)>>,
    failures: Vec<(usize, Error)>,
    warnings: Vec<(usize, Warnings)>,
}

impl<D: Destination> RunningStep<D> {
    pub(crate) fn new(context: Arc<Context<D>>, index: u64, step: Step, destination: D) -> Arc<Self> {
        let rows = step.rows.len();
        let parts = RunningParts {
            destination: Some(destination),
            sources: vec![None; rows],
            failures: Vec::new(),
            warnings: Vec::new(),
        };
        let (left, parked, at_work) = (AtomicUsize::new(rows), AtomicUsize::new(0), AtWork::default());
        Arc::new(Self { context, index, step, left, parked, at_work, parts: Mutex::new(parts) })
    }

    /// Rows not yet written.
    pub(crate) fn rows_left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// Takes the step back before it is complete; `rows` are all rows that are left, and wait. Returns its place.
    pub(crate) fn withdraw(&self, rows: Vec<Parked<D>>) -> Option<D> {
        assert_eq!(rows.len(), self.rows_left(), "a step is withdrawn while its rows are at work");
        let mut parts = self.parts();
        let mut destination = parts.destination.take();
        drop(parts);
        for mut parked in rows {
            if let (Some(destination), Some(memory)) = (&mut destination, parked.guard.memory.take()) {
                destination.give_row(parked.guard.row, memory);
            }
        }
        destination
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
        let guard = RowGuard { running: self.clone(), row, memory, outcome: None, is_parked: false };
        let source = BlockRow { block, block_row };
        Box::new(move |scratch| guard.run(source, None, scratch))
    }

    fn parts(&self) -> MutexGuard<'_, RunningParts<D>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // every change is a single push or store
    }

    fn write(
        &self,
        row: usize,
        memory: Option<&mut RowMemory>,
        source: &BlockRow,
        lent_bytes: u64,
        scratch: &mut Scratch,
    ) -> Result<Wrote> {
        let Some(memory) = memory else {
            return Err(Error::new(ErrorKind::Bug, "a row was started after its step was complete"));
        };
        let planned = &self.step.rows[row];
        let epoch = ops_epoch(self.step.epoch, planned);
        let seed = row_seed(self.context.seed, self.step.epoch, planned);
        let sharing = self.context.sharing.as_ref();
        if sharing.is_some_and(|sharing| sharing.take(epoch, planned.sample, memory)) {
            return Ok(Wrote::All);
        }
        let Context { decoder_memory, sample_bytes, .. } = *self.context;
        scratch.keep_at_most(decoder_memory);
        scratch.allow(decoder_memory.saturating_add(lent_bytes).min(sample_bytes));
        scratch.take_warnings(); // of a sample that failed
        let (maps, of) = (&self.context.maps, (&source.block.rows, source.block_row));
        let mut crop = DrawnCrop::default();
        for (index, map) in maps.iter().enumerate() {
            let name = || match self.context.maps.len() {
                1 => self.name(row),
                _ => format!("{}, column '{}'", self.name(row), map.column),
            };
            let about_column = |column: &str, error: Error| {
                error.with_sample(SampleContext {
                    sample: planned.sample,
                    uri: self.context.catalog.sample_uri(planned.sample),
                    column: Some(column.to_owned()),
                })
            };
            let about = |error: Error| about_column(&map.column, error);
            let about_fault =
                |fault: Fault<'_>| about_column(fault.column, fault.error.context(self.name(row)));
            let seed = crop.seed_of(maps, map, of, seed).map_err(about_fault)?;
            if map.chain.annotates() {
                write_annotation(maps, map, of, seed, memory.column(index)?).map_err(about_fault)?;
                continue;
            }
            if map.views.as_ref().is_some_and(|views| !views.begins(index)) {
                continue; // made with the first of the views
            }
            let rows = self.context.rows.as_ref().and_then(|rows| rows.of(index));
            let written = if map.chain.reads_lists() {
                write_images(map, of, seed, scratch, memory.column(index)?)
            } else {
                let encoded = value(of.0, &map.column, of.1)
                    .map_err(|problem| about(unusable(format!("{}: {problem}", name()))))?;
                if let Some(partner) = map.partner.map(|partner| &maps[partner])
                    && let Ok(other) = value(of.0, &partner.column, of.1)
                {
                    check_size((map, encoded), (partner, other)).map_err(|e| about(e.context(name())))?;
                }
                if let Some((rows, column)) = rows {
                    let known = rows.get(column, planned.sample);
                    if known.is_some() || rows.has_room(planned.sample) {
                        scratch.note_rows(known);
                    }
                }
                match &map.views {
                    Some(views) => views.apply(encoded, seed, scratch, memory),
                    None => match memory.column(index)? {
                        RowPlace::Fixed(out) => map.chain.apply(encoded, seed, scratch, out),
                        RowPlace::Ragged(out) => map.chain.apply_ragged(encoded, seed, scratch, out),
                    },
                }
            };
            if let Some((rows, column)) = rows
                && let Some(index) = scratch.take_rows()
            {
                rows.put(column, planned.sample, &index);
            }
            match scratch.take_needed() {
                Some(needed) if needed > sample_bytes => {
                    return Err(about(too_large(&name(), needed, sample_bytes)));
                }
                Some(needed) => return Ok(Wrote::Needs(needed - decoder_memory)),
                None => written.map_err(|e| about(e.context(name())))?,
            }
        }
        memory.set_warnings(scratch.take_warnings());
        if let Some(sharing) = sharing {
            sharing.give(epoch, planned.sample, memory);
        }
        Ok(Wrote::All)
    }

    fn row_done(&self, row: usize, memory: Option<RowMemory>, outcome: Result<()>) {
        {
            let mut parts = self.parts();
            if let Err(error) = outcome {
                parts.failures.push((row, error));
            } else if let Some(warnings) = memory.as_ref().map(RowMemory::warnings).filter(|w| !w.is_empty())
            {
                parts.warnings.push((row, warnings));
            }
            if let (Some(destination), Some(memory)) = (&mut parts.destination, memory) {
                destination.give_row(row, memory);
            }
        }
        let left = self.left.fetch_sub(1, Ordering::SeqCst) - 1;
        if self.context.shared.stopped() {
            return;
        }
        if left == 0 {
            self.complete();
        } else if left == self.parked.load(Ordering::SeqCst) {
            // The driver may wait for it. No driver listens once the run is dropped.
            let _unheard = self.context.events.send(Event::Stalled);
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
        // Here, and not row by row: a step that is withdrawn would take them back.
        let shared = &self.context.shared;
        shared.samples.fetch_add(self.step.rows.len() as u64, Ordering::Relaxed);
        shared.bad_samples.fetch_add(failures.len() as u64, Ordering::Relaxed);
        failures.sort_by_key(|(row, _)| *row);
        warnings.sort_by_key(|(row, _)| *row);
        let sources: Vec<(Arc<Block>, usize)> = sources.into_iter().flatten().collect();
        assert_eq!(sources.len(), self.step.rows.len(), "every row has been started");
        match gather(&sources, &self.context.columns) {
            Ok(columns) => {
                let step = self.step.clone();
                let finished = Finished { index: self.index, step, columns, destination, failures, warnings };
                shared.steps.fetch_add(1, Ordering::Relaxed);
                self.context.sink.finished(finished);
            }
            Err(error) => self.context.sink.failed(self.index, error),
        }
        // No driver listens once the run is dropped.
        let _unheard = self.context.events.send(Event::StepDone(self.index));
    }
}

/// Where the bytes of a row are.
struct BlockRow {
    block: Arc<Block>,
    block_row: usize,
}

/// What became of a row.
enum Wrote {
    All,
    /// It needs this many bytes of working memory in addition to what a thread has.
    Needs(u64),
}

/// A row that waits for memory. It is given up when this is dropped, for example because its step failed.
pub(crate) struct Parked<D: Destination> {
    guard: RowGuard<D>,
    source: BlockRow,
    /// What it needs beyond the thread's own.
    pub(crate) bytes: u64,
}

impl<D: Destination> Parked<D> {
    /// Its step and row.
    pub(crate) fn place(&self) -> (u64, usize) {
        (self.guard.running.index, self.guard.row)
    }

    /// Its sample, as people find it.
    pub(crate) fn name(&self) -> String {
        self.guard.running.name(self.guard.row)
    }

    /// The task that writes it with what it was lent.
    pub(crate) fn task(self, loan: Loan) -> Task {
        let Self { mut guard, source, .. } = self;
        guard.is_parked = false;
        guard.running.parked.fetch_sub(1, Ordering::SeqCst);
        Box::new(move |scratch| guard.run(source, Some(loan), scratch))
    }
}

/// Counts a row down whatever becomes of its task, a panic included.
struct RowGuard<D: Destination> {
    running: Arc<RunningStep<D>>,
    row: usize,
    memory: Option<RowMemory>,
    outcome: Option<Result<()>>,
    /// It waits for memory. If it is dropped then, its step was given up.
    is_parked: bool,
}

impl<D: Destination> RowGuard<D> {
    fn run(mut self, source: BlockRow, loan: Option<Loan>, scratch: &mut Scratch) {
        let shared = &self.running.context.shared;
        if shared.stopped() {
            self.outcome = Some(Ok(()));
            return;
        }
        let begun = Instant::now();
        self.running.at_work.begin(self.row, begun);
        let lent_bytes = loan.as_ref().map_or(0, Loan::bytes);
        let outcome = self.running.write(self.row, self.memory.as_mut(), &source, lent_bytes, scratch);
        add_time(&shared.ops_ns, begun);
        match outcome {
            Ok(Wrote::All) => self.outcome = Some(Ok(())),
            Err(error) => self.outcome = Some(Err(error)),
            Ok(Wrote::Needs(bytes)) => self.park(source, bytes),
        }
    }

    /// Hands the row to the driver.
    fn park(mut self, source: BlockRow, bytes: u64) {
        self.is_parked = true;
        self.running.at_work.end(self.row, Instant::now());
        let events = self.running.context.events.clone();
        self.running.parked.fetch_add(1, Ordering::SeqCst);
        // No driver listens once the run is dropped.
        let _unheard = events.send(Event::Parked(Parked { guard: self, source, bytes }));
    }
}

impl<D: Destination> Drop for RowGuard<D> {
    fn drop(&mut self) {
        if self.is_parked {
            return;
        }
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

/// The epoch that ops see: passes of a mix are epochs of their parts, the first of which keeps the epoch's own randomness.
fn ops_epoch(epoch: u64, row: &PlannedRow) -> u64 {
    epoch ^ row.pass.rotate_left(u32::BITS)
}

/// Returns the seed of a planned row, in a job seeded with `seed`. It is the same for all columns. Chains add what sets their column's
/// draws apart ([`Chain::seed`](feedstock_ops::Chain::seed)), and so do finishes on devices.
///
/// ```
/// use feedstock_dataset::{BlockId, Lane, PlannedRow, Position, SampleId};
/// use feedstock_ingest::row_seed;
///
/// let row = PlannedRow {
///     position: Position(3), sample: SampleId(9), block: BlockId(0), row: 9, pass: 0, lane: Lane(0), turn: 0, valid: true,
/// };
/// let elsewhere = PlannedRow { position: Position(700), lane: Lane(5), ..row };
/// assert_eq!(row_seed(7, 0, &row), row_seed(7, 0, &elsewhere)); // the place of a sample does not count,
/// assert_ne!(row_seed(7, 0, &row), row_seed(7, 0, &PlannedRow { pass: 1, ..row })); // but a repetition does
/// ```
pub fn row_seed(seed: u64, epoch: u64, row: &PlannedRow) -> SampleSeed {
    SampleSeed::new(seed, ops_epoch(epoch, row), row.sample.0)
}
