//! Epochs that continue after their data changed.

use crate::common::pictures::files;
use crate::common::{block_on, pipeline, synth_as};
use crate::fleet::{at, worker};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedstock_dataset::{
    CatalogOptions, CatalogStore, Cursor, OpenOptions, Position, Rank, SampleId, Stop, Tail,
};
use feedstock_ingest::ErrorKind;
use feedstock_synth::Layout;
use feedstock_trainer_bridge::{BatchSize, Dataset, Loader, OnChange, Pipeline};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const SAMPLES: u64 = 360; // four files of 90
const BATCH: u64 = 20;
/// The most columns of pixels in a batch that a total bounds.
const TOTAL: i64 = 1536;

/// A data set that changes, and the folder of its catalogs.
struct Changing {
    data: tempfile::TempDir,
    catalogs: tempfile::TempDir,
    layout: Layout,
}

impl Changing {
    fn new(samples: u64) -> Self {
        Self::of(Layout::Parquet, samples)
    }

    fn of(layout: Layout, samples: u64) -> Self {
        let made =
            Self { data: tempfile::tempdir().unwrap(), catalogs: tempfile::tempdir().unwrap(), layout };
        synth_as(layout, made.data.path(), samples, 5);
        made
    }

    fn open(&self) -> Dataset {
        let store = CatalogStore::Cache(self.catalogs.path().into());
        let catalog = CatalogOptions { store, ..CatalogOptions::default() };
        let options = OpenOptions { catalog, block_bytes: 32 << 10, ..OpenOptions::default() };
        block_on(Dataset::open_with(self.data.path().to_str().unwrap(), options)).unwrap()
    }

    fn pipeline(&self) -> Pipeline {
        pipeline(self.open(), BATCH)
    }

    fn file(&self, index: usize) -> PathBuf {
        files(self.data.path()).remove(index)
    }

    /// Adds a file of 60 images, which comes after the others.
    fn add(&self, name: &str) {
        let other = tempfile::tempdir().unwrap();
        synth_as(self.layout, other.path(), 60, name.len() as u64);
        let added = files(other.path()).remove(0);
        let name = format!("{name}.{}", added.extension().unwrap().to_str().unwrap());
        std::fs::copy(added, self.file(0).with_file_name(name)).unwrap();
    }

    /// Removes a file, and returns which.
    fn remove(&self, index: usize) -> PathBuf {
        let file = self.file(index);
        std::fs::remove_file(&file).unwrap();
        file
    }
}

/// Names samples by file and row, which stay the same when other files are added or removed.
fn names(pipeline: &Pipeline, samples: &[SampleId]) -> Vec<String> {
    samples.iter().map(|sample| pipeline.dataset().catalog().describe_sample(*sample)).collect()
}

/// Returns the samples of the next `steps` batches of an epoch (`None`: of all remaining ones), each batch sorted.
fn take(loader: &mut Loader, steps: Option<usize>) -> Vec<Vec<String>> {
    let mut taken = Vec::new();
    let pipeline = loader.pipeline().clone();
    for batch in loader.by_ref().take(steps.unwrap_or(usize::MAX)) {
        let batch = batch.unwrap();
        let rows = batch.sample_ids().iter().zip(batch.valid());
        let valid: Vec<SampleId> = rows.filter(|(_, valid)| **valid).map(|(sample, _)| *sample).collect();
        taken.push(sorted(names(&pipeline, &valid)));
    }
    taken
}

fn sorted(mut samples: Vec<String>) -> Vec<String> {
    samples.sort_unstable();
    samples
}

/// Cuts `samples` into whole batches, each sorted.
fn cut(samples: &[String]) -> Vec<Vec<String>> {
    samples.chunks_exact(BATCH as usize).map(|batch| sorted(batch.to_vec())).collect()
}

/// Returns the rest of an epoch after `state`, in order.
fn left(pipeline: &Pipeline, state: &Cursor) -> Vec<String> {
    let mut order = pipeline.plan(one()).unwrap().epoch(state.epoch);
    let samples: Vec<SampleId> =
        (state.position.0..order.len()).map(|position| order.sample_at(Position(position)).sample).collect();
    names(pipeline, &samples)
}

/// Returns the state after some steps of a new run, and the rest of the epoch after them.
fn saved_after(steps: usize, pipeline: &Pipeline) -> (Cursor, Vec<String>) {
    let mut before = pipeline.loader(one()).unwrap();
    take(&mut before, Some(steps));
    let saved = before.state();
    let planned = left(pipeline, &saved);
    (saved, planned)
}

fn one() -> Rank {
    Rank::new(0, 1)
}

/// Returns a loader of the current data, at `state`.
fn remapped(pipeline: &Pipeline, state: &Cursor, rank: Rank) -> Loader {
    let mut loader = pipeline.loader(rank).unwrap();
    loader.load_state_with(state.clone(), OnChange::Remap).unwrap();
    loader
}

fn without(samples: &[String], file: &Path) -> Vec<String> {
    let file = file.file_name().unwrap().to_str().unwrap();
    samples.iter().filter(|sample| !sample.contains(file)).cloned().collect()
}

#[test]
fn an_epoch_is_finished_with_what_was_left_and_the_next_has_the_new_files() {
    let data = Changing::new(SAMPLES);
    let mut before = data.pipeline().loader(one()).unwrap();
    take(&mut before, None);
    take(&mut before, Some(5));
    let saved = before.state();
    let planned = left(&data.pipeline(), &saved);
    assert_eq!(planned.len() as u64, SAMPLES - 5 * BATCH);
    let gone = data.remove(1);
    data.add("zz");

    let pipeline = data.pipeline().epochs(3);
    let mut now = remapped(&pipeline, &saved, one());
    assert_eq!((now.state().epoch, now.state().position.0), (1, 0));
    let expected = without(&planned, &gone);
    assert!(expected.len() < planned.len() - 40, "{} of {}", expected.len(), planned.len());
    let batches = cut(&expected);
    assert_eq!(now.steps_after(&now.state()), batches.len() as u64);
    assert_eq!(take(&mut now, None), batches, "in their old order");
    let state = now.state();
    assert_eq!((state.epoch, state.position.0, state.carried.len()), (2, 0, 0));
    let all = take(&mut now, None).concat();
    assert_eq!(all.len() as u64, (SAMPLES - 90 + 60) / BATCH * BATCH);
    assert!(all.iter().any(|sample| sample.contains("zz.parquet")));
    assert!(now.next().is_none(), "the run has three epochs");

    let mut ranks: Vec<Loader> = (0..3).map(|rank| remapped(&pipeline, &saved, Rank::new(rank, 3))).collect();
    for batch in batches {
        let joined = ranks.iter_mut().flat_map(|rank| take(rank, Some(1)).concat()).collect();
        assert_eq!(sorted(joined), batch, "the same global batches for three ranks");
    }
}

#[test]
fn data_may_change_again_in_the_rest_of_an_epoch() {
    let data = Changing::new(2 * SAMPLES);
    let (mut state, mut expected) = saved_after(3, &data.pipeline());
    for name in ["zz", "zzz", "zzzz"] {
        let gone = data.remove(0);
        data.add(name);
        expected = without(&expected, &gone);
        let pipeline = data.pipeline();
        let mut now = remapped(&pipeline, &state, one());
        let first = take(&mut now, Some(1));
        // A state in the rest of an epoch is loaded like any other, also on another world size.
        let between = now.state();
        let mut resumed: Vec<Loader> =
            (0..2).map(|rank| pipeline.loader(Rank::new(rank, 2)).unwrap()).collect();
        for rank in &mut resumed {
            rank.load_state(between.clone()).unwrap();
            assert_eq!(rank.state(), between);
        }
        let second = sorted(resumed.iter_mut().flat_map(|rank| take(rank, Some(1)).concat()).collect());
        assert_eq!([first, vec![second.clone()]].concat(), cut(&expected)[..2]);
        assert_eq!(take(&mut now, Some(1)), [second]);
        expected.drain(..2 * BATCH as usize);
        state = now.state();
        assert_eq!(state, resumed[0].state());
    }
    assert_eq!(state.carried.len(), 3);
    let mut last = data.pipeline().loader(one()).unwrap();
    last.load_state(state).unwrap();
    assert_eq!(take(&mut last, None), cut(&expected));
}

#[test]
fn an_epoch_of_bucketed_and_filtered_data_goes_on() {
    let data = Changing::of(Layout::WebDataset, SAMPLES);
    let pipeline = || {
        let dataset = data.open().filter("label % 3 != 0").unwrap();
        pipeline(dataset, BATCH).bucket_by("label").bucket_window(60)
    };
    let (saved, planned) = saved_after(2, &pipeline());
    let gone = data.remove(2);
    data.add("zz");
    let expected = cut(&without(&planned, &gone));
    assert!(expected.len() > 3);
    assert_eq!(take(&mut remapped(&pipeline(), &saved, one()), None), expected);
}

#[test]
fn an_epoch_of_steps_bounded_by_a_total_goes_on() {
    let data = Changing::of(Layout::WebDataset, SAMPLES);
    let pipeline =
        || data.pipeline().bucket_by("width").batch(BatchSize::global_total(TOTAL as f64)).tail(Tail::Pad);
    let (saved, planned) = saved_after(2, &pipeline());
    let gone = data.remove(2);
    let mut rest = Vec::new();
    for batch in remapped(&pipeline(), &saved, one()) {
        let batch = batch.unwrap();
        let widths = batch.column("width").unwrap().as_primitive::<Int64Type>().values();
        let (rows, widest) = (widths.len() as i64, *widths.iter().max().unwrap());
        assert!(rows * widest <= TOTAL, "{rows} rows of up to {widest}");
        let valid = batch.sample_ids().iter().zip(batch.valid()).filter(|(_, valid)| **valid);
        rest.extend(names(&pipeline(), &valid.map(|(sample, _)| *sample).collect::<Vec<_>>()));
    }
    assert_eq!(sorted(rest), sorted(without(&planned, &gone)));
}

/// A filter on a column of Parquet files cannot be evaluated on a file that was removed.
#[test]
fn filters_on_columns_of_files_need_the_files() {
    let data = Changing::new(SAMPLES);
    let pipeline = || pipeline(data.open().filter("label % 3 != 0").unwrap(), BATCH);
    let (saved, planned) = saved_after(2, &pipeline());
    data.add("zz");
    assert_eq!(take(&mut remapped(&pipeline(), &saved, one()), None), cut(&planned));
    data.remove(2);
    let error = pipeline().loader(one()).unwrap().load_state_with(saved, OnChange::Remap).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    for said in ["when the state was saved", "train-00002", "on_change=next_epoch"] {
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn one_part_of_a_mix_may_change() {
    let (large, small) = (Changing::new(270), Changing::new(90));
    let mixed = || {
        let part = |data: &Changing, name| data.open().columns(&["image_path", "image"]).unwrap().named(name);
        let parts = vec![(part(&large, "large"), 2.0), (part(&small, "small"), 1.0)];
        pipeline(Dataset::mix(parts, Stop::AllExhausted).unwrap(), BATCH)
    };
    let (saved, planned) = saved_after(4, &mixed());
    let gone = large.remove(0);
    large.add("zz");
    let error = mixed().loader(one()).unwrap().load_state(saved.clone()).unwrap_err().to_string();
    assert!(error.contains("(large: 1 file added: ") && error.contains("; 1 file removed: "), "{error}");
    let mut now = remapped(&mixed(), &saved, one());
    let lost = format!("large: {}", gone.file_name().unwrap().to_str().unwrap());
    let expected: Vec<String> = planned.into_iter().filter(|sample| !sample.starts_with(&lost)).collect();
    assert_eq!(take(&mut now, None), cut(&expected));
    let repeats = expected.len() - expected.iter().collect::<BTreeSet<_>>().len();
    assert!(repeats > 0, "the small part also repeats in the rest");
}

#[test]
fn workers_make_the_rest_of_an_epoch() {
    let data = Changing::new(SAMPLES);
    let (saved, _) = saved_after(5, &data.pipeline());
    data.remove(1);
    data.add("zz");
    let pipeline = data.pipeline().epochs(2);
    let alone = take(&mut remapped(&pipeline, &saved, one()), None);
    let fleet = [worker(data.data.path()), worker(data.data.path())];
    let mut remote = remapped(&pipeline.workers(at(&fleet)), &saved, one());
    assert_eq!(take(&mut remote, None), alone);
    assert!(!take(&mut remote, None).is_empty(), "the next epoch follows");
    let made: u64 = fleet.iter().map(|worker| worker.status().samples).sum();
    assert!(made >= alone.concat().len() as u64, "{made} samples came from workers");
}

#[test]
fn a_state_at_an_epochs_start_takes_the_new_data_at_once() {
    let data = Changing::new(SAMPLES);
    let saved = data.pipeline().loader(one()).unwrap().state();
    data.remove(0);
    let now = remapped(&data.pipeline(), &saved, one());
    assert_eq!((now.state().epoch, now.state().carried.len()), (0, 0));
}

#[test]
fn without_the_former_catalog_the_error_says_what_is_missing() {
    let data = Changing::new(SAMPLES);
    let (saved, _) = saved_after(1, &data.pipeline());
    data.remove(0);
    let elsewhere = Changing { catalogs: tempfile::tempdir().unwrap(), ..data };
    let mut now = elsewhere.pipeline().loader(one()).unwrap();
    let here = now.state();
    let error = now.load_state_with(saved.clone(), OnChange::Remap).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert!(error.to_string().contains("kept for 30 days"), "{error}");
    assert_eq!(now.state(), here);
    let error = now.load_state(saved).unwrap_err();
    assert!(error.to_string().contains("on_change=remap"), "{error}");
}

/// `take` counts the samples of the data at hand; the epoch goes on with those that it began with.
#[test]
fn an_epoch_of_the_first_samples_keeps_them_when_others_come_before_them() {
    let changing = Changing::new(SAMPLES);
    let first = || pipeline(changing.open().take(100).unwrap(), BATCH);
    let (saved, planned) = saved_after(2, &first());
    assert_eq!(planned.len(), 60);
    changing.add("aaa"); // 60 images before all others
    let mut loader = first().loader(one()).unwrap();
    loader.load_state_with(saved, OnChange::Remap).unwrap();
    assert_eq!(take(&mut loader, None), cut(&planned));
    let next = take(&mut loader, None).concat();
    assert_eq!(
        next.iter().filter(|name| name.contains("aaa")).count(),
        60,
        "the next epoch has the current ones"
    );
}

#[test]
fn ids_of_changed_data_are_refused() {
    let changing = Changing::new(SAMPLES);
    let chosen = || pipeline(changing.open().select((0..60).map(SampleId)).unwrap(), BATCH);
    let (saved, _) = saved_after(1, &chosen());
    changing.add("aaa");
    for on_change in [OnChange::Remap, OnChange::NextEpoch] {
        let refused = chosen().loader(one()).unwrap().load_state_with(saved.clone(), on_change).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadConfig);
        assert!(refused.to_string().contains("the ids of select name other samples"), "{refused}");
    }
}
