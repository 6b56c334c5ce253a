//! The driver of a rank's run over workers: it walks the plan, lends places to streams, and does the dispatch's actions.

use super::connect::{Connect, status};
use super::dispatch::{Action, Dispatch, HERE, RowsOfStrands, StreamId};
use super::gathering::{FleetEvent, Gathering};
use super::hedge::TICK;
use super::member::Reported;
use super::members::{WORKERS_MAX, WorkerAddresses, Workers};
use super::progress::Counters;
use super::selection::Selection;
use super::stream::{self, Opening, StreamEvent, Task};
use super::warm::{Introduction, warm};
use crate::run::handle::Offers;
use crate::run::job::{Destination, Sink};
use crate::run::stats::{RunStatus, Stage, Waiting};
use crate::run::walk::Walk;
use crate::wire::{LaneRequest, PlanId};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use feedstock_dataset::{Step, StrandSet, Strands};
use feedstock_ops::TensorSpec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// A name's addresses are looked up again this often.
const LOOK_UP_EVERY: Duration = Duration::from_secs(2);

/// As resolvers commonly wait for their first server.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Steps that a worker makes ahead of the one being sent: with the rank's slots, enough that neither waits for a round trip.
const PLACES: u32 = 4;

/// Workers that a rank introduces itself to at once, so that they open the data set.
const INTRODUCTIONS: usize = 64;

/// Workers that open the data set for a rank at once. Each is a connection, and a process may often have no more than 1,024 files open.
const WARM_UPS: usize = 256;

/// A job whose rows workers make.
pub(crate) struct FleetJob<D> {
    pub(crate) workers: Workers,
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) introduction: Introduction,
    pub(crate) walk: Walk,
    pub(crate) end_epoch: Option<u64>,
    pub(crate) tensors: Arc<[TensorSpec]>,
    /// The columns that ride along.
    pub(crate) columns: SchemaRef,
    pub(crate) budget_bytes: u64,
    pub(crate) sample_bytes: u64,
    pub(crate) sink: Arc<dyn Sink<D>>,
    pub(crate) shared: Arc<RunStatus>,
}

pub(crate) struct FleetDriver<D: Destination> {
    job: FleetJob<D>,
    plan_id: PlanId,
    strands: Strands,
    dispatch: Dispatch,
    started: Instant,
    /// The next step, which has no place yet; `None` after the last.
    next: Option<Step>,
    next_index: u64,
    active: BTreeMap<u64, Arc<Gathering<D>>>,
    streams: HashMap<StreamId, OpenStream<D>>,
    tasks: JoinSet<()>,
    own_events: UnboundedSender<FleetEvent<D>>,
    events: UnboundedReceiver<FleetEvent<D>>,
    stream_events: UnboundedReceiver<(StreamId, StreamEvent)>,
    /// Each stream has a clone.
    stream_sender: UnboundedSender<(StreamId, StreamEvent)>,
    probed: UnboundedSender<(String, Result<Reported>)>,
    probes: UnboundedReceiver<(String, Result<Reported>)>,
    answered: UnboundedSender<(String, Result<Reported>)>,
    answers: UnboundedReceiver<(String, Result<Reported>)>,
    warmed: UnboundedSender<(String, Result<Reported>)>,
    warm_ups: UnboundedReceiver<(String, Result<Reported>)>,
    introducing: Arc<Semaphore>,
    warming: Arc<Semaphore>,
    source: watch::Receiver<WorkerAddresses>,
    found: UnboundedSender<Vec<String>>,
    looked_up: UnboundedReceiver<Vec<String>>,
    looking_up: Arc<Semaphore>,
    has_reported_spare: bool,
}

/// A stream that this run has opened.
struct OpenStream<D: Destination> {
    strands: StrandSet,
    /// It is this process itself.
    here: bool,
    /// Dropping it ends the stream, which reads no further task.
    tasks: UnboundedSender<Task<D>>,
    counters: Arc<Counters>,
    /// Aborting it frees the rows that it was writing.
    abort: tokio::task::AbortHandle,
}

impl<D: Destination> FleetDriver<D> {
    pub(crate) fn new(mut job: FleetJob<D>) -> Result<(Self, Offers<D>)> {
        let (own_events, events) = unbounded_channel(); // bounded by slots, see FleetEvent
        let (stream_sender, stream_events) = unbounded_channel(); // a few for each stream and step
        let (probed, probes) = unbounded_channel(); // one for each member
        let (answered, answers) = unbounded_channel(); // one for each member
        let (warmed, warm_ups) = unbounded_channel(); // one for each member
        let (found, looked_up) = unbounded_channel(); // one at a time
        let strands = job.walk.plan().strands();
        let parts = (0..strands.count()).map(|strand| strands.part_of(strand));
        let next = job.walk.next();
        let plan_id = PlanId::of(&job.introduction.spec)?;
        let rank = job.walk.shape().rank;
        let selection = Selection::of_job(rank.world_size, strands.parts(), plan_id.salt());
        let dispatch = Dispatch::new(parts, job.workers.local_share());
        let driver = Self {
            plan_id,
            dispatch: dispatch.selecting(selection).asking_as(u64::from(rank.rank)),
            source: job.workers.source(),
            strands,
            started: Instant::now(),
            next,
            next_index: 0,
            active: BTreeMap::new(),
            streams: HashMap::new(),
            tasks: JoinSet::new(),
            own_events: own_events.clone(),
            events,
            stream_events,
            stream_sender,
            probed,
            probes,
            answered,
            answers,
            warmed,
            warm_ups,
            introducing: Arc::new(Semaphore::new(INTRODUCTIONS)),
            warming: Arc::new(Semaphore::new(WARM_UPS)),
            found,
            looked_up,
            looking_up: Arc::new(Semaphore::new(1)),
            has_reported_spare: false,
            job,
        };
        Ok((driver, Offers::new(own_events, FleetEvent::Offered)))
    }

    /// Until every step is delivered, or one never can be.
    pub(crate) async fn run(mut self) {
        self.source.mark_changed();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_up = interval(LOOK_UP_EVERY);
        look_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.next.is_none() && self.active.is_empty() {
                self.job.sink.ended(self.next_index);
                return;
            }
            self.report();
            let actions = tokio::select! {
                event = self.events.recv() => match event {
                    Some(FleetEvent::Offered(place)) => self.offered(place),
                    Some(FleetEvent::StepDone(index)) => {
                        self.active.remove(&index);
                        Ok(self.dispatch.finished(index))
                    }
                    None => return, // we hold a sender
                },
                Some((stream, event)) = self.stream_events.recv() => self.on_stream_event(stream, event),
                Some((member, result)) = self.probes.recv() => Ok(self.dispatch.probed(self.now(), &member, result)),
                Some(first) = self.warm_ups.recv() => Ok(self.warmed(first)),
                Some((member, result)) = self.answers.recv() => Ok(self.dispatch.answered(self.now(), &member, result)),
                changed = self.source.changed() => match changed {
                    Ok(()) => Ok(self.members()),
                    Err(_) => Ok(Vec::new()),
                },
                Some(list) = self.looked_up.recv() => Ok(self.dispatch.members(self.now(), &list)),
                _ = look_up.tick() => {
                    self.look_up();
                    Ok(Vec::new())
                }
                _ = tick.tick() => Ok(self.tick()),
                Some(ended) = self.tasks.join_next() => match ended {
                    // Its rows would be waited for until the deadline.
                    Err(error) if error.is_panic() => {
                        let message = format!("a stream's task panicked; please report it: {error}");
                        Err((self.oldest(), Error::new(ErrorKind::Bug, message)))
                    }
                    _ => Ok(Vec::new()),
                },
            };
            match actions {
                Ok(actions) => self.act(actions),
                Err((index, error)) => return self.job.sink.failed(index, error),
            }
            if let Some(error) = self.dispatch.hopeless() {
                return self.job.sink.failed(self.oldest(), error.clone());
            }
        }
    }

    /// The first step that is not delivered yet.
    fn oldest(&self) -> u64 {
        self.active.keys().next().copied().unwrap_or(self.next_index)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn tick(&mut self) -> Vec<Action> {
        let now = self.now();
        for (id, stream) in &self.streams {
            if let Some(capacity) = stream.counters.take_capacity()
                && let Some(name) = self.dispatch.member_of(*id)
            {
                self.dispatch.published(now, &name, capacity);
            }
        }
        let progress = self.streams.iter().map(|(&id, stream)| (id, stream.counters.progress()));
        let actions = self.dispatch.tick(now, &progress.collect());
        let (hedges, rows) = self.dispatch.hedged();
        let (used, spare) = self.dispatch.sizes();
        self.job.shared.workers.store(used as u64, Ordering::Relaxed);
        self.report_spare(spare);
        self.job.shared.hedges.store(hedges, Ordering::Relaxed);
        self.job.shared.hedged_samples.store(rows, Ordering::Relaxed);
        actions
    }

    /// Reports, once, that the job has more workers than it uses.
    fn report_spare(&mut self, spare: usize) {
        self.job.shared.spare_workers.store(spare as u64, Ordering::Relaxed);
        if spare > 0 && !std::mem::replace(&mut self.has_reported_spare, true) {
            let most = self.dispatch.most();
            tracing::info!(
                "this job uses at most {most} workers, some 32 for each rank; {spare} more stand by for those that fail and would \
                 not raise its throughput"
            );
        }
    }

    fn members(&mut self) -> Vec<Action> {
        let source = self.source.borrow_and_update().clone();
        match source {
            WorkerAddresses::Listed(list) => self.dispatch.members(self.now(), &list),
            WorkerAddresses::Dns(_) => {
                self.look_up();
                Vec::new()
            }
        }
    }

    /// Looks the workers' name up in a separate task, so that a slow resolver does not delay the run.
    fn look_up(&mut self) {
        let WorkerAddresses::Dns(name) = self.source.borrow().clone() else { return };
        let Ok(one_at_a_time) = self.looking_up.clone().try_acquire_owned() else { return };
        let found = self.found.clone();
        self.tasks.spawn(async move {
            let _held = one_at_a_time;
            match timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host(&name)).await {
                Ok(Ok(addresses)) => {
                    let list: BTreeSet<String> = addresses.map(|address| address.to_string()).collect();
                    let _unheard = found.send(list.into_iter().take(WORKERS_MAX).collect());
                }
                // The workers known so far may well be there.
                Ok(Err(error)) => tracing::warn!("cannot look up the workers at {name}: {error}"),
                Err(_) => tracing::warn!("cannot look up the workers at {name}: no answer"),
            }
        });
    }

    fn offered(&mut self, place: D) -> Result<Vec<Action>, (u64, Error)> {
        let Some(step) = self.next.take() else { return Ok(Vec::new()) };
        let index = self.next_index;
        let rows = self.rows_of_strands(&step);
        let gathering = Gathering::new(
            index,
            step,
            place,
            self.job.sink.clone(),
            self.job.shared.clone(),
            self.own_events.clone(),
        );
        self.active.insert(index, gathering.map_err(|error| (index, error))?);
        let actions = self.dispatch.step(self.now(), index, rows);
        // Before the next step is known, so that streams which open find the step that they open for.
        self.next_index += 1;
        self.next = self.job.walk.next();
        Ok(actions)
    }

    fn rows_of_strands(&self, step: &Step) -> RowsOfStrands {
        let mut rows = RowsOfStrands::new();
        step.rows.iter().for_each(|row| *rows.entry(self.strands.of(row)).or_default() += 1);
        rows
    }

    fn on_stream_event(&mut self, id: StreamId, event: StreamEvent) -> Result<Vec<Action>, (u64, Error)> {
        let now = self.now();
        match event {
            StreamEvent::Opening => {
                self.dispatch.opening(id);
                Ok(Vec::new())
            }
            StreamEvent::Opened => Ok(self.dispatch.opened(now, id)),
            StreamEvent::Greeted(reported) => {
                if let Some(name) = self.dispatch.member_of(id) {
                    self.dispatch.reported(now, &name, &reported);
                }
                Ok(Vec::new())
            }
            StreamEvent::Received(index) => Ok(self.dispatch.received(now, id, index)),
            StreamEvent::Leaving => Ok(self.dispatch.leaving(now, id)),
            StreamEvent::Lost(error) => {
                let Some(stream) = self.streams.remove(&id) else { return Ok(Vec::new()) };
                if stream.here && error.kind() != ErrorKind::Retryable && !self.dispatch.others_serve() {
                    return Err((self.oldest(), error));
                }
                tracing::warn!("a worker's stream ended: {error}; asking elsewhere");
                Ok(self.dispatch.lost(now, id, error))
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        let mut actions = actions;
        if let Some(next) = &self.next {
            let rows = self.rows_of_strands(next);
            let now = self.now();
            actions.extend(self.dispatch.prepare(now, &rows));
        }
        for action in actions {
            match action {
                Action::Open { stream, member, strands, from } => self.open(stream, member, strands, from),
                Action::Task { stream, index } => self.task(stream, index),
                Action::Close { stream } => {
                    if let Some(stream) = self.streams.remove(&stream) {
                        stream.abort.abort();
                    }
                }
                Action::Probe { member } => self.ask(member, self.probed.clone()),
                Action::Ask { member } => self.ask(member, self.answered.clone()),
                Action::Warm { member } => self.warm(member),
            }
        }
    }

    fn open(&mut self, id: StreamId, member: String, strands: StrandSet, from: u64) {
        let next = self.next.as_ref().filter(|_| from == self.next_index);
        let step = self.active.get(&from).map(|gathering| &gathering.step).or(next);
        #[expect(clippy::expect_used, reason = "the dispatch knows the steps that are here, and the next")]
        let step = step.expect("a stream opens at a step that is unfinished");
        let here = member == HERE;
        let request = self.request(step, strands.clone(), here, self.overdue(from, &strands));
        tracing::debug!("stream {}: {} strands of {member}, from step {from} on", id.0, strands.len());
        let opening = self.opening(id, member, request);
        let counters = opening.counters.clone();
        let (tasks, queue) = unbounded_channel(); // bounded by slots
        let run = stream::run(opening, self.job.connect.clone(), queue, self.stream_sender.clone());
        let abort = self.tasks.spawn(run);
        self.streams.insert(id, OpenStream { strands, here, tasks, counters, abort });
    }

    /// Has a member open the data set.
    fn warm(&mut self, member: String) {
        let (connect, warmed) = (self.job.connect.clone(), self.warmed.clone());
        let (introducing, warming) = (self.introducing.clone(), self.warming.clone());
        let token = self.job.workers.sent_token().cloned();
        let (plan, introduction) = (self.plan_id.clone(), self.job.introduction.clone());
        self.tasks.spawn(async move {
            let Ok(_bounds_connections) = warming.acquire_owned().await else { return };
            let Ok(permit) = introducing.acquire_owned().await else { return };
            let result = warm(connect, &member, token.as_ref(), (&plan, &introduction), permit).await;
            let _unheard = warmed.send((member, result));
        });
    }

    /// Some members have the data set open now, or cannot open it.
    fn warmed(&mut self, first: (String, Result<Reported>)) -> Vec<Action> {
        let mut all = vec![first];
        while let Ok(next) = self.warm_ups.try_recv() {
            all.push(next);
        }
        let now = self.now();
        for (member, result) in &all {
            if let Ok(reported) = result {
                self.dispatch.reported(now, member, reported);
            }
        }
        let all = all.into_iter().map(|(member, result)| (member, result.map(drop)));
        self.dispatch.warmed(now, all.collect())
    }

    /// Returns what a worker is asked for: these strands, from `step` on.
    fn request(&self, step: &Step, strands: StrandSet, here: bool, overdue: u32) -> LaneRequest {
        let walk = &self.job.walk;
        let share = self.share_of(step, &strands, here);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a number of bytes"
        )]
        let budget_bytes = (self.job.budget_bytes as f64 * share) as u64;
        LaneRequest {
            plan: self.plan_id.clone(),
            cursor: walk.plan().cursor(step.epoch, step.position),
            shape: *walk.shape(),
            strands,
            end_epoch: self.job.end_epoch,
            budget_bytes,
            most_bytes: self.job.budget_bytes,
            sample_bytes: self.job.sample_bytes,
            places: PLACES,
            overdue,
        }
    }

    fn opening(&self, id: StreamId, member: String, request: LaneRequest) -> Opening {
        Opening {
            id,
            counters: Arc::new(Counters::default()),
            token: self.job.workers.sent_token().cloned().filter(|_| member != HERE),
            member,
            request,
            introduction: self.job.introduction.clone(),
            tensors: self.job.tensors.clone(),
            columns: self.job.columns.clone(),
        }
    }

    /// Returns the share of the budget for a stream of these strands that begins with `step`. A rank's lanes are unevenly
    /// distributed over strands. Workers get twice the equal share. Streams in this process share the rank's own budget, so each
    /// gets the share of its rows.
    fn share_of(&self, step: &Step, strands: &StrandSet, here: bool) -> f64 {
        let equal = strands.len() as f64 / f64::from(self.strands.count());
        if !here {
            return (2.0 * equal).min(1.0);
        }
        let rows = self.rows_of_strands(step);
        let own: u64 =
            rows.iter().filter(|(strand, _)| strands.contains(**strand)).map(|(_, rows)| rows).sum();
        equal.max(own as f64 / rows.values().sum::<u64>().max(1) as f64)
    }

    /// Steps from `from` on of which others have brought rows, and in which these strands have some.
    fn overdue(&self, from: u64, strands: &StrandSet) -> u32 {
        let wants = |step: &Step| step.rows.iter().any(|row| strands.contains(self.strands.of(row)));
        let active = self.active.range(from..).map(|(_, gathering)| gathering);
        let overdue = active.filter(|gathering| gathering.has_begun() && wants(&gathering.step)).count();
        u32::try_from(overdue).unwrap_or(u32::MAX)
    }

    fn task(&self, id: StreamId, index: u64) {
        let (Some(stream), Some(gathering)) = (self.streams.get(&id), self.active.get(&index)) else {
            return;
        };
        let rows = gathering.step.rows.iter().enumerate();
        let rows =
            rows.filter(|(_, row)| stream.strands.contains(self.strands.of(row))).map(|(at, _)| at).collect();
        // A stream that has ended reports that, and its tasks go to others.
        let _ended = stream.tasks.send(Task { gathering: gathering.clone(), rows });
    }

    /// Asks a member how it is, and sends what it reports to `to`.
    fn ask(&mut self, member: String, to: UnboundedSender<(String, Result<Reported>)>) {
        let (connect, token) = (self.job.connect.clone(), self.job.workers.sent_token().cloned());
        self.tasks.spawn(async move {
            let result = status(&*connect, &member, token.as_ref()).await.map(Reported::from);
            let _unheard = to.send((member, result));
        });
    }

    fn report(&self) {
        let waiting = match self.active.first_key_value() {
            Some((_, gathering)) => {
                let Step { epoch, position, .. } = gathering.step;
                let from = self.dispatch.waiting();
                let detail = format!("the step at position {position} of epoch {epoch}: {from}");
                Waiting { stage: Stage::Workers, detail, since: None }
            }
            None if self.next.is_none() => Waiting { stage: Stage::Ended, ..Waiting::default() },
            None => Waiting { stage: Stage::NoPlace, ..Waiting::default() },
        };
        self.job.shared.set_waiting(waiting);
    }
}
