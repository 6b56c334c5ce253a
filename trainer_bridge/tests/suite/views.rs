//! Several maps of one column: which of them draw the same.

use crate::common::{open, pipeline, synth};
use crate::fleet::{at, worker};
use feedstock_dataset::{Rank, Shuffle};
use feedstock_ops::{Op, decode_image, horizontal_flip, random_resized_crop};
use feedstock_trainer_bridge::{Batch, BatchSize, ErrorKind, Pipeline};
use std::path::Path;

fn chain() -> [Op; 3] {
    [decode_image(), random_resized_crop(32), horizontal_flip(0.5)]
}

fn batches(pipeline: &Pipeline) -> Vec<Batch> {
    pipeline.rank(Rank::new(0, 1)).start().unwrap().map(Result::unwrap).collect()
}

/// Returns the number of samples whose rows in both tensors are the same bytes.
fn equal_rows(pipeline: &Pipeline, one: &str, other: &str) -> usize {
    let batches = batches(&pipeline.clone().epochs(1));
    let equal =
        |batch: &Batch| (0..batch.len()).filter(|&row| batch[one].row(row) == batch[other].row(row)).count();
    batches.iter().map(equal).sum()
}

/// Returns the FNV-1a hash over the rows of a tensor, in order.
fn digest(pipeline: &Pipeline, output: &str) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let batches = batches(&pipeline.clone().epochs(1));
    let rows = batches.iter().flat_map(|batch| (0..batch.len()).map(|row| batch[output].row(row)));
    rows.fold(0xCBF2_9CE4_8422_2325, |hash, row| row.iter().fold(hash, fold))
}

fn two_views(dir: &Path) -> Pipeline {
    pipeline(open(dir), 8).map_as("image", "second", chain())
}

#[test]
fn two_random_views_of_an_image_differ() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let views = two_views(dir.path()).map_as("image", "third", chain());
    for (one, other) in [("image", "second"), ("image", "third"), ("second", "third")] {
        assert_eq!(equal_rows(&views, one, other), 0, "{one} and {other}");
    }
}

#[test]
fn the_first_view_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let single = digest(&pipeline(open(dir.path()), 8), "image");
    assert_eq!(digest(&two_views(dir.path()), "image"), single);
}

/// Pins the bytes of 24 images: data of seed 5, drawn with seed 7 in epoch 0. The first view draws without a salt. An
/// intentional change of them raises `OPS_VERSION`.
#[test]
fn views_have_the_same_bytes_in_every_version() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let views = two_views(dir.path());
    let digests = [
        digest(&pipeline(open(dir.path()), 8), "image"),
        digest(&views, "second"),
        digest(&views.key("second", "pair"), "second"),
    ];
    assert_eq!(
        digests,
        [10_681_478_089_115_736_833, 3_212_388_991_526_284_317, 15_400_550_845_226_022_956],
        "a single view, a second map, a map with a key"
    );
}

#[test]
fn workers_draw_what_one_process_draws() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let worker = worker(dir.path());
    for views in [two_views(dir.path()), two_views(dir.path()).key("second", "pair").key("image", "pair")] {
        let fleet = views.clone().workers(at([&worker]));
        for output in ["image", "second"] {
            assert_eq!(digest(&fleet, output), digest(&views, output), "{output}");
        }
    }
}

#[test]
fn equal_keys_draw_the_same_and_other_keys_do_not() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let views = two_views(dir.path());
    let keyed = |one: &str, other: &str| views.clone().key("image", one).key("second", other);
    assert_eq!(equal_rows(&keyed("pair", "pair"), "image", "second"), 24);
    assert_eq!(equal_rows(&keyed("one", "other"), "image", "second"), 0);
    let only_second = views.clone().key("second", "pair");
    assert_eq!(digest(&only_second, "second"), digest(&keyed("pair", "pair"), "image"));
    assert_eq!(digest(&only_second, "image"), digest(&views, "image"), "the first map needs no key");
    let error = keyed("", "pair").rank(Rank::new(0, 1)).start().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("key of the map to 'image'"), "{error}");
}

#[test]
fn chains_that_are_run_outside_draw_what_the_pipeline_draws() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let views = two_views(dir.path()).shuffle(Shuffle::none()).batch(BatchSize::global(24)).epochs(1);
    let ops = |output: &str| views.chain(output).unwrap().salt();
    assert_eq!(ops("image"), feedstock_ops::Salt::default());
    assert_eq!(ops("second"), feedstock_ops::Salt::of_output("second"));
}
