//! Common Voice unpacked.

use super::*;
use feedstock_dataset::{ErrorKind, Layout, SampleId, StorageOptions};
use feedstock_testkit::S3Server;

fn write_release(root: &Path) {
    for (name, bytes) in release() {
        put(root, &name, bytes);
    }
}

#[tokio::test]
async fn a_release_is_read_by_split_in_all_its_locales() {
    let root = tempfile::tempdir().unwrap();
    write_release(root.path());
    let error = open(root.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    for part in ["dev (of 2 folders)", "train (of 2 folders)", "validated", "split = train", "de/train.tsv"] {
        assert!(error.message().contains(part), "{part} is missing in: {error}");
    }
    assert!(!error.message().contains("reported"), "{error}");
    let error = open_split(root.path(), "test").await.unwrap_err();
    assert!(error.message().contains("no split test"), "{error}");

    let dataset = open_split(root.path(), "train").await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::CommonVoice, 90));
    assert_eq!(
        (catalog.payload_columns(), catalog.audio_columns()),
        (&["audio".to_owned()][..], &["audio".to_owned()][..])
    );
    assert_eq!(catalog.objects().len(), 2 + 2 + 89, "the TSVs, the durations and the audio clips in use");
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "audio"), clips_of_train());
    let numbers: Vec<u64> = LOCALES.iter().flat_map(|(_, train, _)| train.clone()).collect();
    assert_eq!(texts(&rows, "sentence"), numbers.iter().map(|&i| sentence(i)).collect::<Vec<_>>());
    assert_eq!(ints(&rows, "up_votes"), numbers.iter().map(|&i| i as i64 % 4).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "path")[89], clip_name("fr", 129));
    assert_eq!((texts(&rows, "locale")[0].as_str(), texts(&rows, "locale")[89].as_str()), ("de", "fr"));
    assert!(texts(&rows, "split").iter().all(|s| s == "train"));
    assert!(optional_texts(&rows, "age").iter().all(Option::is_none), "an empty field is null");
    assert!(optional_texts(&rows, "segment").iter().all(Option::is_none), "even before CRLF");
    let expected = numbers.iter().map(|&i| (i != 9).then(|| (1_000 + i * 10) as f64 / 1_000.0));
    assert_eq!(floats(&rows, "duration"), expected.collect::<Vec<_>>());

    // What is missing is reported by TSV, line and audio clip.
    assert_eq!(
        catalog.describe_sample(SampleId(7)),
        "de/train.tsv line 9 (no audio clip common_voice_de_7.mp3)"
    );
    assert_eq!(catalog.describe_sample(SampleId(60)), "fr/train.tsv line 2 (common_voice_fr_100.mp3)");
    let notes = catalog.notes().join("\n");
    assert!(notes.contains("de/train.tsv: 1 of 60 rows name audio clips that do not exist"), "{notes}");
    assert!(notes.contains("line 9 (common_voice_de_7.mp3)"), "{notes}");
    assert!(notes.contains("de/train.tsv: 1 row without a duration"), "{notes}");
    let one = dataset.block_reader().fetch_sample(SampleId(7), 0).await.unwrap();
    assert_eq!(payloads(&[one.rows], "audio"), [None]);

    // Filters read no audio.
    let before = dataset.storage().stats().read_bytes;
    let some = dataset.filter("duration < 1.3 and up_votes >= 2 and locale = 'de'").await.unwrap();
    assert_eq!(some.len(), numbers.iter().filter(|&&i| i < 30 && i != 9 && i % 4 >= 2).count() as u64);
    assert_eq!(some.storage().stats().read_bytes, before);
}

#[tokio::test]
async fn tsvs_are_named_by_uri_and_pattern() {
    let root = tempfile::tempdir().unwrap();
    write_release(root.path());
    let by_split = all_rows(&open_split(root.path(), "train").await.unwrap()).await;
    for pattern in ["{de,fr}/train.tsv", "*/train.tsv", "??/tr*.tsv"] {
        let dataset = open(&root.path().join(pattern)).await.unwrap();
        assert_eq!(dataset.catalog().layout(), Layout::CommonVoice, "{pattern}");
        assert_eq!(all_rows(&dataset).await, by_split, "{pattern}");
    }
    let dataset = open(&root.path().join("fr/dev.tsv")).await.unwrap();
    let rows = all_rows(&dataset).await;
    assert_eq!(
        payloads(&rows, "audio"),
        (130..140).map(|i| Some(clip(i, 0.5 + i as f64))).collect::<Vec<_>>()
    );
    assert_eq!(floats(&rows, "duration")[0], Some(2.3));
    assert_eq!(dataset.catalog().describe_sample(SampleId(0)), "dev.tsv line 2 (common_voice_fr_130.mp3)");
    let dataset = open_split(&root.path().join("de"), "validated").await.unwrap();
    assert_eq!(dataset.len(), 80);
    // Several splits, if the URI names them.
    let dataset = open(&root.path().join("de/{dev,train}.tsv")).await.unwrap();
    assert_eq!(dataset.len(), 80);
    assert!(dataset.catalog().notes().iter().any(|n| n.contains("dev, train together")));
    assert_eq!(dataset.filter("split = 'dev'").await.unwrap().len(), 20);
    // A wildcard leaves out tables that list no audio clips.
    assert_eq!(open(&root.path().join("de/*.tsv")).await.unwrap().len(), 160);
    let url = format!("file://{}/de/dev.tsv", path(root.path()));
    let dataset = Dataset::open_with(&url, options(CatalogStore::Nowhere)).await.unwrap();
    assert_eq!(payloads(&all_rows(&dataset).await, "audio").len(), 20);
}

#[tokio::test]
async fn releases_before_5_have_no_locale_and_shorter_names() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("corpus");
    let mut text = "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccent\n".to_owned();
    for i in 0..10u64 {
        put(&root, &format!("clips/{i:064x}.mp3"), clip(i, 1.0));
        text += &format!("c\t{i:064x}\tsaid\t1\t0\t\t\t{}\n", if i == 3 { "us" } else { "" });
    }
    put(&root, "train.tsv", &text);
    let times: String = (0..10u64).map(|i| format!("{i:064x}.mp3\t{}\n", i * 1_000)).collect();
    put(&root, "times.txt", format!("{times}that is all\n"));
    let dataset = open(&root).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::CommonVoice, 10));
    assert!(catalog.schema().index_of("locale").is_err() && catalog.schema().index_of("accent").is_err());
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "audio"), (0..10).map(|i| Some(clip(i, 1.0))).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "path")[3], format!("{:064x}.mp3", 3));
    assert_eq!(optional_texts(&rows, "accents")[2..4], [None, Some("us".to_owned())]);
    assert_eq!(floats(&rows, "duration")[9], Some(9.0));
    assert!(catalog.notes().iter().any(|n| n.contains("times.txt: 1 line")), "{:?}", catalog.notes());
}

/// Releases with different columns are read as one data set.
#[tokio::test]
async fn releases_of_different_columns_are_read_together() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "de/clips/a.mp3", b"a");
    put(root.path(), "de/train.tsv", "client_id\tpath\tsentence\taccent\nx\ta.mp3\tja\tat\n");
    put(root.path(), "en/clips/b.mp3", b"b");
    put(
        root.path(),
        "en/train.tsv",
        "client_id\tpath\tsentence\tvariant\tlocale\ny\tb.mp3\tyes\tscots\ten\n",
    );
    let dataset = open(root.path()).await.unwrap();
    let names: Vec<&str> = dataset.catalog().schema().fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["client_id", "path", "sentence", "accents", "variant", "locale", "split", "audio"]);
    let rows = all_rows(&dataset).await;
    assert_eq!(texts(&rows, "locale"), ["de", "en"], "the folder names the locale if the TSV does not");
    assert_eq!(optional_texts(&rows, "variant"), [None, Some("scots".to_owned())]);
    assert_eq!(payloads(&rows, "audio"), [Some(b"a".to_vec()), Some(b"b".to_vec())]);
}

#[tokio::test]
async fn a_stored_catalog_serves_the_same_rows_until_a_tsv_changes() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_release(root.path());
    let store = || CatalogStore::Cache(cache.path().into());
    let built = open_as(path(root.path()), "train", store()).await.unwrap();
    let before = built.catalog().content_hash();
    let stored = open_as(path(root.path()), "train", store()).await.unwrap();
    assert_eq!(stored.catalog().content_hash(), before);
    assert_eq!(all_rows(&stored).await, all_rows(&built).await);
    assert_eq!(stored.catalog().describe_sample(SampleId(7)), built.catalog().describe_sample(SampleId(7)));
    assert_eq!(stored.catalog().audio_columns(), ["audio"]);
    let dev = open_as(path(root.path()), "dev", store()).await.unwrap();
    assert_eq!(dev.len(), 30, "another split is another catalog");
    // An audio clip that the split does not use changes nothing that the order depends on.
    put(root.path(), "de/clips/unused.mp3", b"x");
    let same = open_as(path(root.path()), "train", store()).await.unwrap();
    assert_eq!(same.catalog().content_hash(), before);
    put(root.path(), "de/train.tsv", table("de", 0..50, "\n"));
    let changed = open_as(path(root.path()), "train", store()).await.unwrap();
    assert_eq!(changed.len(), 80);
    assert_ne!(changed.catalog().content_hash(), before);
}

#[tokio::test]
async fn a_release_in_a_bucket_is_read_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = S3Server::start(folder.path()).unwrap();
    server.create_bucket("voices").unwrap();
    for (name, bytes) in release() {
        server.put("voices", &format!("cv-17/{name}"), bytes).unwrap();
    }
    let open = |uri: &'static str, split: Option<&str>| {
        let mut storage = StorageOptions::default();
        storage.config.extend(server.config().into_iter().map(|(k, v)| (k, v.into())));
        let options =
            OpenOptions { storage, split: split.map(str::to_owned), ..options(CatalogStore::Nowhere) };
        Dataset::open_with(uri, options)
    };
    let dataset = open("s3://voices/cv-17", Some("train")).await.unwrap();
    assert_eq!(payloads(&all_rows(&dataset).await, "audio"), clips_of_train());
    for uri in ["s3://voices/cv-17/*/train.tsv", "s3://voices/cv-17/{de,fr}/train.tsv"] {
        assert_eq!(payloads(&all_rows(&open(uri, None).await.unwrap()).await, "audio"), clips_of_train());
    }
}
