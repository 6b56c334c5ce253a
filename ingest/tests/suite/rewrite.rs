//! Rewriting any layout into shards: the same samples, resumed and checked.

use crate::rewrite_common::{
    SAMPLES, columns_of, find, open, parquet_with_nulls, rows, shard_files, small, synth, text,
};
use arrow::array::{Array, AsArray};
use feedstock_dataset::{Layout as Stored, Position, SampleId, Shuffle};
use feedstock_ingest::{
    ErrorKind, OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteStage, rewrite,
};
use feedstock_ops::image::{DecodeImage, Unmarked, decode_rgb, read_header};
use feedstock_synth::Layout;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn every_layout_becomes_shards_with_the_same_samples() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        synth(&from, layout);
        let source = open(&from);
        let columns = columns_of(&source);
        let expected = rows(&source, &columns);
        assert_eq!(expected.len() as u64, SAMPLES);
        for format in [RewriteFormat::Parquet, RewriteFormat::Ipc] {
            let to = dir.path().join(format.extension());
            let report = rewrite(&source, text(&to), &RewriteOptions { format, ..small() }).unwrap();
            assert_eq!((report.samples, report.resumed_shards, report.verified), (SAMPLES, 0, true));
            assert!(report.shards > 2, "{layout}: {} shards", report.shards);
            let written = open(&to);
            let stored = if format == RewriteFormat::Parquet { Stored::HfParquet } else { Stored::ArrowIpc };
            assert_eq!(written.catalog().layout(), stored);
            assert_eq!(written.catalog().objects().len() as u64, report.shards);
            assert!(written.catalog().blocks() as u64 > report.shards, "several groups a shard");
            assert_eq!(written.catalog().class_names("label"), source.catalog().class_names("label"));
            assert!(rows(&written, &columns) == expected, "{layout} as {format:?} has other rows");
        }
    }
}

#[test]
fn parquet_shards_are_what_hugging_face_writes_and_more() {
    let dir = tempfile::tempdir().unwrap();
    synth(&dir.path().join("from"), Layout::Folder);
    let to = dir.path().join("to");
    let options = RewriteOptions { name: "validation".to_owned(), ..small() };
    let report = rewrite(&open(&dir.path().join("from")), text(&to), &options).unwrap();
    let first = format!("validation-00000-of-{:05}.parquet", report.shards);
    assert_eq!(shard_files(&to).keys().next(), Some(&first));
    let reader = SerializedFileReader::new(std::fs::File::open(to.join(&first)).unwrap()).unwrap();
    let metadata = reader.metadata();
    let pairs = metadata.file_metadata().key_value_metadata().unwrap();
    let features = pairs.iter().find(|pair| pair.key == "huggingface").unwrap().value.as_deref().unwrap();
    let features: serde_json::Value = serde_json::from_str(features).unwrap();
    assert_eq!(features.pointer("/info/features/image/_type").unwrap(), "Image");
    assert_eq!(features.pointer("/info/features/label/_type").unwrap(), "ClassLabel");
    let leaves: Vec<String> =
        metadata.row_group(0).columns().iter().map(|c| c.column_path().string()).collect();
    assert!(leaves.contains(&"image.bytes".to_owned()) && leaves.contains(&"image.path".to_owned()));
    for group in metadata.row_groups() {
        assert!(group.num_rows() == 1 || group.total_byte_size() < 40 << 10, "{}", group.total_byte_size());
        assert!(group.columns().iter().all(|column| column.offset_index_offset().is_some()));
        let labels = group.columns().iter().find(|column| column.column_path().string() == "label").unwrap();
        assert!(labels.column_index_offset().is_some());
    }
}

#[test]
fn shuffles_filters_and_columns_are_those_of_the_data_set() {
    let dir = tempfile::tempdir().unwrap();
    synth(&dir.path().join("from"), Layout::Parquet);
    let source = futures::executor::block_on(open(&dir.path().join("from")).filter("label < 3")).unwrap();
    let source = source.columns(&["image", "label"]).unwrap();
    let columns = ["image", "label"].map(str::to_owned);
    let shuffle = Shuffle::full(7);
    let to = dir.path().join("to");
    let report =
        rewrite(&source, text(&to), &RewriteOptions { shuffle: shuffle.clone(), ..small() }).unwrap();
    assert_eq!(report.samples, source.len());
    let all = rows(&open(&dir.path().join("from")), &columns);
    let mut order = source.plan(&shuffle.lanes(1)).unwrap().epoch(0);
    let ids: Vec<u64> = (0..source.len()).map(|p| order.sample_at(Position(p)).sample.0).collect();
    assert!(!ids.is_sorted(), "a shuffle moves samples");
    let planned: Vec<_> = ids.iter().map(|&id| all[id as usize].clone()).collect();
    assert!(rows(&open(&to), &columns) == planned);
    assert!(open(&to).catalog().schema().field_with_name("width").is_err(), "width was not chosen");
}

/// Both runs see the empty destination before either has written there.
#[test]
fn of_two_runs_that_begin_at_the_same_time_one_writes() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    synth(&from, Layout::Parquet);
    let source = open(&from);
    for round in 0..6 {
        let to = dir.path().join(format!("to-{round}"));
        let names = ["first", "second"];
        let start = std::sync::Barrier::new(names.len());
        let results: Vec<_> = std::thread::scope(|scope| {
            let run = |name: &str| {
                let options = RewriteOptions { name: name.to_owned(), ..small() };
                start.wait();
                rewrite(&source, text(&to), &options)
            };
            let runs = names.map(|name| scope.spawn(move || run(name)));
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        let written: Vec<&str> =
            names.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(name, _)| *name).collect();
        assert_eq!(written.len(), 1, "round {round}: {results:?}");
        let error = results.iter().find_map(|result| result.as_ref().err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        // A listing that began before the other run and ended after it only has the other run's shards.
        let reasons = ["holds another rewrite: its name is", "is not empty"];
        assert!(reasons.iter().any(|reason| error.to_string().contains(reason)), "{error}");
        assert!(shard_files(&to).keys().all(|file| file.starts_with(written[0])), "round {round}");
    }
}

/// The child of the test below: it writes until two shards exist, then waits to be killed.
#[test]
fn child_that_is_killed() {
    let (Ok(from), Ok(to)) = (std::env::var("REWRITE_FROM"), std::env::var("REWRITE_TO")) else { return };
    let progress = |now: feedstock_ingest::RewriteProgress| {
        if now.stage == RewriteStage::Writing && now.shards >= 2 {
            std::thread::sleep(Duration::from_secs(600));
        }
    };
    let options = RewriteOptions { progress: Some(Arc::new(progress)), ..small() };
    rewrite(&open(Path::new(&from)), &to, &options).unwrap();
}

#[test]
fn a_killed_run_goes_on_and_ends_as_an_unbroken_one() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, whole) = (dir.path().join("from"), dir.path().join("to"), dir.path().join("whole"));
    synth(&from, Layout::WebDataset);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rewrite::child_that_is_killed"])
        .env("REWRITE_FROM", &from)
        .env("REWRITE_TO", &to)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    let state = to.join("_feedstock/rewrite.json");
    let finished = || std::fs::read_to_string(&state).map_or(0, |json| json.matches("\"file\"").count());
    while finished() < 2 {
        assert!(Instant::now() < patience, "the child wrote {:?}", shard_files(&to).keys());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap(); // SIGKILL
    assert!(!child.wait().unwrap().success());
    let unbroken = rewrite(&open(&from), text(&whole), &small()).unwrap();
    // A kill in the middle of a write leaves the first file. The state does not have the second one, a shard, yet.
    std::fs::write(to.join("train-00003.parquet.feedstock-tmp-1-1"), b"half").unwrap();
    let unknown = shard_files(&whole).keys().last().unwrap().clone();
    std::fs::write(to.join(unknown), b"half a shard").unwrap();
    let resumed = rewrite(&open(&from), text(&to), &small()).unwrap();
    assert!(resumed.resumed_shards >= 2 && resumed.resumed_shards < resumed.shards, "{resumed:?}");
    assert!(shard_files(&to) == shard_files(&whole), "other bytes than the unbroken run's");
    assert_eq!((resumed.ids, resumed.payload_bytes), (unbroken.ids, unbroken.payload_bytes));
    let again = rewrite(&open(&from), text(&to), &small()).unwrap();
    assert_eq!(again.resumed_shards, again.shards);
}

#[test]
fn large_pictures_are_shrunk_and_small_ones_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    synth(&from, Layout::Parquet);
    let source = open(&from);
    let metadata: Vec<String> = columns_of(&source).into_iter().filter(|name| name != "image").collect();
    let image = ["image".to_owned()];
    let before = rows(&source, &image);
    let limit = 96; // longer sides vary around 96
    for threads in [1, 3] {
        let to = dir.path().join(threads.to_string());
        let recode = Some(Recode { max_side: limit, quality: 90 });
        let report = rewrite(&source, text(&to), &RewriteOptions { recode, threads, ..small() }).unwrap();
        let written = open(&to);
        assert!(rows(&written, &metadata) == rows(&source, &metadata));
        let after = rows(&written, &image);
        let mut shrunk = 0;
        for (before, after) in before.iter().zip(&after) {
            let (old, new) = (read_header(&before[0]).unwrap(), read_header(&after[0]).unwrap());
            if old.width.max(old.height) <= limit {
                assert_eq!(before, after);
            } else {
                shrunk += 1;
                assert_eq!(new.width.max(new.height), limit);
                let ratio = |w: u32, h: u32| f64::from(w) / f64::from(h);
                assert!((ratio(new.width, new.height) / ratio(old.width, old.height) - 1.0).abs() < 0.02);
            }
        }
        assert_eq!(report.shrunk, shrunk);
        assert!(shrunk > 0 && shrunk < SAMPLES, "{shrunk}");
    }
    assert!(shard_files(&dir.path().join("1")) == shard_files(&dir.path().join("3")), "threads change bytes");
}

#[test]
fn restart_markers_come_without_loss_and_beside_shrinking() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    synth(&from, Layout::WebDataset);
    let source = open(&from);
    let image = ["image".to_owned()];
    let before = rows(&source, &image);
    let options = |recode| RewriteOptions { recode, restart_interval: Some(4), ..small() };
    let pixels = |bytes: &[u8]| decode_rgb(bytes, &DecodeImage::new()).unwrap();

    let to = dir.path().join("all");
    let report = rewrite(&source, text(&to), &options(None)).unwrap();
    assert_eq!((report.restarted, report.shrunk, report.verified), (SAMPLES, 0, true));
    let after = rows(&open(&to), &image);
    for (before, after) in before.iter().zip(&after) {
        assert!(before[0] != after[0] && pixels(&before[0]) == pixels(&after[0]));
    }
    assert!(report.unmarked.is_empty(), "{:?}", report.unmarked);
    let three = dir.path().join("three");
    rewrite(&source, text(&three), &RewriteOptions { threads: 3, ..options(None) }).unwrap();
    let one = dir.path().join("one");
    rewrite(&source, text(&one), &RewriteOptions { threads: 1, ..options(None) }).unwrap();
    assert!(shard_files(&one) == shard_files(&three), "threads change bytes");
    // Images that have markers stay unchanged.
    let again = dir.path().join("again");
    let report = rewrite(&open(&to), text(&again), &options(None)).unwrap();
    assert_eq!((report.restarted, report.unmarked), (0, BTreeMap::from([(Unmarked::HasMarkers, SAMPLES)])));
    assert!(rows(&open(&again), &image) == after);

    let small_too = dir.path().join("small");
    let report =
        rewrite(&source, text(&small_too), &options(Some(Recode { max_side: 96, quality: 90 }))).unwrap();
    assert_eq!(report.restarted, SAMPLES);
    assert!(report.shrunk > 0 && report.shrunk < SAMPLES, "{}", report.shrunk);
    let others = RewriteOptions { restart_interval: Some(8), ..small() };
    let error = rewrite(&source, text(&to), &others).unwrap_err();
    assert!(error.to_string().contains("restart_interval"), "{error}");
}

#[test]
fn a_bad_picture_stops_the_run_or_is_copied_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    synth(&from, Layout::Folder);
    let bad = SampleId(SAMPLES * 3 / 4);
    let name = open(&from).catalog().describe_sample(bad);
    let path = find(&from, name.rsplit('/').next().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&path, &bytes).unwrap();
    let source = open(&from);
    let recode = Some(Recode { max_side: 40, quality: 90 });
    let raise = RewriteOptions { recode, ..small() };
    let error = rewrite(&source, text(&to), &raise).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert!(error.to_string().contains(&name) && error.to_string().contains("on_error=copy"), "{error}");
    let copy = RewriteOptions { on_error: OnBadPicture::Copy, ..raise };
    let report = rewrite(&source, text(&to), &copy).unwrap();
    assert!(report.resumed_shards > 0, "what was written before the error counts");
    assert_eq!((report.kept_samples, report.kept[0].sample), (1, bad));
    assert_eq!(report.kept[0].name, name);
    assert_eq!(report.shrunk, SAMPLES - 1);
    let bad = usize::try_from(bad.0).unwrap();
    assert_eq!(rows(&open(&to), &["image".to_owned()])[bad][0], bytes);
}

#[test]
fn a_damaged_shard_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    synth(&from, Layout::Parquet);
    for format in [RewriteFormat::Parquet, RewriteFormat::Ipc] {
        let to = dir.path().join(format.extension());
        let options = RewriteOptions { format, ..small() };
        rewrite(&open(&from), text(&to), &options).unwrap();
        let name = shard_files(&to).keys().nth(1).unwrap().clone();
        let payload = rows(&open(&to), &["image".to_owned()]);
        let mut bytes = std::fs::read(to.join(&name)).unwrap();
        let middle = |row: &Vec<Vec<u8>>| row[0][row[0].len() / 2..][..64].to_vec();
        let found = |row| bytes.windows(64).position(|w| w == middle(row));
        let at = payload.iter().find_map(found).unwrap();
        bytes[at + 7] ^= 1;
        std::fs::write(to.join(&name), bytes).unwrap();
        let error = rewrite(&open(&from), text(&to), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert!(error.to_string().contains(&name), "{error}");
        std::fs::remove_file(to.join(&name)).unwrap(); // as the message states
        let repaired = rewrite(&open(&from), text(&to), &options).unwrap();
        assert_eq!((repaired.resumed_shards, repaired.verified), (1, true));
    }
}

#[test]
fn foreign_destinations_and_other_rewrites_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    synth(&from, Layout::Parquet);
    let source = open(&from);
    let refused = |to: &Path, options: &RewriteOptions, words: &[&str]| {
        let error = rewrite(&source, text(to), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    };
    refused(&from, &small(), &["not empty", "train-00000", "empty destination"]);
    std::fs::create_dir_all(&to).unwrap();
    std::fs::write(to.join("thesis.tex"), b"mine").unwrap();
    refused(&to, &small(), &["thesis.tex"]);
    assert_eq!(std::fs::read(to.join("thesis.tex")).unwrap(), b"mine");
    refused(&to.join("thesis.tex"), &small(), &["is a file"]);
    std::fs::remove_file(to.join("thesis.tex")).unwrap();
    rewrite(&source, text(&to), &small()).unwrap();
    let shuffle = Shuffle::none().lanes(1);
    rewrite(&source, text(&to), &RewriteOptions { shuffle, threads: 1, ..small() }).unwrap(); // the same rewrite
    refused(
        &to,
        &RewriteOptions { shuffle: Shuffle::full(3), ..small() },
        &["plan.seed is 0, this one's is 3"],
    );
    refused(&to, &RewriteOptions { group_bytes: 8 << 10, ..small() }, &["group_bytes"]);
    let recode = Some(Recode { max_side: 64, quality: 90 });
    refused(&to, &RewriteOptions { recode, ..small() }, &["recode"]);
    std::fs::write(to.join("train.parquet"), b"mine").unwrap();
    refused(&to, &small(), &["train.parquet", "not of this rewrite"]);
    let none = dir.path().join("none");
    let recode = Some(Recode { max_side: 0, quality: 90 });
    refused(&none, &RewriteOptions { recode, ..small() }, &["max_side"]);
    refused(&none, &RewriteOptions { name: "a/b".into(), ..small() }, &["a/b"]);
    assert!(!none.exists());
    let error = rewrite(&source, "/proc/nowhere", &small()).unwrap_err();
    assert!(error.to_string().contains("/proc/nowhere"), "{error}");
}

#[test]
fn progress_reaches_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    synth(&dir.path().join("from"), Layout::Ipc);
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let progress: feedstock_ingest::RewriteProgressFn = Arc::new(move |now| hear.lock().unwrap().push(now));
    let options = RewriteOptions { progress: Some(progress), ..small() };
    rewrite(&open(&dir.path().join("from")), text(&dir.path().join("to")), &options).unwrap();
    let told = told.lock().unwrap();
    for stage in [RewriteStage::Writing, RewriteStage::Verifying] {
        let done: Vec<u64> = told.iter().filter(|now| now.stage == stage).map(|now| now.done).collect();
        assert!(done.is_sorted() && done.len() > 2, "{done:?}");
        assert_eq!(done.last(), Some(&SAMPLES));
    }
}

#[test]
fn null_payloads_stay_null() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    parquet_with_nulls(&from);
    let recode = Some(Recode { max_side: 8, quality: 90 });
    let options = RewriteOptions { recode, on_error: OnBadPicture::Copy, ..small() };
    let report = rewrite(&open(&from), text(&to), &options).unwrap();
    assert_eq!((report.samples, report.kept_samples), (3, 2)); // the empty and the broken one
    let raw = feedstock_ingest::RawOptions::default();
    let batch = feedstock_ingest::RawBatches::start(&open(&to), &raw).unwrap().next().unwrap().unwrap();
    let image = batch.column_by_name("image").unwrap().as_binary_view();
    assert_eq!(
        (image.is_null(0), image.value(1), image.value(2)),
        (true, &b""[..], &b"\xff\xd8\xffbroken"[..])
    );
}
