//! 1,000 workers and 1,000 ranks: the rows of a real order, the table of strands as every rank computes it, and a virtual clock.
//!
//! ```text
//! order ─▶ rows of each strand, by step ─▶ table of the members that are up ─▶ rows of each worker ─▶ when it has made them
//! ```
//! Ranks train in step: none takes a batch before all have the one before. A worker makes steps in turn, up to [`AHEAD`] ahead of the
//! last one that all ranks have taken. Trainers take no time, so decoding binds.

use crate::fleet::assign::{Parts, assign};
use crate::fleet::hedge::{HEDGE_AFTER, TICK};
use crate::fleet::selection::Selection;
use crate::fleet::silence::SILENCE;
use crate::fleet::weights::SETTLE_MOST;
use crate::wire::MESSAGE_BYTES;
use feedstock_dataset::{
    Access, DataHashes, Plan, PlanInput, Position, Rank, Shuffle, StepShape, StepSize, StrandSet, Strands,
    Tail,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

const RANKS: usize = 1000;

/// Rows of a rank's step.
const ROWS: usize = 64;

/// Steps of the order; the clock goes through them again and again.
const STEPS: usize = 24;

/// Slots of a rank: the steps that it requests before it takes the first one.
const SLOTS: usize = 4;

/// These, and the steps that a worker makes ahead of what it sends.
const AHEAD: usize = SLOTS + 4;

/// Seconds until a stream that is opened again makes rows: three round trips in a data centre, and the search for its first step.
const REOPENS_IN: f64 = 0.05;

/// Images a second of a thread: crops of photographs to 224 pixels.
const ROWS_PER_S: f64 = 300.0;

/// An order, as rows of strands.
struct Order {
    strands: Strands,
    parts: Parts,
    /// By step, the rows of each strand.
    rows: Vec<Vec<u32>>,
    /// By rank, the strands that it has rows of.
    of_ranks: Vec<BTreeSet<u32>>,
}

impl Order {
    fn new(shuffle: &Shuffle, access: Access) -> Self {
        let samples = (RANKS * ROWS * (STEPS + 1)) as u64;
        let block = 38; // 4 MiB of photographs of 110 kB
        let input = PlanInput {
            block_starts: (0..=samples / block).map(|nth| nth * block).collect(),
            selection: None,
            data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
            filter: None,
            encoded_bytes: samples * 110_000,
            access,
        };
        let plan = Plan::new(input, shuffle).unwrap();
        let strands = plan.strands();
        let whole = StepSize::Rows((RANKS * ROWS) as u64);
        let shape = StepShape { size: whole, rank: Rank::new(0, 1), tail: Tail::Drop };
        let mut rows = vec![vec![0; strands.count() as usize]; STEPS];
        let mut of_ranks = vec![BTreeSet::new(); RANKS];
        for (step, rows) in plan.epoch(0).steps(Position(0), &shape).zip(&mut rows) {
            for (at, row) in step.rows.iter().enumerate() {
                let strand = strands.of(row);
                rows[strand as usize] += 1;
                of_ranks[at / ROWS].insert(strand); // ranks take runs of the ordered step
            }
        }
        let parts = Parts::of((0..strands.count()).map(|strand| strands.part_of(strand)));
        Self { strands, parts, rows, of_ranks }
    }

    /// By strand, which of the members that the job uses serves it.
    fn table<'a>(&self, members: &BTreeMap<&'a str, u32>) -> Vec<&'a str> {
        assign(&self.used(members), &self.parts)
    }

    /// The members that the job uses.
    fn used<'a>(&self, members: &BTreeMap<&'a str, u32>) -> BTreeMap<&'a str, u32> {
        let selection = Selection::of_job(RANKS as u32, self.strands.parts(), 1);
        let used = selection.of(members.keys().copied().collect());
        members.iter().filter(|(name, _)| used.contains(*name)).map(|(name, units)| (*name, *units)).collect()
    }
}

/// The default order of photographs in tars on object storage.
static PIECES: LazyLock<Order> = LazyLock::new(|| Order::new(&Shuffle::seeded(7), Access::Ranges));

fn names(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("10.{}.{}.{}:7117", nth % 7, nth / 250, nth % 250)).collect()
}

fn equal(names: &[String]) -> BTreeMap<&str, u32> {
    names.iter().map(|name| (name.as_str(), 8)).collect()
}

/// Workers of 4 to 32 threads.
fn mixed(names: &[String]) -> BTreeMap<&str, u32> {
    names.iter().enumerate().map(|(at, name)| (name.as_str(), [8, 4, 16, 8, 32, 8][at % 6])).collect()
}

/// The largest share of strands by unit, over the mean.
fn worst_share(order: &Order, members: &BTreeMap<&str, u32>) -> f64 {
    let mut counts: BTreeMap<&str, f64> = order.used(members).into_keys().map(|name| (name, 0.0)).collect();
    order.table(members).into_iter().for_each(|name| *counts.entry(name).or_default() += 1.0);
    let units: u32 = counts.keys().map(|name| members[name]).sum();
    let mean = f64::from(order.strands.count()) / f64::from(units);
    counts.iter().map(|(name, strands)| strands / f64::from(members[name])).fold(0.0, f64::max) / mean
}

/// Other workers serve, from a step on.
struct Move {
    from: usize,
    /// When ranks open the streams.
    at: f64,
    threads: BTreeMap<usize, u32>,
}

/// The virtual clock of a job. Workers have numbers.
struct Clock<'a> {
    order: &'a Order,
    names: &'a [String],
    /// The threads of the workers that serve.
    threads: BTreeMap<usize, u32>,
    /// By strand, the worker that serves it.
    table: Vec<usize>,
    /// The tables that come.
    coming: Vec<Move>,
    /// By worker, when it has made what it was last asked for.
    made: Vec<f64>,
    /// When all ranks had each step.
    taken: Vec<f64>,
    /// What the workers could have made so far, if all of their threads had always been busy.
    linear_rows: f64,
}

impl<'a> Clock<'a> {
    fn new(order: &'a Order, names: &'a [String]) -> Self {
        let (threads, table, coming) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (made, taken) = (vec![0.0; names.len()], vec![0.0; AHEAD]);
        Self { order, names, threads, table, coming, made, taken, linear_rows: 0.0 }
    }

    fn now(&self) -> f64 {
        self.taken[self.taken.len() - 1]
    }

    /// The number of steps so far.
    fn steps(&self) -> usize {
        self.taken.len() - AHEAD
    }

    /// These serve from the next step on that is not requested yet; `lost`: from the next one.
    fn serve(&mut self, threads: BTreeMap<usize, u32>, lost: bool) {
        let from = self.steps() + if lost || self.table.is_empty() { 0 } else { SLOTS };
        self.coming.retain(|move_| move_.from < from);
        self.coming.push(Move { from, at: self.now(), threads });
    }

    /// Workers whose strands change have opened their streams again by now, or do so, which takes [`REOPENS_IN`]. What they had made
    /// ahead of it is lost.
    fn move_strands(&mut self) {
        let steps = self.steps();
        let Some(Move { at, threads, .. }) = self.coming.pop_if(|coming| coming.from <= steps) else {
            return;
        };
        self.coming.clear();
        let members = threads.iter().map(|(nth, threads)| (self.names[*nth].as_str(), *threads)).collect();
        let numbers: BTreeMap<&str, usize> =
            threads.keys().map(|nth| (self.names[*nth].as_str(), *nth)).collect();
        let table: Vec<usize> = self.order.table(&members).into_iter().map(|name| numbers[name]).collect();
        for (new, old) in table.iter().zip(&self.table).filter(|(new, old)| new != old) {
            for worker in [*new, *old] {
                self.made[worker] = self.made[worker].max(at + REOPENS_IN);
            }
        }
        (self.table, self.threads) = (table, threads);
    }

    /// All ranks take a step. What the `stopped` worker owes of it comes from another one, after some seconds.
    fn step(&mut self, stopped: Option<(usize, f64)>) {
        self.move_strands();
        let mut rows = vec![0_u32; self.names.len()];
        let of_step = &self.order.rows[self.steps() % STEPS];
        self.table.iter().zip(of_step).for_each(|(worker, count)| rows[*worker] += count);
        let (begun, free) = (self.now(), self.taken[self.taken.len() - AHEAD]);
        let mut last = begun;
        for (&worker, &threads) in &self.threads {
            let takes = f64::from(rows[worker]) / (f64::from(threads) * ROWS_PER_S);
            self.made[worker] = self.made[worker].max(free) + takes;
            last = last.max(match stopped {
                Some((stopped, late)) if stopped == worker => begun + late + takes,
                _ => self.made[worker],
            });
        }
        let threads: u32 = self.threads.values().sum();
        self.linear_rows += (last - begun) * f64::from(threads) * ROWS_PER_S;
        self.taken.push(last);
    }

    fn rows(&self) -> f64 {
        (self.steps() * RANKS * ROWS) as f64
    }

    fn rows_per_s(&self) -> f64 {
        self.rows() / self.now()
    }

    fn of_linear(&self) -> f64 {
        self.rows() / self.linear_rows
    }
}

/// A job whose workers stay as they are.
fn steady<'a>(order: &'a Order, names: &'a [String], members: &BTreeMap<&str, u32>) -> Clock<'a> {
    let mut clock = Clock::new(order, names);
    clock.serve((0..names.len()).map(|nth| (nth, members[names[nth].as_str()])).collect(), true);
    (0..4 * STEPS).for_each(|_| clock.step(None));
    clock
}

#[test]
fn a_thousand_workers_have_equal_shares_and_nine_tenths_of_linear_throughput() {
    let names = names(1000);
    for (what, order) in [
        ("pieces", &*PIECES),
        ("blocks", &Order::new(&Shuffle::seeded(7), Access::Blocks)),
        ("samples", &Order::new(&Shuffle::full(7), Access::Samples)),
    ] {
        for (which, members) in [("equal", equal(&names)), ("of 4 to 32 threads", mixed(&names))] {
            let (share, clock) = (worst_share(order, &members), steady(order, &names, &members));
            println!(
                "{what}, {which}: worst share {share:.3} of the mean, {:.3} of linear, {:.0} rows/s",
                clock.of_linear(),
                clock.rows_per_s()
            );
            assert!(share <= 1.15, "{what}, {which}: {share}");
            assert!(clock.of_linear() >= 0.9, "{what}, {which}: {}", clock.of_linear());
        }
    }
}

#[test]
fn each_worker_adds_throughput_until_every_rank_has_its_32() {
    let order = &*PIECES;
    let names = names(1400);
    let mut before = 0.0;
    for count in [1, 10, 50, 100, 200, 400, 700, 1000, 1024] {
        let clock = steady(order, &names[..count], &equal(&names[..count]));
        println!("{count} workers: {:.0} rows/s, {:.3} of linear", clock.rows_per_s(), clock.of_linear());
        assert!(clock.of_linear() >= 0.9 && clock.rows_per_s() > before);
        before = clock.rows_per_s();
    }
    // More of them stand by: the fleet reports that they would not help (`spare_workers`).
    let spare: BTreeSet<&str> = order.table(&equal(&names)).into_iter().collect();
    assert_eq!(spare.len(), 1024);
}

#[test]
fn a_rank_has_some_32_workers_and_a_strand_one_of_all_ranks() {
    let order = &*PIECES;
    let names = names(1000);
    for members in [equal(&names), mixed(&names)] {
        let table = order.table(&members);
        let of_rank = |strands: &BTreeSet<u32>| -> usize {
            strands.iter().map(|strand| table[*strand as usize]).collect::<BTreeSet<_>>().len()
        };
        let counts: Vec<usize> = order.of_ranks.iter().map(of_rank).collect();
        let (most, sum) = (counts.iter().max().copied().unwrap(), counts.iter().sum::<usize>());
        println!("{:.1} workers a rank, {most} at most", sum as f64 / RANKS as f64);
        assert!(most <= 56 && sum <= 32 * RANKS, "{most}");
    }
}

/// A fleet of one worker: its stream has every strand of the order.
#[test]
fn a_request_for_every_strand_is_a_fraction_of_the_longest_message() {
    let every: StrandSet = (0..PIECES.strands.count()).collect();
    let bytes = serde_json::to_vec(&every).unwrap().len();
    assert!(bytes < MESSAGE_BYTES as usize / 8, "{} strands take {bytes} bytes", every.len());
}

/// What happens to a worker, and when.
enum Event {
    /// It joins, and opens the data set.
    Joins,
    /// It is drained.
    Leaves,
    /// It is lost without notice.
    Lost,
    /// It sends next to nothing until the time.
    Slow(f64),
}

#[test]
fn throughput_follows_workers_that_join_leave_fail_and_slow_down() {
    const ENDS: f64 = 120.0;
    const OPENS_IN: f64 = 10.0;
    let order = &*PIECES;
    let names = names(1000);
    let units = mixed(&names);
    // 600 are there; 400 join within 20 s, 100 leave within 10 s, one is lost and two are slow.
    let joins = (600..1000).map(|nth| (5.0 + (nth - 600) as f64 / 20.0, nth, Event::Joins));
    let leaves = (0..100).map(|nth| (40.0 + nth as f64 / 10.0, nth * 3, Event::Leaves));
    let fails = [(20.0, 100, Event::Lost), (30.0, 200, Event::Slow(37.0)), (55.0, 301, Event::Slow(200.0))];
    let mut events: Vec<(f64, usize, Event)> = joins.chain(leaves).chain(fails).collect();
    events.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let mut events = events.into_iter().peekable();
    // From when on each may serve.
    let mut serves: BTreeMap<usize, f64> = (0..600).map(|nth| (nth, 0.0)).collect();
    let mut clock = Clock::new(order, &names);
    let (mut moved, mut tables, mut planned) = (f64::MIN, 0, BTreeMap::new());
    while clock.now() < ENDS {
        let now = clock.now();
        let mut stopped = None;
        while let Some((_, nth, event)) = events.next_if(|(at, ..)| *at <= now) {
            match event {
                Event::Joins => serves.insert(nth, now + OPENS_IN),
                Event::Leaves => serves.remove(&nth),
                Event::Lost => {
                    stopped = Some((nth, SILENCE.as_secs_f64()));
                    serves.remove(&nth)
                }
                Event::Slow(until) => {
                    stopped = Some((nth, (HEDGE_AFTER + TICK).as_secs_f64()));
                    serves.insert(nth, until)
                }
            };
        }
        let lost = stopped.is_some();
        if lost {
            clock.step(stopped); // strands move once the ranks have noticed
        }
        let ready = serves.iter().filter(|(_, from)| **from <= now);
        let ready: BTreeMap<usize, u32> = ready.map(|(nth, _)| (*nth, units[names[*nth].as_str()])).collect();
        // Workers that join or drain one after the other are waited for.
        if lost || ready != planned && now >= moved + SETTLE_MOST.as_secs_f64() {
            (tables, moved) = (tables + 1, now);
            planned.clone_from(&ready);
            clock.serve(ready, lost);
        }
        clock.step(None);
    }
    println!(
        "{} steps, {tables} tables, {:.3} of linear, {} workers at the end",
        clock.steps(),
        clock.of_linear(),
        clock.threads.len()
    );
    assert_eq!(clock.threads.len(), 1000 - 100 - 2, "all but those that left, were lost, or are slow");
    assert!(events.next().is_none() && tables > 5);
    assert!(clock.of_linear() >= 0.9, "{}", clock.of_linear());
}
