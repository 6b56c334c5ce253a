//! Computed, renamed and joined columns: in the batches of any number of ranks, resumed, and from workers.

use crate::common::{Delivered, open, run_epochs, synth, synth_as};
use crate::fleet::{at, batches, worker};
use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use feedstock_dataset::{Rank, Shuffle, Tail};
use feedstock_ops::{decode_image, random_resized_crop};
use feedstock_synth::Layout;
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, Pipeline};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const SAMPLES: u64 = 203;

/// The samples of `dir` whose number is odd, with a computed and a joined column: `twice` is 2 · label, `rank` is the sample's
/// number where that is a multiple of 3.
fn derived(dir: &Path) -> Dataset {
    let numbered = || open(dir).with_column("number", "cast(sample_id as bigint)").unwrap();
    let ranks = numbered().filter("number % 3 = 0").unwrap().with_column("rank", "number").unwrap();
    let ranks = ranks.columns(&["number", "rank"]).unwrap();
    let all = numbered().join(&ranks, &[("number", "number")]).unwrap();
    let all = all.with_column("twice", "2 * label").unwrap().rename(&[("image", "photo")]).unwrap();
    all.filter("number % 2 = 1").unwrap()
}

fn pipeline(dataset: Dataset, global_batch: u64) -> Pipeline {
    let mapped = dataset.map_as("photo", "image", [decode_image(), random_resized_crop(32)]);
    let mapped = mapped.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(global_batch)).threads(2);
    mapped.tail(Tail::Pad).epochs(2).deadline(Duration::from_secs(30))
}

/// Checks the columns of a batch, and counts its samples.
fn check(batch: &Batch, counts: &mut BTreeMap<u64, u64>) {
    let column = |name: &str| batch.column(name).unwrap().as_primitive::<Int64Type>().clone();
    let (label, twice, number, rank) = (column("label"), column("twice"), column("number"), column("rank"));
    for (row, sample) in batch.sample_ids().iter().enumerate().filter(|(row, _)| batch.valid()[*row]) {
        assert_eq!(twice.value(row), 2 * label.value(row));
        assert_eq!(number.value(row).cast_unsigned(), sample.0);
        let found = rank.is_valid(row).then(|| rank.value(row).cast_unsigned());
        assert_eq!(found, sample.0.is_multiple_of(3).then_some(sample.0));
        *counts.entry(sample.0).or_default() += 1;
    }
}

#[test]
fn columns_are_in_the_batches_of_ranks_and_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let padded = pipeline(derived(dir.path()), 24);
    let alone = run_epochs(&padded, 1, 2);
    alone.assert_once_each();
    assert_eq!(run_epochs(&padded, 3, 2), alone);
    let mut counts = BTreeMap::new();
    for rank in 0..3 {
        let mut ranks = padded.rank(Rank::new(rank, 3)).start().unwrap();
        ranks.by_ref().for_each(|batch| check(&batch.unwrap(), &mut counts));
    }
    assert!(counts.keys().copied().eq((0..SAMPLES).filter(|id| id % 2 == 1)));
    assert!(counts.values().all(|times| *times == 1), "{counts:?}");

    let workers = [worker(dir.path()), worker(dir.path())];
    assert_eq!(batches(&padded.clone().workers(at(&workers)), 2), batches(&padded, 2));
    let decoded: u64 = workers.iter().map(|worker| worker.status().samples).sum();
    assert!(decoded >= SAMPLES, "{decoded} samples came from workers");
}

#[test]
fn one_worker_keeps_columns_of_equal_names_apart() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let serving = worker(dir.path());
    let of = |sql: &str| {
        let columns = open(dir.path())
            .with_column("value", sql)
            .unwrap()
            .columns(&["image", "label", "value"])
            .unwrap();
        pipeline(columns.rename(&[("image", "photo")]).unwrap(), 24).shuffle(Shuffle::none())
    };
    let [one, other] =
        ["2 * label", "3 * label"].map(|sql| of(sql).workers(at([&serving])).rank(Rank::new(0, 1)));
    let (mut one, mut other) = (one.start().unwrap(), other.start().unwrap());
    for _ in 0..4 {
        for (ranks, factor) in [(&mut one, 2), (&mut other, 3)] {
            let batch = ranks.next().unwrap().unwrap();
            let column =
                |name: &str| batch.column(name).unwrap().as_primitive::<Int64Type>().values().to_vec();
            let expected: Vec<i64> = column("label").iter().map(|label| factor * label).collect();
            assert_eq!(column("value"), expected);
        }
    }
}

#[test]
fn a_run_resumes_and_a_worker_with_another_other_side_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (images, facts) = (dir.path().join("images"), dir.path().join("facts"));
    for folder in [&images, &facts] {
        std::fs::create_dir(folder).unwrap();
    }
    synth(&images, SAMPLES);
    synth(&facts, 40);
    let join = || {
        let facts = open(&facts).with_column("number", "cast(sample_id as bigint)").unwrap();
        let facts = facts.with_column("fact", "label + 1").unwrap().columns(&["number", "fact"]).unwrap();
        let images = open(&images).with_column("number", "cast(sample_id as bigint) / 5").unwrap();
        images.join(&facts, &[("number", "number")]).unwrap().rename(&[("image", "photo")]).unwrap()
    };
    let whole = run_epochs(&pipeline(join(), 16), 1, 1);
    let mut delivered = Delivered::default();
    let mut first = pipeline(join(), 16).rank(Rank::new(0, 1)).start().unwrap();
    (0..3).for_each(|_| delivered.add(&first.next().unwrap().unwrap()));
    let cursor = first.state();
    drop(first);
    for rank in 0..2 {
        let mut ranks = pipeline(join(), 18).rank(Rank::new(rank, 2)).resume(cursor.clone()).start().unwrap();
        delivered.drain(&mut ranks);
    }
    assert_eq!(delivered, whole);

    let before = pipeline(join(), 16);
    std::fs::remove_dir_all(&facts).unwrap();
    std::fs::create_dir(&facts).unwrap();
    synth_as(Layout::Parquet, &facts, 40, 6); // other labels
    let serving = worker(dir.path());
    let mut ranks = before.workers(at([&serving])).rank(Rank::new(0, 1)).start().unwrap();
    let error = ranks.next().unwrap().unwrap_err();
    assert!(
        error.to_string().contains("other keys or values than where this data set was described"),
        "{error}"
    );
    // Of the data set alone, an allowed path is not enough: the other one must be allowed, too.
    let stingy = worker(&images);
    let mut ranks = pipeline(join(), 16).workers(at([&stingy])).rank(Rank::new(0, 1)).start().unwrap();
    let error = ranks.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("outside of what is allowed"), "{error}");
}
