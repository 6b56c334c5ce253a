//! A loader: seeks, resizes and states, all in the same order.

use crate::common::pictures::files;
use crate::common::{Delivered, open, pipeline, run_epochs, synth};
use feedstock_dataset::{CatalogOptions, CatalogStore, Cursor, OpenOptions, Rank, SampleId, Shuffle, Tail};
use feedstock_ingest::ErrorKind;
use feedstock_ops::image::DecodeImage;
use feedstock_ops::random_resized_crop;
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, Loader, Next, OnChange};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const SAMPLES: u64 = 120;

fn loader(dir: &std::path::Path, global_batch: u64, rank: Rank) -> Loader {
    pipeline(open(dir), global_batch).loader(rank).unwrap()
}

fn next(loader: &mut Loader) -> Batch {
    loader.next().unwrap().unwrap()
}

fn one() -> Rank {
    Rank::new(0, 1)
}

#[test]
fn steps_are_found_by_number_and_named_in_advance() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = loader(dir.path(), 20, Rank::new(1, 2));
    let steps: Vec<Vec<SampleId>> = (0..6).map(|_| next(&mut here).sample_ids().to_vec()).collect();
    assert!(here.next().is_none());
    here.set_epoch(0).unwrap();
    for step in [4, 0, 5] {
        here.seek(0, step).unwrap();
        let number = usize::try_from(step).unwrap();
        assert_eq!(next(&mut here).sample_ids(), steps[number]);
        assert_eq!(here.samples_in(0, step).unwrap()[1], steps[number]);
    }
    assert_eq!(here.state().epoch, 1, "the next epoch follows the last step");
    assert_eq!(here.seek(1, 6).unwrap_err().kind(), ErrorKind::BadConfig);
    assert_eq!(here.samples_in(0, u64::MAX).unwrap_err().kind(), ErrorKind::BadConfig);
    assert!(here.next().is_none(), "a rejected seek leaves the loader where it was");
    assert_eq!(next(&mut here).epoch(), 1);
}

#[test]
fn batches_are_made_before_one_is_asked_for_and_none_is_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let first = next(&mut loader(dir.path(), 20, one())).sample_ids().to_vec();
    let mut here = pipeline(open(dir.path()), 20).epochs(2).loader(one()).unwrap();
    let ready = |here: &Loader| here.stats().map_or(0, |stats| stats.ready);
    let wait = |here: &Loader| {
        let since = Instant::now();
        while ready(here) == 0 {
            assert!(since.elapsed() < Duration::from_secs(60), "nothing was made");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    assert!(here.stats().is_none());
    here.start_prefetch().unwrap();
    wait(&here);
    here.start_prefetch().unwrap();
    assert!(ready(&here) > 0, "finished batches stay");
    assert_eq!(here.state().position.0, 0);
    for asked in [true, false] {
        here.seek(0, 5).unwrap();
        assert!(here.stats().is_none(), "a seek ends it");
        here.start_prefetch().unwrap();
        next(&mut here);
        here.stop();
        here.start_prefetch().unwrap();
        wait(&here);
        assert!(
            if asked { here.next().is_none() } else { here.begin_epoch() },
            "the epoch's end is still returned"
        );
        assert_eq!(next(&mut here).epoch(), 1);
    }
    assert_eq!(here.by_ref().count(), 5);
    here.stop();
    here.start_prefetch().unwrap();
    assert!(here.stats().is_none() && here.next().is_none(), "nothing follows the last epoch");
    here.seek(0, 0).unwrap();
    here.start_prefetch().unwrap();
    assert_eq!(next(&mut here).sample_ids(), first);
}

#[test]
fn a_state_of_other_ops_is_loaded_and_goes_on_at_its_place() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut before = loader(dir.path(), 20, one());
    next(&mut before);
    let state = before.state();
    let expected = next(&mut before).sample_ids().to_vec();
    for ops in [None, state.ops.map(|hash| hash ^ 1)] {
        let mut here = loader(dir.path(), 20, one());
        here.load_state(Cursor { ops, ..state.clone() }).unwrap();
        assert_eq!(next(&mut here).sample_ids(), expected);
        assert_eq!(here.state().ops, state.ops, "the next saved state has this release's");
    }
}

#[test]
fn an_epoch_is_set_once() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = loader(dir.path(), 40, one());
    next(&mut here);
    here.set_epoch(0).unwrap();
    assert_eq!(here.state().position.0, 40, "the current epoch is not started again");
    next(&mut here);
    next(&mut here);
    here.set_epoch(1).unwrap();
    assert!(here.begin_epoch(), "a caller that counts batches never requests the end");
    assert_eq!((next(&mut here).epoch(), here.state().position.0), (1, 40));
    here.set_epoch(7).unwrap();
    let seventh: Vec<Batch> = here.by_ref().map(Result::unwrap).collect();
    assert_eq!(seventh.iter().map(Batch::epoch).collect::<Vec<_>>(), [7, 7, 7]);
    let ended = pipeline(open(dir.path()), 40).epochs(2).loader(one()).unwrap().set_epoch(2);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::BadConfig);
}

#[test]
fn a_world_that_changes_between_steps_sees_everything_once() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let whole = run_epochs(&pipeline(open(dir.path()), 1), 1, 1);
    let mut delivered = Delivered::default();
    let mut ranks = vec![loader(dir.path(), 30, one())];
    delivered.add(&next(&mut ranks[0]));
    let cursor = ranks[0].state();
    for rank in 1..3 {
        let mut joined = loader(dir.path(), 30, Rank::new(rank, 3));
        joined.load_state(cursor.clone()).unwrap();
        ranks.push(joined);
    }
    ranks[0].reconfigure(Rank::new(0, 3), Some(BatchSize::per_rank(7))).unwrap();
    ranks[1..].iter_mut().for_each(|loader| {
        loader.reconfigure(loader.rank(), Some(BatchSize::per_rank(7))).unwrap();
    });
    for _ in 0..2 {
        ranks.iter_mut().for_each(|loader| delivered.add(&next(loader)));
    }
    ranks.truncate(2);
    for (rank, loader) in (0..).zip(&mut ranks) {
        let share = Rank::new(rank, 2);
        loader.reconfigure(share, Some(BatchSize::global(16))).unwrap();
        assert_eq!(loader.steps_after(&loader.state()), 3);
        delivered.drain(loader);
    }
    assert_eq!(delivered, whole);
}

#[test]
fn a_refused_change_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = loader(dir.path(), 40, one());
    next(&mut here);
    let foreign = pipeline(open(dir.path()), 40).shuffle(Shuffle::seeded(99)).loader(one()).unwrap().state();
    assert!(here.load_state(foreign).unwrap_err().to_string().contains("seed"));
    assert_eq!(
        here.reconfigure(Rank::new(0, 50), Some(BatchSize::global(10))).unwrap_err().kind(),
        ErrorKind::BadConfig
    );
    assert_eq!((here.state().position.0, here.rank()), (40, one()));
    assert_eq!(next(&mut here).position().0, 40);
}

#[test]
fn stopping_keeps_the_place() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let whole = run_epochs(&pipeline(open(dir.path()), 1), 1, 1);
    let mut here = pipeline(open(dir.path()), 40).tail(Tail::Pad).loader(one()).unwrap();
    let mut delivered = Delivered::default();
    for _ in 0..3 {
        assert!(here.run().is_none(), "nothing runs before a request, or after a stop");
        delivered.add(&next(&mut here));
        here.stop();
    }
    assert_eq!(delivered, whole);
    assert_eq!((here.state().epoch, here.state().position.0), (1, 0));
}

#[test]
fn a_bounded_wait_ends_in_time_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = pipeline(open(dir.path()), 10).slots(2).loader(one()).unwrap();
    let held = [next(&mut here), next(&mut here)];
    let begun = Instant::now();
    assert!(matches!(here.next_within(Duration::from_millis(20)), Ok(Next::Pending)));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(held);
    assert_eq!(next(&mut here).position().0, 20);
}

#[test]
fn misfits_are_found_when_a_loader_is_made() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let made = pipeline(open(dir.path()), 121).loader(one());
    assert_eq!(made.unwrap_err().kind(), ErrorKind::BadConfig);
}

#[test]
fn changes_at_an_epochs_end_do_not_hide_it() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = loader(dir.path(), 40, one());
    for epoch in 0..2 {
        for _ in 0..3 {
            assert_eq!(next(&mut here).epoch(), epoch);
            here.reconfigure(one(), None).unwrap();
            here.stop();
        }
        assert!(here.next().is_none(), "the epoch's end is returned");
    }
    for _ in 0..3 {
        next(&mut here);
        here.stop();
    }
    assert!(here.begin_epoch());
    assert_eq!(next(&mut here).epoch(), 3);
}

#[test]
fn a_bounded_run_ends_and_stays_ended() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let bounded = pipeline(open(dir.path()), 40).epochs(1);
    let mut here = bounded.loader(one()).unwrap();
    assert_eq!(here.by_ref().count(), 3);
    here.reconfigure(one(), Some(BatchSize::global(30))).unwrap();
    assert_eq!((here.by_ref().count(), here.steps_in(here.state().epoch)), (0, 0));
    let mut again = bounded.loader(one()).unwrap();
    again.load_state(here.state()).unwrap();
    assert_eq!(again.by_ref().count(), 0, "a run that was finished has nothing left to do");
    again.load_state(bounded.loader(one()).unwrap().state()).unwrap();
    assert_eq!(again.count(), 3);
}

#[test]
fn an_epoch_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut here = loader(dir.path(), 40, one());
    next(&mut here);
    here.abandon_epoch(0);
    let batch = next(&mut here);
    assert_eq!((batch.epoch(), batch.position().0), (1, 0));
}

#[test]
fn a_bad_sample_fails_every_try_and_never_makes_an_empty_epoch() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), SAMPLES);
    let mut too_small = DecodeImage::new();
    too_small.max_pixels = 16;
    let failing = open(dir.path()).map("image", [too_small.into(), random_resized_crop(8)]);
    let mut here = failing.batch(BatchSize::global(40)).loader(one()).unwrap();
    for _ in 0..3 {
        assert_eq!(here.next().unwrap().unwrap_err().kind(), ErrorKind::BadSample);
        assert_eq!(here.state().position.0, 0);
    }
}

/// A file was added since: the error names it, or the next epoch begins with all current data.
#[test]
fn a_state_of_data_that_changed_is_refused_or_begins_the_next_epoch() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synth(dir.path(), SAMPLES);
    let open = || {
        let options = OpenOptions {
            catalog: CatalogOptions {
                store: CatalogStore::Cache(cache.path().into()),
                ..CatalogOptions::default()
            },
            ..OpenOptions::default()
        };
        futures::executor::block_on(Dataset::open_with(dir.path().to_str().unwrap(), options)).unwrap()
    };
    let mut before = pipeline(open(), 20).loader(one()).unwrap();
    let at_start = before.state();
    (0..2).for_each(|_| drop(next(&mut before)));
    let saved = before.state();
    let first = files(dir.path()).remove(0);
    std::fs::copy(&first, first.with_file_name("zz-added.parquet")).unwrap();

    let mut now = pipeline(open(), 20).loader(one()).unwrap();
    let here = now.state();
    let error = now.load_state(saved.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    let message = error.to_string();
    for said in ["catalog", "1 file added: ", "zz-added.parquet", "on_change=next_epoch"] {
        assert!(message.contains(said), "{message}");
    }
    assert_eq!(now.state(), here, "a refused state moves nothing");
    let other_seed = pipeline(open(), 20).shuffle(Shuffle::seeded(99)).loader(one()).unwrap().state();
    let mut other_seed = Cursor { epoch: 3, ..other_seed };
    other_seed.fingerprint.catalog = saved.fingerprint.catalog;
    let error = now.load_state_with(other_seed, OnChange::NextEpoch).unwrap_err();
    assert!(error.to_string().contains("its seed is 99"), "{error}");

    now.load_state_with(saved, OnChange::NextEpoch).unwrap();
    assert_eq!((now.state().epoch, now.state().position.0), (1, 0));
    let mut ids: Vec<u64> = Vec::new();
    for batch in now.by_ref() {
        ids.extend(batch.unwrap().sample_ids().iter().map(|id| id.0));
    }
    let all = open().len();
    assert!(all > SAMPLES);
    assert_eq!(ids.len() as u64, all / 20 * 20);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "each once");
    now.load_state_with(at_start, OnChange::NextEpoch).unwrap();
    assert_eq!(now.state().epoch, 0, "nothing of an epoch that was not begun is left out");
    let state = now.state();
    now.load_state_with(state.clone(), OnChange::NextEpoch).unwrap();
    assert_eq!(now.state(), state, "unchanged data continue at the same position");
}
