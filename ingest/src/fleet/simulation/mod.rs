//! The protocol's both ends under a simulated network, from a seed: hosts crash and come back, links are cut in one or both
//! directions, held and let go, and what a host writes trickles. One oracle: every step once, in order, every row the planned
//! one with its own bytes. Where hosts do nothing but trickle, no step may take longer than 2 s either.
//!
//! A failing seed prints the command that runs it again.

mod revoked;
mod throttled;
mod trickle;

use super::connect::Connect;
use super::dispatch::{HERE, Local};
use super::members::Workers;
use super::run::{FleetDriver, Plan as RunPlan};
use crate::memory::row::RowBuffers;
use crate::recipe::{ByLength, RecipeSpec};
use crate::run::driver::Event;
use crate::run::engine::Finished;
use crate::run::ready::Ready;
use crate::run::stats::Shared;
use crate::run::walk::Walk;
use crate::wire::{Io, LaneRequest, RowHead, Token, WorkerStatus};
use crate::worker::{Body, Lane, Place, Rows, Serve, serve};
use crate::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{
    BadShards, DataHashes, DatasetSpec, Durations, Plan, PlanInput, Rank, SampleId, Shuffle, SourceSpec,
    StepShape, StepSize, Tail,
};
use feedstock_ops::{DType, Layout, TensorSpec, Warning, Warnings};
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use throttled::{Limit, Throttled};
use tokio::sync::watch;
use tokio::time::Instant;
use turmoil::net::{TcpListener, TcpStream};

const SAMPLES: u64 = 600;
const BATCH: u64 = 24;
const EPOCHS: u64 = 3;
const SLOTS: usize = 3;
const PORT: u16 = 7117;
/// The most steps that any stream of any run was late with.
static OVERDUE: AtomicU32 = AtomicU32::new(0);
const WORKERS: [&str; 3] = ["worker-a", "worker-b", "worker-c"];

/// Pseudo-random numbers for the faults' times: splitmix64, as the order's own.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

fn plan() -> Plan {
    let input = PlanInput {
        block_starts: (0..=SAMPLES / 20).map(|block| block * 20).collect(),
        selection: None,
        data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
        filter: None,
        encoded_bytes: SAMPLES * 1000,
    };
    Plan::new(input, &Shuffle::seeded(5).window(200).lanes(8)).unwrap()
}

fn shape() -> StepShape {
    StepShape { size: StepSize::Rows(BATCH), rank: Rank::new(0, 1), tail: Tail::Pad }
}

/// From this step of the first epoch on.
fn walk(step: u64) -> Walk {
    Walk::new(plan(), shape(), None, (0, feedstock_dataset::Position(step * BATCH)), Some(EPOCHS))
}

/// A fixed tensor of 40 bytes, and a ragged one.
fn specs() -> Arc<[TensorSpec]> {
    let fixed = TensorSpec::new(DType::U8, [40], Layout::T);
    [fixed, TensorSpec::new(DType::U8, [0], Layout::T).ragged(0)].into()
}

/// The bytes of a sample's column in an epoch.
fn bytes(epoch: u64, sample: SampleId, column: usize) -> Vec<u8> {
    let length = if column == 0 { 40 } else { (sample.0 % 7) as usize };
    (0..length).map(|i| (epoch * 31 + sample.0 * 7 + i as u64 + column as u64) as u8).collect()
}

fn spec() -> RecipeSpec {
    let source = SourceSpec::Uri {
        uri: "memory://simulated".into(),
        layout: None,
        split: None,
        durations: Durations::Never,
        block_bytes: 1 << 20,
        bad_shards: BadShards::Raise,
    };
    let dataset = DatasetSpec { source, filter: None, columns: None, name: None };
    RecipeSpec {
        dataset,
        maps: Vec::new(),
        shuffle: Shuffle::none(),
        by_length: ByLength::default(),
        seed: 0,
        rest: None,
    }
}

/// A worker whose rows cost nothing but time.
struct Simulated {
    told: AtomicBool,
    leaving: watch::Sender<bool>,
    seed: u64,
    kind: Kind,
}

/// What kind of worker.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    /// In which epoch a file is missing.
    gone_in: Option<u64>,
    /// It is always quick.
    steady: bool,
}

struct SimulatedLane {
    kind: Kind,
    specs: Arc<[TensorSpec]>,
    walk: Walk,
    dice: Dice,
    next: Option<Rows>,
}

struct Made(Vec<[Vec<u8>; 2]>);

impl Body for Made {
    fn part(&self, row: usize, column: usize) -> &[u8] {
        &self.0[row][column]
    }
}

impl Lane for SimulatedLane {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Rows>>> {
        Box::pin(async move {
            if self.next.is_none() {
                let step = self.walk.next();
                if step.as_ref().is_some_and(|step| Some(step.epoch) == self.kind.gone_in) {
                    return Err(Error::new(ErrorKind::Gone, "a file is not there"));
                }
                self.next = step.map(|step| {
                    let head = |sample: SampleId| RowHead {
                        sample,
                        failure: None,
                        warnings: warnings(sample),
                        lengths: vec![bytes(step.epoch, sample, 1).len()],
                    };
                    let ids: UInt64Array = step.rows.iter().map(|row| row.sample.0).collect();
                    let body = step.rows.iter();
                    let body = body.map(|row| [0, 1].map(|column| bytes(step.epoch, row.sample, column)));
                    Rows {
                        epoch: step.epoch,
                        position: step.position.0,
                        heads: step.rows.iter().map(|row| head(row.sample)).collect(),
                        columns: RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap(),
                        body: Box::new(Made(body.collect())),
                    }
                });
                // Mostly quick, now and then slower than a rank likes to wait.
                let slow = !self.kind.steady && self.dice.roll(40) == 0;
                let pause = if slow { 300 + self.dice.roll(1500) } else { self.dice.roll(20) };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Ok(self.next.take())
        })
    }
}

impl Serve for Simulated {
    fn token(&self) -> Option<&Token> {
        None
    }

    fn instance(&self) -> (&str, Option<&PathBuf>) {
        ("simulated", None)
    }

    fn status(&self) -> WorkerStatus {
        WorkerStatus::default()
    }

    fn describe(&self, spec: RecipeSpec) -> Result<()> {
        assert_eq!(spec, self::spec());
        self.told.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self, request: LaneRequest) -> BoxFuture<'_, Result<Option<Box<dyn Lane>>>> {
        Box::pin(async move {
            if !self.told.load(Ordering::Relaxed) {
                return Ok(None);
            }
            assert!(request.overdue as usize <= SLOTS, "only steps that have a place are waited for");
            OVERDUE.fetch_max(request.overdue, Ordering::Relaxed);
            let start = (request.cursor.epoch, request.cursor.position);
            let walk = Walk::new(plan(), request.shape, Some(request.strands), start, request.end_epoch);
            let dice = Dice(self.seed ^ start.1.0);
            let lane = SimulatedLane { kind: self.kind, specs: specs(), walk, dice, next: None };
            Ok(Some(Box::new(lane) as Box<dyn Lane>))
        })
    }

    fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }
}

impl Simulated {
    fn new(seed: u64, kind: Kind) -> Arc<Self> {
        let leaving = watch::Sender::new(false);
        Arc::new(Self { told: AtomicBool::new(false), leaving, seed, kind })
    }
}

async fn host(seed: u64, kind: Kind, limit: Limit) -> turmoil::Result {
    let server = Simulated::new(seed, kind);
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (server, stream) = (server.clone(), Throttled::new(stream, limit.clone()));
        tokio::spawn(async move {
            let _ended = serve(stream, &*server).await;
        });
    }
}

/// The rank's connections, and its own lanes.
struct Simulation(Arc<Simulated>);

impl Connect for Simulation {
    fn connect<'a>(&'a self, member: &'a str) -> BoxFuture<'a, Result<Box<dyn Io>>> {
        Box::pin(async move {
            if member == HERE {
                let (ours, theirs) = tokio::io::duplex(4096);
                let here = self.0.clone();
                tokio::spawn(async move {
                    let _ended = serve(theirs, &*here).await;
                });
                return Ok(Box::new(ours) as Box<dyn Io>);
            }
            let stream = TcpStream::connect(member).await;
            let stream = stream.map_err(|e| Error::new(ErrorKind::Retryable, format!("{member}: {e}")))?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }

    fn unix<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, Option<Box<dyn Io>>> {
        Box::pin(async { None })
    }
}

/// Every seventh sample is unusual.
fn warnings(sample: SampleId) -> Warnings {
    sample.0.is_multiple_of(7).then_some(Warning::EndUnknown).into_iter().collect()
}

/// What a rank has seen.
#[derive(Debug, Default)]
struct Seen {
    steps: AtomicU64,
    /// The longest wait for the first step, and for any other, in milliseconds.
    first_ms: AtomicU64,
    longest_ms: AtomicU64,
    hedges: AtomicU64,
    hedged_samples: AtomicU64,
}

impl Seen {
    fn waited(&self, time: Duration) {
        let of = match self.steps.fetch_add(1, Ordering::Relaxed) {
            0 => &self.first_ms,
            _ => &self.longest_ms,
        };
        of.fetch_max(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn hedged(&self, shared: &Shared) {
        let stats = shared.stats();
        self.hedges.store(stats.hedges, Ordering::Relaxed);
        self.hedged_samples.store(stats.hedged_samples, Ordering::Relaxed);
    }

    fn take(&self) -> [u64; 4] {
        [&self.first_ms, &self.longest_ms, &self.hedges, &self.hedged_samples]
            .map(|of| of.load(Ordering::Relaxed))
    }
}

/// From which step of the first epoch on, and with whose help.
#[derive(Debug, Clone, Copy, Default)]
struct Start {
    step: u64,
    local: Local,
}

/// A rank that takes every step, checks it, and gives the place back.
async fn rank(seen: Arc<Seen>, start: Start) -> turmoil::Result {
    let ready = Arc::new(Ready::<Finished<Place>>::default());
    let addresses: Vec<String> = WORKERS.iter().map(|name| format!("{name}:{PORT}")).collect();
    let shared = Arc::new(Shared::default());
    let here = Simulated::new(0, Kind { steady: true, ..Kind::default() });
    let plan = RunPlan {
        workers: Workers::at(&addresses.join(","))?.local(start.local),
        connect: Arc::new(Simulation(here)),
        spec: Arc::new(spec()),
        walk: walk(start.step),
        end_epoch: Some(EPOCHS),
        tensors: specs(),
        columns: Arc::new(Schema::new(vec![Field::new("id", DataType::UInt64, false)])),
        budget_bytes: 64 << 20,
        sample_bytes: 64 << 20,
        sink: ready.clone(),
        shared: shared.clone(),
    };
    let (driver, events) = FleetDriver::new(plan)?;
    let driver = tokio::spawn(driver.run());
    let buffers = Arc::new(RowBuffers::default());
    for _ in 0..SLOTS {
        events.send(Event::Offered(Place::new(specs(), buffers.clone())?)).map_err(|_| "no driver")?;
    }
    let mut expected = walk(start.step);
    let (mut samples, mut warned) = (BTreeSet::new(), 0);
    loop {
        let asked = Instant::now();
        let Some(finished) = poll_fn(|cx| ready.poll(cx)).await.transpose()? else { break };
        seen.waited(asked.elapsed());
        seen.hedged(&shared);
        let planned = expected.next().ok_or("a step too many")?;
        assert_eq!(finished.step, planned);
        let ids =
            arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt64Type>(finished.columns.column(0));
        for (at, row) in planned.rows.iter().enumerate() {
            for column in [0, 1] {
                let made = bytes(planned.epoch, row.sample, column);
                assert_eq!(
                    finished.destination.part(at, column),
                    made,
                    "sample {} of {planned:?}",
                    row.sample
                );
            }
            assert_eq!(ids.value(at), row.sample.0);
            assert!(!row.valid || samples.insert((planned.epoch, row.sample)), "sample {} twice", row.sample);
        }
        let expected = planned.rows.iter().map(|row| warnings(row.sample)).enumerate();
        let expected: Vec<_> = expected.filter(|(_, warnings)| !warnings.is_empty()).collect();
        assert_eq!(finished.warnings, expected, "once for each row, whoever brought it");
        warned += expected.len();
        // After the last step nobody listens.
        let _unheard = events.send(Event::Offered(finished.destination));
    }
    assert!(expected.next().is_none(), "steps are missing");
    assert_eq!(samples.len() as u64, SAMPLES * EPOCHS - start.step * BATCH);
    assert!(warned > 0);
    driver.await?;
    Ok(())
}

/// A rate at which nothing is silent, but a step of 2 KB takes from a second to half an hour.
fn trickle(dice: &mut Dice) -> u64 {
    [1, 10, 40, 100, 300, 1000, 2000][dice.roll(7) as usize]
}

/// Something goes wrong, or right again, every few hundred milliseconds.
fn fault(sim: &turmoil::Sim<'_>, dice: &mut Dice, limits: &[Limit; 3]) -> Option<Crash> {
    let nth = dice.roll(3) as usize;
    let worker = WORKERS[nth];
    match dice.roll(10) {
        0 => return Some(Crash::Down(worker)),
        1 | 2 => return Some(Crash::Up(worker)),
        3 => sim.partition("rank", worker),
        4 => sim.partition_oneway("rank", worker),
        5 => sim.partition_oneway(worker, "rank"),
        6 => sim.hold("rank", worker),
        7 => limits[nth].store(trickle(dice), Ordering::Relaxed),
        _ => {
            for worker in WORKERS {
                sim.release("rank", worker);
                sim.repair("rank", worker);
            }
            limits.iter().for_each(|limit| limit.store(0, Ordering::Relaxed));
        }
    }
    None
}

enum Crash {
    Down(&'static str),
    Up(&'static str),
}

/// A network without hosts, whose messages take up to 30 ms.
fn network(seed: u64) -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .tick_duration(Duration::from_millis(5))
        .max_message_latency(Duration::from_millis(30))
        .tcp_capacity(4096)
        .build()
}

fn simulate(seed: u64) -> turmoil::Result {
    let mut sim = network(seed);
    let limits: [Limit; 3] = Default::default();
    hosts(&mut sim, seed, Kind::default(), &limits);
    sim.client("rank", rank(Arc::default(), Start::default()));
    let mut dice = Dice(seed);
    let mut next = Duration::from_millis(200);
    while !sim.step()? {
        if sim.elapsed() < next || sim.elapsed() > Duration::from_secs(120) {
            continue; // after two minutes all is repaired below, so that every run can end
        }
        next = sim.elapsed() + Duration::from_millis(100 + dice.roll(900));
        match fault(&sim, &mut dice, &limits) {
            Some(Crash::Down(worker)) => sim.crash(worker),
            Some(Crash::Up(worker)) => sim.bounce(worker),
            None => {}
        }
        if next > Duration::from_secs(120) {
            for worker in WORKERS {
                sim.release("rank", worker);
                sim.repair("rank", worker);
                sim.bounce(worker);
            }
            limits.iter().for_each(|limit| limit.store(0, Ordering::Relaxed));
        }
    }
    Ok(())
}

fn hosts(sim: &mut turmoil::Sim<'_>, seed: u64, kind: Kind, limits: &[Limit; 3]) {
    for (index, (name, limit)) in WORKERS.iter().zip(limits).enumerate() {
        let (seed, limit) = (seed.wrapping_mul(31).wrapping_add(index as u64), limit.clone());
        sim.host(*name, move || host(seed, kind, limit.clone()));
    }
}

/// Seeds to run: the one of FEEDSTOCK_SEED, or the first of FEEDSTOCK_SEEDS or `most`.
fn seeds(most: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("FEEDSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FEEDSTOCK_SEEDS").unwrap_or(most),
    }
}

#[test]
fn every_step_arrives_whatever_the_network_does() {
    let seeds = seeds(200);
    for seed in seeds.clone() {
        let run = std::panic::catch_unwind(|| simulate(seed).map_err(|e| e.to_string()));
        if !matches!(run, Ok(Ok(()))) {
            panic!(
                "seed {seed}: {run:?}; run it again: FEEDSTOCK_SEED={seed} cargo test -p feedstock-ingest --lib \
                 every_step_arrives"
            );
        }
    }
    assert!(seeds.count() == 1 || OVERDUE.load(Ordering::Relaxed) > 0, "streams that take over are late");
}

/// The steps that came before an error, the error's kind, and when it came.
type Ended = (u64, ErrorKind, Duration);

/// No worker has a file of the second epoch, and one goes down.
fn missing_file(seed: u64, down_at: Duration) -> Ended {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(120))
        .tick_duration(Duration::from_millis(5))
        .max_message_latency(Duration::from_millis(30))
        .build();
    hosts(&mut sim, seed, Kind { gone_in: Some(1), ..Kind::default() }, &Default::default());
    let ended = Arc::new(std::sync::Mutex::new(None));
    let said = ended.clone();
    sim.client("rank", async move {
        let seen = Arc::new(Seen::default());
        let error = rank(seen.clone(), Start::default()).await.expect_err("a file is missing");
        let kind = error.downcast_ref::<Error>().map(Error::kind);
        let kind = kind.ok_or_else(|| format!("another error: {error}"))?;
        *said.lock().unwrap() = Some((seen.steps.load(Ordering::Relaxed), kind, turmoil::elapsed()));
        Ok(())
    });
    let mut is_down = false;
    while !sim.step().unwrap() {
        if !is_down && sim.elapsed() >= down_at {
            sim.crash(WORKERS[0]);
            is_down = true;
        }
    }
    let ended = ended.lock().unwrap().take();
    ended.expect("the rank has ended")
}

/// The steps of the first epoch arrive, and then the error, with its kind and long before any deadline.
#[test]
fn a_missing_file_is_an_error_at_once_though_a_worker_is_down() {
    for seed in 0..20 {
        let down_at = Duration::from_millis(seed * 15);
        let (steps, kind, at) = missing_file(seed, down_at);
        assert_eq!((steps, kind), (SAMPLES / BATCH, ErrorKind::Gone), "seed {seed}");
        assert!(at < Duration::from_secs(30), "seed {seed}: after {at:?}");
    }
}
