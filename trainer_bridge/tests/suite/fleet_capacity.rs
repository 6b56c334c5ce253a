//! Workers' shares follow the capacities that they publish, and batches stay the same bytes.

use crate::common::{open, pipeline, synth};
use crate::fleet::{at, batches, options, watched, worker};
use feedstock_dataset::{Rank, Shuffle, Tail};
use feedstock_ingest::{Worker, Workers};
use feedstock_trainer_bridge::{Local, Pipeline, RankIterator};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A worker of this capacity.
fn of(allow: &Path, capacity: u32) -> Worker {
    let mut options = options(allow);
    options.capacity = Some(capacity);
    Worker::start(options).unwrap()
}

fn pictures(dir: &Path) -> Pipeline {
    synth(dir, 203);
    let pipeline = pipeline(open(dir), 24).shuffle(Shuffle::full(3));
    pipeline.tail(Tail::Pad).deadline(Duration::from_secs(30))
}

fn samples(fleet: &[Worker; 2]) -> [u64; 2] {
    fleet.each_ref().map(|worker| worker.status().samples)
}

/// Takes batches until the first worker's share of what both make is near `share`.
fn take_until(ranks: &mut RankIterator, fleet: &[Worker; 2], share: f64) {
    let begun = Instant::now();
    loop {
        let before = samples(fleet);
        for _ in 0..30 {
            ranks.next().or_else(|| ranks.next()).unwrap().unwrap();
        }
        let after = samples(fleet);
        let [first, second] = [0, 1].map(|of| (after[of] - before[of]) as f64);
        if (first / (first + second) - share).abs() < 0.08 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{first} of {} rows, not {share}", first + second);
    }
}

#[test]
fn shares_follow_capacities_from_the_start_and_when_they_change() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path()).epochs(1_000_000);
    let fleet = [of(dir.path(), 3), of(dir.path(), 1)];
    let mut ranks = pipeline.workers(at(&fleet)).rank(Rank::new(0, 1)).start().unwrap();
    take_until(&mut ranks, &fleet, 0.75);
    fleet[1].set_capacity(9).unwrap();
    take_until(&mut ranks, &fleet, 0.25);
    let stats = ranks.stats().engine;
    assert_eq!((stats.workers, stats.spare_workers), (2, 0));
}

#[test]
fn no_byte_changes_when_capacities_do() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path()).epochs(8);
    let alone = batches(&pipeline, 2);
    let fleet = [of(dir.path(), 5), of(dir.path(), 1), worker(dir.path())];
    let workers: Workers = at(&fleet).local(Local::Share);
    let samples = || [0, 1].map(|nth: usize| fleet[nth].status().samples);
    let counts = Mutex::new(Vec::new());
    // 40 batches of 100 ms. Strands move at most a second after the workers have published what they start with, and after each change.
    let made = watched(&pipeline.workers(workers), 2, |rank, batch| {
        match batch {
            5 if rank == 0 => fleet[1].set_capacity(13).unwrap(),
            17 if rank == 0 => counts.lock().unwrap().push(samples()),
            24 if rank == 0 => {
                counts.lock().unwrap().push(samples());
                fleet[0].set_capacity(1).unwrap();
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(100));
    });
    assert_eq!(made, alone);
    assert!(fleet.iter().all(|worker| worker.status().samples > 0));
    let counts = counts.into_inner().unwrap();
    let [first, second] = [0, 1].map(|nth| counts[1][nth] - counts[0][nth]);
    assert!(second > first, "{first} and {second} rows at capacities of 5 and 13: no strand has moved");
}

#[test]
fn capacities_are_checked_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (default, set) = (worker(dir.path()), of(dir.path(), 6));
    assert_eq!((default.status().capacity, set.status().capacity), (1, 6), "by default its threads");
    let before = Workers::none_yet().status(&set.address().to_string()).unwrap();
    set.set_capacity(6).unwrap();
    assert_eq!(set.status().capacity_generation, before.capacity_generation, "nothing has changed");
    set.set_capacity(7).unwrap();
    let after = Workers::none_yet().status(&set.address().to_string()).unwrap();
    assert!(after.capacity == 7 && after.capacity_generation > before.capacity_generation);
    for capacity in [0, 4097] {
        let error = set.set_capacity(capacity).unwrap_err();
        assert_eq!(error.message(), format!("a worker's capacity must be 1 to 4096; got {capacity}"));
        let mut options = options(dir.path());
        options.capacity = Some(capacity);
        assert_eq!(Worker::start(options).unwrap_err().message(), error.message());
    }
}
