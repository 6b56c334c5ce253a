//! Common Voice as Hugging Face's loading scripts expect it.

use super::*;
use feedstock_dataset::{Layout, SampleId};

/// Writes `de` with two tars of `train` and one of `test`, and `fr` with one of `train`; each tar has one leading directory.
/// Audio clip 3 of `de` is missing, and an audio clip without a row is in the last tar.
fn write(root: &Path) {
    let tar = |locale: &str, split: &str, i: usize, clips: Vec<u64>| {
        let folder = format!("{locale}_{split}_{i}");
        let mut members: Vec<(String, Vec<u8>)> = clips
            .iter()
            .map(|&c| (format!("{folder}/{}", clip_name(locale, c)), clip(c, c as f64)))
            .collect();
        if locale == "fr" {
            members.push((format!("{folder}/stray.mp3"), b"no row".to_vec()));
        }
        put(root, &format!("audio/{locale}/{split}/{folder}.tar"), tar_of(&members));
    };
    tar("de", "train", 0, (0..20).rev().filter(|&c| c != 3).collect());
    tar("de", "train", 1, (20..30).collect());
    tar("de", "test", 0, (30..35).collect());
    tar("fr", "train", 0, (40..50).collect());
    put(root, "transcript/de/train.tsv", table("de", 0..30, "\n"));
    put(root, "transcript/de/test.tsv", table("de", 30..35, "\n"));
    put(root, "transcript/fr/train.tsv", table("fr", 40..50, "\n"));
    put(root, "n_shards.json", r#"{"de": {"train": 3, "test": 1}, "fr": {"train": 1}}"#);
    put(root, "README.md", "about");
}

#[tokio::test]
async fn tars_and_transcripts_are_joined_by_clip() {
    let root = tempfile::tempdir().unwrap();
    write(root.path());
    let error = open(root.path()).await.unwrap_err();
    assert!(error.message().contains("test, train (of 2 folders)"), "{error}");
    let dataset = open_split(root.path(), "train").await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::CommonVoiceHf, 40));
    let rows = all_rows(&dataset).await;
    // In the tars' order; what has no audio clip comes last in its TSV.
    let order: Vec<u64> = (0..20).rev().filter(|&c| c != 3).chain(20..30).chain([3]).chain(40..50).collect();
    let clips = order.iter().map(|&c| (c != 3).then(|| clip(c, c as f64)));
    assert_eq!(payloads(&rows, "audio"), clips.collect::<Vec<_>>());
    assert_eq!(texts(&rows, "sentence"), order.iter().map(|&c| sentence(c)).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "locale")[29..31], ["de", "fr"]);
    assert_eq!(
        catalog.describe_sample(SampleId(29)),
        "transcript/de/train.tsv line 5 (no audio clip common_voice_de_3.mp3)"
    );
    let notes = catalog.notes().join("\n");
    for part in [
        "1 of 30 rows",
        "states 3 tars of audio/de/train/, but 2 are there",
        "audio/fr/train/: 1 audio clip left out",
    ] {
        assert!(notes.contains(part), "{part} is missing in: {notes}");
    }
    let test = open_split(root.path(), "test").await.unwrap();
    assert_eq!(test.len(), 5);
}

#[tokio::test]
async fn a_transcript_names_its_tars() {
    let root = tempfile::tempdir().unwrap();
    write(root.path());
    let dataset = open(&root.path().join("transcript/de/test.tsv")).await.unwrap();
    assert_eq!(dataset.catalog().layout(), Layout::CommonVoiceHf);
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "audio"), (30..35).map(|c| Some(clip(c, c as f64))).collect::<Vec<_>>());
    let both = open(&root.path().join("transcript/*/train.tsv")).await.unwrap();
    let by_split = open_split(root.path(), "train").await.unwrap();
    assert_eq!(all_rows(&both).await, all_rows(&by_split).await);
    std::fs::remove_file(root.path().join("transcript/fr/train.tsv")).unwrap();
    let error = open_split(root.path(), "train").await.unwrap_err();
    assert!(error.message().contains("audio/fr/train/ has no transcript/fr/train.tsv"), "{error}");
}

/// A copy of all transcripts, but of some locales' tars only.
#[tokio::test]
async fn transcripts_without_tars_are_told() {
    let root = tempfile::tempdir().unwrap();
    write(root.path());
    std::fs::remove_dir_all(root.path().join("audio/fr")).unwrap();
    let dataset = open_split(root.path(), "train").await.unwrap();
    assert_eq!(dataset.len(), 30);
    let notes = dataset.catalog().notes().join("\n");
    assert!(
        notes.contains("1 transcript left out, without tars below audio/: transcript/fr/train.tsv"),
        "{notes}"
    );
    // Another split lacks nothing.
    let test = open_split(root.path(), "test").await.unwrap();
    assert!(!test.catalog().notes().join("\n").contains("left out"), "{:?}", test.catalog().notes());
    put(root.path(), "transcript/fr/dev.tsv", table("fr", 50..55, "\n"));
    let error = open_split(root.path(), "dev").await.unwrap_err();
    assert!(error.message().contains("transcript/fr/dev.tsv has no tars in audio/fr/dev/"), "{error}");
    put(root.path(), "audio/fr/train/README", "no tar");
    let error = open(&root.path().join("transcript/fr/train.tsv")).await.unwrap_err();
    assert!(error.message().contains("no tars in") && error.message().contains("audio/fr/train/"), "{error}");
}
