//! Durations from the headers of audio clips.

use super::*;
use arrow::record_batch::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use feedstock_dataset::Durations;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

pub(super) fn parquet_of(batch: &RecordBatch) -> Vec<u8> {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(20)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

pub(super) fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

async fn open_probed(at: &Path, store: CatalogStore) -> (Dataset, u64) {
    let (probe, asked) = probe();
    let options = OpenOptions { audio_probe: Some(probe), ..options(store) };
    let dataset = Dataset::open_with(path(at), options).await.unwrap();
    (dataset, asked.load(Ordering::Relaxed))
}

/// Writes fifty audio clips of 0.5 + i seconds in any layout; the header of the fourth states no duration.
fn write(layout: &str, root: &Path) {
    let content = |i: u64| if i == 3 { picture(i, 30_000) } else { clip(i, 0.5 + i as f64) };
    match layout {
        "folder" => (0..50).for_each(|i| put(root, &format!("{i:02}.mp3"), content(i))),
        "manifest" => {
            (0..50).for_each(|i| put(root, &format!("clips/{i:02}.mp3"), content(i)));
            let rows: String = (0..50).map(|i| format!("clips/{i:02}.mp3\tx\n")).collect();
            put(root, "list.tsv", format!("audio\ttext\n{rows}"));
        }
        "webdataset" => {
            let members = (0..50).flat_map(|i| {
                [(format!("{i:02}.flac"), content(i)), (format!("{i:02}.txt"), b"said".to_vec())]
            });
            put(root, "x.tar", tar_of(&members.collect::<Vec<_>>()));
        }
        "common_voice" => {
            (0..50).for_each(|i| put(root, &format!("de/clips/{}", clip_name("de", i)), content(i)));
            put(root, "de/train.tsv", table("de", 0..50, "\n"));
        }
        "parquet" => put(root, "x.parquet", parquet_of(&audio::hf_audio(0..50))),
        _ => put(root, "x.arrow", stream_of(&audio::hf_audio(0..50))),
    }
}

#[tokio::test]
async fn every_layout_gets_durations_from_headers() {
    for layout in ["folder", "manifest", "webdataset", "common_voice", "parquet", "ipc"] {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(layout, root.path());
        let at = if layout == "manifest" { root.path().join("list.tsv") } else { root.path().to_owned() };
        let plain = open(&at).await.unwrap();
        assert!(plain.catalog().schema().index_of("duration").is_err(), "{layout}");
        let located = !matches!(layout, "parquet" | "ipc");
        let expected: Vec<Option<f64>> =
            (0..50).map(|i| (!located || i != 3).then_some(0.5 + i as f64)).collect();
        let store = || CatalogStore::Cache(cache.path().into());
        let (dataset, asked) = open_probed(&at, store()).await;
        assert_eq!(
            asked,
            if located { 51 } else { 50 },
            "{layout}: a header without a duration is read once more, with more bytes"
        );
        let catalog = dataset.catalog();
        assert_eq!(catalog.content_hash(), plain.catalog().content_hash(), "{layout}: not part of the order");
        let schema = catalog.schema();
        assert_eq!(
            schema.index_of("duration").unwrap() + 2,
            schema.fields().len(),
            "{layout}: before the payload"
        );
        let rows = all_rows(&dataset).await;
        assert_eq!(floats(&rows, "duration"), expected, "{layout}");
        assert_eq!(payloads(&rows, "audio"), payloads(&all_rows(&plain).await, "audio"), "{layout}");
        assert_eq!(catalog.notes().iter().any(|n| n.contains("1 of 50 samples")), located, "{layout}");
        let (stored, asked) = open_probed(&at, store()).await;
        assert_eq!(asked, 0, "{layout}: the stored catalog has the durations");
        assert_eq!(all_rows(&stored).await, rows, "{layout}");
        // Columns in any order, alone and with others.
        let some = stored.clone().columns(&["audio", "duration"]).unwrap();
        let batch = some.block_reader().fetch(feedstock_dataset::BlockId(0), 0).await.unwrap().rows;
        assert_eq!(batch.schema().field(1).name(), "duration");
        assert_eq!(floats(&[batch], "duration")[2], Some(2.5), "{layout}");
        let one = stored.block_reader().fetch_sample(feedstock_dataset::SampleId(42), 0).await.unwrap();
        assert_eq!(floats(&[one.rows], "duration"), [Some(42.5)], "{layout}");
        // And filters read no audio.
        let before = stored.storage().stats().read_bytes;
        let some = stored.filter("duration < 20 and duration is not null").await.unwrap();
        assert_eq!(
            some.len(),
            expected.iter().filter(|s| s.is_some_and(|s| s < 20.0)).count() as u64,
            "{layout}"
        );
        assert_eq!(some.storage().stats().read_bytes, before, "{layout}");
    }
}

/// A caller that waits for gigabytes should see the reason.
#[tokio::test]
async fn progress_says_when_all_audio_is_read() {
    for (layout, all) in [("folder", false), ("parquet", true), ("ipc", true)] {
        let root = tempfile::tempdir().unwrap();
        write(layout, root.path());
        let stages: Arc<Mutex<Vec<&str>>> = Arc::default();
        let seen = stages.clone();
        let mut with = options(CatalogStore::Nowhere);
        with.audio_probe = Some(probe().0);
        with.catalog.progress = Some(Arc::new(move |p: feedstock_dataset::Progress| {
            seen.lock().unwrap().push(p.stage);
        }));
        Dataset::open_with(path(root.path()), with).await.unwrap();
        let stages = stages.lock().unwrap();
        assert_eq!(stages.iter().any(|stage| stage.contains("all audio")), all, "{layout}: {stages:?}");
        assert_eq!(stages.iter().any(|stage| stage.contains("headers")), !all, "{layout}: {stages:?}");
    }
}

#[tokio::test]
async fn own_durations_are_kept_and_probing_can_be_declined() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "clips/a.mp3", clip(1, 9.0));
    put(root.path(), "list.csv", "audio,duration\nclips/a.mp3,4\n");
    let (dataset, asked) = open_probed(&root.path().join("list.csv"), CatalogStore::Nowhere).await;
    assert_eq!((asked, ints(&all_rows(&dataset).await, "duration")), (0, vec![4]));
    let (probe, asked) = probe();
    let never = OpenOptions {
        audio_probe: Some(probe),
        durations: Durations::Never,
        ..options(CatalogStore::Nowhere)
    };
    let dataset = Dataset::open_with(path(&root.path().join("clips")), never).await.unwrap();
    assert!(dataset.catalog().schema().index_of("duration").is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // Images are not probed.
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a.jpg", b"x");
    assert_eq!(open_probed(root.path(), CatalogStore::Nowhere).await.1, 0);
}

/// A catalog stores which version of the probe read its durations.
#[tokio::test]
async fn another_version_of_the_probe_reads_durations_again() {
    for layout in ["folder", "parquet", "webdataset"] {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(layout, root.path());
        let open = async |version: u32| {
            let asked = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&asked);
            let probe = AudioProbe::new(version, move |_: &[u8], _| {
                counter.fetch_add(1, Ordering::Relaxed);
                Some(f64::from(version))
            });
            let store = CatalogStore::Cache(cache.path().into());
            let options = OpenOptions { audio_probe: Some(probe), ..options(store) };
            let dataset = Dataset::open_with(path(root.path()), options).await.unwrap();
            let seconds = floats(&all_rows(&dataset).await, "duration");
            assert!(seconds.iter().all(|one| *one == seconds[0]), "{layout}: {seconds:?}");
            (dataset.catalog().hashes(), asked.load(Ordering::Relaxed), seconds[0])
        };
        let (hashes, asked, seconds) = open(1).await;
        assert_eq!((asked, seconds), (50, Some(1.0)), "{layout}");
        assert_eq!(open(1).await, (hashes, 0, Some(1.0)), "{layout}");
        assert_eq!(open(2).await, (hashes, 50, Some(2.0)), "{layout}: the identity stays");
        assert_eq!(open(2).await, (hashes, 0, Some(2.0)), "{layout}");
        assert_eq!(
            open(1).await,
            (hashes, 0, Some(2.0)),
            "{layout}: an older release keeps what a newer one read"
        );
        let folder = std::fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().path();
        let kept = |name: &str| name.starts_with("kept-");
        let names = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
        let kept = names.filter(|name| kept(name.to_str().unwrap())).count();
        assert_eq!(kept, 1, "{layout}: running jobs may still read the tables of the first");
        // As stored by releases that recorded no version. For Parquet, all audio would have to be read again.
        let index = folder.join("catalog.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
        assert!(json.as_object_mut().unwrap().remove("probed").is_some());
        std::fs::write(&index, json.to_string()).unwrap();
        let expected = if layout == "parquet" { (hashes, 0, Some(2.0)) } else { (hashes, 50, Some(3.0)) };
        assert_eq!(open(3).await, expected, "{layout}");
    }
}

/// The list of durations lacks some audio clips, and one language has no list: headers provide the rest, and no more is read.
#[tokio::test]
async fn durations_that_are_not_listed_come_from_headers() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (locale, clips) in [("de", 0..40), ("fr", 50..60)] {
        for i in clips.clone() {
            put(root.path(), &format!("{locale}/clips/{}", clip_name(locale, i)), clip(i, 0.5 + i as f64));
        }
        put(root.path(), &format!("{locale}/train.tsv"), table(locale, clips, "\n"));
    }
    let listed = (0..40).filter(|i| i % 10 != 3);
    let rows: String = listed.map(|i| format!("{}\t{}\n", clip_name("de", i), 1_000 + i)).collect();
    put(root.path(), "de/clip_durations.tsv", format!("clip\tduration[ms]\n{rows}"));
    let listed = |i: u64| if i < 40 && i % 10 != 3 { (1_000 + i) as f64 / 1_000.0 } else { 0.5 + i as f64 };
    let expected: Vec<Option<f64>> = (0..40).chain(50..60).map(|i| Some(listed(i))).collect();
    let plain = open_split(root.path(), "train").await.unwrap();
    assert_eq!(floats(&all_rows(&plain).await, "duration").iter().flatten().count(), 36);
    for asked_for in [4 + 10, 0] {
        let (probe, asked) = probe();
        let store = CatalogStore::Cache(cache.path().into());
        let options = OpenOptions { audio_probe: Some(probe), split: Some("train".into()), ..options(store) };
        let dataset = Dataset::open_with(path(root.path()), options).await.unwrap();
        assert_eq!(
            asked.load(Ordering::Relaxed),
            asked_for,
            "the second time, the stored catalog has the durations"
        );
        let (rows, before) = (all_rows(&dataset).await, all_rows(&plain).await);
        assert_eq!(floats(&rows, "duration"), expected);
        assert_eq!(payloads(&rows, "audio"), payloads(&before, "audio"));
        assert_eq!(dataset.catalog().schema(), plain.catalog().schema());
        assert_eq!(dataset.catalog().content_hash(), plain.catalog().content_hash());
        let told = dataset.catalog().describe_sample(feedstock_dataset::SampleId(41));
        assert_eq!(told, plain.catalog().describe_sample(feedstock_dataset::SampleId(41)));
    }
}

/// The same in a tar, where the audio clips to probe are among others.
#[tokio::test]
async fn an_archive_is_asked_for_the_durations_that_it_lacks() {
    let root = tempfile::tempdir().unwrap();
    let archive = tar_of(&release()); // `de` lacks audio clip 7, and the duration of audio clip 9
    put(root.path(), "cv-corpus-17.tar", archive);
    let (probe, asked) = probe();
    let options = OpenOptions {
        audio_probe: Some(probe),
        split: Some("train".into()),
        ..options(CatalogStore::Nowhere)
    };
    let dataset = Dataset::open_with(path(&root.path().join("cv-corpus-17.tar")), options).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let rows = all_rows(&dataset).await;
    let at = texts(&rows, "path").iter().position(|path| *path == clip_name("de", 9)).unwrap();
    assert_eq!(floats(&rows, "duration")[at], Some(9.5));
}

/// Audio clips far apart, or with long tags in front: each is probed with the bytes that it takes, and no more are held.
#[tokio::test]
async fn headers_behind_long_tags_are_found() {
    let root = tempfile::tempdir().unwrap();
    let bytes_of = |i: u64| match i % 3 {
        0 => [clip(i, i as f64), vec![0; 3 << 20]].concat(),
        1 => [vec![0; 100 << 10], clip(i, i as f64)].concat(),
        _ => [vec![0; 1 << 20], clip(i, i as f64)].concat(),
    };
    let members: Vec<(String, Vec<u8>)> = (0..6).map(|i| (format!("{i}.mp3"), bytes_of(i))).collect();
    put(root.path(), "x.tar", tar_of(&members));
    let tagged = AudioProbe::new(1, |head: &[u8], _| {
        let at = head.windows(4).position(|w| w == b"CLIP")?;
        Some(f64::from_le_bytes(head.get(at + 4..at + 12)?.try_into().ok()?))
    });
    let options = OpenOptions { audio_probe: Some(tagged), ..options(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with(path(root.path()), options).await.unwrap();
    let seconds = floats(&all_rows(&dataset).await, "duration");
    assert_eq!(seconds, (0..6).map(|i| Some(i as f64)).collect::<Vec<_>>());
}

#[tokio::test]
async fn missing_and_empty_clips_have_no_duration() {
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in [("a.mp3", clip(1, 1.5)), ("b.mp3", Vec::new()), ("d.mp3", clip(1, f64::NAN))] {
        put(root.path(), &format!("de/clips/{name}"), bytes);
    }
    let rows: String = ["a", "b", "c", "d"].iter().map(|c| format!("x\t{c}.mp3\thi\n")).collect();
    put(root.path(), "de/train.tsv", format!("client_id\tpath\tsentence\n{rows}"));
    let (dataset, _) = open_probed(root.path(), CatalogStore::Nowhere).await;
    let rows = all_rows(&dataset).await;
    assert_eq!(floats(&rows, "duration"), [Some(1.5), None, None, None]);
    assert_eq!(payloads(&rows, "audio")[1..3], [Some(Vec::new()), None]);
}

/// The codecs that are not decoded are counted by the headers that are read for durations, and stored.
#[tokio::test]
async fn codecs_that_are_not_decoded_are_counted_and_stored() {
    for layout in ["folder", "parquet", "webdataset"] {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(layout, root.path());
        let asked = Arc::new(AtomicU64::new(0));
        let open = async || {
            let counter = Arc::clone(&asked);
            let (probe, _) = probe();
            let probe = probe.unsupported(move |head| {
                counter.fetch_add(1, Ordering::Relaxed);
                let seconds =
                    f64::from_le_bytes(head.strip_prefix(&clip(0, 0.0)[..4])?.get(..8)?.try_into().ok()?);
                (seconds < 10.0).then_some("ALAC")
            });
            let store = CatalogStore::Cache(cache.path().into());
            let options = OpenOptions { audio_probe: Some(probe), ..options(store) };
            Dataset::open_with(path(root.path()), options).await.unwrap()
        };
        let dataset = open().await;
        let seconds = floats(&all_rows(&dataset).await, "duration");
        let short = seconds.iter().flatten().filter(|seconds| **seconds < 10.0).count() as u64;
        let found = dataset.unsupported_audio();
        let [alac] = &found[..] else { panic!("{layout}: {found:?}") };
        assert_eq!((alac.codec.as_str(), alac.samples), ("ALAC", short), "{layout}");
        assert!(short > 0 && short < 50 && alac.named.len() as u64 == short, "{layout}: {alac:?}");
        let before = asked.load(Ordering::Relaxed);
        let stored = open().await;
        assert_eq!((stored.unsupported_audio(), asked.load(Ordering::Relaxed)), (found, before), "{layout}");
        let note = format!("{short} audio clips are of the codec ALAC, which is not decoded: ");
        assert!(stored.catalog().notes().iter().any(|own| own.starts_with(&note)), "{layout}");
        let long = stored.filter("duration >= 10").await.unwrap();
        assert!(long.unsupported_audio().is_empty(), "{layout}");
    }
}
