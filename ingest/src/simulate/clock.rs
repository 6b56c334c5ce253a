//! The virtual clock: events in a heap, and the driver's rules for admitting, fetching and decoding.

use super::store::nanos;
use super::{SimulateOptions, Simulated};
use crate::run::driver::STEPS_AHEAD;
use crate::run::job::Job;
use crate::run::planner::{PlannedStep, Planner};
use crate::run::residency::{Refused, Residency};
use crate::{Error, Result};
use feedstock_dataset::{Catalog, Extent};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fetched(Extent),
    Decoded(u64),
    Trained,
}

/// A step that has a slot.
struct Active {
    planned: PlannedStep,
    left: usize,
    waiting: HashMap<Extent, usize>,
}

pub(super) struct Clock<'a> {
    options: &'a SimulateOptions,
    catalog: Arc<Catalog>,
    planner: Planner,
    residency: Residency,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    event_number: u64,
    /// Requests that wait for a connection: the extent and the bytes of each.
    queue: VecDeque<(Extent, f64)>,
    under_way: usize,
    /// When the store serves the next request.
    next_request: u64,
    /// Requests left of each extent that is being fetched.
    loading: HashMap<Extent, u32>,
    loaded: HashSet<Extent>,
    refused: Option<PlannedStep>,
    ahead: VecDeque<PlannedStep>,
    active: BTreeMap<u64, Active>,
    started: u64,
    planned: u64,
    is_first_loading: bool,
    /// The steps of tasks that wait for a thread.
    tasks: VecDeque<u64>,
    busy: usize,
    free_slots: usize,
    /// Rows of finished steps that wait for the trainer.
    ready: BTreeMap<u64, u64>,
    training: Option<u64>,
    idle_since: u64,
    result: Simulated,
}

impl<'a> Clock<'a> {
    pub(super) fn new(job: &Job, options: &'a SimulateOptions) -> Self {
        let catalog = job.dataset.catalog().clone();
        let budget = job.budget_bytes.saturating_sub(catalog.reserve_bytes());
        let result = Simulated {
            steps: 0,
            samples: 0,
            seconds: 0.0,
            waited_s: 0.0,
            first_batch_s: 0.0,
            requests: 0,
            bytes: 0,
            resident_peak_bytes: 0,
        };
        Self {
            options,
            catalog,
            planner: Planner::of(job),
            residency: Residency::new(budget),
            now: 0,
            events: BinaryHeap::new(),
            event_number: 0,
            queue: VecDeque::new(),
            under_way: 0,
            next_request: 0,
            loading: HashMap::new(),
            loaded: HashSet::new(),
            refused: None,
            ahead: VecDeque::new(),
            active: BTreeMap::new(),
            started: 0,
            planned: 0,
            is_first_loading: false,
            tasks: VecDeque::new(),
            busy: 0,
            free_slots: options.slots,
            ready: BTreeMap::new(),
            training: None,
            idle_since: 0,
            result,
        }
    }

    pub(super) fn run(mut self) -> Result<Simulated> {
        loop {
            self.plan_ahead()?;
            self.start_steps();
            self.send_requests();
            self.start_tasks();
            self.train();
            if self.result.steps == self.options.steps {
                break;
            }
            let Some(Reverse((time, _, event))) = self.events.pop() else { break };
            self.now = time;
            match event {
                Event::Fetched(extent) => self.fetched(extent),
                Event::Decoded(index) => self.decoded(index),
                Event::Trained => self.trained(),
            }
        }
        self.result.seconds = seconds(self.now);
        Ok(self.result)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.event_number += 1;
        self.events.push(Reverse((time, self.event_number, event)));
    }

    fn plan_ahead(&mut self) -> Result<()> {
        while self.ahead.len() < STEPS_AHEAD && self.planned < self.options.steps {
            if self.is_first_loading && !self.loading.is_empty() {
                return Ok(());
            }
            self.is_first_loading = false;
            let Some(planned) = self.refused.take().or_else(|| self.planner.next()) else { return Ok(()) };
            let time = self.planner.time(&planned.step);
            match self.residency.admit(&planned.needs, time, 0) {
                Ok(admitted) => {
                    for extent in admitted.evict {
                        self.loaded.remove(&extent);
                    }
                    for extent in admitted.fetch {
                        self.fetch(extent);
                    }
                    let used = self.residency.used_bytes();
                    self.result.resident_peak_bytes = self.result.resident_peak_bytes.max(used);
                    self.is_first_loading = self.planned == 0;
                    self.planned += 1;
                    self.ahead.push_back(planned);
                }
                Err(Refused::Later) => {
                    self.refused = Some(planned);
                    return Ok(());
                }
                Err(Refused::Never { step_bytes }) => {
                    return Err(Error::config(format!(
                        "a step needs {step_bytes} bytes of blocks, more than the budget; raise the budget"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Queues the requests of an extent, as [`ReadQuality`](feedstock_dataset::ReadQuality) counts them.
    fn fetch(&mut self, extent: Extent) {
        let spec = self.catalog.block(extent.block);
        let part = f64::from(extent.samples) / f64::from(spec.samples.max(1));
        let bytes = part * spec.bytes as f64;
        let objects = f64::from(self.catalog.block_objects(extent.block));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to a u32")]
        let requests = (part * objects).ceil().max(1.0) as u32;
        for _ in 0..requests {
            self.queue.push_back((extent, bytes / f64::from(requests)));
        }
        self.loading.insert(extent, requests);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
        let rounded = bytes.round() as u64;
        self.result.bytes += rounded;
    }

    fn send_requests(&mut self) {
        while self.under_way < self.options.store.concurrency {
            let Some((extent, bytes)) = self.queue.pop_front() else { return };
            let begin = self.now.max(self.next_request);
            self.next_request = begin.saturating_add(nanos(1.0 / self.options.store.requests_per_s));
            let time = self.options.store.request_ns(self.options.seed, self.result.requests, bytes);
            self.result.requests += 1;
            self.under_way += 1;
            self.at(begin.saturating_add(time), Event::Fetched(extent));
        }
    }

    fn fetched(&mut self, extent: Extent) {
        self.under_way -= 1;
        let Some(left) = self.loading.get_mut(&extent) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.loading.remove(&extent);
        self.loaded.insert(extent);
        for (index, active) in &mut self.active {
            let rows = active.waiting.remove(&extent).unwrap_or(0);
            self.tasks.extend(std::iter::repeat_n(*index, rows));
        }
    }

    fn start_steps(&mut self) {
        while self.free_slots > 0 {
            let Some(planned) = self.ahead.pop_front() else { return };
            self.free_slots -= 1;
            let mut waiting: HashMap<Extent, usize> = HashMap::new();
            for extent in &planned.extents {
                match self.loaded.contains(extent) {
                    true => self.tasks.push_back(self.started),
                    false => *waiting.entry(*extent).or_default() += 1,
                }
            }
            let left = planned.extents.len();
            self.active.insert(self.started, Active { planned, left, waiting });
            self.started += 1;
        }
    }

    fn start_tasks(&mut self) {
        while self.busy < self.options.threads {
            let Some(index) = self.tasks.pop_front() else { return };
            self.busy += 1;
            self.at(self.now.saturating_add(nanos(self.options.decode_s)), Event::Decoded(index));
        }
    }

    fn decoded(&mut self, index: u64) {
        self.busy -= 1;
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
        self.ready.insert(index, planned.step.rows.len() as u64);
    }

    fn train(&mut self) {
        if self.training.is_some() {
            return;
        }
        let Some(rows) = self.ready.remove(&self.result.steps) else { return };
        match self.result.steps {
            0 => self.result.first_batch_s = seconds(self.now),
            _ => self.result.waited_s += seconds(self.now - self.idle_since),
        }
        self.training = Some(rows);
        self.at(self.now.saturating_add(nanos(self.options.step_s)), Event::Trained);
    }

    fn trained(&mut self) {
        self.result.samples += self.training.take().unwrap_or(0);
        self.result.steps += 1;
        self.idle_since = self.now;
        self.free_slots += 1;
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
