//! The driver of a run: it walks the plan, fetches the blocks that the residency admits, starts steps for which there are
//! places, and evicts blocks. It is one task on the I/O threads, which never decodes and waits for events only. Planning costs
//! about 15 µs for a step of 256 rows, and 60 ms for an epoch of 10⁶ blocks.

mod fetching;
mod lending;
pub(crate) mod prefetch;

use crate::pool::{Turn, Turns};
use crate::run::columns::unmapped;
use crate::run::handle::Offers;
use crate::run::job::{Destination, Job, Sink};
use crate::run::large::{Extension, LoanRoom, ParkedRows, Spare, advice, shown_bytes};
use crate::run::planner::{PlannedStep, Planner};
use crate::run::residency::{NEVER, Refused, Residency};
use crate::run::row_indexes::{RowIndexes, RunRowIndexes};
use crate::run::running::{Context, Event, Parked, RunningStep};
use crate::run::share::Sharing;
use crate::run::stats::{RunStatus, Stage, Waiting};
use crate::run::watchdog::LOOK_EVERY;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Block, BlockReader, Extent};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Extents that a "waiting for storage" message names.
const NAMED_EXTENTS: usize = 3;

/// What the process gives to a run.
pub(crate) struct RunMeans {
    pub(crate) sharing: Option<Sharing>,
    pub(crate) spare: Option<Spare>,
    /// Bytes of working memory of a CPU thread.
    pub(crate) decoder_memory: u64,
    /// Where rows of images begin; `None` notes nothing.
    pub(crate) rows: Option<Arc<RowIndexes>>,
}

/// A step whose blocks are pinned.
struct Admitted {
    index: u64,
    planned: PlannedStep,
    /// Bytes that were fetched for it, and for no step before it.
    fetched_bytes: u64,
}

/// A step that has a place.
struct Active<D: Destination> {
    planned: PlannedStep,
    running: Arc<RunningStep<D>>,
    turn: Turn,
    /// Rows that wait for an extent.
    waiting: HashMap<Extent, Vec<usize>>,
}

/// What is planned next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planning {
    /// Steps, as the budget allows.
    Ahead,
    /// Nothing while more than this number of the first step's reads are under way.
    FirstStepLoading(usize),
    /// Nothing: the plan's last step was planned.
    Ended,
    /// Nothing: a step failed. Those before it are still delivered.
    Failed,
}

impl Planning {
    /// Whether no further step is planned.
    fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Failed)
    }
}

type FetchResult = (Extent, Result<Arc<Block>, feedstock_dataset::Error>);

pub(crate) struct Driver<D: Destination> {
    context: Arc<Context<D>>,
    planner: Planner,
    residency: Residency,
    budget_bytes: u64,
    /// What of the budget stays free for making the largest block.
    reserve_bytes: u64,
    prefetch_bytes: u64,
    /// Bytes in use above which nothing is kept for a later epoch.
    kept_bytes: u64,
    reader: BlockReader,
    turns: Turns,
    events: UnboundedReceiver<Event<D>>,
    fetches: JoinSet<FetchResult>,
    /// The next steps: planned but not admitted, or given up again.
    refused: BTreeMap<u64, PlannedStep>,
    /// Rows that wait for working memory.
    parked: ParkedRows<Parked<D>>,
    loan_room: LoanRoom,
    /// Memory beyond the budget.
    spare: Option<Spare>,
    ahead: VecDeque<Admitted>,
    active: BTreeMap<u64, Active<D>>,
    places: VecDeque<D>,
    loaded: HashMap<Extent, Arc<Block>>,
    loading: HashMap<Extent, Instant>,
    broken: HashMap<Extent, Error>,
    /// In which epoch and pass of it each extent was fetched that is still needed in that pass, to notice a second fetch.
    fetched: HashMap<Extent, (u64, u64)>,
    next_index: u64,
    ended_steps: u64,
    planning: Planning,
}

impl<D: Destination> Driver<D> {
    pub(crate) fn new(
        job: Job,
        sink: Arc<dyn Sink<D>>,
        turns: Turns,
        shared: Arc<RunStatus>,
        RunMeans { sharing, spare, decoder_memory, rows }: RunMeans,
    ) -> Result<(Self, Offers<D>)> {
        job.check()?;
        let planner = Planner::of(&job);
        let catalog = job.dataset.catalog().clone();
        let reserve_bytes = catalog.reserve_bytes();
        let reader = job.dataset.block_reader();
        let columns = unmapped(reader.schema(), &job.dataset, &job.maps)?;
        let (sender, events) = unbounded_channel(); // bounded by slots, see Event
        let rows = rows.map(|table| RunRowIndexes::new(table, catalog.content_hash(), &job.maps));
        let context = Context {
            catalog: catalog.clone(),
            maps: job.maps,
            columns,
            seed: job.seed,
            decoder_memory,
            sample_bytes: job.sample_bytes,
            rows,
            sharing,
            sink,
            shared,
            events: sender.clone(),
        };
        let driver = Self {
            context: Arc::new(context),
            planner,
            residency: Residency::new(job.budget_bytes.saturating_sub(reserve_bytes)),
            budget_bytes: job.budget_bytes,
            reserve_bytes,
            prefetch_bytes: job.prefetch_bytes,
            kept_bytes: if catalog.is_cheap_to_read_again() { job.prefetch_bytes } else { u64::MAX },
            reader,
            turns,
            events,
            fetches: JoinSet::new(),
            refused: BTreeMap::new(),
            parked: ParkedRows::default(),
            loan_room: LoanRoom::default(),
            spare,
            ahead: VecDeque::new(),
            active: BTreeMap::new(),
            places: VecDeque::new(),
            loaded: HashMap::new(),
            loading: HashMap::new(),
            broken: HashMap::new(),
            fetched: HashMap::new(),
            next_index: 0,
            ended_steps: 0,
            planning: Planning::Ahead,
        };
        driver.check_budget()?;
        Ok((driver, Offers::new(sender, Event::Offered)))
    }

    /// Returns an error, before anything waits, if one of the first steps would never fit.
    fn check_budget(&self) -> Result<()> {
        let (step_bytes, rows) = self.planner.largest_need();
        if step_bytes.saturating_add(self.reserve_bytes) > self.most_budget_bytes() {
            return Err(self.over_budget(ErrorKind::BadConfig, step_bytes, rows));
        }
        Ok(())
    }

    /// Until every step is delivered, or one has failed and those before it are delivered.
    pub(crate) async fn run(mut self) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.lend();
            self.plan_ahead();
            self.start_steps();
            self.report();
            if self.active.is_empty() && self.ahead.is_empty() && self.refused.is_empty() {
                match self.planning {
                    Planning::Ended => return self.context.sink.ended(self.next_index),
                    Planning::Failed => return,
                    Planning::Ahead | Planning::FirstStepLoading(_) => {}
                }
            }
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => return, // the context holds a sender, so this is unreachable while we live
                },
                Some(fetched) = self.fetches.join_next(), if !self.fetches.is_empty() => self.on_fetch(fetched),
                _ = look.tick(), if !self.active.is_empty() || self.spare.is_some() => {
                    self.active.values().for_each(|active| active.running.warn_of_stuck(Instant::now()));
                    self.release();
                }
            }
            // What else has come: single samples arrive by hundreds, and one round is enough for all.
            while let Ok(event) = self.events.try_recv() {
                self.on_event(event);
            }
            while let Some(fetched) = self.fetches.try_join_next() {
                self.on_fetch(fetched);
            }
        }
    }

    fn on_event(&mut self, event: Event<D>) {
        match event {
            Event::Offered(place) => self.places.push_back(place),
            Event::StepDone(index) => self.step_done(index),
            Event::Parked(parked) => match self.active.contains_key(&parked.place().0) {
                true => self.parked.add(parked.place(), parked.bytes, parked),
                false => drop(parked),
            },
            Event::Stalled => {}
            Event::Returned(bytes) => self.residency.take_back(bytes),
        }
    }

    /// Admits steps in plan order while the budget lasts; the first one alone, until half of its reads have ended,
    /// so that read-ahead does not slow the first batch. The other half are the late ones, which wait for the store, not for this
    /// machine.
    fn plan_ahead(&mut self) {
        while self.parked.is_empty() && self.may_prefetch() {
            if let Planning::FirstStepLoading(most) = self.planning {
                if self.loading.len() > most {
                    return;
                }
                self.planning = Planning::Ahead;
            }
            let Some((index, planned)) = self.next_step() else { return };
            let is_first = self.ahead.is_empty() && self.active.is_empty();
            if !is_first && self.is_memory_wanted() {
                // The memory goes back when the running steps have ended.
                self.refused.insert(index, planned);
                return;
            }
            let free_bytes = if is_first { 0 } else { self.loan_room.bytes() };
            match self.residency.admit(&planned.needs, self.planner.time(&planned.step), free_bytes) {
                Ok(admitted) => {
                    for extent in admitted.evict {
                        self.loaded.remove(&extent);
                    }
                    let (mut fetched_bytes, reads) = (0, admitted.fetch.len());
                    for extent in admitted.fetch {
                        fetched_bytes += self.context.catalog.extent_memory_bytes(extent);
                        self.fetch(extent, &planned);
                    }
                    self.context.shared.set_resident(self.residency.used_bytes());
                    self.ahead.push_back(Admitted { index, planned, fetched_bytes });
                    if index == 0 && self.planning == Planning::Ahead {
                        self.planning = Planning::FirstStepLoading(reads / 2);
                    }
                }
                Err(Refused::Later) => {
                    self.refused.insert(index, planned);
                    return;
                }
                Err(Refused::Never { step_bytes }) => {
                    // Memory beyond the budget is only for a step that can run now: a run that has some and waits for its rank
                    // would keep it from others.
                    if !is_first || self.places.is_empty() {
                        self.refused.insert(index, planned);
                        return;
                    }
                    let lacking = (step_bytes + self.reserve_bytes).saturating_sub(self.budget_bytes);
                    let kind = match self.extend(lacking) {
                        Extension::Taken => None,
                        Extension::Soon => {
                            self.refused.insert(index, planned);
                            return;
                        }
                        Extension::Later => Some(ErrorKind::Retryable),
                        Extension::Never => Some(ErrorKind::BadConfig),
                    };
                    if let Some(kind) = kind {
                        let rows = planned.step.rows.len() as u64;
                        return self.fail_from(index, self.over_budget(kind, step_bytes, rows));
                    }
                    self.refused.insert(index, planned);
                }
            }
        }
    }

    /// The next step to admit, in plan order.
    fn next_step(&mut self) -> Option<(u64, PlannedStep)> {
        if !self.refused.is_empty() {
            return self.refused.pop_first();
        }
        if self.planning.is_over() {
            return None;
        }
        let Some(planned) = self.planner.next() else {
            self.planning = Planning::Ended;
            return None;
        };
        self.next_index += 1;
        Some((self.next_index - 1, planned))
    }

    /// Ends the run at step `index`; steps before it are still delivered.
    fn fail_from(&mut self, index: u64, error: Error) {
        self.planning = Planning::Failed;
        self.context.sink.failed(index, error);
        self.parked.split_off(index);
        self.refused.split_off(&index);
        let first = self.ahead.partition_point(|admitted| admitted.index < index);
        let ahead = self.ahead.split_off(first).into_iter().map(|admitted| admitted.planned);
        let active = self.active.split_off(&index).into_values().map(|active| active.planned);
        // Their blocks go, so that earlier steps find room.
        for need in ahead.chain(active).flat_map(|planned| planned.needs) {
            if let Some(extent) = self.residency.unpin(need.extent, NEVER) {
                self.loaded.remove(&extent);
            }
        }
    }

    fn start_steps(&mut self) {
        while let Some(admitted) = self.ahead.front() {
            let broken = admitted.planned.needs.iter().find_map(|need| self.broken.get(&need.extent));
            if let Some(error) = broken {
                return self.fail_from(admitted.index, error.clone());
            }
            let Some(mut place) = self.places.pop_front() else { return };
            if let Err(error) = place.begin(admitted.planned.step.rows.len()) {
                return self.fail_from(admitted.index, error);
            }
            let Some(Admitted { index, planned, .. }) = self.ahead.pop_front() else { return };
            let running = RunningStep::new(self.context.clone(), index, planned.step.clone(), place);
            let turn = self.turns.next();
            let (mut tasks, mut waiting) = (Vec::new(), HashMap::<Extent, Vec<usize>>::new());
            for row in 0..planned.step.rows.len() {
                let extent = planned.extents[row];
                match self.loaded.get(&extent) {
                    Some(block) => {
                        tasks.push(running.task(row, block.clone(), row_of(&planned, row)));
                    }
                    None => waiting.entry(extent).or_default().push(row),
                }
            }
            self.turns.submit_all(turn, tasks);
            self.active.insert(index, Active { planned, running, turn, waiting });
        }
    }

    fn step_done(&mut self, index: u64) {
        let Some(active) = self.active.remove(&index) else { return }; // a step after a failed one
        self.ended_steps += 1;
        let time = self.planner.time(&active.planned.step);
        let epoch = active.planned.step.epoch;
        for need in &active.planned.needs {
            let next_use = self.planner.next_use(need.extent, epoch, time);
            if next_use >= self.planner.next_use_from_disk(need.extent, epoch, time) {
                self.fetched.remove(&need.extent);
            }
            if let Some(extent) = self.residency.unpin(need.extent, next_use) {
                self.loaded.remove(&extent);
            }
        }
        self.forget_next_epoch(epoch);
        self.loan_room.step_done();
        self.shrink(time);
        self.context.shared.set_resident(self.residency.used_bytes());
    }

    fn over_budget(&self, kind: ErrorKind, step_bytes: u64, rows: u64) -> Error {
        let reserve = match self.reserve_bytes {
            0 => String::new(),
            bytes => format!(", and decompressing the largest block {} more", shown_bytes(bytes)),
        };
        Error::new(
            kind,
            format!(
                "the memory budget of {} is smaller than one batch: the blocks of its {rows} rows take {} of \
                 memory{reserve}; {}",
                shown_bytes(self.most_budget_bytes()),
                shown_bytes(step_bytes),
                advice(
                    kind,
                    self.spare.as_ref(),
                    step_bytes.saturating_add(self.reserve_bytes),
                    "raise budget_bytes, or lower the batch size or the data set's block_bytes"
                )
            ),
        )
    }

    fn report(&self) {
        let waiting = match (self.active.first_key_value(), self.ahead.front()) {
            (Some((_, active)), _) if !active.waiting.is_empty() => {
                self.storage(&active.planned, active.waiting.keys().copied().collect())
            }
            (Some((_, active)), _) => Waiting {
                stage: Stage::Decoding,
                detail: format!("{}, {} rows left", step_name(&active.planned), active.running.rows_left()),
                since: None,
            },
            (None, Some(admitted)) => {
                Waiting { stage: Stage::NoPlace, detail: step_name(&admitted.planned), since: None }
            }
            (None, None) if self.planning.is_over() => Waiting { stage: Stage::Ended, ..Waiting::default() },
            (None, None) => Waiting::default(),
        };
        self.context.shared.set_waiting(waiting);
    }

    fn storage(&self, planned: &PlannedStep, mut missing: Vec<Extent>) -> Waiting {
        missing.sort_unstable();
        let catalog = &self.context.catalog;
        let since = missing.iter().filter_map(|extent| self.loading.get(extent)).min().copied();
        let mut names: Vec<String> =
            missing.iter().take(NAMED_EXTENTS).map(|extent| catalog.describe_extent(*extent)).collect();
        if missing.len() > NAMED_EXTENTS {
            names.push(format!("and {} more", missing.len() - NAMED_EXTENTS));
        }
        let detail = format!("{} needs {}", step_name(planned), names.join(", "));
        Waiting { stage: Stage::Fetching, detail, since }
    }
}

/// The place of a planned row in its fetched extent.
fn row_of(planned: &PlannedStep, row: usize) -> usize {
    let (extent, sample) = (planned.extents[row], planned.step.rows[row].sample);
    extent.row_of(sample).unwrap_or(usize::MAX) // an extent of a row has its sample
}

fn step_name(planned: &PlannedStep) -> String {
    format!("the step at position {} of epoch {}", planned.step.position, planned.step.epoch)
}
