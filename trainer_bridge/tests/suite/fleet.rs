//! Workers make the rows. Batches are byte-identical to those of one process, even when workers fail, join or leave.

use crate::common::speech::{RATE, wavs, write_parquet};
use crate::common::{block_on, open, pipeline, synth};
use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, Rank, Secret, Shuffle, Stop, Tail};
use feedstock_ingest::{ClientTls, FleetIdentity, Identity, ServerTls, Token, Worker, WorkerOptions};
use feedstock_ops::{decode_audio, log_mel, resample, tokenize_chars};
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, ErrorKind, Local, OnError, Pipeline, Workers};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SAMPLES: u64 = 203;

pub(crate) fn options(allow: &Path) -> WorkerOptions {
    let mut options = WorkerOptions::new(|| OpenOptions {
        catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
        audio_probe: Some(feedstock_trainer_bridge::audio_probe()),
        ..OpenOptions::default()
    });
    options.listen = "127.0.0.1:0".into();
    options.allow = vec![allow.to_str().unwrap().to_owned()];
    options.threads = Some(1);
    options
}

pub(crate) fn worker(allow: &Path) -> Worker {
    Worker::start(options(allow)).unwrap()
}

pub(crate) fn at<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Workers {
    let addresses: Vec<String> = workers.into_iter().map(|worker| worker.address().to_string()).collect();
    Workers::at(&addresses.join(",")).unwrap()
}

/// Name, shape, row lengths, and a digest of the bytes.
type Tensor = (String, Vec<usize>, Option<Vec<usize>>, u64);

/// All of a batch, in a form that can be compared and printed.
#[derive(Debug, PartialEq)]
pub(crate) struct Whole {
    place: (u64, u64),
    pub(crate) samples: Vec<u64>,
    pub(crate) valid: Vec<bool>,
    tensors: Vec<Tensor>,
    pub(crate) columns: arrow::record_batch::RecordBatch,
}

impl Whole {
    pub(crate) fn of(batch: &Batch) -> Self {
        use std::hash::{DefaultHasher, Hasher};
        let digest = |tensor: &feedstock_trainer_bridge::Tensor| {
            let mut hasher = DefaultHasher::new();
            hasher.write(tensor.bytes());
            hasher.finish()
        };
        Self {
            place: (batch.epoch(), batch.position().0),
            samples: batch.sample_ids().iter().map(|sample| sample.0).collect(),
            valid: batch.valid().to_vec(),
            tensors: batch
                .tensors()
                .iter()
                .map(|t| (t.name().to_owned(), t.shape(), t.lengths().map(<[usize]>::to_vec), digest(t)))
                .collect(),
            columns: batch.columns().clone(),
        }
    }
}

/// Returns every rank's batches of the pipeline's epochs.
pub(crate) fn batches(pipeline: &Pipeline, world_size: u32) -> Vec<Vec<Whole>> {
    watched(pipeline, world_size, |_, _| {})
}

/// As [`batches`]; calls `watch` with the rank and its number of batches after each batch.
pub(crate) fn watched(
    pipeline: &Pipeline,
    world_size: u32,
    watch: impl Fn(u32, usize) + Sync,
) -> Vec<Vec<Whole>> {
    let run = |rank: u32| {
        let mut ranks = pipeline.rank(Rank::new(rank, world_size)).start().unwrap();
        let mut all = Vec::new();
        loop {
            let before = all.len();
            for batch in ranks.by_ref() {
                all.push(Whole::of(&batch.unwrap()));
                watch(rank, all.len());
            }
            if all.len() == before {
                return all;
            }
            ranks.ledger().check().unwrap();
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn pictures(dir: &Path) -> Pipeline {
    synth(dir, SAMPLES);
    pipeline(open(dir), 24).tail(Tail::Pad).epochs(2).deadline(Duration::from_secs(30))
}

#[test]
fn workers_make_the_same_batches() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    for shuffle in [Shuffle::seeded(7), Shuffle::seeded(7).lanes(64), Shuffle::full(2), Shuffle::none()] {
        let pipeline = pipeline.clone().shuffle(shuffle);
        for world_size in [1, 3] {
            let alone = batches(&pipeline, world_size);
            for count in [1, 3] {
                let fleet: Vec<Worker> = (0..count).map(|_| worker(dir.path())).collect();
                let made = batches(&pipeline.clone().workers(at(&fleet)), world_size);
                assert_eq!(made, alone, "{count} workers, {world_size} ranks");
                let samples: u64 = fleet.iter().map(|worker| worker.status().samples).sum();
                assert!(samples >= 2 * SAMPLES, "{samples} came from workers");
            }
        }
    }
}

#[test]
fn ragged_rows_bad_rows_buckets_and_mixes_too() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for (folder, count) in [(&first, 40), (&second, 30)] {
        std::fs::create_dir(folder).unwrap();
        let mut clips = wavs(count);
        clips[3] = Some(b"no audio at all".to_vec());
        clips[11] = None;
        write_parquet(folder, &clips);
    }
    let parts = vec![(open(&first).named("a"), 0.6), (open(&second).filter("sample_id > 2").unwrap(), 0.4)];
    let mix = Dataset::mix(parts, Stop::AllExhausted).unwrap();
    let alone = open(&first).columns(&["sentence", "duration", "audio"]).unwrap();
    let speech = |dataset: Dataset| {
        dataset
            .map_as("audio", "features", [decode_audio(), resample(RATE), log_mel(20)])
            .map_as("sentence", "tokens", [tokenize_chars("abcdefghij")])
            .pad_value("tokens", -100.0)
            .shuffle(Shuffle::seeded(3))
            .on_error(OnError::Skip { max_fraction: 0.5 })
            .epochs(2)
            .threads(2)
    };
    let bucketed = speech(alone).bucket_by("duration").batch(BatchSize::per_rank_total(2.0));
    let mixed = speech(mix).batch(BatchSize::global(8));
    for pipeline in [bucketed, mixed] {
        let fleet = [worker(dir.path()), worker(dir.path())];
        assert_eq!(batches(&pipeline.clone().workers(at(&fleet)), 2), batches(&pipeline, 2));
    }
}

#[test]
fn a_concatenation_comes_from_workers_too_each_sample_once() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for (folder, count) in [(&first, 40), (&second, 30)] {
        std::fs::create_dir(folder).unwrap();
        write_parquet(folder, &wavs(count));
    }
    // Samples 0 to 39 (three are left out), 40 to 69, and 70 to 109.
    let inner = vec![open(&first).named("a").filter("sample_id > 2").unwrap(), open(&second).named("b")];
    let inner = Dataset::concat(inner).unwrap();
    let data = Dataset::concat(vec![inner, open(&first).named("c")]).unwrap();
    let pipeline = data
        .map_as("audio", "wave", [decode_audio()])
        .shuffle(Shuffle::seeded(3))
        .batch(BatchSize::global(8))
        .tail(Tail::Pad)
        .epochs(2)
        .threads(2);
    let all: Vec<u64> = (3..110).collect();
    let delivered = |batch: &Whole| {
        let rows = batch.samples.iter().zip(&batch.valid).filter(|(_, valid)| **valid);
        rows.map(|(sample, _)| *sample).collect::<Vec<u64>>()
    };
    for world_size in [1, 2, 3] {
        let alone = batches(&pipeline, world_size);
        for epoch in [0, 1] {
            let of_epoch = alone.iter().flatten().filter(|batch| batch.place.0 == epoch);
            let mut samples: Vec<u64> = of_epoch.flat_map(delivered).collect();
            samples.sort_unstable();
            assert_eq!(samples, all, "{world_size} ranks, epoch {epoch}");
        }
        let fleet = [worker(dir.path()), worker(dir.path())];
        assert_eq!(batches(&pipeline.clone().workers(at(&fleet)), world_size), alone);
        let samples: u64 = fleet.iter().map(|worker| worker.status().samples).sum();
        assert!(samples >= 2 * 107, "{samples} came from workers");
    }

    // A cursor from the middle of an epoch resumes with workers, and with other ranks.
    let mut rank = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let begun: Vec<Whole> = rank.by_ref().take(5).map(|batch| Whole::of(&batch.unwrap())).collect();
    let (mut samples, state) = (begun.iter().flat_map(delivered).collect::<Vec<u64>>(), rank.state());
    let one = worker(dir.path());
    let pipeline = pipeline.epochs(1).workers(at([&one]));
    let rest = |rank: u32| {
        let rest = pipeline.rank(Rank::new(rank, 3)).resume(state.clone()).start().unwrap();
        rest.map(|batch| Whole::of(&batch.unwrap())).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let rest = &rest;
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || rest(rank))).collect();
        ranks.into_iter().for_each(|rank| samples.extend(rank.join().unwrap().iter().flat_map(delivered)));
    });
    samples.sort_unstable();
    assert_eq!(samples, all);
}

#[test]
fn lists_and_structs_come_from_workers_too() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataset/tests/real_tools/samples/boxes");
    let samples = samples.canonicalize().unwrap();
    let pipeline = pipeline(open(&samples), 5).tail(Tail::Pad).epochs(2);
    let one = worker(&samples);
    let alone = batches(&pipeline, 2);
    let boxes = alone[0][0].columns.column_by_name("boxes").unwrap();
    assert!(boxes.data_type().to_string().contains("xywh"), "{}", boxes.data_type());
    assert_eq!(batches(&pipeline.workers(at([&one])), 2), alone);
    assert!(one.status().samples > 0);
}

/// Returns the batches of two jobs with one rank each, which wait for each other in their second batch.
pub(crate) fn side_by_side(jobs: [&Pipeline; 2]) -> [Vec<Vec<Whole>>; 2] {
    let under_way = AtomicUsize::new(0);
    let wait = |_: u32, batch: usize| {
        let patience = Instant::now() + Duration::from_secs(60);
        if batch == 2 {
            under_way.fetch_add(1, Ordering::Relaxed);
        }
        while batch == 2 && under_way.load(Ordering::Relaxed) < 2 {
            assert!(Instant::now() < patience, "the other job has not begun");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        let wait = &wait;
        let jobs = jobs.map(|job| scope.spawn(move || watched(job, 1, wait)));
        jobs.map(|job| job.join().unwrap())
    })
}

#[test]
fn jobs_that_ask_for_the_same_share_what_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path()).epochs(4);
    let alone = batches(&pipeline, 1);
    let one = worker(dir.path());
    let with_worker = pipeline.clone().workers(at([&one]));
    side_by_side([&with_worker, &with_worker]).iter().for_each(|made| assert_eq!(*made, alone));
    let status = one.status();
    assert!(status.shared_samples > SAMPLES / 4, "{status:?}");
    let another = worker(dir.path());
    assert_eq!(batches(&pipeline.workers(at([&another])), 2).len(), 2);
    assert_eq!(another.status().shared_samples, 0, "ranks of one job have nothing in common");
}

#[test]
fn a_worker_that_dies_in_the_middle_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let alone = batches(&pipeline, 2);
    let fleet: Vec<_> = (0..3).map(|_| std::sync::Mutex::new(Some(worker(dir.path())))).collect();
    let addresses: Vec<String> =
        fleet.iter().map(|worker| worker.lock().unwrap().as_ref().unwrap().address().to_string()).collect();
    let workers = Workers::at(&addresses.join(",")).unwrap();
    let made = watched(&pipeline.clone().workers(workers), 2, |rank, batch| {
        if rank == 0 && (batch == 2 || batch == 7) {
            drop(fleet[batch % 3].lock().unwrap().take());
        }
    });
    assert_eq!(made, alone);
}

#[test]
fn workers_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path()).epochs(1_000_000); // until all workers have joined, which may take a while
    let fleet: Vec<Worker> = (0..5).map(|_| worker(dir.path())).collect();
    let addresses: Vec<String> = fleet.iter().map(|worker| worker.address().to_string()).collect();
    let workers = Workers::none_yet();
    workers.set(&addresses[..1]).unwrap();
    let start = |pipeline: &Pipeline| pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let (mut alone, mut served) = (start(&pipeline), start(&pipeline.clone().workers(workers.clone())));
    let mut step = || {
        let [one, other] = [&mut alone, &mut served].map(|ranks| {
            let batch = ranks.next().or_else(|| ranks.next()).unwrap(); // over the end of an epoch
            Whole::of(&batch.unwrap())
        });
        assert_eq!(one, other);
    };
    (0..5).for_each(|_| step());
    workers.set(&addresses).unwrap();
    let samples = || fleet.iter().map(|worker| worker.status().samples).collect::<Vec<_>>();
    let patience = Instant::now() + Duration::from_secs(60);
    while samples().contains(&0) {
        assert!(Instant::now() < patience, "new workers must serve: {:?}", samples());
        step();
    }
    workers.set(&addresses[1..3]).unwrap();
    std::thread::scope(|scope| {
        let left = scope.spawn(|| fleet[4].drain(Duration::from_secs(20)));
        while !left.is_finished() {
            step();
        }
        assert!(left.join().unwrap(), "workers that were removed have nothing left to do");
    });
    (0..20).for_each(|_| step());
}

#[test]
fn a_draining_worker_hands_over() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let alone = batches(&pipeline, 1);
    let fleet = [worker(dir.path()), worker(dir.path())];
    // A rank learns of it while it takes batches, so it must not wait for the end of it.
    let (half_way, begun) = std::sync::mpsc::channel();
    let (half_way, fleet) = (std::sync::Mutex::new(half_way), &fleet);
    let made = std::thread::scope(|scope| {
        let drained = scope.spawn(move || {
            begun.recv().unwrap();
            fleet[0].drain(Duration::from_secs(10))
        });
        let made = watched(&pipeline.clone().workers(at(fleet)), 1, |_, batch| {
            if batch == 4 {
                half_way.lock().unwrap().send(()).unwrap();
            }
        });
        assert!(drained.join().unwrap());
        made
    });
    assert_eq!(made, alone);
    assert!(fleet[0].status().draining);
}

#[test]
fn without_workers_this_machine_serves_if_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let alone = batches(&pipeline, 1);
    let nobody = Workers::at("127.0.0.1:9").unwrap();
    let fallback = pipeline.clone().workers(nobody.clone().local(Local::Fallback));
    assert_eq!(batches(&fallback, 1), alone);
    let one = worker(dir.path());
    let shared = pipeline.clone().workers(at([&one]).local(Local::Share));
    assert_eq!(batches(&shared, 1), alone);
    let samples = one.status().samples;
    assert!((1..2 * SAMPLES * 3 / 2).contains(&samples), "{samples} of {} came from the worker", 2 * SAMPLES);

    let begun = Instant::now();
    let mut waiting = pipeline
        .clone()
        .workers(nobody)
        .deadline(Duration::from_secs(2))
        .rank(Rank::new(0, 1))
        .start()
        .unwrap();
    let error = waiting.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retryable);
    assert!(error.to_string().contains("no worker answers: 127.0.0.1:9"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn all_workers_gone_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let alone = batches(&pipeline, 1);
    let first = std::sync::Mutex::new(Some(worker(dir.path())));
    let address = first.lock().unwrap().as_ref().unwrap().address().to_string();
    let workers = Workers::at(&address).unwrap();
    let made = watched(&pipeline.clone().workers(workers), 1, |_, batch| {
        if batch == 3 {
            drop(first.lock().unwrap().take());
            let (address, dir) = (address.clone(), dir.path().to_owned());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(700));
                let again = Worker::start(WorkerOptions { listen: address, ..options(&dir) }).unwrap();
                std::thread::sleep(Duration::from_secs(60));
                drop(again);
            });
        }
    });
    assert_eq!(made, alone);
}

fn refusal(pipeline: &Pipeline, workers: Workers) -> feedstock_trainer_bridge::Error {
    let pipeline = pipeline.clone().workers(workers).deadline(Duration::from_secs(20));
    let begun = Instant::now();
    let error = pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10), "reported at once, not at the deadline: {error}");
    error
}

#[test]
fn tokens_and_certificates_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let alone = batches(&pipeline, 1);
    let name = "feedstock-fleet";
    let (fleet, other) =
        (FleetIdentity::generate(&[name.into()]).unwrap(), FleetIdentity::generate(&[name.into()]).unwrap());
    let mut secure = options(dir.path());
    secure.token = Some(fleet.token.clone());
    secure.tls = Some(ServerTls { identity: fleet.server.clone(), client_ca: Some(fleet.ca.clone()) });
    let worker = Worker::start(secure).unwrap();
    let tls = |ca: &FleetIdentity, identity: Option<&Identity>, name: &str| ClientTls {
        ca: ca.ca.clone(),
        identity: identity.cloned(),
        server_name: Some(name.to_owned()),
    };
    let good = tls(&fleet, Some(&fleet.client), name);
    let to = |tls: ClientTls, token: &Token| at([&worker]).tls(tls).token(token.clone());
    assert_eq!(batches(&pipeline.clone().workers(to(good.clone(), &fleet.token)), 1), alone);
    for (workers, kind, word) in [
        (to(good.clone(), &other.token), ErrorKind::Denied, "token"),
        (at([&worker]).tls(good.clone()), ErrorKind::Denied, "no token"),
        (to(tls(&other, Some(&fleet.client), name), &fleet.token), ErrorKind::Denied, "certificate"),
        (to(tls(&fleet, Some(&fleet.client), "elsewhere"), &fleet.token), ErrorKind::Denied, "elsewhere"),
    ] {
        let error = refusal(&pipeline, workers);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // In TLS 1.3, the worker rejects a client certificate only after the rank has begun to send.
    for identity in [None, Some(&other.client)] {
        let status = to(tls(&fleet, identity, name), &fleet.token).status(&worker.address().to_string());
        let error = status.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("TLS: received fatal alert"), "{error}");
    }
    let plain = at([&worker]).token(fleet.token.clone()).status(&worker.address().to_string());
    assert!(plain.is_err(), "no TLS, no answer");
    assert!(!format!("{:?}", good).contains("PRIVATE"), "keys are not printed");
}

#[test]
fn a_worker_reads_only_what_it_is_allowed_to() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pipeline = pictures(dir.path());
    let stingy = worker(elsewhere.path());
    let error = refusal(&pipeline, at([&stingy]));
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("outside of what is allowed"), "{error}");
    let mut open_to_all = options(dir.path());
    open_to_all.listen = "0.0.0.0:0".into();
    let error = Worker::start(open_to_all).unwrap_err();
    assert!(error.to_string().contains("--insecure"), "{error}");
    let mut half = options(dir.path());
    (half.listen, half.token) = ("0.0.0.0:0".into(), Some(Token::generate().unwrap()));
    assert!(Worker::start(half).unwrap_err().to_string().contains("TLS"));
    let key = Identity { certificates: "no PEM".into(), key: Secret::from("secret") };
    let mut bad = options(dir.path());
    bad.tls = Some(ServerTls { identity: key, client_ca: None });
    assert_eq!(Worker::start(bad).unwrap_err().kind(), ErrorKind::BadConfig);
}

#[test]
fn changed_data_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = pictures(dir.path());
    let changed = dir.path().join("more");
    std::fs::create_dir(&changed).unwrap();
    synth(&changed, 20); // after the rank made its catalog
    let error = refusal(&pipeline, at([&worker(dir.path())]));
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("another order"), "{error}");
}

/// A stored catalog of more than 100,000 objects is compared with the storage only when a rank has another order.
#[test]
fn a_worker_with_an_old_catalog_reads_the_listing_again() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = |numbers: std::ops::Range<u32>| {
        std::fs::create_dir_all(dir.path().join("a")).unwrap();
        numbers.for_each(|i| std::fs::write(dir.path().join(format!("a/{i:06}.jpg")), b"x").unwrap());
    };
    let open_with = |store: CatalogStore| {
        let catalog = CatalogOptions { store, ..CatalogOptions::default() };
        OpenOptions { catalog, ..OpenOptions::default() }
    };
    let stored = CatalogStore::Cache(cache.path().into());
    let uri = dir.path().to_str().unwrap();
    files(0..100_001);
    block_on(Dataset::open_with(uri, open_with(stored.clone()))).unwrap();
    files(100_001..100_011);
    let dataset = block_on(Dataset::open_with(uri, open_with(CatalogStore::Nowhere))).unwrap();
    let dataset = dataset.columns(&["path"]).unwrap();
    let pipeline = dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(1_000)).threads(1);
    let mut with_old_catalog = WorkerOptions::new(move || open_with(stored.clone()));
    with_old_catalog.listen = "127.0.0.1:0".into();
    with_old_catalog.allow = vec![uri.to_owned()];
    let worker = Worker::start(with_old_catalog).unwrap();
    let served = pipeline.clone().workers(at([&worker]));
    let first = |pipeline: &Pipeline| {
        Whole::of(&pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap())
    };
    assert_eq!(first(&served), first(&pipeline));
}

#[test]
fn bad_samples_are_named_as_here() {
    let dir = tempfile::tempdir().unwrap();
    let mut clips = wavs(12);
    clips[5] = Some(b"no audio at all".to_vec());
    write_parquet(dir.path(), &clips);
    let pipeline = open(dir.path()).map("audio", [decode_audio()]).batch(BatchSize::global(12)).threads(1);
    let alone = pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap_err();
    let one = worker(dir.path());
    let error =
        pipeline.workers(at([&one])).rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (alone.kind(), alone.to_string()));
}
