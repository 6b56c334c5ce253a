//! Ranks with the dispatch of real runs, and workers that join cold, drain, are killed or stop, under a virtual clock, from a seed.
//!
//! ```text
//! events ─▶ workers: listed, ready, draining ─▶ ranks: dispatch ─▶ streams, warm-ups, probes ─▶ rows ─▶ steps in order
//! ```
//! Oracles: every step arrives; a stream is only opened at a worker that has reported to this rank that it is ready, if one has; ranks that
//! have heard the same have the same table. While workers only join and drain, no rank waits longer than 0.5 s.

use super::data::Dice;
use super::network::seeds;
use crate::fleet::dispatch::{Action, COLD_AFTER, Dispatch, Local, RowsOfStrands, StreamId};
use crate::fleet::member::Reported;
use crate::fleet::progress::Progress;
use crate::fleet::selection::Selection;
use crate::{Error, ErrorKind};
use feedstock_dataset::StrandSet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PARTS: u32 = 64;

/// Strands of a part: few, so that many seeds take seconds, and as in an order.
const FEW: u32 = 16;
const AS_PLANNED: u32 = 256;

/// Rows of a rank's step.
const ROWS: u32 = 32;

/// Times in milliseconds: of the clock, of a question and its answer, of making rows, and of steps of fast and slow trainers.
const TICK: u64 = 25;
const ROUND: u64 = 50;
const MAKES: u64 = 50;
const TRAINS: [u64; 2] = [TICK, 100];

/// A name is looked up this often.
const LOOKS_UP: u64 = 2000;

const SLOTS: u64 = 4;

/// Warm-ups of a rank at once (`run.rs`).
const WARM_UPS: usize = 256;

/// Ranks ask a worker that has stopped no sooner than this after it goes on (`member.rs`: the longest time between two probes).
const LEFT_ALONE: u64 = 15_000 + 2 * ROUND;

/// The longest wait while workers join and drain.
const MOST: u64 = 500;

#[derive(Debug, Clone, Copy)]
enum Event {
    Joins,
    /// It is about to end, and not listed any more.
    Drains,
    /// As [`Drains`](Self::Drains), but its address stays listed.
    DrainsListed,
    Dies,
    /// It dies, and its address stays listed.
    Vanishes,
    /// Another process is at its address, which was listed all the time.
    Restarts,
    /// It brings nothing until this time.
    Stops(u64),
}

#[derive(Debug, Clone, Default)]
struct Machine {
    is_there: bool,
    is_listed: bool,
    is_draining: bool,
    stopped_until: u64,
    /// When it was asked to open the data set first, and what that takes.
    asked: Option<u64>,
    opens_in: u64,
    /// When its process began.
    began: u64,
}

impl Machine {
    fn answers(&self, now: u64) -> bool {
        self.is_there && now >= self.stopped_until
    }

    /// Whether it is ready; it begins to open the data set when it is first asked. `None`: it does not answer, or does not know the
    /// recipe and drains.
    fn ask(&mut self, now: u64) -> Option<bool> {
        let may = self.answers(now) && (self.asked.is_some() || !self.is_draining);
        may.then(|| now >= *self.asked.get_or_insert(now) + self.opens_in)
    }

    /// As [`ask`](Self::ask), for a rank that prepares later streams.
    fn prepare(&mut self, now: u64) -> Option<bool> {
        if self.is_draining { None } else { self.ask(now) }
    }

    /// What it reports when it is asked how it is.
    fn report(&self, now: u64) -> Result<Reported, Error> {
        match self.answers(now) {
            true => {
                let instance = self.began.to_string();
                Ok(Reported { instance, capacity: None, is_draining: self.is_draining })
            }
            false => Err(error("no answer")),
        }
    }
}

struct Sending {
    worker: usize,
    strands: StrandSet,
    asked: u64,
    /// When it was open.
    open: Option<u64>,
    has_heard: bool,
    /// Steps, and when they were asked for.
    tasks: BTreeMap<u64, u64>,
    bytes: u64,
}

struct Trainee {
    rank: u32,
    world_size: u32,
    of_part: u32,
    trains: u64,
    dispatch: Dispatch,
    streams: BTreeMap<StreamId, Sending>,
    lacking: BTreeMap<u64, BTreeSet<u32>>,
    next: u64,
    /// Steps that the trainer has taken, and when it took the last one.
    taken: u64,
    took: u64,
    longest: u64,
    warm_ups: Vec<(usize, u64)>,
    probes: Vec<(usize, u64)>,
    /// Workers without a stream that are asked how they are.
    asks: Vec<(usize, u64)>,
    /// Workers that have said that they are ready, and since when there is one.
    told: BTreeSet<usize>,
    served: Option<u64>,
    /// When each worker was first asked for rows.
    first: BTreeMap<usize, u64>,
}

struct World {
    now: u64,
    machines: Vec<Machine>,
    numbers: BTreeMap<String, usize>,
    ranks: Vec<Trainee>,
    /// Other ranks than the simulated ones ask workers, too, as soon as they join.
    has_others: bool,
}

fn name(worker: usize) -> String {
    format!("10.{}.{}.{}:7117", worker % 7, worker / 250, worker % 250)
}

fn error(what: &str) -> Error {
    Error::new(ErrorKind::Retryable, what)
}

impl Trainee {
    fn new(rank: u32, world_size: u32, of_part: u32, salt: u64) -> Self {
        let parts = (0..PARTS * of_part).map(|strand| strand % PARTS);
        let dispatch = Dispatch::new(parts, Local::Never);
        let dispatch = dispatch.selecting(Selection::of_job(world_size, PARTS, salt));
        Self {
            rank,
            world_size,
            of_part,
            trains: TRAINS[salt as usize % 2],
            dispatch: dispatch.asking_as(u64::from(rank)),
            streams: BTreeMap::new(),
            lacking: BTreeMap::new(),
            next: 0,
            taken: 0,
            took: 0,
            longest: 0,
            warm_ups: Vec::new(),
            probes: Vec::new(),
            asks: Vec::new(),
            told: BTreeSet::new(),
            served: None,
            first: BTreeMap::new(),
        }
    }

    /// The rows of a step: a few strands of each of the rank's parts, others in each step.
    fn rows(&self, step: u64) -> RowsOfStrands {
        let first = self.rank * PARTS / self.world_size;
        let count = (PARTS / self.world_size).max(1);
        let of_row = |row: u32| {
            let turn = (step as u32 * (ROWS / count).max(1) + row / count) % self.of_part;
            turn * PARTS + (first + row % count) % PARTS
        };
        (0..ROWS).map(|row| (of_row(row), 1)).collect()
    }

    /// A worker has said that it is ready, or is not there any more.
    fn hears(&mut self, now: u64, worker: usize, is_ready: bool) {
        match is_ready {
            true => drop(self.told.insert(worker)),
            false => drop(self.told.remove(&worker)),
        }
        self.served = match self.told.is_empty() {
            true => None,
            false => self.served.or(Some(now)),
        };
    }

    fn brought(&mut self, now: Duration, id: StreamId, index: u64) -> Vec<Action> {
        let strands = self.streams[&id].strands.clone();
        let is_complete = self.lacking.get_mut(&index).is_some_and(|lacking| {
            lacking.retain(|strand| !strands.contains(*strand));
            lacking.is_empty()
        });
        let mut actions = self.dispatch.received(now, id, index);
        if is_complete {
            self.lacking.remove(&index);
            actions.extend(self.dispatch.finished(index));
        }
        actions
    }

    /// The trainer takes a step if it is complete, and the rank requests another one.
    fn train(&mut self, now: u64) -> Vec<Action> {
        let is_complete = self.taken < self.next && self.lacking.keys().all(|oldest| self.taken < *oldest);
        let free = self.took + self.trains;
        if is_complete && now >= free {
            if self.taken > 0 {
                self.longest = self.longest.max(now - free);
            }
            (self.taken, self.took) = (self.taken + 1, now);
        }
        let mut actions = Vec::new();
        while self.next < self.taken + SLOTS {
            let rows = self.rows(self.next);
            self.lacking.insert(self.next, rows.keys().copied().collect());
            actions.extend(self.dispatch.step(Duration::from_millis(now), self.next, rows));
            self.next += 1;
        }
        actions
    }
}

impl World {
    /// A world of workers of which the first `there` are listed and open the data set at once; the others need `opens_in`.
    fn new(workers: usize, there: usize, opens_in: impl FnMut(usize) -> u64, ranks: Vec<Trainee>) -> Self {
        let machines = (0..workers).map(opens_in).enumerate().map(|(nth, opens_in)| Machine {
            is_there: nth < there,
            is_listed: nth < there,
            opens_in: if nth < there { 100 } else { opens_in },
            ..Machine::default()
        });
        let numbers = (0..workers).map(|nth| (name(nth), nth)).collect();
        Self { now: 0, machines: machines.collect(), numbers, ranks, has_others: false }
    }

    fn at(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn happens(&mut self, worker: usize, event: Event) {
        let machine = &mut self.machines[worker];
        match event {
            Event::Joins if !machine.is_there => {
                let (opens_in, asked) = (machine.opens_in, self.has_others.then_some(self.now));
                let began = self.now;
                *machine =
                    Machine { is_there: true, is_listed: true, opens_in, asked, began, ..Machine::default() };
            }
            Event::Joins => {}
            Event::Drains => (machine.is_draining, machine.is_listed) = (true, false),
            Event::DrainsListed => machine.is_draining = true,
            Event::Dies => (machine.is_there, machine.is_listed) = (false, false),
            Event::Vanishes => machine.is_there = false,
            Event::Restarts => {
                let (opens_in, began) = (machine.opens_in, self.now);
                *machine = Machine { is_there: true, is_listed: true, opens_in, began, ..Machine::default() };
            }
            Event::Stops(until) => machine.stopped_until = until,
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        for nth in 0..self.ranks.len() {
            if (self.now + 250 * nth as u64) % LOOKS_UP < TICK || self.now == TICK {
                self.look_up(nth);
            }
            self.hear(nth);
            self.answer(nth);
            let actions = self.ranks[nth].train(self.now);
            self.act(nth, actions);
            if self.now.is_multiple_of(2 * TICK) {
                let trainee = &mut self.ranks[nth];
                let progress = trainee.streams.iter();
                let progress = progress
                    .map(|(id, stream)| (*id, Progress { bytes: stream.bytes, lacks: None, waits: false }));
                let progress = progress.collect();
                let actions = trainee.dispatch.tick(Duration::from_millis(self.now), &progress);
                self.act(nth, actions);
            }
        }
    }

    fn look_up(&mut self, nth: usize) {
        let listed = self.machines.iter().enumerate().filter(|(_, machine)| machine.is_listed);
        let listed: BTreeSet<usize> = listed.map(|(worker, _)| worker).collect();
        let trainee = &mut self.ranks[nth];
        let gone: Vec<usize> = trainee.told.difference(&listed).copied().collect();
        let is_streaming = |worker: usize| trainee.streams.values().any(|stream| stream.worker == worker);
        let gone: Vec<usize> = gone.into_iter().filter(|worker| !is_streaming(*worker)).collect();
        gone.into_iter().for_each(|worker| trainee.hears(self.now, worker, false));
        let names: Vec<String> = listed.into_iter().map(name).collect();
        let at = self.at();
        let actions = self.ranks[nth].dispatch.members(at, &names);
        self.act(nth, actions);
    }

    /// Streams open, bring rows, and end.
    fn hear(&mut self, nth: usize) {
        let (now, at) = (self.now, self.at());
        for id in self.ranks[nth].streams.keys().copied().collect::<Vec<_>>() {
            let trainee = &mut self.ranks[nth];
            let Some(stream) = trainee.streams.get_mut(&id) else { continue };
            let (worker, machine) = (stream.worker, &mut self.machines[stream.worker]);
            let mut actions = Vec::new();
            if stream.open.is_none() && now >= stream.asked + 2 * ROUND {
                if let Ok(reported) = machine.report(now) {
                    trainee.dispatch.reported(at, &name(worker), &reported);
                }
                match machine.ask(now) {
                    Some(true) => {
                        stream.open = Some(now);
                        actions = trainee.dispatch.opened(at, id);
                        trainee.hears(now, worker, true);
                    }
                    Some(false) => trainee.dispatch.opening(id),
                    None => actions = Self::lose(trainee, now, id),
                }
            } else if stream.open.is_some() && !machine.is_there {
                actions = Self::lose(trainee, now, id);
            } else if machine.is_draining && !stream.has_heard && stream.open.is_some() {
                stream.has_heard = true;
                actions = trainee.dispatch.leaving(at, id);
            } else if now < machine.stopped_until {
                stream.bytes += 1;
            } else if let (Some(open), Some((&index, &asked))) = (stream.open, stream.tasks.first_key_value())
                && now >= (open + MAKES).max(asked + TICK)
            {
                stream.bytes += 1_000_000;
                stream.tasks.remove(&index);
                actions = trainee.brought(at, id, index);
            }
            self.act(nth, actions);
        }
    }

    fn lose(trainee: &mut Trainee, now: u64, id: StreamId) -> Vec<Action> {
        let worker = trainee.streams.remove(&id).map(|stream| stream.worker);
        worker.into_iter().for_each(|worker| trainee.hears(now, worker, false));
        trainee.dispatch.lost(Duration::from_millis(now), id, error("the connection ended"))
    }

    /// Warm-ups and probes end.
    fn answer(&mut self, nth: usize) {
        let (now, at) = (self.now, self.at());
        let trainee = &mut self.ranks[nth];
        let (mut ended, mut under_way) = (Vec::new(), Vec::new());
        for (place, (worker, asked)) in std::mem::take(&mut trainee.warm_ups).into_iter().enumerate() {
            let is_asked = place < WARM_UPS && now >= asked + ROUND;
            match is_asked.then(|| self.machines[worker].prepare(now)) {
                Some(Some(true)) => ended.push((worker, true)),
                Some(None) => ended.push((worker, false)),
                None | Some(Some(false)) => under_way.push((worker, asked)),
            }
        }
        trainee.warm_ups = under_way;
        let mut results = Vec::new();
        for (worker, is_ready) in ended {
            trainee.hears(now, worker, is_ready);
            if let Ok(reported) = self.machines[worker].report(now) {
                trainee.dispatch.reported(at, &name(worker), &reported);
            }
            results.push((name(worker), if is_ready { Ok(()) } else { Err(error("it went away")) }));
        }
        let mut actions = if results.is_empty() { Vec::new() } else { trainee.dispatch.warmed(at, results) };
        for (worker, _) in trainee.probes.extract_if(.., |(_, asked)| now >= *asked + ROUND) {
            let report = self.machines[worker].report(now);
            actions.extend(trainee.dispatch.probed(at, &name(worker), report));
        }
        for (worker, _) in trainee.asks.extract_if(.., |(_, asked)| now >= *asked + ROUND) {
            let report = self.machines[worker].report(now);
            if report.is_err() && trainee.told.remove(&worker) && trainee.told.is_empty() {
                trainee.served = None;
            }
            actions.extend(trainee.dispatch.answered(at, &name(worker), report));
        }
        self.act(nth, actions);
    }

    fn act(&mut self, nth: usize, actions: Vec<Action>) {
        let (now, at) = (self.now, self.at());
        if actions.is_empty() {
            return;
        }
        let mut actions = actions;
        let trainee = &mut self.ranks[nth];
        let rows = trainee.rows(trainee.next);
        actions.extend(trainee.dispatch.prepare(at, &rows));
        for action in actions {
            match action {
                Action::Open { stream, member, strands, .. } => {
                    let worker = self.number(&member);
                    self.check(nth, worker);
                    let trainee = &mut self.ranks[nth];
                    trainee.first.entry(worker).or_insert(now);
                    let tasks = BTreeMap::new();
                    let sending = Sending {
                        worker,
                        strands,
                        asked: now,
                        open: None,
                        has_heard: false,
                        tasks,
                        bytes: 0,
                    };
                    trainee.streams.insert(stream, sending);
                }
                Action::Task { stream, index } => {
                    let stream = self.ranks[nth].streams.get_mut(&stream).unwrap();
                    stream.tasks.insert(index, now);
                }
                Action::Close { stream } => drop(self.ranks[nth].streams.remove(&stream)),
                Action::Probe { member } => {
                    let worker = self.number(&member);
                    self.ranks[nth].probes.push((worker, now));
                }
                Action::Warm { member } => {
                    let worker = self.number(&member);
                    self.ranks[nth].warm_ups.push((worker, now));
                }
                Action::Ask { member } => {
                    let worker = self.number(&member);
                    self.ranks[nth].asks.push((worker, now));
                }
            }
        }
    }

    fn number(&self, member: &str) -> usize {
        self.numbers[member]
    }

    /// Rows are only requested from a worker that has said that it is ready, unless none has, or the first one has only just.
    fn check(&self, nth: usize, worker: usize) {
        let trainee = &self.ranks[nth];
        let grace = COLD_AFTER.as_millis() as u64 + 2 * TICK;
        let is_early = trainee.served.is_none_or(|served| self.now <= served + grace);
        // Ranks leave alone for a while what has stopped.
        let is_well = |worker: &&usize| {
            let until = self.machines[**worker].stopped_until;
            until == 0 || self.now >= until + LEFT_ALONE
        };
        let has_ready = trainee.told.iter().any(|worker| is_well(&worker));
        assert!(
            is_early || !has_ready || trainee.told.contains(&worker),
            "at {} ms rank {} asks {} for rows, which has not said that it is ready, unlike {} others",
            self.now,
            trainee.rank,
            name(worker),
            trainee.told.len()
        );
    }

    /// Runs until `ends`, and until every step that was requested is there.
    fn run(&mut self, ends: u64, mut events: Vec<(u64, usize, Event)>) {
        events.sort_by_key(|(at, ..)| *at);
        let mut events = events.into_iter().peekable();
        while self.now < ends {
            while let Some((_, worker, event)) = events.next_if(|(at, ..)| *at <= self.now) {
                self.happens(worker, event);
            }
            self.tick();
        }
        for trainee in &self.ranks {
            let waits = self.now - trainee.took;
            assert!(trainee.taken > 0 && waits <= 5000, "rank {} has waited for {waits} ms", trainee.rank);
        }
    }

    fn longest(&self) -> u64 {
        self.ranks.iter().map(|trainee| trainee.longest).max().unwrap()
    }

    fn has_one_table(&self) -> bool {
        let table = |trainee: &Trainee| trainee.dispatch.members_of_strands();
        self.ranks.windows(2).all(|pair| table(&pair[0]) == table(&pair[1]))
    }
}

fn ranks(count: u32, salt: u64) -> Vec<Trainee> {
    (0..count).map(|rank| Trainee::new(rank, count, FEW, salt)).collect()
}

#[test]
fn a_cold_worker_serves_within_a_second_of_being_ready() {
    for (there, count) in [(1, 1), (4, 2), (31, 1), (40, 4)] {
        let mut world = World::new(there + 1, there, |_| 10_000, ranks(count, u64::from(count)));
        world.run(20_000, vec![(3000, there, Event::Joins)]);
        let ready = world.machines[there].asked.unwrap() + 10_000;
        let first = world.ranks.iter().filter_map(|trainee| trainee.first.get(&there)).min().unwrap();
        assert!(
            (ready..=ready + 1000).contains(first),
            "{there} workers: ready at {ready}, asked at {first}"
        );
        assert!(world.longest() <= MOST, "{there} workers: a rank waited {} ms", world.longest());
        assert!(world.has_one_table());
    }
}

/// More workers than a rank uses, and the new ones come first: none displaces a warm one before it is ready.
#[test]
fn cold_newcomers_displace_no_warm_worker() {
    for salt in 0..4 {
        let mut world = World::new(96, 32, |_| 10_000, ranks(1, salt));
        world.run(30_000, (32..96).map(|nth| (4000, nth, Event::Joins)).collect());
        assert!(world.longest() <= MOST, "salt {salt}: the rank waited {} ms", world.longest());
        let serving =
            |world: &World| world.ranks[0].dispatch.members_of_strands().into_iter().collect::<BTreeSet<_>>();
        assert_eq!(serving(&world).len(), 32, "salt {salt}");
        let first = |world: &World| (32..96).filter(|nth| world.ranks[0].first.contains_key(nth)).count();
        assert!(first(&world) > 8, "salt {salt}: {} newcomers serve in the end", first(&world));
    }
}

#[test]
fn the_last_ready_worker_serves_until_another_one_is_ready() {
    let mut world = World::new(3, 1, |_| 8000, ranks(1, 7));
    let drains = [(4500, 0, Event::Drains), (30_000, 0, Event::Dies)];
    world.run(40_000, [(4000, 1, Event::Joins), (4000, 2, Event::Joins)].into_iter().chain(drains).collect());
    assert!(world.longest() <= MOST, "the rank waited {} ms", world.longest());
    assert_eq!(world.ranks[0].dispatch.members_of_strands().into_iter().collect::<BTreeSet<_>>().len(), 2);
}

/// All ready workers drain at once, as spot instances do. Two end before any other one is ready.
#[test]
fn workers_that_all_drain_serve_until_others_are_ready() {
    for salt in 0..4 {
        let mut world = World::new(8, 4, |_| 5000, ranks(2, salt));
        let drains = (0..4).map(|nth| (4000 + 25 * nth as u64, nth, Event::Drains));
        let joins = (4..8).map(|nth| (4200, nth, Event::Joins));
        let ends = (0..4).map(|nth| (if nth < 2 { 6000 } else { 30_000 }, nth, Event::Dies));
        world.run(40_000, drains.chain(joins).chain(ends).collect());
        assert!(world.longest() <= MOST, "salt {salt}: a rank waited {} ms", world.longest());
        let serving: BTreeSet<String> = world.ranks[0].dispatch.members_of_strands().into_iter().collect();
        assert_eq!(serving, (4..8).map(name).collect());
    }
}

/// All ready workers drain and end, and other processes are at the same addresses then.
#[test]
fn workers_that_restart_at_their_addresses_serve_again() {
    for salt in 0..4 {
        let mut world = World::new(3, 3, |_| 0, ranks(2, salt));
        let events = (0..3).flat_map(|nth| {
            let at = 4000 + 25 * nth as u64;
            [(at, nth, Event::DrainsListed), (at + 6000 + 500 * nth as u64, nth, Event::Restarts)]
        });
        world.run(40_000, events.collect());
        assert!(world.longest() <= 2000, "salt {salt}: a rank waited {} ms", world.longest());
        let serving: BTreeSet<String> = world.ranks[0].dispatch.members_of_strands().into_iter().collect();
        assert_eq!(serving.len(), 3, "salt {salt}");
    }
}

/// Ranks have no stream to most of the workers, whose addresses stay listed.
#[test]
fn ranks_have_one_table_a_minute_after_workers_have_vanished() {
    for salt in 0..4 {
        let mut world = World::new(100, 100, |_| 0, ranks(4, salt));
        let vanish = (0..100).step_by(20).map(|nth| (5000, nth, Event::Vanishes));
        let drains = (10..100).step_by(20).map(|nth| (6000, nth, Event::DrainsListed));
        world.run(5000, Vec::new());
        assert!(world.has_one_table(), "salt {salt}");
        let streaming =
            |trainee: &Trainee, worker| trainee.streams.values().any(|stream| stream.worker == worker);
        let is_silent = |trainee: &Trainee| (0..100).step_by(20).any(|worker| !streaming(trainee, worker));
        assert!(world.ranks.iter().any(is_silent), "salt {salt}: all ranks notice at once");
        world.run(68_000, vanish.chain(drains).collect());
        assert!(world.has_one_table(), "salt {salt}");
        let serving: BTreeSet<String> = world.ranks[0].dispatch.members_of_strands().into_iter().collect();
        let gone = (0..100).step_by(10).map(name);
        assert_eq!(serving.intersection(&gone.collect()).count(), 0, "salt {salt}");
    }
}

/// Joins and drains at any time, of fleets that are smaller and larger than what a rank uses.
fn joins_and_drains(seed: u64) {
    let mut dice = Dice(seed);
    let workers = [6, 20, 60, 150][dice.roll(4) as usize];
    let there = 2 + dice.roll(workers - 2);
    let count = [1, 2, 4][dice.roll(3) as usize];
    let mut opens = Dice(seed ^ 99);
    let opens_in = |_: usize| [0, 300, 2000, 10_000][opens.roll(4) as usize] + opens.roll(300);
    let mut world = World::new(workers as usize, there as usize, opens_in, ranks(count, seed));
    let joins = (there..workers).map(|worker| (2000 + dice.roll(20_000), worker as usize, Event::Joins));
    let mut events: Vec<(u64, usize, Event)> = joins.collect();
    // Some of the first ones drain, and end when their drain is over.
    for worker in 0..dice.roll(there) as usize {
        let at = 4000 + dice.roll(25_000);
        events.extend([(at, worker, Event::Drains), (at + 20_000, worker, Event::Dies)]);
    }
    world.run(60_000, events);
    assert!(world.longest() <= MOST, "a rank waited {} ms", world.longest());
    assert!(world.has_one_table(), "ranks have different tables");
}

/// Workers are also killed, come back cold, and stop for a while; one of those that are there at first stays well.
fn kills_and_stops(seed: u64) {
    let mut dice = Dice(seed);
    let workers = [3, 8, 50][dice.roll(3) as usize];
    let there = 2 + dice.roll(workers - 1);
    let mut opens = Dice(seed ^ 99);
    let opens_in = |_: usize| [0, 300, 5000][opens.roll(3) as usize];
    let mut world = World::new(workers as usize, there as usize, opens_in, ranks(2, seed));
    let mut events = Vec::new();
    for _ in 0..30 {
        let (at, worker) = (2000 + dice.roll(40_000), 1 + dice.roll(workers - 1) as usize);
        events.push((
            at,
            worker,
            match dice.roll(8) {
                0..=2 => Event::Joins,
                3 => Event::Drains,
                4 => Event::DrainsListed,
                5 => Event::Dies,
                6 => Event::Restarts,
                _ => Event::Stops(at + dice.roll(5000)),
            },
        ));
    }
    world.run(60_000, events);
    // 2 s, as in `slow.rs`, for each of the workers that are asked one after the other and are stopped.
    assert!(world.longest() <= 6000, "a rank waited {} ms", world.longest());
}

fn each(what: &str, most: u64, run: fn(u64)) {
    for seed in seeds(most) {
        let ran = std::panic::catch_unwind(|| run(seed));
        assert!(
            ran.is_ok(),
            "seed {seed}; run it again: FEEDSTOCK_SEED={seed} cargo test -p feedstock-ingest --lib {what}"
        );
    }
}

#[test]
fn no_rank_waits_while_workers_join_and_drain() {
    each("no_rank_waits_while_workers_join_and_drain", 5, joins_and_drains);
}

#[test]
fn every_step_arrives_while_workers_are_killed_and_stop() {
    each("every_step_arrives_while_workers_are_killed_and_stop", 6, kills_and_stops);
}

/// Two of 1,000 ranks. 600 workers are there, 400 join within 20 s and open the data set for 10 s, 100 drain.
#[test]
fn no_rank_of_a_thousand_waits_while_workers_of_a_thousand_join_and_drain() {
    let sampled = [333, 999].map(|rank| Trainee::new(rank, 1000, AS_PLANNED, 3)).into();
    let mut world = World { has_others: true, ..World::new(1000, 600, |_| 10_000, sampled) };
    let joins = (600..1000).map(|nth| (5000 + (nth as u64 - 600) * 50, nth, Event::Joins));
    let drains = (0..100).map(|nth| (20_000 + nth as u64 * 100, 3 * nth, Event::Drains));
    let ends = (0..100).map(|nth| (40_000, 3 * nth, Event::Dies));
    world.run(45_000, joins.chain(drains).chain(ends).collect());
    println!("a rank waited {} ms at most", world.longest());
    assert!(world.longest() <= MOST, "a rank waited {} ms", world.longest());
    assert!(world.has_one_table());
    let serving: BTreeSet<String> = world.ranks[0].dispatch.members_of_strands().into_iter().collect();
    assert_eq!(serving.len(), 900);
}
