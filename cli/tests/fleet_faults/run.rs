//! Running ranks, each in a thread like a trainer's, while a test does something to their fleet.

use crate::data::{Data, Whole};
use feedstock::{Pipeline, Rank, Workers};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any test here may take: a rank that waits forever is a failed test, not a hang.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// No batch is later than this when a worker is lost, on a machine that is also busy with builds. The promised limit
/// is 2 s; `benches/fleet` measures it.
pub const LATE: Duration = Duration::from_secs(20);

/// Interval of polling.
const LOOK_UP_EVERY: Duration = Duration::from_millis(10);

/// The batches of each rank, in order.
pub type Batches = Vec<Vec<Whole>>;

/// Returns the batches of all ranks in a run without workers, in this process.
pub fn quiet(data: &Data, world_size: u32) -> Batches {
    let (batches, _) = Run::of(&data.pipeline(), data.steps(), world_size, Duration::ZERO).end();
    assert!(batches.iter().all(|batches| batches.len() == data.steps()));
    batches
}

/// Waits until the condition holds.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} not reached: {what}");
        std::thread::sleep(LOOK_UP_EVERY);
    }
}

/// Repeats a request until it has an answer.
pub fn answered<T>(ask: impl Fn() -> Option<T>) -> T {
    let mut answer = None;
    eventually("an answer", || {
        answer = ask();
        answer.is_some()
    });
    answer.unwrap()
}

/// Running ranks.
pub struct Run {
    ranks: Vec<JoinHandle<(Vec<Whole>, Timing)>>,
    /// Batches of each rank so far, and in total.
    taken: Arc<[AtomicUsize]>,
    steps: usize,
    /// Duration of a trainer's step, in milliseconds.
    pace: Arc<AtomicU64>,
}

/// When a rank received each batch, and how long it had waited.
#[derive(Debug, Default)]
pub struct Timing(Vec<(Instant, Duration)>);

impl Run {
    /// Starts ranks whose trainers do nothing but take batches.
    pub fn start(data: &Data, workers: Workers, world_size: u32) -> Self {
        Self::paced(data, workers, world_size, Duration::ZERO)
    }

    /// Starts ranks whose trainers' steps take `step` each, so that a run lasts for seconds.
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

    /// Returns the number of batches of the slowest rank.
    pub fn taken(&self) -> usize {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).min().unwrap_or(0)
    }

    /// Waits until every rank has taken this number of batches.
    pub fn wait_for(&self, batches: usize) {
        eventually(&format!("{batches} batches for each rank"), || {
            assert!(!self.ranks.iter().any(JoinHandle::is_finished), "a rank ended at {}", self.taken());
            self.taken() >= batches
        });
    }

    /// Lets the rest of the run be as fast as possible, after the fault took effect.
    pub fn hurry(&self) {
        assert!(self.taken() < self.steps, "the run was over before the fault");
        self.pace.store(0, Ordering::Relaxed);
    }

    /// Sets the duration of trainers' steps from now on: the run lasts until an expected event has come.
    pub fn dawdle(&self, step: Duration) {
        self.pace.store(milliseconds(step), Ordering::Relaxed);
    }

    /// Returns all batches at the end of the run, with their timing.
    pub fn end(self) -> (Batches, Vec<Timing>) {
        let begun = Instant::now();
        while !self.ranks.iter().all(JoinHandle::is_finished) {
            assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} only {} batches", self.taken());
            std::thread::sleep(LOOK_UP_EVERY);
        }
        let made: Vec<_> = self.ranks.into_iter().map(|rank| rank.join().expect("a rank failed")).collect();
        made.into_iter().unzip()
    }

    /// As [`end`](Self::end), and checks that the batches equal those of the reference run.
    pub fn end_like(self, quiet: &Batches) -> Vec<Timing> {
        let (made, timings) = self.end();
        same(&made, quiet);
        timings
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// Runs one rank over all epochs and checks each epoch's ledger. `told` receives the number of batches so far.
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

/// Fails at the first batch that differs.
fn same(made: &Batches, quiet: &Batches) {
    assert_eq!(made.len(), quiet.len(), "ranks");
    for (rank, (made, quiet)) in made.iter().zip(quiet).enumerate() {
        for (nth, (made, quiet)) in made.iter().zip(quiet).enumerate() {
            assert_eq!(made, quiet, "batch {nth} of rank {rank} differs from the reference run");
        }
        assert_eq!(made.len(), quiet.len(), "batches of rank {rank}");
    }
}

/// Returns the longest wait of any rank for a batch that came after `moment`.
pub fn longest_wait(timings: &[Timing], moment: Instant) -> Duration {
    let waits = timings.iter().flat_map(|timing| &timing.0).filter(|(came, _)| *came > moment);
    waits.map(|(_, wait)| *wait).max().unwrap_or_default()
}
