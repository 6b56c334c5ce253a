//! Wrong TSVs: each gives a clear error that names the file and the line.

use super::*;
use feedstock_dataset::{ErrorKind, Layout};

async fn refused(tables: &[(&str, &str)]) -> String {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "de/clips/a.mp3", b"a");
    for (name, text) in tables {
        put(root.path(), name, text);
    }
    let error = open(root.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    error.message().to_owned()
}

#[tokio::test]
async fn a_table_with_a_column_or_a_field_less() {
    let no_path = refused(&[("de/train.tsv", "client_id\tsentence\nx\thi\n")]).await;
    assert!(
        no_path.contains("de/train.tsv: no column path") && no_path.contains("client_id, sentence"),
        "{no_path}"
    );
    let short = refused(&[("de/train.tsv", "client_id\tpath\tsentence\nx\ta.mp3\thi\nx\ta.mp3\n")]).await;
    assert!(short.contains("de/train.tsv line 3: 2 fields, where the header has 3"), "{short}");
    let long = refused(&[("de/train.tsv", "client_id\tpath\tsentence\nx\ta.mp3\thi\tthere\n")]).await;
    assert!(long.contains("line 2: 4 fields"), "{long}");
    let votes = refused(&[("de/train.tsv", "path\tup_votes\na.mp3\t2.5\n")]).await;
    assert!(votes.contains("line 2: up_votes: '2.5' is not a whole number"), "{votes}");
    let empty = refused(&[("de/train.tsv", "")]).await;
    assert!(empty.contains("without a header"), "{empty}");
    let no_rows = refused(&[("de/train.tsv", "client_id\tpath\tsentence\n")]).await;
    assert!(no_rows.contains("no samples"), "{no_rows}");
}

#[tokio::test]
async fn durations_that_are_none() {
    let good = ("de/train.tsv", "client_id\tpath\tsentence\nx\ta.mp3\thi\n");
    let bad = refused(&[good, ("de/clip_durations.tsv", "clip\tduration[ms]\na.mp3\tlong\n")]).await;
    assert!(bad.contains("de/clip_durations.tsv line 2: 'long'"), "{bad}");
    let other = refused(&[good, ("de/clip_durations.tsv", "file\tms\na.mp3\t1\n")]).await;
    assert!(other.contains("`clip` and `duration[ms]` are needed"), "{other}");
}

#[tokio::test]
async fn none_of_the_clips_is_there() {
    let lost = refused(&[("de/train.tsv", "client_id\tpath\tsentence\nx\tb.mp3\thi\nx\tc.mp3\thi\n")]).await;
    assert!(lost.contains("none of its audio clips") && lost.contains("b.mp3"), "{lost}");
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "de/train.tsv", "client_id\tpath\tsentence\nx\ta.mp3\thi\n");
    let error = open(&root.path().join("de/train.tsv")).await.unwrap_err();
    assert!(
        error.message().contains("none of its audio clips") && error.message().contains("clips/"),
        "{error}"
    );
}

#[tokio::test]
async fn a_table_that_is_no_common_voice_is_a_manifest() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "clips/a.mp3", b"a");
    put(root.path(), "train.tsv", "path\ttext\nclips/a.mp3\thi\n");
    let dataset = open(&root.path().join("train.tsv")).await.unwrap();
    assert_eq!(dataset.catalog().layout(), Layout::Manifest);
    // With the layout named, a path is that of an audio clip.
    let options = OpenOptions { layout: Some(Layout::CommonVoice), ..options(CatalogStore::Nowhere) };
    put(root.path(), "train.tsv", "path\ttext\na.mp3\thi\n");
    let dataset = Dataset::open_with(path(&root.path().join("train.tsv")), options).await.unwrap();
    assert_eq!(payloads(&all_rows(&dataset).await, "audio"), [Some(b"a".to_vec())]);
    for name in ["common_voice", "common_voice_tar", "common_voice_hf"] {
        assert_eq!(name.parse::<Layout>().unwrap().name(), name);
    }
}
