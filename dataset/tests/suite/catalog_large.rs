//! A catalog of more files than an open lists: its size on disk, and in the memory of a process that opens it.
//!
//! `cargo bench -p feedstock-dataset --profile dev --bench catalog` measures ten million.

use crate::storage_support::{options, with_config};
use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions, Position, Rank, Shuffle};
use feedstock_dataset::{StepShape, StepSize, Tail};
use feedstock_testkit::{KeyServer, KeyServerOptions, Keys, S3Server};
use std::path::Path;

/// More than the 100,000 that are compared with a listing.
const FILES: u64 = 150_000;

struct ClassFolders;

impl Keys for ClassFolders {
    fn len(&self) -> u64 {
        FILES
    }

    fn key(&self, index: u64) -> String {
        format!("train/class_{:06}/img_{:08}.jpg", index / 1_500, index % 1_500)
    }
}

async fn open(server: &KeyServer, store: &Path) -> Dataset {
    let options = OpenOptions {
        catalog: CatalogOptions { store: CatalogStore::Cache(store.to_owned()), ..CatalogOptions::default() },
        storage: with_config(options(), S3Server::config_at(&server.endpoint())),
        ..OpenOptions::default()
    };
    Dataset::open_with("s3://bucket/train", options).await.unwrap()
}

/// The size of the one table of this name.
fn table_bytes(store: &Path, name: &str) -> u64 {
    let catalog = std::fs::read_dir(store).unwrap().next().unwrap().unwrap().path();
    let mut files = std::fs::read_dir(catalog).unwrap().map(|entry| entry.unwrap());
    let table = files.find(|file| file.file_name().to_str().unwrap().starts_with(name));
    table.unwrap().metadata().unwrap().len()
}

/// Returns the resident bytes of the mapped table of this name below `store`; `None` if it is not mapped.
fn resident_bytes(store: &Path, name: &str) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let store = store.to_str().unwrap();
    let mut lines =
        smaps.lines().skip_while(|line| !(line.contains(store) && line.contains(&format!("/{name}-"))));
    let line = lines.find(|line| line.starts_with("Rss:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().unwrap() << 10)
}

#[tokio::test]
async fn a_large_catalog_is_small_on_disk_and_smaller_in_memory() {
    let server = KeyServer::start(ClassFolders, KeyServerOptions::default()).unwrap();
    let store = tempfile::tempdir().unwrap();
    let built = open(&server, store.path()).await;
    assert_eq!(built.len(), FILES);
    let order = |dataset: &Dataset| {
        let plan = dataset.plan(&Shuffle::seeded(7)).unwrap();
        let shape = StepShape { size: StepSize::Rows(64), rank: Rank::new(0, 2), tail: Tail::Drop };
        format!("{:?}", plan.epoch(1).step(Position(640), &shape).unwrap())
    };
    let (first, hash, pages) = (order(&built), built.catalog().content_hash(), server.listings());
    let third = built.catalog().objects().get(3);
    drop(built);

    let stored = open(&server, store.path()).await;
    assert_eq!((stored.len(), stored.catalog().content_hash()), (FILES, hash));
    assert_eq!(stored.catalog().objects().get(3), third, "with the ETag as the store sent it");
    assert_eq!(third.etag.as_ref().unwrap().len(), 34);
    assert_eq!(order(&stored), first);
    assert_eq!(server.listings(), pages, "it was not listed again");
    // Names of 31 bytes with offsets of 8, sizes of 8, ETags of 16.
    let objects = table_bytes(store.path(), "objects");
    assert!(objects < FILES * 66, "{:.1} bytes a file", objects as f64 / FILES as f64);
    if let Some(resident) = resident_bytes(store.path(), "samples") {
        let samples = table_bytes(store.path(), "samples");
        assert!(resident < samples / 4, "{resident} of {samples} bytes of the samples are in memory");
    }
}
