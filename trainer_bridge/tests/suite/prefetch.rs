//! `prefetch_bytes`: how far a rank reads ahead, and what it keeps for the next epoch.

use crate::common::s3::{S3, storage};
use crate::common::{Delivered, open_whole, pipeline, run_epochs, synth_as};
use feedstock_dataset::{BlockId, Rank, Tail};
use feedstock_ingest::Stats;
use feedstock_synth::Layout;
use feedstock_trainer_bridge::{Dataset, Pipeline};

const SAMPLES: u64 = 201;
const BATCH: u64 = 4;

fn encoded_bytes(dataset: &Dataset) -> u64 {
    let catalog = dataset.catalog();
    (0..catalog.blocks() as u32).map(|block| catalog.block(BlockId(block)).memory_bytes).sum()
}

/// Runs two epochs on one rank.
fn two_epochs(pipeline: Pipeline) -> (Delivered, Stats) {
    let mut rank = pipeline.tail(Tail::Pad).epochs(2).rank(Rank::new(0, 1)).start().unwrap();
    let mut delivered = Delivered::default();
    delivered.drain(&mut rank);
    delivered.drain(&mut rank);
    delivered.assert_once_each();
    (delivered, rank.stats().engine)
}

#[test]
fn of_local_files_no_more_than_prefetch_bytes_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::Folder, dir.path(), SAMPLES, 5);
    let dataset = open_whole(dir.path());
    let whole = encoded_bytes(&dataset);
    let pipeline = pipeline(dataset, BATCH).slots(2);

    let (small, kept) = two_epochs(pipeline.clone());
    assert_eq!(kept.fetched, SAMPLES, "less than the default stays in memory: {kept:?}");
    let (same, dropped) = two_epochs(pipeline.prefetch_bytes(whole / 10));
    assert_eq!(small, same);
    // Two steps are decoded, two are fetched in any case, one exceeds the limit.
    let steps = 5 * whole * 2 * BATCH / SAMPLES; // no five steps have twice the mean size
    assert!(dropped.peak_resident_bytes <= whole / 10 + steps, "{dropped:?} of {whole}");
    assert!(dropped.fetched > SAMPLES * 16 / 10, "{dropped:?}");
    assert_eq!(dropped.refetched, 0, "each is read once in an epoch");
}

#[test]
fn of_object_storage_the_budget_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::WebDataset, dir.path(), SAMPLES, 5);
    let s3 = S3::holding(dir.path());
    let dataset = s3.try_open(s3.options(storage())).unwrap();
    let whole = encoded_bytes(&dataset);
    let pipeline = pipeline(dataset, BATCH);
    let expected = run_epochs(&pipeline.clone().tail(Tail::Pad), 1, 2);
    s3.proxy.forget();
    let (delivered, stats) = two_epochs(pipeline.prefetch_bytes(whole / 10));
    assert_eq!(delivered, expected);
    assert!(stats.peak_resident_bytes > whole * 9 / 10, "{stats:?} of {whole}");
    assert!(s3.requests().0 as u64 <= SAMPLES, "the second epoch reads nothing");
}
