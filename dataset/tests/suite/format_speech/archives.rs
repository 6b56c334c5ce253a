//! Common Voice's archive: a `.tar.gz` and its seekable copy, a `.tar` in place.

use super::*;
use feedstock_dataset::{ErrorKind, Layout, SampleId, StorageOptions};
use feedstock_testkit::S3Server;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The release in one tar: audio clips of a locale in the tar's order, then the tables of the locale.
fn archive() -> Vec<u8> {
    let mut members = release();
    members.sort_by_key(|(name, bytes)| (name.contains("train.tsv"), bytes.len(), name.clone()));
    tar_of(
        &members
            .into_iter()
            .map(|(name, bytes)| (format!("cv-corpus-17.0-2024-03-15/{name}"), bytes))
            .collect::<Vec<_>>(),
    )
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn open_archive(at: &str, copies: &Path, storage: StorageOptions) -> Result<Dataset> {
    let options = OpenOptions {
        storage,
        split: Some("train".to_owned()),
        archives: Some(copies.to_owned()),
        ..options(CatalogStore::Nowhere)
    };
    Dataset::open_with(at, options).await
}

fn copies(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> =
        entries.map(|e| e.unwrap().path()).filter(|p| !path(p).ends_with("lock")).collect();
    found.sort();
    found
}

/// Returns rows by path, because the order in a tar differs.
async fn by_path(dataset: &Dataset) -> Vec<(String, Option<Vec<u8>>, Option<f64>, String)> {
    let rows = all_rows(dataset).await;
    let columns = texts(&rows, "path").into_iter().zip(payloads(&rows, "audio"));
    let mut found: Vec<_> = columns
        .zip(floats(&rows, "duration").into_iter().zip(texts(&rows, "sentence")))
        .map(|((path, audio), (seconds, said))| (path, audio, seconds, said))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

async fn unpacked() -> Vec<(String, Option<Vec<u8>>, Option<f64>, String)> {
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in release() {
        put(root.path(), &name, bytes);
    }
    by_path(&open_split(root.path(), "train").await.unwrap()).await
}

#[tokio::test]
async fn a_compressed_archive_is_copied_once() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cache = cache.path().join("archives");
    put(data.path(), "cv-corpus-17.0-2024-03-15-de.tar.gz", gzip(&archive()));
    let at = data.path().join("cv-corpus-17.0-2024-03-15-de.tar.gz");
    let open = || open_archive(path(&at), &cache, StorageOptions::default());
    let dataset = open().await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::CommonVoiceTar, 90));
    assert_eq!(by_path(&dataset).await, unpacked().await);
    let rows = all_rows(&dataset).await;
    let missing = payloads(&rows, "audio").iter().position(Option::is_none).unwrap();
    let told = catalog.describe_sample(SampleId(missing as u64));
    assert!(told.contains("de/train.tsv line 9 (no audio clip common_voice_de_7.mp3)"), "{told}");
    assert!(told.starts_with("cv-corpus-17.0-2024-03-15-de.tar.gz member"), "{told}");
    let made = copies(&cache);
    assert_eq!(made.len(), 1, "{made:?}");
    let written = std::fs::metadata(&made[0]).unwrap().modified().unwrap();
    let again = open().await.unwrap();
    assert_eq!(std::fs::metadata(&made[0]).unwrap().modified().unwrap(), written, "it was copied twice");
    assert_eq!(again.catalog().content_hash(), catalog.content_hash());
    // Without its copy: the same data set. With other content: another data set, and another process may read the old copy.
    std::fs::remove_file(&made[0]).unwrap();
    assert_eq!(open().await.unwrap().catalog().content_hash(), catalog.content_hash());
    let mut other = archive();
    other.truncate(other.len() - 512);
    put(data.path(), "new", gzip(&other));
    std::fs::rename(data.path().join("new"), &at).unwrap();
    assert_ne!(open().await.unwrap().catalog().content_hash(), catalog.content_hash());
    let now = copies(&cache);
    assert!(now.len() == 2 && now.contains(&made[0]), "the copy of the old archive is gone: {now:?}");
    // The first copy was not opened for a week, and the other one was; a killed process left a part of a copy.
    let second: Vec<PathBuf> = now.into_iter().filter(|copy| *copy != made[0]).collect();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 24 * 60 * 60);
    let times = std::fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago);
    for copy in [&made[0], &second[0]] {
        std::fs::File::options().write(true).open(copy).unwrap().set_times(times).unwrap();
    }
    open().await.unwrap();
    assert_eq!(copies(&cache).len(), 2, "a copy is removed when another one is made, not earlier");
    let name = made[0].file_name().unwrap().to_str().unwrap();
    put(&cache, &format!(".{name}.tmp-1"), b"half");
    other.extend([0; 1024]); // more of the tar's end
    put(data.path(), "new", gzip(&other));
    std::fs::rename(data.path().join("new"), &at).unwrap();
    open().await.unwrap();
    let now = copies(&cache);
    assert!(now.len() == 2 && now.contains(&second[0]) && !now.contains(&made[0]), "{now:?}");
}

#[tokio::test]
async fn a_stored_catalog_is_rebuilt_when_its_copy_is_gone() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    put(data.path(), "de.tgz", gzip(&archive()));
    let open = || {
        let options = OpenOptions {
            split: Some("train".to_owned()),
            archives: Some(cache.path().join("archives")),
            ..options(CatalogStore::Cache(cache.path().join("catalogs")))
        };
        Dataset::open_with(path(data.path()).to_owned().leak(), options)
    };
    let first = open().await.unwrap();
    let rows = all_rows(&first).await;
    assert_eq!(all_rows(&open().await.unwrap()).await, rows);
    std::fs::remove_file(&copies(&cache.path().join("archives"))[0]).unwrap();
    let again = open().await.unwrap();
    assert_eq!(all_rows(&again).await, rows);
    assert_eq!(again.catalog().content_hash(), first.catalog().content_hash());
}

#[tokio::test]
async fn a_tar_is_read_in_place_and_in_its_own_order() {
    let data = tempfile::tempdir().unwrap();
    put(data.path(), "de.tar", archive());
    let none = data.path().join("none");
    let dataset =
        open_archive(path(&data.path().join("de.tar")), &none, StorageOptions::default()).await.unwrap();
    assert_eq!(dataset.catalog().layout(), Layout::CommonVoiceTar);
    assert_eq!(by_path(&dataset).await, unpacked().await);
    assert!(!none.exists(), "nothing is copied");
    // A block is one read.
    let before = dataset.storage().stats().requests;
    dataset.block_reader().fetch(feedstock_dataset::BlockId(0), 0).await.unwrap();
    assert_eq!(dataset.storage().stats().requests - before, 1);
    let error = open(data.path()).await.unwrap_err();
    assert!(error.message().contains("holds several splits: dev (of 2 folders), train"), "{error}");
}

#[tokio::test]
async fn archives_in_a_bucket() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = S3Server::start(folder.path()).unwrap();
    server.create_bucket("voices").unwrap();
    server.put("voices", "a/cv.tar.gz", gzip(&archive())).unwrap();
    server.put("voices", "b/cv.tar", archive()).unwrap();
    for uri in ["s3://voices/a/cv.tar.gz", "s3://voices/b"] {
        let mut storage = StorageOptions::default();
        storage.config.extend(server.config().into_iter().map(|(k, v)| (k, v.into())));
        let dataset = open_archive(uri, cache.path(), storage).await.unwrap();
        assert_eq!(by_path(&dataset).await, unpacked().await, "{uri}");
    }
    assert_eq!(copies(cache.path()).len(), 1);
}

#[tokio::test]
async fn a_damaged_archive_leaves_nothing_behind() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let whole = gzip(&archive());
    let mut bent = whole.clone();
    bent[whole.len() / 2] ^= 0x55;
    for (content, said) in [
        (whole[..whole.len() / 2].to_vec(), "cut off"),
        (whole[..whole.len() - 4].to_vec(), "cut off"),
        (Vec::new(), "cut off"),
        (bent, "damaged"),
        (b"this is not an archive at all".to_vec(), "not a readable .tar.gz"),
    ] {
        put(data.path(), "x.tar.gz", &content);
        let at = data.path().join("x.tar.gz");
        let error = open_archive(path(&at), cache.path(), StorageOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.message().contains(said) && error.message().contains("x.tar.gz"), "{said}: {error}");
        assert!(copies(cache.path()).is_empty(), "{:?}", copies(cache.path()));
    }
    // Whole, but of something else.
    put(data.path(), "x.tar.gz", gzip(&tar_of(&[("a.jpg".into(), b"x".to_vec())])));
    let at = data.path().join("x.tar.gz");
    let error = open_archive(path(&at), cache.path(), StorageOptions::default()).await.unwrap_err();
    assert!(error.message().contains("not an archive of Common Voice"), "{error}");
    // The tar itself was cut before it was compressed.
    put(data.path(), "y.tar.gz", gzip(&archive()[..20_000]));
    let at = data.path().join("y.tar.gz");
    let error = open_archive(path(&at), cache.path(), StorageOptions::default()).await.unwrap_err();
    assert!(error.message().contains("y.tar.gz") && error.message().contains("cut off"), "{error}");
    // There is no place for the copy.
    let blocked = data.path().join("file");
    put(data.path(), "file", b"");
    put(data.path(), "z.tar.gz", &whole);
    let error = open_archive(path(&data.path().join("z.tar.gz")), &blocked, StorageOptions::default()).await;
    let error = error.unwrap_err();
    assert!(error.message().contains("FEEDSTOCK_CACHE"), "{error}");
}

/// A `.tar.gz` of 64 KiB that unpacks to 64 MiB, and one that is not an archive of Common Voice.
#[tokio::test]
async fn what_is_refused_leaves_nothing_on_the_disk() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    put(data.path(), "bomb.tar.gz", gzip(&vec![0; 64 << 20]));
    put(data.path(), "images.tar.gz", gzip(&tar_of(&[("a.jpg".into(), b"x".to_vec())])));
    put(data.path(), "text.tar.gz", gzip(&vec![b'x'; 100_000]));
    for (name, said) in
        [("bomb", "100 times its size"), ("images", "decompress it (`gunzip"), ("text", "text.tar.gz")]
    {
        let at = data.path().join(format!("{name}.tar.gz"));
        let error = open_archive(path(&at), cache.path(), StorageOptions::default()).await.err().unwrap();
        assert!(error.message().contains(said), "{error}");
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert_eq!(copies(cache.path()), [] as [PathBuf; 0], "{name}: {error}");
    }
}
