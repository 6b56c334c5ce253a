//! A cursor belongs to the data, wherever they were copied, but not to data that changed.

use crate::format_common::*;
use crate::storage_support::with_config;
use arrow::array::{ArrayRef, DictionaryArray, StringArray};
use arrow::datatypes::Int32Type;
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{AudioProbe, CatalogStore, Cursor, Dataset, Layout, OpenOptions, Position, Shuffle};
use feedstock_testkit::S3Server;
use parquet::arrow::ArrowWriter;
use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Data, catalogs and cursors of commit 28fa0fc, made by `fixtures/make-released.py`.
fn released() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/released")
}

const KINDS: [(&str, &str); 5] =
    [("parquet", ""), ("ipc", ""), ("folder", ""), ("webdataset", ""), ("manifest", "list.csv")];

fn cache(folder: &Path) -> OpenOptions {
    OpenOptions { block_bytes: 4096, ..options(CatalogStore::Cache(folder.into())) }
}

fn shuffle() -> Shuffle {
    Shuffle::seeded(7)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let at = entry.unwrap().path();
        if at.is_dir() { found.extend(files(&at)) } else { found.push(at) }
    }
    found.sort();
    found
}

/// Copies as `cp -r` does: names and bytes stay, inodes and times do not. Catalogs next to the data are not copied.
fn copy(from: &Path, to: &Path) {
    for file in
        files(from).into_iter().filter(|file| !file.components().any(|c| c.as_os_str() == "_feedstock"))
    {
        let at = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::copy(&file, &at).unwrap();
    }
}

fn touch(folder: &Path) {
    let later = FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(5));
    for file in files(folder) {
        File::options().write(true).open(file).unwrap().set_times(later).unwrap();
    }
}

async fn open(at: &Path, options: OpenOptions) -> Dataset {
    Dataset::open_with(path(at), options).await.unwrap()
}

fn cursor(dataset: &Dataset) -> Cursor {
    dataset.plan(&shuffle()).unwrap().cursor(1, Position(16))
}

fn refusal(dataset: &Dataset, cursor: &Cursor) -> String {
    dataset.plan(&shuffle()).unwrap().check(cursor).unwrap_err().to_string()
}

/// `cp -r`, `touch`, and another node's copy: the same identity, the same order, the same rows.
#[tokio::test]
async fn a_copy_of_any_kind_of_data_takes_the_cursor() {
    for (kind, file) in KINDS {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let caches = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        copy(&released().join("data").join(kind), first.path());
        copy(first.path(), second.path());
        touch(second.path());
        let original = open(&first.path().join(file), cache(caches[0].path())).await;
        let saved = cursor(&original);
        let copied = open(&second.path().join(file), cache(caches[1].path())).await;
        assert_eq!(copied.catalog().hashes().identity, original.catalog().hashes().identity, "{kind}");
        copied.plan(&shuffle()).unwrap().check(&saved).unwrap();
        let rows = all_rows(&original).await;
        touch(first.path());
        let touched = open(&first.path().join(file), cache(caches[0].path())).await;
        touched.plan(&shuffle()).unwrap().check(&saved).unwrap();
        assert_ne!(
            touched.place_hash(),
            original.place_hash(),
            "{kind}: the held bytes are not the current ones"
        );
        assert_eq!(all_rows(&touched).await, rows, "{kind}: reads are guarded by the new times");
        assert_eq!(all_rows(&copied).await, rows, "{kind}");
    }
}

#[tokio::test]
async fn other_blocks_are_another_order_of_the_same_data() {
    let data = released().join("data/parquet");
    let folder = tempfile::tempdir().unwrap();
    copy(&data, folder.path());
    let fine = open(folder.path(), options(CatalogStore::Nowhere)).await;
    let coarse =
        open(folder.path(), OpenOptions { block_bytes: 4096, ..options(CatalogStore::Nowhere) }).await;
    assert_eq!(coarse.catalog().content_hash(), fine.catalog().content_hash());
    let refusal = refusal(&coarse, &cursor(&fine));
    assert!(refusal.contains("cut into blocks") && refusal.contains("block_bytes"), "{refusal}");
}

/// Same names and sizes, other values: the footers differ, and the guard keeps an open data set from mixing them.
#[tokio::test]
async fn files_of_equal_size_and_other_footers_are_other_data() {
    let data = tempfile::tempdir().unwrap();
    let at = data.path().join("a.parquet");
    let write = |rows: std::ops::Range<u64>| {
        let batch = hf_batch(rows, 500).project(&[2]).unwrap();
        let mut writer = ArrowWriter::try_new(File::create(&at).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        std::fs::metadata(&at).unwrap().len()
    };
    let size = write(1000..1100);
    let first = open(data.path(), options(CatalogStore::Nowhere)).await;
    assert_eq!(write(2000..2100), size);
    touch(data.path());
    let second = open(data.path(), options(CatalogStore::Nowhere)).await;
    assert_ne!(second.catalog().content_hash(), first.catalog().content_hash());
    assert!(refusal(&second, &cursor(&first)).contains("catalog"));
    let error = first.block_reader().fetch(feedstock_dataset::BlockId(0), u64::MAX).await.unwrap_err();
    assert_eq!(error.kind(), feedstock_dataset::ErrorKind::Gone, "{error}");
}

/// A job reads the tables of the catalog that it opened, even if it was replaced since.
#[tokio::test]
async fn a_replaced_catalog_is_kept_for_a_month_and_says_what_changed() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&released().join("data/parquet"), data.path());
    let first = open(data.path(), cache(folder.path())).await;
    let of_first = files(folder.path());
    let tables = || -> Vec<PathBuf> {
        of_first.iter().filter(|file| !file.ends_with("catalog.json")).cloned().collect()
    };
    std::fs::rename(data.path().join("train-00001.parquet"), data.path().join("train-00002.parquet"))
        .unwrap();
    std::fs::copy(data.path().join("train-00002.parquet"), data.path().join("train-00003.parquet")).unwrap();
    let second = open(data.path(), cache(folder.path())).await;
    assert!(tables().iter().all(|file| file.exists()), "the first catalog's tables are gone");
    let changes = second.changes_since(&cursor(&first).fingerprint).await.unwrap();
    assert!(changes.contains("2 files added: ") && changes.contains("train-00003.parquet"), "{changes}");
    assert!(changes.contains("1 file removed: ") && changes.contains("train-00001.parquet"), "{changes}");
    assert_eq!(second.changes_since(&cursor(&second).fingerprint).await, None);
    let mut unknown = cursor(&second).fingerprint;
    unknown.catalog = 1;
    assert_eq!(second.changes_since(&unknown).await, None);

    // A month later, another catalog is stored.
    let is_kept = |file: &&PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("kept-");
    let kept = files(folder.path()).iter().find(is_kept).unwrap().clone();
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    let at = index["superseded"].as_u64().unwrap();
    index["superseded"] = (at - 31 * 24 * 3600).into();
    std::fs::write(&kept, index.to_string()).unwrap();
    std::fs::remove_file(data.path().join("train-00003.parquet")).unwrap();
    open(data.path(), cache(folder.path())).await;
    assert!(!kept.exists());
    assert!(!tables().iter().all(|file| file.exists()), "tables that nothing names are deleted");
    assert_eq!(
        second.block_reader().fetch(feedstock_dataset::BlockId(0), u64::MAX).await.unwrap().rows.num_rows(),
        16
    );
}

/// Catalogs that commit 28fa0fc stored are converted in place, and its cursors fit.
#[tokio::test]
async fn catalogs_and_cursors_of_28fa0fc_are_taken() {
    let root = tempfile::tempdir().unwrap();
    let server = S3Server::start(root.path()).unwrap();
    server.create_bucket("corpus").unwrap();
    server.import("corpus", "", &released().join("data")).unwrap();
    for (kind, file) in KINDS {
        let options = |store| {
            let mut options = OpenOptions { block_bytes: 4096, ..options(store) };
            options.storage = with_config(options.storage, server.config());
            options.audio_probe = Some(AudioProbe::new(1, |_: &[u8], _| panic!("there is no audio"))); // like the command's
            options
        };
        let uri = format!("s3://corpus/{kind}{}{file}", if file.is_empty() { "" } else { "/" });
        let mut first = options(CatalogStore::Beside);
        let read = Arc::new(AtomicBool::new(false));
        let reads = read.clone();
        first.catalog.progress = Some(Arc::new(move |now| {
            reads.fetch_or(now.stage.starts_with("reading"), Ordering::Relaxed);
        }));
        let dataset = Dataset::open_with(&uri, first).await.unwrap();
        // The columns of Parquet and WebDataset changed since; for the other kinds, nothing is read.
        assert_eq!(read.load(Ordering::Relaxed), ["parquet", "webdataset"].contains(&kind), "{kind}");
        let saved = std::fs::read(released().join("cursors").join(format!("{kind}.json"))).unwrap();
        let saved: Cursor = serde_json::from_slice(&saved).unwrap();
        assert_eq!((saved.fingerprint.blocks, saved.epoch, saved.position), (None, 2, Position(16)));
        let plan = dataset.plan(&shuffle().as_saved(&saved.fingerprint)).unwrap();
        plan.check(&saved).unwrap();
        assert_eq!(plan.regrouped_as(&saved).unwrap().len(), dataset.len(), "{kind}");

        // Stored once in the new form, which the next open finds, and with the identity of a fresh one.
        let again = Dataset::open_with(&uri, options(CatalogStore::Beside)).await.unwrap();
        let fresh = Dataset::open_with(&uri, options(CatalogStore::Nowhere)).await.unwrap();
        assert_eq!(again.catalog().hashes(), fresh.catalog().hashes(), "{kind}");
        assert_eq!(dataset.catalog().hashes(), fresh.catalog().hashes(), "{kind}");
        assert_eq!(all_rows(&again).await, all_rows(&fresh).await, "{kind}");
    }
}

/// An old cursor of files whose ETags or times differ looks like a cursor of other data.
#[tokio::test]
async fn an_old_cursor_does_not_fit_a_copy_and_says_why() {
    let data = tempfile::tempdir().unwrap();
    copy(&released().join("data/parquet"), data.path());
    let saved = std::fs::read(released().join("cursors/parquet.json")).unwrap();
    let saved: Cursor = serde_json::from_slice(&saved).unwrap();
    let dataset =
        open(data.path(), OpenOptions { block_bytes: 4096, ..options(CatalogStore::Nowhere) }).await;
    let refusal = refusal(&dataset, &saved);
    assert!(refusal.contains("a release before 0.2"), "{refusal}");
}

/// A label is corrected in place: no name, size or place changes, but samples do.
#[tokio::test]
async fn other_labels_are_other_data() {
    for (kind, file, old, new) in [
        ("manifest", "list.csv", "a/002.jpg,2\n", "a/002.jpg,5\n"),
        ("webdataset", "", "shard-000000.tar", ""),
    ] {
        let (data, cached) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        copy(&released().join("data").join(kind), data.path());
        let before = open(&data.path().join(file), cache(cached.path())).await;
        let at = data.path().join(if file.is_empty() { old } else { file });
        let mut bytes = std::fs::read(&at).unwrap();
        let label = match file {
            "" => bytes.windows(7).position(|window| window == b"002.cls").unwrap() + 512,
            _ => bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap() + 10,
        };
        assert_eq!(bytes[label], b'2');
        bytes[label] = if file.is_empty() { b'5' } else { new.as_bytes()[10] };
        std::fs::write(&at, bytes).unwrap();
        touch(data.path());
        let after = open(&data.path().join(file), cache(cached.path())).await;
        assert_ne!(after.catalog().content_hash(), before.catalog().content_hash(), "{kind}");
    }
}

/// A categorical column of pandas is a dictionary in the stored table.
#[tokio::test]
async fn a_catalog_with_dictionaries_is_found_again() {
    let (data, cached) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&released().join("data/folder"), data.path());
    let kinds: DictionaryArray<Int32Type> = ["cat", "dog", "cat"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([
        ("path", Arc::new(StringArray::from(vec!["a/000.jpg", "b/001.jpg", "a/002.jpg"])) as ArrayRef),
        ("kind", Arc::new(kinds) as ArrayRef),
    ])
    .unwrap();
    let at = data.path().join("list.parquet");
    let mut writer = ArrowWriter::try_new(File::create(&at).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let open_list = || {
        let options = OpenOptions { layout: Some(Layout::Manifest), ..cache(cached.path()) };
        Dataset::open_with(path(&at), options)
    };
    let built = open_list().await.unwrap();
    let index = files(cached.path()).into_iter().find(|file| file.ends_with("catalog.json")).unwrap();
    let written = std::fs::metadata(&index).unwrap().modified().unwrap();
    let stored = open_list().await.unwrap();
    assert_eq!(std::fs::metadata(&index).unwrap().modified().unwrap(), written, "it was catalogued twice");
    assert_eq!(all_rows(&stored).await, all_rows(&built).await);
    assert_eq!(stored.filter("kind = 'dog'").await.unwrap().len(), 1);
}
