//! Ready catalogs of other machines: published in a folder, next to the data, or sent by a rank.

use crate::catalog_store::{counted, files_below, write_parquet, write_tar};
use crate::format_common::*;
use feedstock_dataset::{
    Allow, CatalogInbox, CatalogOptions, CatalogSource, CatalogStore, Dataset, ErrorKind, OpenOptions, Stop,
};
use std::path::Path;

/// A machine with its own cache, which looks for ready catalogs in `sources`.
fn machine(cache: &Path, sources: &[CatalogSource]) -> CatalogOptions {
    CatalogOptions {
        store: CatalogStore::Cache(cache.into()),
        sources: sources.to_vec(),
        ..CatalogOptions::default()
    }
}

fn folder(at: &Path) -> CatalogSource {
    CatalogSource::Folder(path(at).to_owned())
}

#[tokio::test]
async fn a_published_catalog_is_taken_over() {
    let [data, one, other, shared] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    write_parquet(&data.path().join("a.parquet"), 0..100);
    write_tar(&data.path().join("b.tar"), 100);
    for data in ["a.parquet", "b.tar"].map(|name| data.path().join(name)) {
        let (built, read) = counted(&data, machine(one.path(), &[])).await;
        assert_eq!(read, 1);
        built.publish_catalog(path(shared.path())).await.unwrap();

        let (taken, read) = counted(&data, machine(other.path(), &[folder(shared.path())])).await;
        assert_eq!(read, 0, "the published catalog was not used");
        assert!(taken.is_catalog_kept());
        assert_eq!(taken.catalog().content_hash(), built.catalog().content_hash());
        assert_eq!(all_rows(&taken).await, all_rows(&built).await);
        let (_, read) = counted(&data, machine(other.path(), &[])).await;
        assert_eq!(read, 0, "it was copied into the own cache");

        let nowhere = CatalogOptions {
            store: CatalogStore::Nowhere,
            ..machine(other.path(), &[folder(shared.path())])
        };
        let (taken, read) = counted(&data, nowhere).await;
        assert_eq!((read, taken.is_catalog_kept()), (0, false));
        assert_eq!(all_rows(&taken).await, all_rows(&built).await);
    }
}

#[tokio::test]
async fn the_catalog_next_to_the_data_is_taken_over() {
    let [data, cache] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    write_parquet(&data.path().join("a.parquet"), 0..100);
    let beside = CatalogOptions { store: CatalogStore::Beside, ..CatalogOptions::default() };
    assert_eq!(counted(data.path(), beside).await.1, 1);
    let (_, read) = counted(data.path(), machine(cache.path(), &[CatalogSource::Beside])).await;
    assert_eq!(read, 0);
    std::fs::remove_dir_all(data.path().join("_feedstock")).unwrap();
    assert_eq!(counted(data.path(), machine(cache.path(), &[])).await.1, 0);
}

#[tokio::test]
async fn the_parts_of_a_mix_are_published() {
    let [data, one, other, shared] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let parts = ["a", "b"].map(|name| data.path().join(format!("{name}.parquet")));
    let mut opened = Vec::new();
    for part in &parts {
        write_parquet(part, 0..100);
        opened.push((counted(part, machine(one.path(), &[])).await.0, 1.0));
    }
    let mix = Dataset::mix(opened, Stop::FirstExhausted).unwrap();
    mix.publish_catalog(path(shared.path())).await.unwrap();
    for part in &parts {
        assert_eq!(counted(part, machine(other.path(), &[folder(shared.path())])).await.1, 0);
    }
}

#[tokio::test]
async fn ready_catalogs_that_do_not_fit_or_are_damaged_are_not_used() {
    let [data, one, other, shared] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let sources = [folder(&shared.path().join("no such folder")), folder(shared.path())];
    write_parquet(&data.path().join("a.parquet"), 0..100);
    let (before, _) = counted(data.path(), machine(one.path(), &[])).await;
    before.publish_catalog(path(shared.path())).await.unwrap();
    write_parquet(&data.path().join("b.parquet"), 100..150);
    let (now, read) = counted(data.path(), machine(other.path(), &sources)).await;
    assert_eq!((read, now.len()), (2, 150), "it is of other files");

    now.publish_catalog(path(shared.path())).await.unwrap();
    for file in files_below(shared.path()) {
        if file.to_str().unwrap().contains("objects") {
            let mut bytes = std::fs::read(&file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&file, bytes).unwrap();
        }
    }
    std::fs::remove_dir_all(other.path()).unwrap();
    let (built, read) = counted(data.path(), machine(other.path(), &sources)).await;
    assert_eq!((read, built.len()), (2, 150), "it is damaged");
    let unstored = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let (unstored, _) = counted(data.path(), unstored).await;
    let error = unstored.publish_catalog(path(shared.path())).await.unwrap_err();
    assert!(error.message().ends_with("its catalog is not stored"), "{error}");
}

/// The index and the tables of a catalog, and what describes its data set.
struct Sent {
    dataset: Dataset,
    index: Vec<u8>,
    tables: Vec<bytes::Bytes>,
}

impl Sent {
    async fn of(data: &Path, cache: &Path) -> Self {
        let (dataset, _) = counted(data, machine(cache, &[])).await;
        let (index, tables) = dataset.stored_catalogs()[0].clone().unwrap().read().await.unwrap();
        Self { dataset, index, tables }
    }

    /// Changes the index.
    fn with(&self, change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
        let mut index = serde_json::from_slice(&self.index).unwrap();
        change(&mut index);
        serde_json::to_vec(&index).unwrap()
    }

    async fn arrive(&self, inbox: &CatalogInbox, index: &[u8], allow: &str) -> feedstock_dataset::Result<()> {
        let mut incoming = inbox.receive(&self.dataset.spec().source, own(), index)?;
        for table in &self.tables {
            incoming.put(table.clone()).await?;
        }
        incoming.finish(&Allow::new([allow])?).await
    }

    async fn is_lacking(&self, inbox: &CatalogInbox) -> bool {
        self.is_lacking_of(inbox, self.dataset.stored_catalogs()[0].clone().unwrap().listing()).await
    }

    async fn is_lacking_of(&self, inbox: &CatalogInbox, listing: u64) -> bool {
        inbox.lacks(&self.dataset.spec().source, own(), listing).await.unwrap()
    }
}

fn own() -> OpenOptions {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    OpenOptions { catalog, ..OpenOptions::default() }
}

#[tokio::test]
async fn a_catalog_that_was_sent_is_checked_before_it_is_used() {
    let [data, cache, received] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    write_tar(&data.path().join("a.tar"), 100);
    let sent = Sent::of(data.path(), cache.path()).await;
    let inbox = CatalogInbox::new(received.path().join("inbox"));
    let allowed = path(data.path());

    type Change = fn(&mut serde_json::Value);
    let forged: [(&str, Change); 7] = [
        ("hashes", |index| index["identity"] = 1.into()),
        ("hashes", |index| index["blocks"] = 1.into()),
        ("has version 3", |index| index["version"] = 3.into()),
        ("bytes, and at most", |index| index["tables"]["objects"]["bytes"] = (1u64 << 40).into()),
        ("damaged", |index| {
            index["tables"]["objects"]["file"] = "../../objects-0000000000000000.arrow".into()
        }),
        ("does not parse", |index| index["tables"] = 1.into()),
        ("has no table", |index| {
            // In full agreement with the bytes, and outside of the inbox.
            let table = index["tables"]["objects"].clone();
            let hash = table["file"].as_str().unwrap().strip_prefix("objects").unwrap().to_owned();
            index["tables"] = serde_json::json!({ "../../x": { "file": format!("../../x{hash}"), "bytes": table["bytes"], "crc32": table["crc32"] } });
        }),
    ];
    for (why, change) in forged {
        let error = sent.arrive(&inbox, &sent.with(change), allowed).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.message().contains(why), "{why}: {error}");
        assert!(sent.is_lacking(&inbox).await, "{why}");
    }
    let damaged = Sent {
        tables: sent.tables.iter().map(|table| table.iter().map(|byte| byte ^ 1).collect()).collect(),
        index: sent.index.clone(),
        dataset: sent.dataset.clone(),
    };
    assert!(damaged.arrive(&inbox, &sent.index, allowed).await.unwrap_err().message().contains("damaged"));
    let error = sent.arrive(&inbox, &sent.index, "s3://elsewhere/").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(sent.is_lacking(&inbox).await);

    sent.arrive(&inbox, &sent.index, allowed).await.unwrap();
    assert!(!sent.is_lacking(&inbox).await);
    assert!(sent.is_lacking_of(&inbox, 1).await, "that of other files");
    let with_inbox = CatalogOptions { sources: vec![inbox.source()], ..own().catalog };
    let (opened, read) = counted(data.path(), with_inbox).await;
    assert_eq!(read, 0);
    assert_eq!(all_rows(&opened).await, all_rows(&sent.dataset).await);
}

#[tokio::test]
async fn a_catalog_that_was_sent_in_part_is_not_used() {
    let [data, cache, received] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    write_tar(&data.path().join("a.tar"), 100);
    let sent = Sent::of(data.path(), cache.path()).await;
    let inbox = CatalogInbox::new(received.path());
    let mut incoming = inbox.receive(&sent.dataset.spec().source, own(), &sent.index).unwrap();
    incoming.put(sent.tables[0].clone()).await.unwrap();
    assert_eq!(incoming.next_bytes(), Some(sent.tables[1].len() as u64));
    let error = incoming.finish(&Allow::new([path(data.path())]).unwrap()).await.unwrap_err();
    assert!(error.message().contains("before its last table"), "{error}");
    assert!(sent.is_lacking(&inbox).await);
}

#[tokio::test]
async fn a_catalog_that_was_sent_stays_out_of_the_own_cache() {
    let [data, cache, received, other] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    write_tar(&data.path().join("a.tar"), 100);
    let sent = Sent::of(data.path(), cache.path()).await;
    let inbox = CatalogInbox::new(received.path());
    sent.arrive(&inbox, &sent.index, path(data.path())).await.unwrap();
    let (opened, read) = counted(data.path(), machine(other.path(), &[inbox.source()])).await;
    assert_eq!((read, opened.is_catalog_kept()), (0, false));
    assert_eq!(counted(data.path(), machine(other.path(), &[])).await.1, 1);
}
