//! The contract with trainers: delivery is exactly once, the same for any world size and thread count, and resumable anywhere.

use crate::common::{Delivered, block_on, open, pipeline, run_epochs, synth};
use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{BlockId, Rank, Shuffle, Tail};
use feedstock_ingest::RawOptions;
use feedstock_ops::random_resized_crop;
use feedstock_trainer_bridge::{BatchSize, ErrorKind};
use std::time::{Duration, Instant};

const SAMPLES: u64 = 203;

#[test]
fn every_world_size_delivers_the_same_bytes_once() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let padded = pipeline(open(dir.path()), 48).tail(Tail::Pad).epochs(2);
    let alone = run_epochs(&padded.clone().threads(1), 1, 2);
    alone.assert_once_each();
    assert_eq!(alone.samples() as u64, 2 * SAMPLES);
    for world_size in [2, 3, 5, 8] {
        assert_eq!(run_epochs(&padded, world_size, 2), alone, "{world_size} ranks");
    }
    let dropped = run_epochs(&pipeline(open(dir.path()), 48), 3, 1);
    dropped.assert_once_each();
    assert_eq!(dropped.samples() as u64, SAMPLES / 48 * 48);
}

#[test]
fn augmentation_differs_between_epochs_and_seeds() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 64);
    let both = run_epochs(&pipeline(open(dir.path()), 16), 1, 2);
    let same = (0..64).filter(|&sample| both.0[&(0, sample)] == both.0[&(1, sample)]).count();
    assert!(same < 4, "{same} of 64 samples look the same in two epochs");
    let other = run_epochs(&pipeline(open(dir.path()), 16).shuffle(Shuffle::seeded(8)), 1, 1);
    let same = (0..64).filter(|&sample| both.0[&(0, sample)] == other.0[&(0, sample)]).count();
    assert!(same < 4, "{same} of 64 samples look the same under two seeds");
}

#[test]
fn a_run_resumes_with_other_ranks_and_batches() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let whole = run_epochs(&pipeline(open(dir.path()), 1), 1, 1);
    let mut delivered = Delivered::default();
    let mut first = pipeline(open(dir.path()), 20).rank(Rank::new(0, 1)).start().unwrap();
    for _ in 0..4 {
        delivered.add(&first.next().unwrap().unwrap());
    }
    std::thread::sleep(Duration::from_millis(100)); // prefetched batches must not count
    let cursor = first.state();
    assert_eq!(cursor.position.0, 80);
    drop(first);
    let second = pipeline(open(dir.path()), 24).tail(Tail::Pad);
    for rank in 0..3 {
        let mut ranks = second.rank(Rank::new(rank, 3)).resume(cursor.clone()).start().unwrap();
        delivered.drain(&mut ranks);
        ranks.ledger().check().unwrap();
    }
    assert_eq!(delivered, whole);
}

#[test]
fn a_cursor_at_the_end_goes_on_with_the_next_epoch() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 50);
    let twenty = pipeline(open(dir.path()), 20);
    let mut ranks = twenty.rank(Rank::new(0, 1)).start().unwrap();
    assert_eq!(ranks.by_ref().count(), 2);
    let cursor = ranks.state();
    assert_eq!((cursor.epoch, cursor.position.0), (1, 0));
    assert_eq!(
        ranks.next().unwrap().unwrap().epoch(),
        1,
        "iterating a finished iterator starts the next epoch"
    );
    let mut resumed = twenty.rank(Rank::new(0, 1)).resume(cursor).start().unwrap();
    assert_eq!(resumed.by_ref().count(), 2, "no empty epoch");
}

#[test]
fn the_stream_yields_what_the_iterator_yields() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 60);
    let pipeline = pipeline(open(dir.path()), 10).epochs(1);
    let (mut blocking, mut streamed) = (Delivered::default(), Delivered::default());
    blocking.drain(&mut pipeline.rank(Rank::new(0, 1)).start().unwrap());
    let mut stream = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    block_on(async {
        while let Some(batch) = futures::StreamExt::next(&mut stream).await {
            streamed.add(&batch.unwrap());
        }
    });
    assert_eq!(blocking, streamed);
    assert_eq!(blocking.samples(), 60);
}

#[test]
fn a_full_shuffle_and_no_shuffle_cover_everything() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    for shuffle in [Shuffle::full(3), Shuffle::none()] {
        let delivered = run_epochs(&pipeline(open(dir.path()), 29).shuffle(shuffle).tail(Tail::Pad), 2, 2);
        delivered.assert_once_each();
        assert_eq!(delivered.samples() as u64, 2 * SAMPLES);
    }
}

#[test]
fn a_small_budget_only_costs_reads() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let dataset = open(dir.path());
    let blocks = 0..dataset.catalog().blocks() as u32;
    let largest = blocks.map(|block| dataset.catalog().block(BlockId(block)).memory_bytes).max().unwrap();
    let budget_bytes = 5 * largest; // a batch of 4 needs up to 4 blocks
    let wide = run_epochs(&pipeline(dataset.clone(), 4), 1, 2);
    let mut ranks = pipeline(dataset, 4).budget_bytes(budget_bytes).rank(Rank::new(0, 1)).start().unwrap();
    let mut delivered = Delivered::default();
    delivered.drain(&mut ranks);
    delivered.drain(&mut ranks);
    assert_eq!(delivered, wide);
    let stats = ranks.stats().engine;
    assert!(stats.peak_resident_bytes <= budget_bytes && stats.refetched > 0, "{stats:?}");
}

#[test]
fn held_batches_hold_back_and_an_error_names_them() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 100);
    let pipeline = pipeline(open(dir.path()), 10).slots(3).held_bytes(0);
    let mut ranks = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let mut held: Vec<_> = ranks.by_ref().take(3).map(Result::unwrap).collect();
    let error = ranks.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("all 3 slots are held"), "{error}");
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    let before = held[0]["image"].bytes().to_vec();
    let view = held[0].to_record_batch().unwrap();
    held.remove(0);
    assert!(ranks.next().unwrap().is_err(), "the Arrow view holds the slot");
    assert_eq!(
        view.column_by_name("image").unwrap().to_data().child_data()[0].buffers()[0].as_slice(),
        before
    );
    drop(view);
    assert_eq!(ranks.next().unwrap().unwrap().position().0, 30, "a freed slot continues where it stopped");
}

#[test]
fn slots_are_added_for_a_caller_that_keeps_its_batches() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 100);
    let pipeline = pipeline(open(dir.path()), 2).epochs(1);
    let quiet = run_epochs(&pipeline, 1, 1);
    let mut ranks = pipeline.clone().slots(3).rank(Rank::new(0, 1)).start().unwrap();
    let begun = Instant::now();
    let held: Vec<_> = ranks.by_ref().map(Result::unwrap).collect();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!((held.len(), ranks.stats().held), (50, 50));
    let mut delivered = Delivered::default();
    held.iter().for_each(|batch| delivered.add(batch));
    assert_eq!(delivered, quiet, "no two batches share memory");

    // A batch of 2 images of 32 × 32 pixels takes two pages, and some bytes for its labels.
    let limit = 13 * 8_192;
    let mut ranks = pipeline.slots(3).held_bytes(limit).rank(Rank::new(0, 1)).start().unwrap();
    let (mut held, mut error) = (Vec::new(), None);
    for batch in ranks.by_ref() {
        match batch {
            Ok(batch) => held.push(batch),
            Err(failed) => {
                error = Some(failed);
                break;
            }
        }
    }
    let error = error.unwrap();
    assert_eq!(ranks.stats().slots, held.len());
    assert!((11..=16).contains(&held.len()), "{}: {error}", held.len());
    assert!(error.to_string().contains("held_bytes"), "{error}");
    let last = held.pop().unwrap().next_position();
    held.clear();
    assert_eq!(ranks.stats().slots, 3, "added slots are freed");
    assert_eq!(ranks.next().unwrap().unwrap().position(), last, "a freed slot continues where it stopped");
}

#[test]
fn stops_soon_from_any_state() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    for taken in 0..=4 {
        // Up to four slots, which is all, are held.
        let mut ranks = pipeline(open(dir.path()), 16).rank(Rank::new(0, 1)).start().unwrap();
        let held: Vec<_> = ranks.by_ref().take(taken).collect();
        let begun = Instant::now();
        drop(ranks);
        assert!(begun.elapsed() < Duration::from_secs(5), "after {taken} batches: {:?}", begun.elapsed());
        assert!(held.iter().all(|batch| batch.as_ref().unwrap()["image"].bytes().len() == 16 * 32 * 32 * 3));
    }
}

#[test]
fn arrow_sees_the_slot_itself() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 20);
    let mut ranks = pipeline(open(dir.path()), 5).rank(Rank::new(0, 1)).start().unwrap();
    let batch = ranks.next().unwrap().unwrap();
    let arrow = batch.to_record_batch().unwrap();
    let field = arrow.schema().field_with_name("image").unwrap().clone();
    assert_eq!(field.extension_type_name(), Some("arrow.fixed_shape_tensor"));
    assert_eq!(field.extension_type_metadata(), Some(r#"{"shape":[32,32,3]}"#));
    let values = arrow.column_by_name("image").unwrap().to_data().child_data()[0].buffers()[0].as_ptr();
    assert_eq!(values, batch["image"].bytes().as_ptr(), "no copy");
    assert_eq!(batch["image"].shape(), [5, 32, 32, 3]);
}

#[test]
fn batches_that_cannot_be_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 20);
    let start = |pipeline: feedstock_trainer_bridge::Pipeline, world_size| {
        pipeline.rank(Rank::new(0, world_size)).start().unwrap_err().to_string()
    };
    let base = || pipeline(open(dir.path()), 8);
    assert!(start(base().batch(BatchSize::global(21)), 1).contains("fewer than one global batch of 21"));
    assert!(start(base(), 9).contains("without rows"));
    assert!(start(base().budget_bytes(1000), 1).contains("smaller than one batch"));
    assert!(start(base().slots(1), 1).contains("slots"));
    assert!(start(base().threads(0), 1).contains("threads"));
    assert!(start(base().map("image", []), 1).contains("two maps have the output"));
    let unknown =
        open(dir.path()).map("photo", [feedstock_ops::decode_image(), feedstock_ops::random_resized_crop(8)]);
    assert!(start(unknown.batch(BatchSize::global(4)), 1).contains("it does not exist"));
}

#[test]
fn record_batches_bring_each_sample_once_and_no_padding() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let dataset = open(dir.path());
    let ids = |options: &RawOptions| -> Vec<u64> {
        let batches = dataset.record_batches(options).unwrap().map(Result::unwrap);
        let id = |batch: RecordBatch| batch.column(0).as_primitive::<UInt64Type>().values().to_vec();
        batches.flat_map(id).collect()
    };
    let huge = RawOptions { batch_rows: 1 << 40, ..RawOptions::default() };
    assert_eq!(ids(&huge), (0..SAMPLES).collect::<Vec<_>>(), "the catalog's order, in one batch");
    let shares = (0..3).flat_map(|rank| {
        let options = RawOptions {
            rank: Rank::new(rank, 3),
            shuffle: Shuffle::seeded(4),
            batch_rows: 50,
            ..huge.clone()
        };
        ids(&options)
    });
    let mut shares: Vec<u64> = shares.collect();
    assert_ne!(shares, ids(&huge));
    shares.sort_unstable();
    assert_eq!(shares, (0..SAMPLES).collect::<Vec<_>>());
    let past = RawOptions { position: feedstock_dataset::Position(SAMPLES + 1), ..RawOptions::default() };
    assert!(dataset.record_batches(&past).err().unwrap().to_string().contains("past the epoch"));
}

#[test]
fn epochs_end_the_run_and_changed_ops_are_only_told() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 40);
    let two = pipeline(open(dir.path()), 10).epochs(2);
    let mut ranks = two.rank(Rank::new(0, 1)).epoch(1).start().unwrap();
    assert_eq!(ranks.by_ref().map(|batch| batch.unwrap().epoch()).collect::<Vec<_>>(), [1; 4]);
    assert_eq!((ranks.steps_left(), ranks.next().is_none()), (0, true));
    let end = ranks.state();
    let error = two.rank(Rank::new(0, 1)).resume(end.clone()).start().unwrap_err().to_string();
    assert!(error.contains("nothing is left"), "{error}");
    let other_ops = open(dir.path())
        .map("image", [feedstock_ops::decode_image(), random_resized_crop(16)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(10));
    assert_eq!(
        other_ops.rank(Rank::new(0, 1)).resume(end).start().unwrap().next().unwrap().unwrap().epoch(),
        2
    );
}
