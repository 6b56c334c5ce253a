//! An interrupted build of a catalog of tars goes on where it ended.

use crate::format_common::{all_rows, ints};
use crate::storage_support::{options, with_config};
use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
use feedstock_testkit::{Fault, FaultProxy, Rule, S3Server, SimulatedObject, SimulatedStore, SparseTar};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const MIB: u64 = 1 << 20;
/// The tars that are read before the interruption, and all tars.
const READ: usize = 3;
const TARS: usize = 6;

/// The store and the cache of catalogs of a process that is killed, and what it prints before.
const STORE_OF_CHILD: &str = "FEEDSTOCK_TEST_RESUME_STORE";
const CATALOGS_OF_CHILD: &str = "FEEDSTOCK_TEST_RESUME_CATALOGS";
const HAS_READ: &str = "the first tars have been read";

/// 40 samples of 10 MiB, which are hopped over.
fn tar(samples: u64, index: usize) -> SimulatedObject {
    let tar = SparseTar::new(samples, &[("cls", 4), ("jpg", 10 * MIB)], 40 * index as u64);
    SimulatedObject::new(tar.size(), move |range| tar.read(range))
}

fn key(index: usize) -> String {
    format!("data/{index:04}.tar")
}

fn cached(catalogs: &Path) -> CatalogOptions {
    let store = CatalogStore::Cache(catalogs.to_owned());
    CatalogOptions { store, ..CatalogOptions::default() }
}

async fn open(endpoint: &str, catalog: CatalogOptions) -> Dataset {
    let storage = with_config(options(), S3Server::config_at(endpoint));
    let open = OpenOptions { catalog, storage, ..OpenOptions::default() };
    Dataset::open_with("s3://bucket/data/", open).await.unwrap()
}

/// Builds a catalog; calls `has_read` when the first [`READ`] tars have been read.
async fn build(endpoint: &str, catalogs: &Path, has_read: impl Fn() + Send + Sync + 'static) -> Dataset {
    let progress = move |progress: feedstock_dataset::Progress| {
        if progress.stage == "reading tar headers" && progress.done == READ as u64 {
            has_read();
        }
    };
    open(endpoint, CatalogOptions { progress: Some(Arc::new(progress)), ..cached(catalogs) }).await
}

/// A bucket of tars behind a proxy, and a cache of catalogs.
struct Bucket {
    store: SimulatedStore,
    proxy: FaultProxy,
    catalogs: tempfile::TempDir,
}

impl Bucket {
    /// All tars after the first [`READ`] never arrive.
    fn stalling() -> Self {
        let objects = (0..TARS).map(|i| (key(i), tar(40, i))).collect();
        let store = SimulatedStore::start(objects, Duration::from_millis(1)).unwrap();
        let proxy = FaultProxy::start(&store.endpoint()).unwrap();
        let bucket = Self { store, proxy, catalogs: tempfile::tempdir().unwrap() };
        for i in READ..TARS {
            let never = Fault::StallMidBody(0, Duration::from_secs(60));
            bucket.proxy.inject(Rule::always(never).on("GET").at(&key(i)));
        }
        bucket
    }

    /// Builds the catalog until the first [`READ`] tars have been read.
    async fn interrupted() -> Self {
        let bucket = Self::stalling();
        let (reached, endpoint) = (Arc::new(Notify::new()), bucket.proxy.endpoint());
        let told = Arc::clone(&reached);
        tokio::select! {
            _ = build(&endpoint, bucket.catalogs.path(), move || told.notify_one()) => {
                panic!("it was not interrupted")
            }
            () = reached.notified() => {}
        }
        bucket.healed()
    }

    /// The same, by another process, which is killed.
    fn killed(test: &str) -> Self {
        let bucket = Self::stalling();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(STORE_OF_CHILD, bucket.proxy.endpoint())
            .env(CATALOGS_OF_CHILD, bucket.catalogs.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(HAS_READ)), "it ended");
        child.kill().unwrap();
        child.wait().unwrap();
        bucket.healed()
    }

    fn healed(self) -> Self {
        assert!((0..READ).all(|i| self.reads(i) >= 40), "one read for each large member");
        assert_eq!(self.journals().len(), 1);
        self.proxy.heal();
        self.proxy.forget();
        self
    }

    fn cached(&self) -> CatalogOptions {
        cached(self.catalogs.path())
    }

    async fn open(&self, catalog: CatalogOptions) -> Dataset {
        open(&self.proxy.endpoint(), catalog).await
    }

    /// Checks that `resumed` is what a build without interruption makes, and that nothing is left of the interruption.
    async fn is_whole(&self, resumed: &Dataset) {
        assert_eq!(self.journals(), Vec::<PathBuf>::new(), "the catalog is stored");
        let nowhere = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
        let whole = self.open(nowhere).await;
        assert_eq!(resumed.catalog().hashes(), whole.catalog().hashes());
        assert_eq!(resumed.catalog().schema(), whole.catalog().schema());
        let labels = async |dataset: &Dataset| {
            ints(&all_rows(&dataset.clone().columns(&["label"]).unwrap()).await, "label")
        };
        assert_eq!(labels(resumed).await, labels(&whole).await);
    }

    /// Returns how often a tar was read.
    fn reads(&self, index: usize) -> usize {
        let tar = key(index);
        self.proxy.log().iter().filter(|e| e.method == "GET" && e.path.contains(&tar)).count()
    }

    fn journals(&self) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(self.catalogs.path()).unwrap().map(|entry| entry.unwrap().path());
        folders.map(|folder| folder.join("shards.journal")).filter(|path| path.exists()).collect()
    }
}

#[tokio::test]
async fn tars_that_an_interrupted_build_has_read_are_not_read_again() {
    let bucket = Bucket::interrupted().await;
    let resumed = bucket.open(bucket.cached()).await;
    // The layout is recognised by the first header of the first tar.
    assert_eq!((0..READ).map(|i| bucket.reads(i)).collect::<Vec<_>>(), [1, 0, 0]);
    assert!((READ..TARS).all(|i| bucket.reads(i) >= 40));
    bucket.is_whole(&resumed).await;
}

#[tokio::test]
async fn a_build_that_was_killed_goes_on() {
    if let (Ok(endpoint), Some(catalogs)) =
        (std::env::var(STORE_OF_CHILD), std::env::var_os(CATALOGS_OF_CHILD))
    {
        build(&endpoint, Path::new(&catalogs), || println!("{HAS_READ}")).await;
        return;
    }
    let bucket = Bucket::killed("tar_resume::a_build_that_was_killed_goes_on");
    let resumed = bucket.open(bucket.cached()).await;
    assert_eq!((0..READ).map(|i| bucket.reads(i)).collect::<Vec<_>>(), [1, 0, 0]);
    bucket.is_whole(&resumed).await;
}

#[tokio::test]
async fn a_tar_that_was_replaced_after_an_interruption_is_read_again() {
    let bucket = Bucket::interrupted().await;
    bucket.store.put(key(1), tar(41, 1));
    let resumed = bucket.open(bucket.cached()).await;
    assert_eq!(resumed.len(), 40 * TARS as u64 + 1);
    assert!(bucket.reads(1) >= 40);
    assert_eq!((bucket.reads(0), bucket.reads(2)), (1, 0));
    bucket.is_whole(&resumed).await;
}

#[tokio::test]
async fn a_rebuild_reads_all_tars_again() {
    let bucket = Bucket::interrupted().await;
    let rebuilt = bucket.open(CatalogOptions { rebuild: true, ..bucket.cached() }).await;
    assert!((0..TARS).all(|i| bucket.reads(i) >= 40));
    bucket.is_whole(&rebuilt).await;
}

/// Damaged and cut files are read as far as they are whole, and files of other releases not at all.
#[tokio::test]
async fn a_damaged_list_of_finished_tars_is_used_as_far_as_it_is_whole() {
    for (damage, is_used) in [("cut", true), ("flipped", true), ("another release", false)] {
        let bucket = Bucket::interrupted().await;
        let path = bucket.journals().remove(0);
        let mut bytes = std::fs::read(&path).unwrap();
        match damage {
            "cut" => bytes.truncate(bytes.len() - 7),
            "flipped" => {
                let last = bytes.len() - 9;
                bytes[last] ^= 1;
            }
            _ => bytes[20] ^= 1,
        }
        std::fs::write(&path, bytes).unwrap();
        let resumed = bucket.open(bucket.cached()).await;
        let again = (0..READ).filter(|&i| bucket.reads(i) >= 40).count();
        assert_eq!(again, if is_used { 1 } else { READ }, "{damage}");
        bucket.is_whole(&resumed).await;
    }
}
