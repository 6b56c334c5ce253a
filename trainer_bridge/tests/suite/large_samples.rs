//! Samples that need more working memory than a CPU thread has. They borrow from the memory budget in plan order, or the
//! options alone make them bad.

use crate::common::{Delivered, open, run_epochs};
use crate::fleet::{Whole, at, batches, options, worker};
use crate::memory_files::png;
use feedstock_dataset::{Rank, Shuffle};
use feedstock_ingest::{Local, Worker};
use feedstock_ops::{decode_image, resize};
use feedstock_trainer_bridge::{
    BatchSize, Error, ErrorKind, OnError, Pipeline, RankIterator, RankStats, Workers,
};
use proptest::prelude::*;
use std::path::Path;
use std::time::{Duration, Instant};

const SAMPLES: usize = 24;
/// The pixels per side of an image. Its PNG and its RGB take 3 MB each.
const SIDE: u32 = 1000;
const MIB: u64 = 1 << 20;
/// Enough for a step of two such images and the memory that one of them borrows, but not for the blocks of several steps.
const BUDGET_BYTES: u64 = 14 * MIB;

/// Writes images that do not compress, each in one block.
fn noise(folder: &Path, sides: &[u32]) {
    let class = folder.join("class");
    std::fs::create_dir_all(&class).unwrap();
    for (sample, side) in sides.iter().enumerate() {
        let mut state = sample as u64 * 2 + 1;
        let bytes = png(*side, |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        std::fs::write(class.join(format!("{sample:03}.png")), bytes).unwrap();
    }
}

fn pipeline(folder: &Path) -> Pipeline {
    open(folder)
        .map("image", [decode_image(), resize([32, 32])])
        .shuffle(Shuffle::none())
        .batch(BatchSize::global(2))
        .epochs(1)
        .threads(2)
        .deadline(Duration::from_secs(60))
}

fn delivered(pipeline: &Pipeline) -> Delivered {
    run_epochs(pipeline, 1, 1)
}

#[test]
fn what_is_borrowed_changes_no_byte_and_never_deadlocks() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; SAMPLES]);
    let usual = delivered(&pipeline(dir.path()));
    assert_eq!(usual.samples(), SAMPLES);
    for shuffle in [Shuffle::none(), Shuffle::seeded(1).window(8), Shuffle::full(2)] {
        for threads in [1, 4] {
            let narrow = pipeline(dir.path())
                .shuffle(shuffle.clone())
                .threads(threads)
                .decoder_memory(MIB)
                .budget_bytes(BUDGET_BYTES);
            let mut ranks = narrow.rank(Rank::new(0, 1)).start().unwrap();
            let mut found = Delivered::default();
            found.drain(&mut ranks);
            ranks.ledger().check().unwrap();
            assert_eq!(found, usual, "{shuffle:?}, {threads} threads");
            let stats = ranks.stats();
            assert!(stats.engine.peak_resident_bytes <= BUDGET_BYTES, "{stats:?}");
        }
    }
}

/// Blocks of small images fill the budget before a large one comes, which borrows 2.5 MiB.
#[test]
fn steps_ahead_are_given_up_for_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let sides: Vec<u32> = (0..48).map(|sample| if sample % 20 == 10 { SIDE } else { 300 }).collect();
    noise(dir.path(), &sides);
    let narrow = pipeline(dir.path()).decoder_memory(4 * MIB).budget_bytes(7 * MIB);
    let mut ranks = narrow.rank(Rank::new(0, 1)).start().unwrap();
    let wait_until = |ranks: &RankIterator, reached: fn(&RankStats) -> bool| {
        let begun = Instant::now();
        while !reached(&ranks.stats()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", ranks.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Four steps have the slots. Of those ahead, eight fit: 15 images of 270 kB and one of 3 MB.
    wait_until(&ranks, |stats| stats.ready == 4 && stats.engine.fetched >= 24);
    // The second slot goes to the large image's step. No other step runs then, so only steps ahead can make room.
    let mut taken: usize = ranks.by_ref().take(2).map(|batch| batch.unwrap().len()).sum();
    wait_until(&ranks, |stats| stats.ready == 4);
    taken += ranks.by_ref().map(|batch| batch.unwrap().len()).sum::<usize>();
    assert_eq!(taken, sides.len());
    let stats = ranks.stats();
    assert!(stats.engine.refetched > 0, "the blocks of steps ahead must give way: {stats:?}");
    assert_eq!(stats.engine.samples, sides.len() as u64);
}

#[test]
fn a_sample_over_the_limit_is_bad_for_every_rank_thread_and_worker() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[200; 8]);
    let large = tempfile::tempdir().unwrap();
    noise(large.path(), &[2000]);
    std::fs::copy(large.path().join("class/000.png"), dir.path().join("class/003x.png")).unwrap();
    // 12 MB plus the decoder's other memory exceed 1 MiB plus half of 20 MiB.
    let base = pipeline(dir.path()).decoder_memory(MIB).budget_bytes(20 * MIB);
    let error = base.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    let message = error.to_string();
    for part in ["003x.png", "MiB of memory", "decoder_memory", "budget_bytes", "on_error=skip"] {
        assert!(message.contains(part), "{message}");
    }
    let skipping = base.on_error(OnError::Skip { max_fraction: 1.0 });
    let expected = batches(&skipping, 1);
    let bad = |ranks: &[Vec<Whole>]| {
        let rows = ranks.iter().flatten().flat_map(|batch| batch.samples.iter().zip(&batch.valid));
        rows.filter(|(_, valid)| !**valid).map(|(sample, _)| *sample).collect::<Vec<_>>()
    };
    assert_eq!(bad(&expected), [4], "003x.png is the fifth");
    assert_eq!(batches(&skipping.clone().threads(1), 1), expected);
    assert_eq!(bad(&batches(&skipping, 2)), [4]);
    // A worker has its own memory.
    let narrow = || {
        let mut options = options(dir.path());
        options.decoder_memory = 64 * MIB;
        Worker::start(options).unwrap()
    };
    let workers = [narrow(), worker(dir.path())];
    assert_eq!(batches(&skipping.clone().workers(at(&workers)), 1), expected);
}

/// Returns a worker with these bytes of working memory for each thread, and of memory in all.
fn lending(folder: &Path, decoder_memory: u64, memory_bytes: u64) -> Worker {
    let mut options = options(folder);
    (options.decoder_memory, options.memory_bytes) = (decoder_memory, memory_bytes);
    options.row_index_bytes = Some(0);
    Worker::start(options).unwrap()
}

/// The rank's own streams share its budget, which is small: at first there is one for a part of the strands, and then, one after
/// another, those for what the workers served that are lost.
#[test]
fn this_machine_serves_with_a_small_budget_when_workers_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; SAMPLES]);
    // A step that this machine serves itself may take half of the budget.
    let base = pipeline(dir.path()).decoder_memory(MIB).budget_bytes(2 * BUDGET_BYTES);
    let expected = batches(&base, 1);
    for local in [Local::Share, Local::Fallback] {
        let mut workers: Vec<Worker> = (0..3).map(|_| lending(dir.path(), MIB, 64 * MIB)).collect();
        let served = base.clone().workers(at(&workers).local(local));
        let begun = Instant::now();
        let mut found = Vec::new();
        for batch in served.rank(Rank::new(0, 1)).start().unwrap() {
            found.push(Whole::of(&batch.unwrap()));
            if found.len() % 3 == 0 {
                workers.pop();
            }
        }
        assert_eq!([found], expected[..], "{local:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{local:?}: {:?}", begun.elapsed());
    }
}

/// This machine serves from half of the budget. A batch that fits the whole, but not the half, is an error that names what it
/// needs, and with that it fits.
#[test]
fn a_batch_over_half_of_the_budget_of_this_machine_is_an_error_that_names_the_budget_that_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; 8]);
    let nobody = Workers::at("127.0.0.1:9").unwrap().local(Local::Fallback);
    let base = pipeline(dir.path()).batch(BatchSize::global(4)).budget_bytes(20 * MIB);
    let expected = batches(&base, 1);
    let (found, error) = until_error(&base.clone().workers(nobody.clone()));
    let error = error.unwrap();
    assert!(found.is_empty() && error.kind() == ErrorKind::BadConfig, "{error}");
    let message = error.to_string();
    assert!(message.contains("budget of 10.0 MiB") && message.contains("local="), "{message}");
    let needed = message.split("raise budget_bytes to ").nth(1).and_then(|rest| rest.split(" MiB").next());
    let needed_mib: u64 = needed.and_then(|mib| mib.parse().ok()).unwrap_or_else(|| panic!("{message}"));
    let enough = base.budget_bytes(needed_mib * MIB).workers(nobody);
    assert_eq!(batches(&enough, 1), expected);
}

/// What one rank's stream took beyond its share goes to the other's, also while the first rank waits.
#[test]
fn ranks_in_lock_step_share_a_workers_memory() {
    let dir = tempfile::tempdir().unwrap();
    // Small images first, so that both ranks have streams. Then each step needs more than a stream's share.
    let sides: Vec<u32> = (0..96).map(|sample| if sample < 32 { 100 } else { SIDE }).collect();
    noise(dir.path(), &sides);
    let base = pipeline(dir.path()).batch(BatchSize::global(32)).budget_bytes(80 * MIB).decoder_memory(MIB);
    let expected = batches(&base, 2);
    // Of 92 MiB, streams reserve 34 and 17 at first. Steps of both ranks, of 48 MB each, do not fit at the same time.
    let worker = [lending(dir.path(), MIB, 92 * MIB)];
    let served = base.workers(at(&worker));
    let ranks = [0, 1].map(|rank| served.rank(Rank::new(rank, 2)).start().unwrap());
    let mut found = [Vec::new(), Vec::new()];
    let begun = Instant::now();
    let [mut first, mut second] = ranks;
    while let (Some(one), Some(other)) = (first.next(), second.next()) {
        found[0].push(Whole::of(&one.unwrap()));
        found[1].push(Whole::of(&other.unwrap()));
    }
    assert_eq!(found[..], expected[..]);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
}

#[test]
fn workers_lend_as_ranks_do() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; 8]);
    let base = pipeline(dir.path()).budget_bytes(80 * MIB);
    let expected = batches(&base, 1);
    let workers = [lending(dir.path(), MIB, 64 * MIB), lending(dir.path(), MIB, 64 * MIB)];
    for local in [Local::Never, Local::Share] {
        let served = base.clone().workers(at(&workers).local(local));
        assert_eq!(batches(&served.decoder_memory(MIB), 1), expected);
    }
}

#[test]
fn a_budget_without_room_for_a_sample_is_an_error_that_states_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; 8]);
    // Four blocks of 3 MB each leave 2 MB, and each image borrows 6 MB.
    let pipeline =
        pipeline(dir.path()).batch(BatchSize::global(4)).decoder_memory(MIB / 2).budget_bytes(14 * MIB);
    let error = pipeline.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    let message = error.to_string();
    for part in ["000.png", "0.5 MiB of decoder_memory", "14.0 MiB", "raise budget_bytes or decoder_memory"] {
        assert!(message.contains(part), "{message}");
    }
}

/// The share of each of three workers is less than the rank's budget. That does not make the failure one of another worker.
#[test]
fn a_sample_that_fits_on_no_worker_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    noise(dir.path(), &[SIDE; 24]);
    // A worker has 16 MiB, and at least one of them has four blocks or more, of 3 MB each; each image borrows 6 MB.
    let narrow =
        pipeline(dir.path()).batch(BatchSize::global(12)).decoder_memory(MIB / 2).budget_bytes(14 * MIB);
    let workers: Vec<Worker> = (0..3).map(|_| lending(dir.path(), MIB / 2, 64 * MIB)).collect();
    let begun = Instant::now();
    let (_, error) = until_error(&narrow.workers(at(&workers)));
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    assert!(error.to_string().contains("raise budget_bytes"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30), "half of the deadline: {:?}", begun.elapsed());
}

/// Returns the batches of one rank, up to the first error.
fn until_error(pipeline: &Pipeline) -> (Vec<Whole>, Option<Error>) {
    let batches = match pipeline.rank(Rank::new(0, 1)).start() {
        Ok(batches) => batches,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut found = Vec::new();
    for batch in batches {
        match batch {
            Ok(batch) => found.push(Whole::of(&batch)),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// Small and large samples in any order: steps end out of order, are abandoned and start again.
    #[test]
    fn every_batch_comes_or_the_run_ends_with_an_error(
        sides in prop::collection::vec(prop_oneof![2 => 50u32..150, 1 => 400u32..700], 4..40),
        (kib, threads, batch) in (1500u64..9000, 1usize..5, 1u64..4),
        shuffle in prop_oneof![Just(Shuffle::none()), Just(Shuffle::seeded(1).window(6)), Just(Shuffle::full(2))],
        on in 0..3,
    ) {
        let dir = tempfile::tempdir().unwrap();
        noise(dir.path(), &sides);
        let base = pipeline(dir.path()).shuffle(shuffle).batch(BatchSize::global(batch));
        let (expected, none) = until_error(&base);
        prop_assert!(none.is_none());
        let narrow = base.threads(threads).decoder_memory(MIB / 2).budget_bytes(kib << 10);
        let mut options = options(dir.path());
        (options.decoder_memory, options.memory_bytes) = (MIB, 64 * MIB);
        let worker = Worker::start(options).unwrap();
        let begun = Instant::now();
        let (found, error) = until_error(&match on {
            0 => narrow,
            1 => narrow.workers(at([&worker])),
            _ => narrow.workers(at([&worker]).local(Local::Share)),
        });
        prop_assert!(begun.elapsed() < Duration::from_secs(50), "no error of the deadline");
        prop_assert_eq!(&found[..], &expected[..found.len()]);
        match error {
            None => prop_assert_eq!(found.len(), expected.len()),
            Some(error) => {
                // The sample is over what the options allow, or the step is over the budget.
                let expected = [ErrorKind::BadSample, ErrorKind::BadConfig];
                prop_assert!(expected.contains(&error.kind()), "{}", error);
                prop_assert!(error.to_string().contains("raise "), "{}", error);
            }
        }
    }
}
