//! Workers that have yet to open the data set: ranks do not wait for them while others can serve.

use crate::common::{open, pipeline, synth};
use crate::fleet::{Whole, at, batches, options, worker};
use feedstock_dataset::{Rank, Tail};
use feedstock_ingest::Worker;
use feedstock_trainer_bridge::{Local, Pipeline, RankIterator};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What opening the data set takes.
const OPENS_IN: Duration = Duration::from_secs(3);

/// A worker that takes [`OPENS_IN`] to open a data set, and how often it has begun to.
fn cold_worker(allow: &Path) -> (Worker, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut options = options(allow);
    let (open_with, counter) = (options.open_with.clone(), begun.clone());
    let is_first = Arc::new(AtomicUsize::new(0));
    options.open_with = Arc::new(move || {
        // The first call is that of the worker's start.
        if is_first.fetch_add(1, Ordering::SeqCst) > 0 {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(OPENS_IN);
        }
        open_with()
    });
    (Worker::start(options).unwrap(), begun)
}

fn endless(dir: &Path) -> Pipeline {
    synth(dir, 203);
    pipeline(open(dir), 24).tail(Tail::Pad).epochs(1_000_000).deadline(Duration::from_secs(30))
}

fn start(pipeline: &Pipeline) -> RankIterator {
    pipeline.rank(Rank::new(0, 1)).start().unwrap()
}

/// Takes the next batch, over the end of an epoch; returns how long it took.
fn take(ranks: &mut RankIterator) -> Duration {
    let begun = Instant::now();
    ranks.next().or_else(|| ranks.next()).unwrap().unwrap();
    begun.elapsed()
}

#[test]
fn a_worker_opens_the_data_set_before_it_is_given_rows() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = endless(dir.path());
    let (warm, (cold, openings)) = (worker(dir.path()), cold_worker(dir.path()));
    let workers = at([&warm]);
    let mut ranks = start(&pipeline.workers(workers.clone()));
    for _ in 0..5 {
        take(&mut ranks);
    }
    workers.set(&[&warm, &cold].map(|worker| worker.address().to_string())).unwrap();
    let joined = Instant::now();
    let mut longest = Duration::ZERO;
    while cold.status().samples == 0 {
        assert!(joined.elapsed() < OPENS_IN + Duration::from_secs(20), "it never serves");
        longest = longest.max(take(&mut ranks));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(joined.elapsed() >= OPENS_IN);
    assert!(longest < OPENS_IN / 2, "a rank waited {longest:?}");
    assert_eq!(openings.load(Ordering::SeqCst), 1);
}

#[test]
fn opening_a_data_set_goes_on_when_the_rank_hangs_up() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = endless(dir.path());
    let (cold, openings) = cold_worker(dir.path());
    let pipeline = pipeline.workers(at([&cold]));
    let first = start(&pipeline);
    std::thread::sleep(OPENS_IN / 3);
    assert_eq!(openings.load(Ordering::SeqCst), 1);
    drop(first);
    take(&mut start(&pipeline));
    assert_eq!(openings.load(Ordering::SeqCst), 1, "the second rank finds what the first one asked for");
}

#[test]
fn this_machine_serves_while_a_worker_opens_the_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let (cold, _) = cold_worker(dir.path());
    let pipeline = endless(dir.path()).epochs(1);
    let alone = batches(&pipeline, 1);
    let mut ranks = start(&pipeline.workers(at([&cold]).local(Local::Fallback)));
    let begun = Instant::now();
    let mut made = vec![Whole::of(&ranks.next().unwrap().unwrap())];
    assert!(begun.elapsed() < OPENS_IN / 2, "{:?}", begun.elapsed());
    made.extend(ranks.map(|batch| Whole::of(&batch.unwrap())));
    assert_eq!([made], *alone);
}
