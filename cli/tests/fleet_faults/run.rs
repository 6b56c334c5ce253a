//! Ranks that run, each in a thread like a trainer's, while a test does something to their fleet.

use crate::data::{Data, Whole};
use feedstock::{Pipeline, Rank, Workers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any test here should take; a rank that waits on is a failure, not a hang.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// No batch is later than this when a worker is lost, on a machine that builds something else beside. The promise is 2 s;
/// `benches/fleet` measures it.
pub const LATE: Duration = Duration::from_secs(20);

/// Between looks at what others do.
const LOOK_UP_EVERY: Duration = Duration::from_millis(10);

/// By rank, its batches in order.
pub type Batches = Vec<Vec<Whole>>;

/// The batches of all ranks, made in this process without workers.
pub fn quiet(data: &Data, world_size: u32) -> Batches {
    let (batches, _) = Run::of(&data.pipeline(), data.steps(), world_size, Duration::ZERO).end();
    assert!(batches.iter().all(|batches| batches.len() == data.steps()));
    batches
}

/// Waits for something that must come.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} not yet: {what}");
        std::thread::sleep(LOOK_UP_EVERY);
    }
}

/// Waits for an answer that may not come at the first time of asking.
pub fn answered<T>(ask: impl Fn() -> Option<T>) -> T {
    let mut answer = None;
    eventually("an answer", || {
        answer = ask();
        answer.is_some()
    });
    answer.unwrap()
}

/// Ranks at work.
pub struct Run {
    ranks: Vec<JoinHandle<(Vec<Whole>, Timing)>>,
    /// Batches of each rank, so far and in all.
    taken: Arc<[AtomicUsize]>,
    steps: usize,
    /// What a trainer's step takes, in milliseconds.
    pace: Arc<AtomicU64>,
}

/// When a rank got its batches, and how long it had waited for each.
#[derive(Debug, Default)]
pub struct Timing(Vec<(Instant, Duration)>);

impl Run {
    /// Ranks of trainers that do nothing but take batches.
    pub fn start(data: &Data, workers: Workers, world_size: u32) -> Self {
        Self::paced(data, workers, world_size, Duration::ZERO)
    }

    /// Ranks of trainers whose steps take `step` each, so that a run lasts for seconds.
    pub fn paced(data: &Data, workers: Workers, world_size: u32, step: Duration) -> Self {
        Self::of(&data.pipeline().workers(workers), data.steps(), world_size, step)
    }

    fn of(pipeline: &Pipeline, steps: usize, world_size: u32, step: Duration) -> Self {
        let taken: Arc<[AtomicUsize]> = (0..world_size).map(|_| AtomicUsize::new(0)).collect();
        let pace = Arc::new(AtomicU64::new(milliseconds(step)));
        let ranks = (0..world_size).map(|rank| {
            let (pipeline, taken, pace) = (pipeline.clone(), taken.clone(), pace.clone());
            std::thread::spawn(move || {
                rank_of(&pipeline, Rank::new(rank, world_size), |batches| {
                    taken[rank as usize].store(batches, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(pace.load(Ordering::Relaxed)));
                })
            })
        });
        Self { ranks: ranks.collect(), taken, steps, pace }
    }

    /// How many batches the slowest rank has.
    pub fn taken(&self) -> usize {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).min().unwrap_or(0)
    }

    /// Returns once every rank has taken so many batches.
    pub fn wait_for(&self, batches: usize) {
        eventually(&format!("{batches} batches for each rank"), || {
            assert!(!self.ranks.iter().any(JoinHandle::is_finished), "a rank ended at {}", self.taken());
            self.taken() >= batches
        });
    }

    /// The fault was felt; the rest may come as fast as it can.
    pub fn hurry(&self) {
        assert!(self.taken() < self.steps, "the run was over before the fault");
        self.pace.store(0, Ordering::Relaxed);
    }

    /// From now on trainers' steps take so long: the run lasts until something has come that must come.
    pub fn dawdle(&self, step: Duration) {
        self.pace.store(milliseconds(step), Ordering::Relaxed);
    }

    /// The batches until the end, and when they were waited for.
    pub fn end(self) -> (Batches, Vec<Timing>) {
        let begun = Instant::now();
        while !self.ranks.iter().all(JoinHandle::is_finished) {
            assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} only {} batches", self.taken());
            std::thread::sleep(LOOK_UP_EVERY);
        }
        let made: Vec<_> = self.ranks.into_iter().map(|rank| rank.join().expect("a rank failed")).collect();
        made.into_iter().unzip()
    }

    /// As [`end`](Self::end); the batches must be the quiet run's.
    pub fn end_like(self, quiet: &Batches) -> Vec<Timing> {
        let (made, timings) = self.end();
        same(&made, quiet);
        timings
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// One rank's batches of all epochs, each epoch with the ledger's word. `told` hears how many there are so far.
fn rank_of(pipeline: &Pipeline, rank: Rank, mut told: impl FnMut(usize)) -> (Vec<Whole>, Timing) {
    let mut batches = pipeline.rank(rank).start().unwrap();
    let (mut all, mut timing) = (Vec::new(), Timing::default());
    loop {
        let before = all.len();
        loop {
            let asked = Instant::now();
            let Some(batch) = batches.next() else { break };
            timing.0.push((Instant::now(), asked.elapsed()));
            all.push(Whole::of(&batch.unwrap()));
            told(all.len());
        }
        if all.len() == before {
            return (all, timing);
        }
        batches.ledger().check().unwrap();
    }
}

/// Fails with the first batch that differs.
fn same(made: &Batches, quiet: &Batches) {
    assert_eq!(made.len(), quiet.len(), "ranks");
    for (rank, (made, quiet)) in made.iter().zip(quiet).enumerate() {
        for (nth, (made, quiet)) in made.iter().zip(quiet).enumerate() {
            assert_eq!(made, quiet, "batch {nth} of rank {rank} is another one than in the quiet run");
        }
        assert_eq!(made.len(), quiet.len(), "batches of rank {rank}");
    }
}

/// The longest wait of any rank for a batch that came after `moment`.
pub fn longest_wait(timings: &[Timing], moment: Instant) -> Duration {
    let waits = timings.iter().flat_map(|timing| &timing.0).filter(|(came, _)| *came > moment);
    waits.map(|(_, wait)| *wait).max().unwrap_or_default()
}
