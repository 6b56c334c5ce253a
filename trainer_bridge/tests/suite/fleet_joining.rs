//! Workers that have yet to open the data set: ranks do not wait for them while others can serve.

use crate::common::{block_on, open, pipeline, synth};
use crate::fleet::{Whole, at, batches, options, worker};
use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, ProgressFn, Rank, Tail};
use feedstock_ingest::Worker;
use feedstock_trainer_bridge::{Dataset, Local, Pipeline, RankIterator, audio_probe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What opening the data set takes.
const OPENS_IN: Duration = Duration::from_secs(3);

/// A worker that takes [`OPENS_IN`] to open a data set, and how often it has begun to.
fn cold_worker(allow: &Path) -> (Worker, Arc<AtomicUsize>) {
    cold_worker_at(allow, "127.0.0.1:0")
}

/// As [`cold_worker`], at this address.
fn cold_worker_at(allow: &Path, address: &str) -> (Worker, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut options = options(allow);
    options.listen = address.to_owned();
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

/// A worker that stores its catalogs in `cache`, and how many objects it has read to build some.
fn counting_worker(allow: &Path, cache: &Path) -> (Worker, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let mut options = options(allow);
    let (counter, cache) = (read.clone(), cache.to_owned());
    options.open_with = Arc::new(move || {
        let counter = counter.clone();
        let progress: ProgressFn = Arc::new(move |now| {
            if now.stage.starts_with("reading") {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        let catalog = CatalogOptions {
            store: CatalogStore::Cache(cache.clone()),
            progress: Some(progress),
            ..CatalogOptions::default()
        };
        OpenOptions { catalog, audio_probe: Some(audio_probe()), ..OpenOptions::default() }
    });
    (Worker::start(options).unwrap(), read)
}

/// A data set whose catalog is stored in `cache`.
fn stored(dir: &Path, cache: &Path) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Cache(cache.into()), ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    block_on(Dataset::open_with(dir.to_str().unwrap(), options)).unwrap()
}

fn ranks_of(dataset: Dataset) -> Pipeline {
    pipeline(dataset, 24).tail(Tail::Pad).deadline(Duration::from_secs(30)).epochs(1)
}

#[test]
fn workers_take_the_catalog_of_a_rank() {
    let [dir, cache, other, second] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    synth(dir.path(), 203);
    let ranks = ranks_of(stored(dir.path(), cache.path()));
    let alone = batches(&ranks, 3);
    let workers = [other.path(), second.path()].map(|cache| counting_worker(dir.path(), cache));
    for local in [Local::Never, Local::Fallback] {
        let addresses = at(workers.iter().map(|(worker, _)| worker));
        assert_eq!(batches(&ranks.clone().workers(addresses.local(local)), 3), alone);
    }
    for (_, read) in &workers {
        assert_eq!(read.load(Ordering::SeqCst), 0, "three ranks, none of which let it build a catalog");
    }
    let inboxes: Vec<_> = std::fs::read_dir(other.path()).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(inboxes.len() == 1 && inboxes[0].file_name().to_str().unwrap().starts_with("received-"));
    drop(workers);
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "what was received goes with the worker");

    stored(dir.path(), other.path());
    let (worker, read) = counting_worker(dir.path(), other.path());
    assert_eq!(batches(&ranks.workers(at([&worker])), 3), alone);
    assert_eq!(read.load(Ordering::SeqCst), 0, "its own cache has one");
    let inbox = std::fs::read_dir(other.path()).unwrap().map(|entry| entry.unwrap().path());
    let inbox = inbox.filter(|path| path.to_str().unwrap().contains("received-")).last().unwrap();
    let catalogs = std::fs::read_dir(inbox).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(catalogs.count(), 0, "so it took none");
}

#[test]
fn a_worker_builds_a_catalog_that_no_rank_can_send() {
    let [dir, cache, one, other] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    synth(dir.path(), 203);
    let alone = batches(&ranks_of(open(dir.path())), 3);
    let (worker, read) = counting_worker(dir.path(), one.path());
    assert_eq!(batches(&ranks_of(open(dir.path())).workers(at([&worker])), 3), alone);
    assert!(read.load(Ordering::SeqCst) > 0, "the ranks have none");

    let ranks = ranks_of(stored(dir.path(), cache.path()));
    for folder in std::fs::read_dir(cache.path()).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap().map(|file| file.unwrap().path()) {
            if file.file_name().unwrap().to_str().unwrap().starts_with("unit_index") {
                std::fs::remove_file(file).unwrap(); // found only while the catalog is being sent
            }
        }
    }
    let (worker, read) = counting_worker(dir.path(), other.path());
    assert_eq!(batches(&ranks.workers(at([&worker])), 3), alone);
    assert!(read.load(Ordering::SeqCst) > 0, "a table is missing");
}

/// The longest wait while a worker ends (as when one is killed) and others drain.
const MOST: Duration = Duration::from_secs(2);

#[test]
fn workers_that_all_drain_serve_until_another_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = endless(dir.path());
    let (first, second, (cold, _)) = (worker(dir.path()), worker(dir.path()), cold_worker(dir.path()));
    let workers = at([&first, &second]);
    let mut ranks = start(&pipeline.workers(workers.clone()));
    let mut wait = |until: &dyn Fn() -> bool, what: &str| {
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        while !until() {
            longest = longest.max(take(&mut ranks));
            assert!(longest < MOST, "{what}: the rank waited for {longest:?}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: never");
        }
    };
    wait(&|| first.status().samples > 48 && second.status().samples > 48, "both serve");
    std::thread::scope(|scope| {
        let second = &second;
        let first = scope.spawn(move || {
            // It keeps its rows, since no other worker is ready; on a busy machine, the second one may drain only later.
            first.drain(Duration::from_millis(700));
            drop(first); // its streams are cut
        });
        let drained = scope.spawn(move || second.drain(Duration::from_secs(30)));
        wait(&|| first.is_finished(), "both drain");
        let samples = second.status().samples;
        wait(&|| second.status().samples > samples + 480, "the second one serves alone");
        workers.set(&[second, &cold].map(|worker| worker.address().to_string())).unwrap();
        wait(&|| drained.is_finished(), "another worker joins");
        assert!(drained.join().unwrap(), "the rank has moved all rows");
    });
    let samples = cold.status().samples;
    wait(&|| cold.status().samples > samples + 48, "the new one serves alone");
}

#[test]
fn a_worker_that_restarts_opens_the_data_set_before_it_is_given_rows() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = endless(dir.path());
    let (stays, ends) = (worker(dir.path()), worker(dir.path()));
    let address = ends.address().to_string();
    let mut ranks = start(&pipeline.workers(at([&stays, &ends])));
    while ends.status().samples < 48 {
        take(&mut ranks);
    }
    drop(ends);
    let (again, begun) = cold_worker_at(dir.path(), &address);
    let restarted = Instant::now();
    let mut longest = Duration::ZERO;
    while again.status().samples < 48 {
        longest = longest.max(take(&mut ranks));
        assert!(restarted.elapsed() < Duration::from_secs(30), "it never serves");
    }
    assert!(restarted.elapsed() >= OPENS_IN);
    assert!(longest < MOST, "the rank waited for {longest:?}");
    assert_eq!(begun.load(Ordering::SeqCst), 1, "the data set was opened more than once");
}
