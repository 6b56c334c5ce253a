//! Views of one decoded image: the bytes of their single maps, anywhere, in any order, after any failure.

use crate::common::pictures::{jpegs, write_with};
use crate::common::{open, synth};
use crate::fleet::{at, worker};
use feedstock_dataset::{Rank, Shuffle};
use feedstock_ops::image::{DecodeImage, View};
use feedstock_ops::{
    ChainSpec, DType, Op, color_jitter, decode_image, horizontal_flip, random_resized_crop, resize,
};
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, DeviceOptions, ErrorKind, OnError, Pipeline};
use std::collections::BTreeMap;

fn crop(size: u32) -> [Op; 3] {
    [random_resized_crop(size), horizontal_flip(0.5), color_jitter(0.4, 0.4, 0.0, 0.0)]
}

fn crops() -> [View; 3] {
    let one = |name: &str| View::new(name, crop(32));
    [one("global_1"), one("global_2"), View::new("local", crop(12)).count(4)]
}

fn whole() -> Op {
    DecodeImage::new().scaled(false).into()
}

fn ordered(pipeline: Pipeline) -> Pipeline {
    pipeline.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(8)).threads(2).epochs(1)
}

fn views(dataset: Dataset) -> Pipeline {
    ordered(dataset.views("image", whole(), crops()))
}

/// Rows by sample, of all mapped columns.
type Rows = BTreeMap<u64, BTreeMap<String, Vec<u8>>>;

fn collect(batches: impl Iterator<Item = feedstock_trainer_bridge::Result<Batch>>, rows: &mut Rows) {
    for batch in batches {
        let batch = batch.unwrap();
        for (row, sample) in batch.sample_ids().iter().enumerate() {
            let bytes = batch.tensors().iter().map(|one| (one.name().to_owned(), one.row(row).to_vec()));
            assert!(rows.insert(sample.0, bytes.collect()).is_none(), "{sample} twice");
        }
    }
}

fn rows(pipeline: &Pipeline, world_size: u32) -> Rows {
    let mut rows = Rows::new();
    for rank in 0..world_size {
        collect(pipeline.rank(Rank::new(rank, world_size)).start().unwrap(), &mut rows);
    }
    rows
}

#[test]
fn views_are_single_maps_with_the_keys_of_their_names_and_numbers() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 24);
    let made = rows(&views(open(dir.path())), 1);
    assert_eq!(made.len(), 24);
    let chain = |size: u32| ChainSpec::from_iter([whole()].into_iter().chain(crop(size)));
    let mut single = open(dir.path()).map_as("image", "global_1/0", chain(32));
    single = single.map_as("image", "global_2/0", chain(32));
    for number in 0..4 {
        single = single.map_as("image", &format!("local/{number}"), chain(12));
    }
    for output in ["global_1/0", "global_2/0", "local/0", "local/1", "local/2", "local/3"] {
        single = single.key(output, output);
    }
    for (sample, of_sample) in rows(&ordered(single), 1) {
        assert_eq!(made[&sample]["global_1"], of_sample["global_1/0"]);
        assert_eq!(made[&sample]["global_2"], of_sample["global_2/0"]);
        let local = (0..4).flat_map(|number| of_sample[&format!("local/{number}")].clone());
        assert_eq!(made[&sample]["local"], local.collect::<Vec<u8>>());
        assert_ne!(of_sample["global_1/0"], of_sample["global_2/0"]);
    }
}

#[test]
fn batches_have_an_axis_of_views_and_are_described() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 16);
    let pipeline = views(open(dir.path()));
    let described = pipeline.describe(Rank::new(0, 1)).unwrap();
    let shapes: Vec<_> = described.maps.iter().map(|map| (map.output.as_str(), map.shape.clone())).collect();
    let of = |lengths: &[usize]| lengths.iter().copied().map(Some).collect::<Vec<_>>();
    assert_eq!(
        shapes,
        [("global_1", of(&[32, 32, 3])), ("global_2", of(&[32, 32, 3])), ("local", of(&[4, 12, 12, 3]))]
    );
    assert_eq!(described.maps[2].dtype, DType::U8);
    assert_eq!(described.maps[2].ops.0[0], whole());
    assert_eq!(described.memory.slot_bytes, 8 * (2 * 32 * 32 * 3 + 4 * 12 * 12 * 3));
    assert!(described.columns.iter().all(|column| column.name != "image"), "the encoded column is used up");
    let batch = pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap();
    assert_eq!(
        (batch["global_2"].shape(), batch["local"].shape()),
        (vec![8, 32, 32, 3], vec![8, 4, 12, 12, 3])
    );
}

#[test]
fn ranks_workers_and_resumed_runs_make_the_same_views() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 48);
    let pipeline = views(open(dir.path()));
    let alone = rows(&pipeline, 1);
    assert_eq!(rows(&pipeline, 3), alone);
    let worker = worker(dir.path());
    assert_eq!(rows(&pipeline.clone().workers(at([&worker])), 2), alone);
    assert!(worker.status().samples >= 48, "{}", worker.status().samples);
    let mut first = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let mut resumed = Rows::new();
    collect(first.by_ref().take(3), &mut resumed);
    let state = first.state();
    drop(first);
    for rank in 0..2 {
        collect(pipeline.rank(Rank::new(rank, 2)).resume(state.clone()).start().unwrap(), &mut resumed);
    }
    assert_eq!(resumed, alone);
}

#[test]
fn a_bad_image_is_one_bad_sample_for_all_views() {
    let dir = tempfile::tempdir().unwrap();
    write_with(dir.path(), &jpegs(20), &[(7, Some(b"no image".to_vec())), (11, None)]);
    let pipeline = views(open(dir.path())).batch(BatchSize::global(10));
    let error = pipeline.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.to_string().contains("column 'image'"), "{error}");
    let mut skipping =
        pipeline.on_error(OnError::Skip { max_fraction: 0.2 }).rank(Rank::new(0, 1)).start().unwrap();
    let mut invalid = Vec::new();
    for batch in skipping.by_ref() {
        let batch = batch.unwrap();
        for row in (0..batch.len()).filter(|row| !batch.valid()[*row]) {
            let copies =
                |source: usize| batch.tensors().iter().all(|tensor| tensor.row(row) == tensor.row(source));
            assert!((0..batch.len()).any(|source| source != row && copies(source)), "a copy of one good row");
            invalid.push(batch.sample_ids()[row].0);
        }
    }
    let report = skipping.skip_report();
    assert_eq!(report.count, 2, "{report:?}");
    assert!(invalid.contains(&7) && invalid.contains(&11), "{invalid:?}");
}

#[test]
fn names_that_collide_are_named() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 8);
    let data = || open(dir.path());
    let refusal = |pipeline: Pipeline| {
        let error = ordered(pipeline).rank(Rank::new(0, 1)).start().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        error.message().to_owned()
    };
    let one = |name: &str| [View::new(name, crop(8))];
    for column in ["label", "image"] {
        let message = refusal(data().views("image", whole(), one(column)));
        let expected =
            format!("the view '{column}' of 'image' has the name of the column '{column}' of the data set");
        assert!(message.starts_with(&expected), "{message}");
    }
    let small = [decode_image(), resize([8, 8])];
    let message = refusal(data().map_as("image", "a", small.clone()).views("image", whole(), one("a")));
    assert_eq!(
        message,
        "the map of 'image' to 'a' and the view 'a' of 'image' have one name; give the view another one"
    );
    let twice = data().views("image", whole(), one("a")).views("image", decode_image(), one("a"));
    assert!(refusal(twice).contains("'a'"));
    assert!(refusal(data().views("image", whole(), one("a")).key("a", "k")).contains("has a key"));
    assert!(refusal(data().views("image", whole(), one("a")).joint("a", "j")).contains("is in a joint map"));
    let mut both = data()
        .map("image", small)
        .views("image", whole(), one("a"))
        .batch(BatchSize::global(4))
        .rank(Rank::new(0, 1))
        .start()
        .unwrap();
    assert_eq!(both.next().unwrap().unwrap()["a"].shape(), [4, 8, 8, 3]);
}

#[test]
fn nvjpeg_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 8);
    let pipeline =
        ordered(open(dir.path()).views("image", decode_image(), [View::new("a", [random_resized_crop(8)])]));
    let error =
        pipeline.device(DeviceOptions::host().nvjpeg(0.5)).rank(Rank::new(0, 1)).start().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().starts_with("nvjpeg: 'a' is a view of 'image'"), "{error}");
}

/// A worker or a release that does not know views refuses the recipe; one without views is written as before there were views.
#[test]
fn views_are_a_field_of_recipes_that_have_them() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 8);
    let spec = |pipeline: &Pipeline| serde_json::to_value(pipeline.spec()).unwrap();
    let maps = spec(&views(open(dir.path())))["maps"].clone();
    assert_eq!(maps[2]["view"], serde_json::json!({ "of": "0:global_1+global_2+local", "count": 4 }));
    assert_eq!(maps[0]["view"], serde_json::json!({ "of": "0:global_1+global_2+local" }));
    let plain = spec(&ordered(open(dir.path()).map("image", [decode_image(), resize([8, 8])])));
    let fields: Vec<&String> = plain["maps"][0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["column", "ops", "output", "pad_value"]);
    let hash = |pipeline: &Pipeline| pipeline.rank(Rank::new(0, 1)).start().unwrap().state().ops;
    let other = ordered(open(dir.path()).views("image", whole(), [View::new("local", crop(12)).count(5)]));
    let same = ordered(open(dir.path()).views("image", whole(), [View::new("local", crop(12)).count(4)]));
    assert_ne!(hash(&other), hash(&same), "the number of images is part of the hash of the ops");
}
