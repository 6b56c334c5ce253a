//! Audio as the payload of layouts that also hold images.

use super::*;
use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{ErrorKind, Layout};

#[tokio::test]
async fn folders_of_audio_have_classes_too() {
    let root = tempfile::tempdir().unwrap();
    for (i, extension) in ["mp3", "FLAC", "wav", "ogg", "opus", "m4a", "aac"].into_iter().enumerate() {
        put(root.path(), &format!("{}/{i}.{extension}", ["yes", "no"][i % 2]), clip(i as u64, 1.0));
    }
    put(root.path(), "yes/notes.txt", b"");
    let dataset = open(root.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::Folder, 7));
    assert_eq!(
        (catalog.payload_columns(), catalog.class_names("label").unwrap()),
        (&["audio".into()][..], vec!["no".into(), "yes".into()])
    );
    let rows = all_rows(&dataset).await;
    for (name, bytes) in texts(&rows, "path").iter().zip(payloads(&rows, "audio")) {
        assert_eq!(bytes.unwrap(), std::fs::read(root.path().join(name)).unwrap());
    }
    put(root.path(), "yes/cover.jpg", b"x");
    let error = open(root.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().contains("1 image and 7 audio files"), "{error}");
    let dataset = open(&root.path().join("**/*.mp3")).await.unwrap();
    assert_eq!((dataset.len(), dataset.catalog().payload_columns()), (1, &["audio".to_owned()][..]));
}

#[tokio::test]
async fn a_split_is_chosen_by_name() {
    let root = tempfile::tempdir().unwrap();
    for (split, clips) in [("train", 3), ("test", 2)] {
        for i in 0..clips {
            put(root.path(), &format!("{split}/a/{i}.wav"), b"x");
        }
    }
    assert!(open(root.path()).await.unwrap_err().message().contains("several splits"));
    let train = open_split(root.path(), "train").await.unwrap();
    assert_eq!((train.len(), train.catalog().class_names("label").unwrap()), (3, vec!["a".to_owned()]));
    let error = open_split(root.path(), "dev").await.unwrap_err();
    assert!(error.message().contains("test (2 files), train (3 files)"), "{error}");
    put(root.path(), "list.csv", "audio\ntrain/a/0.wav\n");
    let error = open_split(&root.path().join("list.csv"), "train").await.unwrap_err();
    assert!(error.message().contains("manifest has no splits"), "{error}");
}

#[tokio::test]
async fn manifests_name_clips() {
    let root = tempfile::tempdir().unwrap();
    let mut csv = "audio,duration,text\n".to_owned();
    for i in 0..5u64 {
        put(root.path(), &format!("wavs/{i}.flac"), clip(i, 1.0));
        csv += &format!("wavs/{i}.flac,{}.5,said {i}\n", i);
    }
    put(root.path(), "list.csv", csv);
    let dataset = open(&root.path().join("list.csv")).await.unwrap();
    assert_eq!(
        (dataset.catalog().layout(), dataset.catalog().audio_columns()),
        (Layout::Manifest, &["audio".to_owned()][..])
    );
    let rows = all_rows(&dataset).await;
    assert_eq!(texts(&rows, "audio_path")[4], "wavs/4.flac");
    assert_eq!(payloads(&rows, "audio"), (0..5).map(|i| Some(clip(i, 1.0))).collect::<Vec<_>>());
    assert_eq!(dataset.filter("duration > 2").await.unwrap().len(), 3);
}

#[tokio::test]
async fn webdataset_holds_clips_with_text_and_json() {
    for extension in ["mp3", "flac", "wav"] {
        let root = tempfile::tempdir().unwrap();
        let mut members = Vec::new();
        for i in 0..20u64 {
            members.push((format!("{i:03}.{extension}"), clip(i, 1.0)));
            members.push((format!("{i:03}.txt"), sentence(i).into_bytes()));
            let json = format!(r#"{{"duration": "{}.25", "up_votes": {i}, "locale": "de"}}"#, i);
            members.push((format!("{i:03}.json"), json.into_bytes()));
        }
        put(root.path(), "shard-000.tar", tar_of(&members));
        let dataset = open(root.path()).await.unwrap();
        let catalog = dataset.catalog();
        assert_eq!(
            (catalog.layout(), catalog.audio_columns()),
            (Layout::WebDataset, &["audio".to_owned()][..])
        );
        let rows = all_rows(&dataset).await;
        assert_eq!(payloads(&rows, "audio"), (0..20).map(|i| Some(clip(i, 1.0))).collect::<Vec<_>>());
        assert_eq!(texts(&rows, "text"), (0..20).map(sentence).collect::<Vec<_>>());
        assert_eq!(floats(&rows, "duration")[7], Some(7.25), "a duration written as text is a number");
        let some = dataset.filter("duration < 10 and up_votes >= 2 and locale = 'de'").await.unwrap();
        assert_eq!(some.len(), 8);
    }
}

#[tokio::test]
async fn several_kinds_of_audio_keep_their_names() {
    let root = tempfile::tempdir().unwrap();
    let members = [("0.mp3", "m"), ("0.near.wav", "w"), ("0.jpg", "j")];
    put(root.path(), "x.tar", tar_of(&members.map(|(n, b)| (n.to_owned(), b.as_bytes().to_vec()))));
    let dataset = open(root.path()).await.unwrap();
    assert_eq!(dataset.catalog().payload_columns(), ["image", "mp3", "near_wav"]);
    assert_eq!(dataset.catalog().audio_columns(), ["mp3", "near_wav"]);
}

/// `audio: struct<bytes, path, sampling_rate>`, as older `datasets` wrote it.
pub(super) fn hf_audio(clips: std::ops::Range<u64>) -> RecordBatch {
    hf_audio_of(clips, |i| 0.5 + i as f64)
}

/// Returns the same with audio clips of these seconds.
pub(super) fn hf_audio_of(clips: std::ops::Range<u64>, seconds: impl Fn(u64) -> f64) -> RecordBatch {
    let children = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
        Field::new("sampling_rate", DataType::Int64, true),
    ]);
    let bytes: Vec<Vec<u8>> = clips.clone().map(|i| clip(i, seconds(i))).collect();
    let audio = StructArray::new(
        children.clone(),
        vec![
            Arc::new(BinaryArray::from_iter_values(&bytes)),
            Arc::new(StringArray::from_iter_values(clips.clone().map(|i| clip_name("de", i)))),
            Arc::new(Int64Array::from_iter_values(clips.clone().map(|_| 48_000))),
        ],
        None,
    );
    let schema = Schema::new(vec![
        Field::new("sentence", DataType::Utf8, true),
        Field::new("audio", DataType::Struct(children), true),
        Field::new("up_votes", DataType::Int64, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(clips.clone().map(sentence))),
        Arc::new(audio),
        Arc::new(Int64Array::from_iter_values(clips.map(|i| i as i64))),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

#[tokio::test]
async fn structs_of_audio_may_tell_a_sampling_rate() {
    for (name, bytes) in [
        ("x.parquet", durations::parquet_of(&hf_audio(0..50))),
        ("x.arrow", durations::stream_of(&hf_audio(0..50))),
    ] {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), name, bytes);
        let dataset = open(root.path()).await.unwrap();
        let names: Vec<&str> =
            dataset.catalog().schema().fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, ["sentence", "audio_path", "audio_sampling_rate", "up_votes", "audio"], "{name}");
        let rows = all_rows(&dataset).await;
        assert_eq!(
            payloads(&rows, "audio"),
            (0..50).map(|i| Some(clip(i, 0.5 + i as f64))).collect::<Vec<_>>()
        );
        assert!(ints(&rows, "audio_sampling_rate").iter().all(|&r| r == 48_000));
        assert_eq!(dataset.filter("audio_sampling_rate = 48000 and up_votes < 9").await.unwrap().len(), 9);
    }
}
