//! Folders of files that belong together by their names.

use crate::format_common::*;
use crate::storage_support::{S3, with_config};
use bytes::Bytes;
use feedstock_dataset::{
    AudioProbe, BadShards, BlockId, CatalogStore, Dataset, ErrorKind, Layout, OpenOptions, Result, SampleId,
};
use feedstock_testkit::S3Server;
use std::collections::BTreeMap;
use std::path::Path;

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let at = root.join(name);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, bytes).unwrap();
}

fn patterns(pair: &[(&str, &str)]) -> BTreeMap<String, String> {
    pair.iter().map(|(column, text)| ((*column).to_owned(), (*text).to_owned())).collect()
}

const IMAGES_AND_MASKS: [(&str, &str); 2] = [("mask", "annotations/{}.png"), ("image", "images/{}.jpg")];

fn pairs(store: CatalogStore) -> OpenOptions {
    OpenOptions { pair: patterns(&IMAGES_AND_MASKS), ..options(store) }
}

/// Returns the key of a sample: `training/0007` or `validation/0008`.
fn key(i: u64) -> String {
    format!("{}/{i:04}", ["validation", "training"][i as usize % 2])
}

fn write(root: &Path, samples: u64) {
    for i in 0..samples {
        put(root, &format!("images/{}.jpg", key(i)), &picture(i, 3_000));
        put(root, &format!("annotations/{}.png", key(i)), &picture(1_000 + i, 500));
    }
}

fn sorted_keys(samples: u64) -> Vec<(String, u64)> {
    let mut keys: Vec<(String, u64)> = (0..samples).map(|i| (key(i), i)).collect();
    keys.sort();
    keys
}

async fn check(dataset: &Dataset, samples: u64) {
    let rows = all_rows(dataset).await;
    let (keys, images, masks) = (texts(&rows, "key"), payloads(&rows, "image"), payloads(&rows, "mask"));
    assert_eq!(keys.len() as u64, samples);
    for (row, (key, i)) in sorted_keys(samples).into_iter().enumerate() {
        assert_eq!(keys[row], key);
        assert_eq!(images[row].as_deref().unwrap(), picture(i, 3_000));
        assert_eq!(masks[row].as_deref().unwrap(), picture(1_000 + i, 500));
    }
}

#[tokio::test]
async fn files_with_one_key_are_one_sample() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), 100);
    put(root.path(), "readme.txt", b"about");
    put(root.path(), "images/.hidden.jpg", b"hidden");
    let dataset = Dataset::open_with(path(root.path()), pairs(CatalogStore::Nowhere)).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::Pair, 100));
    assert_eq!(catalog.payload_columns(), ["image", "mask"]);
    assert!(catalog.audio_columns().is_empty());
    assert_eq!(catalog.notes(), ["1 file ignored: no pattern matches"]);
    let names = "images/training/0001.jpg and annotations/training/0001.png";
    assert_eq!(catalog.describe_sample(SampleId(0)), names);
    for id in 0..catalog.blocks() as u32 {
        let (block, samples) = (catalog.block(BlockId(id)), catalog.block_samples(BlockId(id)));
        let bytes = samples.map(|at| sorted_keys(100)[at as usize].1);
        let bytes = bytes.map(|i| picture(i, 3_000).len() + picture(1_000 + i, 500).len()).sum::<usize>();
        assert_eq!(block.bytes, bytes as u64);
        assert!(block.bytes <= 64 << 10);
    }
    check(&dataset, 100).await;
    check(&reopened(&dataset).await, 100).await;
    let validation = dataset.clone().filter("key like 'validation/%'").await.unwrap();
    assert_eq!(validation.len(), 50);
    let only = dataset.clone().columns(&["mask"]).unwrap();
    let block = only.block_reader().fetch(BlockId(0), u64::MAX).await.unwrap();
    assert_eq!(payloads(&[block.rows], "mask")[0].as_deref().unwrap(), picture(1_001, 500));
}

/// Each file costs a request: blocks of tiny files have at most 256 files.
#[tokio::test]
async fn a_block_of_tiny_files_has_both_files_of_128_samples() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..300 {
        put(root.path(), &format!("images/{i:03}.jpg"), b"x");
        put(root.path(), &format!("annotations/{i:03}.png"), b"y");
    }
    let store = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let options = pairs(CatalogStore::Cache(store.path().into()));
        let dataset = Dataset::open_with(path(root.path()), options).await.unwrap();
        let blocks =
            (0..dataset.catalog().blocks() as u32).map(|id| dataset.catalog().block(BlockId(id)).samples);
        assert_eq!(blocks.collect::<Vec<_>>(), [128, 128, 44]);
    }
}

#[tokio::test]
async fn a_stored_catalog_is_of_its_patterns_and_files() {
    let (root, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(root.path(), 40);
    let open = |at: &Path, pair: &[(&str, &str)]| {
        let options =
            OpenOptions { pair: patterns(pair), ..options(CatalogStore::Cache(store.path().into())) };
        let at = path(at).to_owned();
        async move { Dataset::open_with(&at, options).await.unwrap() }
    };
    let built = open(root.path(), &IMAGES_AND_MASKS).await;
    let stored = open(root.path(), &IMAGES_AND_MASKS).await;
    assert_eq!(stored.catalog().hashes(), built.catalog().hashes());
    assert_eq!(all_rows(&stored).await, all_rows(&built).await);
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 1);
    let renamed = open(root.path(), &[("img", "images/{}.jpg"), ("mask", "annotations/{}.png")]).await;
    assert_eq!(renamed.catalog().payload_columns(), ["img", "mask"]);
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 2);

    let copy = tempfile::tempdir().unwrap();
    write(copy.path(), 40);
    let copied = open(copy.path(), &IMAGES_AND_MASKS).await;
    assert_eq!(copied.catalog().content_hash(), built.catalog().content_hash());
    put(root.path(), &format!("annotations/{}.png", key(7)), b"another mask");
    let changed = open(root.path(), &IMAGES_AND_MASKS).await;
    assert_ne!(changed.catalog().content_hash(), built.catalog().content_hash());

    // A sample is the same if all its files are.
    put(root.path(), "images/training/0000.jpg", b"new");
    put(root.path(), "annotations/training/0000.png", b"new");
    let newer = open(root.path(), &IMAGES_AND_MASKS).await;
    let map = newer.samples_of(&built).await.unwrap();
    for (at, (_, i)) in (0..).zip(sorted_keys(40)) {
        let expected = (i != 7).then_some(SampleId(at + 1));
        assert_eq!(map.newer(SampleId(at)), expected, "{i}");
    }
}

#[tokio::test]
async fn a_file_without_its_partner_is_named() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), 40);
    for i in 0..5 {
        let file =
            if i == 1 { format!("images/{}.jpg", key(i)) } else { format!("annotations/{}.png", key(i)) };
        std::fs::remove_file(root.path().join(file)).unwrap();
    }
    let error = message(Dataset::open_with(path(root.path()), pairs(CatalogStore::Nowhere)).await);
    let expected = "5 of 40 samples lack a file: annotations/training/0001.png without images/training/0001.jpg, \
                    images/training/0003.jpg without annotations/training/0003.png, \
                    images/validation/0000.jpg without annotations/validation/0000.png, …; add the files, or set \
                    bad_shards=\"skip\" to leave these samples out";
    assert!(error.contains(expected), "{error}");
    let skipping = OpenOptions { bad_shards: BadShards::Skip, ..pairs(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with(path(root.path()), skipping).await.unwrap();
    assert_eq!(dataset.len(), 35);
    let notes = dataset.catalog().notes().join("; ");
    assert!(
        notes.starts_with("left out (bad_shards=skip): 5 of 40 samples lack a file: annotations/tr"),
        "{notes}"
    );
    let rows = all_rows(&dataset).await;
    let kept = sorted_keys(40).into_iter().filter(|(_, i)| *i >= 5);
    assert_eq!(texts(&rows, "key"), kept.map(|(key, _)| key).collect::<Vec<_>>());
}

#[tokio::test]
async fn options_that_contradict_each_other_or_the_files_are_refused() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), 2);
    let open = |pair: &[(&str, &str)], more: fn(OpenOptions) -> OpenOptions| {
        let options = more(OpenOptions { pair: patterns(pair), ..options(CatalogStore::Nowhere) });
        let at = path(root.path()).to_owned();
        async move { message(Dataset::open_with(&at, options).await) }
    };
    type Case = (&'static [(&'static str, &'static str)], fn(OpenOptions) -> OpenOptions, &'static str);
    let cases: [Case; 9] = [
        (&[("a", "images/{}.jpg"), ("b", "images/x.png")], |o| o, "it must have one {}"),
        (
            &[("a", "{}.jpg"), ("b", "images/{}.jpg")],
            |o| o,
            "the file images/training/0001.jpg matches two patterns, `{}.jpg` of the column a and `images/{}.jpg` of",
        ),
        (
            &[("a", "images/{}.jpg"), ("b", "masks/{}.png")],
            |o| o,
            "no file matches the pattern `masks/{}.png` of the column b; 4 files are there, such as annotations/",
        ),
        (&[("a", "images/{}.jpg"), ("b", "{}.png")], |o| o, "4 of 4 samples lack a file"),
        (
            &IMAGES_AND_MASKS,
            |o| OpenOptions { split: Some("training".into()), ..o },
            "the layout pair has no splits; leave the split training out, or filter",
        ),
        (
            &IMAGES_AND_MASKS,
            |o| OpenOptions { layout: Some(Layout::Folder), ..o },
            "pair is for the layout `pair`; leave the layout out, or set it to `pair`; got `folder`",
        ),
        (
            &IMAGES_AND_MASKS,
            |o| OpenOptions { annotations: Some("x.json".into()), ..o },
            "pair and annotations are for two layouts",
        ),
        (&[], |o| OpenOptions { layout: Some(Layout::Pair), ..o }, "the layout `pair` needs pair; set it"),
        (
            &[],
            |o| OpenOptions { layout: Some(Layout::Coco), ..o },
            "the layout `coco` needs annotations; set it",
        ),
    ];
    for (pair, more, expected) in cases {
        let error = open(pair, more).await;
        assert!(error.contains(expected), "{error}");
    }
    let skipping = |o| OpenOptions { bad_shards: BadShards::Skip, ..o };
    let error = open(&[("a", "images/{}.jpg"), ("b", "{}.png")], skipping).await;
    assert!(error.contains("the data set is empty"), "{error}");
    let named = OpenOptions { layout: Some(Layout::Pair), ..pairs(CatalogStore::Nowhere) };
    assert_eq!(Dataset::open_with(path(root.path()), named).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_with_its_partner() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), 4);
    let dataset = Dataset::open_with(path(root.path()), pairs(CatalogStore::Nowhere)).await.unwrap();
    std::fs::remove_file(root.path().join("annotations/training/0003.png")).unwrap();
    let error = dataset.block_reader().fetch(BlockId(0), u64::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let expected = "sample 1 (images/training/0003.jpg and annotations/training/0003.png): ";
    assert!(error.message().contains(expected), "{error}");
}

/// The description of other data sets is what older workers know. Those refuse the one of pairs: its layout has no name there.
#[tokio::test]
async fn only_descriptions_of_pairs_mention_them() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let folder = serde_json::to_string(&open(root.path()).await.unwrap().spec()).unwrap();
    assert!(!folder.contains("pair") && !folder.contains("annotations"), "{folder}");
    let pairs_at = tempfile::tempdir().unwrap();
    write(pairs_at.path(), 2);
    let dataset = Dataset::open_with(path(pairs_at.path()), pairs(CatalogStore::Nowhere)).await.unwrap();
    let spec = serde_json::to_value(dataset.spec()).unwrap();
    assert_eq!(spec["source"]["uri"]["layout"], "pair");
    assert_eq!(spec["source"]["uri"]["pair"]["mask"], "annotations/{}.png");
}

/// The audio is in the second column: its own files are read for durations.
#[tokio::test]
async fn durations_are_those_of_the_audio_of_a_pair() {
    let root = tempfile::tempdir().unwrap();
    for i in 1..=20usize {
        put(root.path(), &format!("{i:02}.txt"), b"text");
        put(root.path(), &format!("{i:02}.flac"), &vec![0; 1_000 * i]);
    }
    let probe = AudioProbe::new(1, |_, bytes| Some(bytes as f64 / 1_000.0));
    let options = OpenOptions {
        pair: patterns(&[("said", "{}.txt"), ("sound", "{}.flac")]),
        audio_probe: Some(probe),
        ..options(CatalogStore::Nowhere)
    };
    let dataset = Dataset::open_with(path(root.path()), options).await.unwrap();
    assert_eq!(dataset.catalog().audio_columns(), ["sound"]);
    let seconds = dataset.lengths("duration").await.unwrap();
    assert_eq!(seconds.values()[..], (1_u8..=20).map(f32::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn pairs_in_a_bucket_take_one_request_a_file() {
    let s3 = S3::start();
    for i in 0..20 {
        s3.put(&format!("ade/images/{}.jpg", key(i)), &Bytes::from(picture(i, 3_000)));
        s3.put(&format!("ade/annotations/{}.png", key(i)), &Bytes::from(picture(1_000 + i, 500)));
    }
    let storage = with_config(crate::storage_support::options(), S3Server::config_at(&s3.proxy.endpoint()));
    let options = || OpenOptions { storage: storage.clone(), ..pairs(CatalogStore::Beside) };
    let dataset = Dataset::open_with("s3://bucket/ade", options()).await.unwrap();
    s3.proxy.forget();
    check(&dataset, 20).await;
    assert_eq!(s3.proxy.log().len(), 40);
    let again: Result<Dataset> = Dataset::open_with("s3://bucket/ade/", options()).await;
    check(&again.unwrap(), 20).await;
}

#[tokio::test]
async fn pairs_join_other_data_sets() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), 10);
    let open = || Dataset::open_with(path(root.path()), pairs(CatalogStore::Nowhere));
    let parts = vec![open().await.unwrap().named("a"), open().await.unwrap().named("b")];
    let joined = Dataset::concat(parts).unwrap();
    let rows = all_rows(&joined).await;
    let masks = payloads(&rows, "mask");
    assert_eq!(masks.len(), 20);
    assert_eq!(masks[..10], masks[10..]);
    let names = "images/training/0001.jpg and annotations/training/0001.png";
    assert!(joined.catalog().describe_sample(SampleId(10)).contains(names));
}
