//! The virtual clock: events in a heap, and the driver's rules for admitting, fetching and decoding.

use super::model::{SimulatedRank, SimulatedSteps};
use super::requests::{Requests, nanos, seconds};
use super::spans::{Nanos, Spans};
use super::tally::{Simulated, Tally};
use crate::run::driver::prefetch::{Ahead, may_prefetch};
use crate::run::job::Job;
use crate::run::large::shown_bytes;
use crate::run::planner::{PlannedStep, Planner};
use crate::run::residency::{Refused, Residency};
use crate::{Error, Result};
use feedstock_dataset::{Dataset, Extent};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fetched(Extent),
    Decoded(u64),
    Trained,
}

/// A step whose blocks are pinned.
struct Admitted {
    planned: PlannedStep,
    fetched_bytes: u64,
}

/// A step that has a slot.
struct Active {
    planned: PlannedStep,
    left: usize,
    waiting: HashMap<Extent, usize>,
}

/// What the trainer does.
#[derive(Clone, Copy)]
enum Trainer {
    Computing,
    WaitingSince(Nanos),
}

pub(super) struct Clock<'a> {
    rank: &'a SimulatedRank,
    steps: SimulatedSteps,
    dataset: Dataset,
    planner: Planner,
    residency: Residency,
    prefetch_bytes: u64,
    kept_bytes: u64,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    event_number: u64,
    requests: Requests,
    /// Requests left of each extent that is being fetched.
    loading: HashMap<Extent, u32>,
    loaded: HashSet<Extent>,
    refused: Option<PlannedStep>,
    ahead: VecDeque<Admitted>,
    active: BTreeMap<u64, Active>,
    started: u64,
    planned: u64,
    /// While more than this number of the first step's reads are under way, nothing else is planned.
    first_loading: Option<usize>,
    is_plan_over: bool,
    /// Samples that wait for a thread, by step: the oldest step goes first.
    tasks: BTreeMap<u64, usize>,
    busy_threads: usize,
    thread_spans: Spans,
    free_slots: usize,
    /// Rows of finished steps that wait for the trainer.
    ready: BTreeMap<u64, u64>,
    trainer: Trainer,
    first_batch: Nanos,
    peak_bytes: u64,
    tally: Tally,
    /// The counts and the time when the counting began: at the first batch, or after the warm-up.
    begun: Option<(Tally, Nanos)>,
    /// The same of the last batch.
    last: (Tally, Nanos),
}

impl<'a> Clock<'a> {
    pub(super) fn new(job: &Job, rank: &'a SimulatedRank, steps: SimulatedSteps) -> Result<Self> {
        let catalog = job.dataset.catalog();
        let reserve = catalog.reserve_bytes();
        let planner = Planner::of(job);
        let step_bytes = planner.largest_need().0;
        if step_bytes.saturating_add(reserve) > job.budget_bytes {
            return Err(over_budget(job.budget_bytes, step_bytes.saturating_add(reserve)));
        }
        Ok(Self {
            rank,
            steps,
            dataset: job.dataset.clone(),
            planner,
            residency: Residency::new(job.budget_bytes.saturating_sub(reserve)),
            prefetch_bytes: job.prefetch_bytes,
            kept_bytes: if catalog.is_cheap_to_read_again() { job.prefetch_bytes } else { u64::MAX },
            now: 0,
            events: BinaryHeap::new(),
            event_number: 0,
            requests: Requests::new(&rank.store),
            loading: HashMap::new(),
            loaded: HashSet::new(),
            refused: None,
            ahead: VecDeque::new(),
            active: BTreeMap::new(),
            started: 0,
            planned: 0,
            first_loading: None,
            is_plan_over: false,
            tasks: BTreeMap::new(),
            busy_threads: 0,
            thread_spans: Spans::default(),
            free_slots: rank.slots,
            ready: BTreeMap::new(),
            trainer: Trainer::WaitingSince(0),
            first_batch: 0,
            peak_bytes: 0,
            tally: Tally::default(),
            begun: None,
            last: (Tally::default(), 0),
        })
    }

    pub(super) fn run(mut self) -> Result<Simulated> {
        let last = self.steps.warm_up.saturating_add(1).saturating_add(self.steps.counted);
        loop {
            self.plan_ahead()?;
            self.start_steps();
            self.send_requests();
            self.start_tasks();
            self.train();
            if self.tally.steps == last {
                break;
            }
            let Some(Reverse((time, _, event))) = self.events.pop() else { break };
            if self.refused.is_some() && self.ahead.is_empty() {
                self.tally.budget_full += time - self.now;
            }
            self.now = time;
            match event {
                Event::Fetched(extent) => self.fetched(extent),
                Event::Decoded(index) => self.decoded(index),
                Event::Trained => self.trained(),
            }
        }
        Ok(self.result())
    }

    fn at(&mut self, time: Nanos, event: Event) {
        self.event_number += 1;
        self.events.push(Reverse((time, self.event_number, event)));
    }

    /// Admits steps in plan order, as the driver does: the first one alone until half of its reads have ended.
    fn plan_ahead(&mut self) -> Result<()> {
        loop {
            let fetched_bytes = self.ahead.iter().map(|admitted| admitted.fetched_bytes).sum();
            let ended_steps = self.started - self.active.len() as u64;
            let ahead = Ahead { steps: self.ahead.len(), fetched_bytes, ended_steps };
            let is_waiting = self.first_loading.is_some_and(|most| self.loading.len() > most);
            if is_waiting || !may_prefetch(ahead, self.prefetch_bytes) {
                return Ok(());
            }
            self.first_loading = None;
            let Some(planned) = self.refused.take().or_else(|| self.planner.next()) else {
                self.is_plan_over = true;
                return Ok(());
            };
            match self.residency.admit(&planned.needs, self.planner.time(&planned.step), 0) {
                Ok(admitted) => {
                    for extent in admitted.evict {
                        self.loaded.remove(&extent);
                    }
                    let (mut fetched_bytes, reads) = (0, admitted.fetch.len());
                    for extent in admitted.fetch {
                        fetched_bytes += self.dataset.catalog().extent_memory_bytes(extent);
                        self.fetch(extent);
                    }
                    self.peak_bytes = self.peak_bytes.max(self.residency.used_bytes());
                    self.first_loading = (self.planned == 0).then_some(reads / 2);
                    self.planned += 1;
                    self.ahead.push_back(Admitted { planned, fetched_bytes });
                }
                Err(Refused::Later) => {
                    self.refused = Some(planned);
                    return Ok(());
                }
                Err(Refused::Never { step_bytes }) => {
                    return Err(over_budget(self.residency.budget_bytes(), step_bytes));
                }
            }
        }
    }

    fn fetch(&mut self, extent: Extent) {
        let reads = self.dataset.extent_reads(extent);
        if reads.requests == 0 {
            self.loaded.insert(extent);
            return;
        }
        self.requests.add(extent, reads.requests, reads.bytes);
        self.loading.insert(extent, reads.requests);
    }

    fn send_requests(&mut self) {
        while let Some(sent) = self.requests.send(self.now) {
            self.tally.requests += 1;
            self.tally.bytes += sent.bytes;
            self.at(sent.end, Event::Fetched(sent.extent));
        }
    }

    fn fetched(&mut self, extent: Extent) {
        self.requests.ended();
        let Some(left) = self.loading.get_mut(&extent) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.loading.remove(&extent);
        self.loaded.insert(extent);
        for (index, active) in &mut self.active {
            if let Some(rows) = active.waiting.remove(&extent) {
                *self.tasks.entry(*index).or_default() += rows;
            }
        }
    }

    fn start_steps(&mut self) {
        while self.free_slots > 0 {
            let Some(Admitted { planned, .. }) = self.ahead.pop_front() else { return };
            self.free_slots -= 1;
            let mut waiting: HashMap<Extent, usize> = HashMap::new();
            let mut loaded = 0;
            for extent in &planned.extents {
                match self.loaded.contains(extent) {
                    true => loaded += 1,
                    false => *waiting.entry(*extent).or_default() += 1,
                }
            }
            if loaded > 0 {
                self.tasks.insert(self.started, loaded);
            }
            let left = planned.extents.len();
            self.active.insert(self.started, Active { planned, left, waiting });
            self.started += 1;
        }
    }

    fn start_tasks(&mut self) {
        let time = nanos(self.rank.decode_s);
        while self.busy_threads < self.rank.threads {
            let Some(mut oldest) = self.tasks.first_entry() else { return };
            let index = *oldest.key();
            *oldest.get_mut() -= 1;
            if *oldest.get() == 0 {
                oldest.remove();
            }
            self.busy_threads += 1;
            let end = self.now.saturating_add(time);
            self.thread_spans.add(self.now, end);
            self.at(end, Event::Decoded(index));
        }
    }

    fn decoded(&mut self, index: u64) {
        self.busy_threads -= 1;
        let Some(active) = self.active.get_mut(&index) else { return };
        active.left -= 1;
        if active.left > 0 {
            return;
        }
        let Some(Active { planned, .. }) = self.active.remove(&index) else { return };
        let (epoch, time) = (planned.step.epoch, self.planner.time(&planned.step));
        for need in &planned.needs {
            let next_use = self.planner.next_use(need.extent, epoch, time);
            if let Some(extent) = self.residency.unpin(need.extent, next_use) {
                self.loaded.remove(&extent);
            }
        }
        for extent in self.residency.trim(self.kept_bytes, self.planner.epoch_start(epoch + 1)) {
            self.loaded.remove(&extent);
        }
        self.ready.insert(index, planned.step.rows.len() as u64);
    }

    fn train(&mut self) {
        let Trainer::WaitingSince(since) = self.trainer else { return };
        let Some(rows) = self.ready.remove(&self.tally.steps) else { return };
        match self.tally.steps {
            0 => self.first_batch = self.now,
            _ => self.tally.waited += self.now - since,
        }
        self.tally.steps += 1;
        self.tally.samples += rows;
        self.tally.threads_busy = self.thread_spans.until(self.now);
        self.tally.requests_busy = self.requests.busy(self.now);
        self.last = (self.tally, self.now);
        if self.tally.steps == self.steps.warm_up.saturating_add(1) {
            self.begun = Some(self.last);
        }
        self.trainer = Trainer::Computing;
        self.at(self.now.saturating_add(nanos(self.rank.step_s)), Event::Trained);
    }

    fn trained(&mut self) {
        self.trainer = Trainer::WaitingSince(self.now);
        self.free_slots += 1;
    }

    fn result(self) -> Simulated {
        let (last, end) = self.last;
        let (before, since) = self.begun.unwrap_or(self.last);
        let is_from_start = self.steps.warm_up == 0;
        let (requests, bytes) = match is_from_start {
            true => (self.tally.requests, self.tally.bytes), // what the first batch needed is part of the epoch
            false => (last.requests - before.requests, last.bytes - before.bytes),
        };
        let (threads, connections) = (self.rank.threads, self.rank.store.concurrency);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of sizes")]
        let bytes = bytes.round() as u64;
        Simulated {
            steps: last.steps - before.steps,
            samples: last.samples - before.samples,
            seconds: seconds(end - since),
            waited_s: seconds(last.waited - before.waited),
            first_batch_s: seconds(self.first_batch),
            requests,
            bytes,
            resident_peak_bytes: self.peak_bytes,
            is_whole: is_from_start && self.is_plan_over && self.tally.steps == self.planned,
            busy: last.busy(&before, end - since, threads, connections),
        }
    }
}

fn over_budget(budget_bytes: u64, step_bytes: u64) -> Error {
    Error::config(format!(
        "the memory budget of {} is smaller than one batch, whose blocks take {} of memory; raise budget_bytes, \
         or lower the batch size or the data set's block_bytes",
        shown_bytes(budget_bytes),
        shown_bytes(step_bytes)
    ))
}
