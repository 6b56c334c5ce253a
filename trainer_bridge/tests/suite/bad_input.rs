//! Bad input, as a trainer sees it: a clear error or the configured policy, no hang, nothing lost or repeated, and all ranks
//! in step.

use crate::common::pictures::{claiming, files, jpegs, write_parquet, write_with};
use crate::common::{Delivered, block_on, open, pipeline, run_epochs, synth};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use feedstock_dataset::{Position, Rank, SampleId, StepShape, StepSize, Tail};
use feedstock_synth::{ImagenetOptions, Layout};
use feedstock_trainer_bridge::{
    Batch, BatchSize, Dataset, Error, ErrorKind, Ledger, OnError, Pipeline, SkipReport,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns a pipeline without waits over 10 s.
fn bounded(dataset: Dataset, global_batch: u64) -> Pipeline {
    pipeline(dataset, global_batch).tail(Tail::Pad).epochs(1).deadline(Duration::from_secs(10))
}

fn says(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
    }
}

#[test]
fn a_misspelt_column_is_found_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 20);
    let open = || open(dir.path());
    let crop = || feedstock_ops::ChainSpec::from([feedstock_ops::decode_image()]);
    for (dataset, column, problem) in [
        (open(), "imge", "it does not exist"),
        (open(), "label", "it holds Int64"),
        (open().columns(&["label"]).unwrap(), "image", "it does not exist"),
    ] {
        let error = dataset.map(column, crop()).loader(Rank::new(0, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        says(&error, &[column, problem]);
    }
}

#[test]
fn a_result_that_would_hide_another_column_is_found_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 8);
    let data = open(dir.path());
    let ops =
        || feedstock_ops::ChainSpec::from([feedstock_ops::decode_image(), feedstock_ops::resize([8, 8])]);
    let start = |pipeline: Pipeline| pipeline.batch(BatchSize::global(4)).rank(Rank::new(0, 1)).start();
    let error = start(data.clone().map_as("image", "label", ops())).unwrap_err();
    says(&error, &["'image'", "'label', which already exists", "map_as"]);
    let mut alone = start(data.columns(&["image"]).unwrap().map_as("image", "label", ops())).unwrap();
    assert_eq!(alone.next().unwrap().unwrap()["label"].shape(), [4, 8, 8, 3]);
}

#[test]
fn a_bad_picture_is_skipped_where_no_column_rides_along() {
    let dir = tempfile::tempdir().unwrap();
    write_with(dir.path(), &jpegs(20), &[(7, Some(b"no image".to_vec()))]);
    let dataset = open(dir.path()).columns(&["image"]).unwrap();
    let pipeline = bounded(dataset, 5).on_error(OnError::Skip { max_fraction: 0.05 });
    let mut invalid = Vec::new();
    for batch in pipeline.rank(Rank::new(0, 1)).start().unwrap() {
        let batch = batch.unwrap();
        assert_eq!((batch.len(), batch.columns().num_columns()), (5, 0));
        let rows = batch.sample_ids().iter().zip(batch.valid());
        invalid.extend(rows.filter(|(_, valid)| !**valid).map(|(sample, _)| sample.0));
    }
    assert_eq!(invalid, [7]);
}

/// One rank's observations of one epoch.
#[derive(Default)]
struct Seen {
    steps: u64,
    delivered: Delivered,
    invalid: BTreeSet<SampleId>,
    ledger: Option<Ledger>,
    report: SkipReport,
    error: Option<Error>,
}

/// Runs one epoch of every rank, each on a separate thread, up to its end or first error.
fn run(pipeline: &Pipeline, world_size: u32, each: impl Fn(&Batch) + Sync) -> Vec<Seen> {
    let rank = &|rank| {
        let mut ranks = pipeline.rank(Rank::new(rank, world_size)).start().unwrap();
        let mut seen = Seen::default();
        for batch in &mut ranks {
            match batch {
                Ok(batch) => {
                    each(&batch);
                    seen.steps += 1;
                    seen.delivered.add(&batch);
                    let rows = batch.sample_ids().iter().zip(batch.valid());
                    seen.invalid.extend(rows.filter(|(_, valid)| !**valid).map(|(sample, _)| *sample));
                }
                Err(error) => {
                    seen.error = Some(error);
                    break;
                }
            }
        }
        seen.ledger = Some(ranks.ledger());
        seen.report = ranks.skip_report().clone();
        seen
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size).map(|r| scope.spawn(move || rank(r))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the merged ledger of all ranks.
fn merged(ranks: &[Seen]) -> Ledger {
    let mut ledgers = ranks.iter().filter_map(|seen| seen.ledger);
    let mut all = ledgers.next().unwrap();
    ledgers.for_each(|ledger| all.merge(&ledger));
    all
}

/// Checks that rows of bad samples are invalid and have the pixels and label of the nearest good row of their batch.
fn bad_rows_are_copies_of_their_nearest(batch: &Batch, bad: &BTreeSet<SampleId>) {
    let labels = batch.column("label").unwrap().as_primitive::<Int64Type>();
    let is_bad = |row: &usize| bad.contains(&batch.sample_ids()[*row]);
    let good: Vec<usize> = (0..batch.len()).filter(|row| !is_bad(row)).collect();
    for row in (0..batch.len()).filter(is_bad) {
        assert!(!batch.valid()[row]);
        let nearest = good.iter().map(|good| good.abs_diff(row)).min().unwrap();
        let copied = good.iter().filter(|good| good.abs_diff(row) == nearest).any(|&good| {
            labels.value(row) == labels.value(good) && batch["image"].row(row) == batch["image"].row(good)
        });
        assert!(copied, "row {row} of {batch:?} is not a copy of a row {nearest} away");
    }
}

fn one_bad_picture(bad: Option<Vec<u8>>, reasons: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    one_bad_picture_in(dir.path(), bad, reasons, |pipeline| pipeline);
}

/// One bad image among good ones, which are written to `dir`: `raise` names it and states the reason; `skip` leaves out only
/// this image. `served` may add workers to the pipelines.
pub(crate) fn one_bad_picture_in(
    dir: &Path,
    bad: Option<Vec<u8>>,
    reasons: &[&str],
    served: impl Fn(Pipeline) -> Pipeline,
) {
    const AT: usize = 7;
    let began = Instant::now();
    let good = jpegs(20);
    write_with(dir, &good, &[(AT, bad)]);

    let raising = run(&served(bounded(open(dir), 5)), 1, |_| {}).remove(0);
    let error = raising.error.expect("raise is the default");
    assert_eq!(error.kind(), ErrorKind::BadSample, "{error}");
    says(&error, &["train.parquet row 7", "(sample 7)"]);
    says(&error, reasons);
    assert_eq!(raising.delivered.samples() as u64, raising.steps * 5, "the steps before it are whole");

    let skipping = served(bounded(open(dir), 5)).on_error(OnError::Skip { max_fraction: 0.05 });
    let seen =
        run(&skipping, 1, |batch| bad_rows_are_copies_of_their_nearest(batch, &[SampleId(AT as u64)].into()))
            .remove(0);
    assert!(seen.error.is_none(), "{:?}", seen.error);
    assert_eq!(seen.steps, 4);
    let expected: BTreeSet<u64> = (0..20).filter(|&sample| sample != AT as u64).collect();
    assert_eq!(seen.delivered.0.keys().map(|(_, sample)| *sample).collect::<BTreeSet<_>>(), expected);
    seen.delivered.assert_once_each();
    assert_eq!(seen.invalid, BTreeSet::from([SampleId(AT as u64)]));
    assert_eq!((seen.report.count, seen.report.samples[0].sample), (1, SampleId(AT as u64)));
    assert!(reasons.iter().all(|reason| seen.report.samples[0].reason.contains(reason)), "{:?}", seen.report);
    let ledger = seen.ledger.unwrap();
    assert!(ledger.is_exact() && ledger.substituted == 1, "{ledger}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn null_picture() {
    one_bad_picture(None, &["null", "on_error=skip"]);
}

#[test]
fn empty_picture() {
    one_bad_picture(Some(Vec::new()), &["empty", "on_error=skip"]);
}

#[test]
fn bytes_that_are_no_picture() {
    one_bad_picture(Some(b"<html>404 Not Found</html>".to_vec()), &["no JPEG, PNG or WebP"]);
}

#[test]
fn jpeg_cut_in_half() {
    let jpeg = jpegs(8).remove(7);
    one_bad_picture(Some(jpeg[..jpeg.len() / 2].to_vec()), &["cut off"]);
}

#[test]
fn jpeg_with_flipped_bytes() {
    let mut jpeg = jpegs(8).remove(7);
    let from = jpeg.len() / 4;
    jpeg[from..].iter_mut().step_by(5).for_each(|byte| *byte ^= 0x55);
    one_bad_picture(Some(jpeg), &["JPEG"]);
}

#[test]
fn jpeg_of_65535_by_65535_in_its_header() {
    let bad = claiming(&jpegs(8)[7], 65_535, 65_535);
    one_bad_picture(Some(bad), &["65535×65535", "max_pixels"]);
}

#[test]
fn jpeg_of_16384_by_16384_in_170_kb() {
    let mut bad = claiming(&jpegs(8)[7], 16_384, 16_384);
    bad.resize(170_000, 0);
    one_bad_picture(Some(bad), &["16384×16384", "max_pixels"]);
}

#[test]
fn a_png_named_jpg_decodes() {
    let dir = tempfile::tempdir().unwrap();
    let class = dir.path().join("class");
    std::fs::create_dir(&class).unwrap();
    for (name, color) in [("1.jpg", [10, 200, 30]), ("2.jpg", [90, 80, 70])] {
        let mut encoder = png::Encoder::new(std::fs::File::create(class.join(name)).unwrap(), 64, 48);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&color.repeat(64 * 48)).unwrap();
    }
    let ranks = run(&bounded(open(dir.path()), 2), 1, |batch| {
        for (row, sample) in batch.sample_ids().iter().enumerate() {
            let color = [[10, 200, 30], [90, 80, 70]][sample.0 as usize];
            assert_eq!(batch["image"].row(row), color.repeat(32 * 32), "sample {sample}");
        }
    });
    assert_eq!(ranks[0].delivered.samples(), 2);
}

/// All bad samples belong to one of three ranks: no rank is a step short, and nothing else changes.
#[test]
fn bad_samples_of_one_rank_keep_all_ranks_in_step() {
    const SAMPLES: u64 = 115; // five steps of 24, the last one padded with 5
    let good = jpegs(SAMPLES);
    let (clean, dirty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_with(clean.path(), &good, &[]);
    let quiet = run_epochs(&bounded(open(clean.path()), 24), 1, 1);

    let plan = bounded(open(clean.path()), 24).plan(Rank::new(0, 1)).unwrap();
    let shape = StepShape { size: StepSize::Rows(24), rank: Rank::new(1, 3), tail: Tail::Pad };
    let mut order = plan.epoch(0);
    let of_rank_1: Vec<SampleId> = order
        .steps(Position(0), &shape)
        .flat_map(|step| step.rows.into_iter().filter(|row| row.valid).map(|row| row.sample))
        .collect();
    // two neighbours in one batch, and one alone
    let bad: BTreeSet<SampleId> = [8, 9, 20].map(|at| of_rank_1[at]).into();
    let broken: Vec<_> =
        bad.iter().map(|s| (s.0 as usize, Some(vec![b'x'; good[s.0 as usize].len()]))).collect();
    write_with(dirty.path(), &good, &broken);

    let skipping = bounded(open(dirty.path()), 24).on_error(OnError::Skip { max_fraction: 0.1 });
    let ranks = run(&skipping, 3, |batch| bad_rows_are_copies_of_their_nearest(batch, &bad));
    let mut all = Delivered::default();
    for (rank, seen) in ranks.iter().enumerate() {
        assert!(seen.error.is_none(), "rank {rank}: {:?}", seen.error);
        assert_eq!(seen.steps, 5, "rank {rank}");
        let reported: BTreeSet<SampleId> = seen.report.samples.iter().map(|skipped| skipped.sample).collect();
        let own = if rank == 1 { bad.clone() } else { BTreeSet::new() };
        assert_eq!((seen.report.count, reported), (own.len() as u64, own), "rank {rank}");
        for skipped in &seen.report.samples {
            let name = format!("train.parquet row {} (sample {})", skipped.sample, skipped.sample);
            assert!(skipped.reason.contains(&name) && skipped.epoch == 0, "{skipped:?}");
        }
        for (key, digests) in &seen.delivered.0 {
            all.0.entry(*key).or_default().extend(digests);
        }
    }
    let mut expected = quiet;
    bad.iter().for_each(|sample| drop(expected.0.remove(&(0, sample.0))));
    assert_eq!(all, expected);
    let ledger = merged(&ranks);
    assert!(ledger.is_exact(), "{ledger}");
    assert_eq!((ledger.delivered.samples, ledger.substituted, ledger.padded), (SAMPLES, 3, 5), "{ledger}");
    assert_eq!(ledger.delivered, plan.digest());
}

#[test]
fn every_picture_corrupt_raises_with_the_samples_name() {
    let dir = all_corrupt(40);
    for seen in run(&bounded(open(dir.path()), 10), 2, |_| {}) {
        let error = seen.error.expect("raise is the default");
        assert_eq!((error.kind(), seen.steps), (ErrorKind::BadSample, 0), "{error}");
        says(&error, &["train.parquet row ", "(sample ", "no JPEG, PNG or WebP", "4 more in this batch"]);
    }
}

#[test]
fn every_picture_corrupt_is_past_what_skip_allows() {
    let dir = all_corrupt(40);
    for seen in run(&bounded(open(dir.path()), 10).on_error(OnError::skip()), 2, |_| {}) {
        let error = seen.error.expect("skip has a limit");
        assert_eq!((error.kind(), seen.steps), (ErrorKind::BadSample, 0), "{error}");
        says(&error, &["5 of this rank's 20 samples", "max_fraction of 0.01", "train.parquet row "]);
    }
}

#[test]
fn every_picture_corrupt_with_no_limit_keeps_ranks_in_step_and_marks_all() {
    let dir = all_corrupt(40);
    let skipping = bounded(open(dir.path()), 10).on_error(OnError::Skip { max_fraction: 1.0 });
    let ranks = run(&skipping, 2, |batch| {
        assert!(batch.valid().iter().all(|valid| !valid));
        assert!(batch["image"].bytes().iter().all(|byte| *byte == 0), "no bytes of an earlier batch");
    });
    assert!(ranks.iter().all(|seen| seen.error.is_none() && seen.steps == 4 && seen.report.count == 20));
    let ledger = merged(&ranks);
    assert!(ledger.is_exact() && ledger.substituted == 40, "{ledger}");
}

fn all_corrupt(samples: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_parquet(dir.path(), &vec![Some(b"not an image at all".to_vec()); samples]);
    dir
}

/// Files are shortened between cataloguing and the epoch: in every layout, the fetch names the file.
#[test]
fn files_truncated_after_cataloguing() {
    for layout in [Layout::Parquet, Layout::WebDataset, Layout::Ipc, Layout::Folder] {
        let dir = tempfile::tempdir().unwrap();
        let options =
            ImagenetOptions { samples: 12, layout, width: 96, height: 80, ..ImagenetOptions::default() };
        options.write(dir.path(), &mut |_| {}).unwrap();
        let dataset = open(dir.path());
        for file in files(dir.path()) {
            let half = std::fs::metadata(&file).unwrap().len() / 2;
            std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(half).unwrap();
        }
        let seen = run(&bounded(dataset, 4), 1, |_| {}).remove(0);
        let error = seen.error.unwrap_or_else(|| panic!("{layout}: no error"));
        assert_eq!((error.kind(), seen.steps), (ErrorKind::Gone, 0), "{layout}: {error}");
        says(&error, &[dir.path().to_str().unwrap(), "changed since the catalog was built"]);
    }
}

/// The kind and text of the catalog's errors reach the caller of the public API.
#[test]
fn what_cannot_be_catalogued_is_refused_with_its_reason() {
    let refused = |dir: &Path| block_on(Dataset::open(dir.to_str().unwrap())).unwrap_err();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(refused(&dir.path().join("nothing")).kind(), ErrorKind::Gone);
    says(&refused(dir.path()), &[dir.path().to_str().unwrap()]);
    for (name, content, reason) in [
        ("x.parquet", b"".as_slice(), "0 bytes"),
        ("x.tar", b"", "empty"),
        ("x.arrow", b"", "empty"),
        ("x.parquet", b"PAR1 and no more", "x.parquet"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), content).unwrap();
        let error = refused(dir.path());
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        says(&error, &[name, reason]);
    }
}

#[test]
fn filter_with_a_typo() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 20);
    let error = open(dir.path()).filter("lable < 3").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    says(&error, &["lable", "label"]);
    assert_eq!(open(dir.path()).filter("label <").unwrap_err().kind(), ErrorKind::BadConfig);
    let error = open(dir.path()).filter("label < 0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    says(&error, &["label < 0", "none of the 20"]);
}

#[test]
fn budget_smaller_than_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 40);
    let began = Instant::now();
    let small = bounded(open(dir.path()), 20).budget_bytes(40_000);
    let error = small.rank(Rank::new(0, 1)).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    says(&error, &["smaller than one batch", "20 rows", "budget_bytes"]);
    assert!(began.elapsed() < Duration::from_secs(5), "an error, not a wait");
}

#[test]
fn batch_larger_than_the_data_set() {
    let dir = tempfile::tempdir().unwrap();
    synth(dir.path(), 20);
    let large = bounded(open(dir.path()), 1).batch(BatchSize::per_rank(16));
    let error = large.clone().tail(Tail::Drop).rank(Rank::new(0, 2)).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    says(&error, &["20 selected samples", "global batch of 32", "tail=pad"]);
    let ranks = run(&large, 2, |_| {});
    let ledger = merged(&ranks);
    assert!(ledger.is_exact() && ledger.delivered.samples == 20 && ledger.padded == 12, "{ledger}");
    assert!(ranks.iter().all(|seen| seen.steps == 1 && seen.error.is_none()));
}
