//! The default shuffle: in full where samples can be read one by one, else in pieces.

use crate::common::s3::{S3, storage};
use crate::common::{Delivered, open, open_whole, pipeline, run_epochs, synth_as};
use feedstock_dataset::{OpenOptions, Position, Rank, Shuffle, ShuffleKind, StorageOptions, Tail};
use feedstock_synth::Layout;
use feedstock_trainer_bridge::Pipeline;

const SAMPLES: u64 = 403;

fn whole_epochs(pipeline: Pipeline) -> Pipeline {
    pipeline.tail(Tail::Pad)
}

#[test]
fn folders_and_local_tars_are_shuffled_in_full() {
    for layout in [Layout::Folder, Layout::WebDataset] {
        let dir = tempfile::tempdir().unwrap();
        synth_as(layout, dir.path(), SAMPLES, 5);
        let pipeline = whole_epochs(pipeline(open_whole(dir.path()), 24));
        let plan = pipeline.plan(Rank::new(0, 1)).unwrap();
        assert_eq!((plan.fingerprint().shuffle, plan.fingerprint().version), (ShuffleKind::Full, 1));
        let alone = run_epochs(&pipeline, 1, 2);
        alone.assert_once_each();
        assert_eq!(alone.samples() as u64, 2 * SAMPLES);
        assert_eq!(run_epochs(&pipeline, 3, 2), alone, "{layout:?}: the same for any world size");
    }
}

#[test]
fn parquet_is_shuffled_in_blocks_as_before() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::Parquet, dir.path(), SAMPLES, 5);
    let plan = pipeline(open(dir.path()), 24).plan(Rank::new(0, 1)).unwrap();
    let blocks = open(dir.path()).shuffle(Shuffle::seeded(7).blocks()).plan(Rank::new(0, 1)).unwrap();
    assert_eq!(plan.fingerprint(), blocks.fingerprint());
    assert_eq!((plan.fingerprint().version, plan.fingerprint().piece), (1, None));
}

/// Each sample is read once, and nothing is read twice while the budget holds the data.
#[test]
fn tars_on_object_storage_are_read_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::WebDataset, dir.path(), SAMPLES, 5);
    let quiet = run_epochs(&whole_epochs(pipeline(open_whole(dir.path()), 24)), 1, 1);
    let s3 = S3::holding(dir.path());
    // Of a tar, and of some 10 samples.
    for block_bytes in [4 << 20, 32 << 10] {
        let unhedged = StorageOptions { hedge: false, ..storage() };
        let dataset = s3.try_open(OpenOptions { block_bytes, ..s3.options(unhedged) }).unwrap();
        let pipeline = whole_epochs(
            pipeline(dataset, 24).shuffle(Shuffle::seeded(7).piece(4).shuffle_bytes(1 << 20)).epochs(2),
        );
        let plan = pipeline.plan(Rank::new(0, 1)).unwrap();
        assert_eq!((plan.fingerprint().version, plan.fingerprint().piece), (2, Some(4)));
        s3.proxy.forget();
        let delivered = run_epochs(&pipeline, 1, 2);
        delivered.assert_once_each();
        let first: Vec<_> = delivered.0.iter().filter(|((epoch, _), _)| *epoch == 0).collect();
        assert_eq!(first, quiet.0.iter().collect::<Vec<_>>(), "the order does not change pixels");
        // A piece that reaches over the end of a tar is read from both.
        let (requests, tars) = (s3.requests().0 as u64, SAMPLES.div_ceil(90));
        assert!(
            requests <= SAMPLES.div_ceil(4) + tars,
            "{requests} requests for two epochs, blocks of {block_bytes} bytes"
        );
    }
}

/// A state of a release whose default was a shuffle of blocks goes on in that order, in this epoch and later.
#[test]
fn a_saved_order_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::WebDataset, dir.path(), SAMPLES, 5);
    let before = whole_epochs(pipeline(open(dir.path()), 24).shuffle(Shuffle::seeded(7).blocks()));
    let all = run_epochs(&before, 1, 2);
    let mut taken = Delivered::default();
    let mut loader = before.loader(Rank::new(0, 1)).unwrap();
    for batch in loader.by_ref().take(5) {
        taken.add(&batch.unwrap());
    }
    let saved = loader.state();
    assert_eq!((saved.fingerprint.version, saved.position), (1, Position(5 * 24)));

    let now = whole_epochs(pipeline(open(dir.path()), 24)).epochs(2);
    assert_ne!(now.plan(Rank::new(0, 1)).unwrap().fingerprint(), &saved.fingerprint);
    for rank in 0..2 {
        let mut loader = now.loader(Rank::new(rank, 2)).unwrap();
        loader.load_state(saved.clone()).unwrap();
        taken.drain(loader.by_ref()); // the rest of the epoch
        taken.drain(loader.by_ref()); // and the next one
        assert_eq!(loader.state().fingerprint, saved.fingerprint);
    }
    assert_eq!(taken, all);
}

/// A copy on another class of storage keeps the order of the state, too, and the other way round.
#[test]
fn a_state_moves_between_classes_of_storage() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::WebDataset, dir.path(), SAMPLES, 5);
    let s3 = S3::holding(dir.path());
    let [local, remote] =
        [open(dir.path()), s3.open(storage())].map(|dataset| whole_epochs(pipeline(dataset, 24)));
    for (here, there) in [(&local, &remote), (&remote, &local)] {
        let all = run_epochs(here, 1, 1);
        let mut loader = here.loader(Rank::new(0, 1)).unwrap();
        let mut taken = Delivered::default();
        for batch in loader.by_ref().take(5) {
            taken.add(&batch.unwrap());
        }
        let mut resumed = there.loader(Rank::new(0, 1)).unwrap();
        resumed.load_state(loader.state()).unwrap();
        taken.drain(resumed.by_ref());
        assert_eq!(taken, all);
    }
}

#[test]
fn a_sparse_filter_reads_what_it_keeps() {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::WebDataset, dir.path(), SAMPLES, 5);
    let s3 = S3::holding(dir.path());
    let dataset = s3.try_open(OpenOptions { block_bytes: 4 << 20, ..s3.options(storage()) }).unwrap();
    let kept = dataset.filter("label % 10 = 3").unwrap();
    let pipeline = whole_epochs(pipeline(kept, 8).shuffle(Shuffle::seeded(7).piece(2)));
    let plan = pipeline.plan(Rank::new(0, 1)).unwrap();
    let delivered = run_epochs(&pipeline, 2, 1);
    delivered.assert_once_each();
    assert_eq!(delivered.samples() as u64, plan.len());
    assert!(plan.len() > 20 && plan.len() < SAMPLES / 5);
}
