//! Listings of many keys: the same result as that of one lister, from many at once, with few additional requests.

use crate::storage_support::{options, storage, with_config};
use feedstock_dataset::{CatalogCheck, CatalogOptions, CatalogStore, Dataset, OpenOptions};
use feedstock_testkit::{KeyServer, KeyServerOptions, Keys, S3Server};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE_KEYS: u64 = 1_000;
/// Long enough that requests overlap at the server, even on a busy machine.
const LATENCY: Duration = Duration::from_millis(150);

fn sorted(keys: impl IntoIterator<Item = String>) -> Vec<String> {
    keys.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns what a listing of `data/` finds, and its server.
async fn listed(keys: &[String], how: KeyServerOptions) -> (Vec<String>, KeyServer) {
    let server = KeyServer::start(keys.to_vec(), how).unwrap();
    let storage = storage(with_config(options(), S3Server::config_at(&server.endpoint())));
    let found = storage.list("s3://bucket/data").await.unwrap();
    let names =
        found.iter().map(|object| object.uri.strip_prefix("s3://bucket/").unwrap().to_owned()).collect();
    (names, server)
}

/// The bound of `fan_out.rs` and `key_ranges.rs` for one prefix: a quarter more pages than needed, 18, and those of levels.
fn most_pages(keys: usize, levels: u64) -> u64 {
    (keys as u64).div_ceil(PAGE_KEYS) * 5 / 4 + 18 + levels
}

/// Checks that at least `listers` at once find all keys, with no more pages than `levels` levels of folders need.
async fn are_listed_by_many(keys: &[String], listers: u64, levels: u64) {
    let (names, server) =
        listed(keys, KeyServerOptions { latency: LATENCY, ..KeyServerOptions::default() }).await;
    assert!(names == keys, "{} names of {}", names.len(), keys.len());
    assert!(server.most_at_once() >= listers, "{} listers", server.most_at_once());
    let (pages, most) = (server.listings(), most_pages(keys.len(), levels));
    assert!(pages <= most, "{pages} pages, {most} at most");
}

#[tokio::test]
async fn keys_without_folders_are_listed_by_many_at_once() {
    let keys = sorted((0..60_000).map(|n| format!("data/img_{n:08}.jpg")));
    are_listed_by_many(&keys, 8, 2).await;
}

#[tokio::test]
async fn thousands_of_folders_are_listed_by_many_at_once() {
    let keys = sorted((0..60_000).map(|n| format!("data/{:05}/{n}.jpg", n / 12)));
    are_listed_by_many(&keys, 8, 2).await;
}

#[tokio::test]
async fn a_folder_with_nearly_all_keys_does_not_wait_for_one_lister() {
    let small = (0..200).map(|n| format!("data/{}/{n}.jpg", n % 10));
    let keys =
        sorted(small.chain(
            (0..60_000u64).map(|n| format!("data/7/{:016x}.jpg", n.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
        ));
    are_listed_by_many(&keys, 12, 11).await; // 10 listers have a folder each
}

#[tokio::test]
async fn a_store_without_order_or_start_is_listed_all_the_same() {
    let keys = sorted((0..9_000).map(|n| format!("data/{n}.jpg")));
    for how in [
        KeyServerOptions { obeys_start_after: false, ..KeyServerOptions::default() },
        KeyServerOptions { is_sorted: false, ..KeyServerOptions::default() },
    ] {
        let (names, _server) = listed(&keys, how.clone()).await;
        assert!(names == keys, "{how:?}: {} names of {}", names.len(), keys.len());
    }
}

#[tokio::test]
async fn odd_names_and_marks_of_folders_come_once() {
    let odd = (0..4_000).map(|n| match n % 8 {
        0 => format!("data/ü{n}"),
        1 => format!("data/𐍈/{n} x&y.jpg"),
        2 => format!("data/{}/a+b%20{n}", "long-folder-name/".repeat(9).trim_end_matches('/')),
        3 => format!("data/x-{n}"),
        4 => format!("data/x.{n}"),
        5 => format!("data/x/{n}"),
        6 => format!("data/n{n}/"), // a mark, and nothing in the folder
        _ => format!("data/~{}", n / 100),
    });
    let keys = sorted(odd.chain(["data/".to_owned(), "data/x/".to_owned(), "other".to_owned()]));
    let (names, _server) = listed(&keys, KeyServerOptions::default()).await;
    let marks = ["data/", "data/x/", "other"];
    let expected = keys
        .iter()
        .filter(|key| !marks.contains(&key.as_str()))
        .map(|key| key.trim_end_matches('/').to_owned());
    let expected = sorted(expected);
    assert!(names == expected, "{} names of {}", names.len(), expected.len());
    assert!(listed(&["other".to_owned()], KeyServerOptions::default()).await.0.is_empty());
}

/// Returns the journals below a folder of catalogs.
fn journals(catalogs: &tempfile::TempDir) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(catalogs.path()).unwrap().map(|entry| entry.unwrap().path());
    folders.map(|folder| folder.join("listing.journal")).filter(|path| path.exists()).collect()
}

/// Opens `data/` with its catalog in a folder.
async fn opened(server: &KeyServer, catalogs: &tempfile::TempDir, check: CatalogCheck) -> Dataset {
    let store = CatalogStore::Cache(catalogs.path().to_owned());
    let open = OpenOptions {
        catalog: CatalogOptions { store, check, ..CatalogOptions::default() },
        storage: with_config(options(), S3Server::config_at(&server.endpoint())),
        ..OpenOptions::default()
    };
    Dataset::open_with("s3://bucket/data", open).await.unwrap()
}

/// Opens it and gives up after the server has begun `pages` pages.
async fn interrupted(server: &KeyServer, catalogs: &tempfile::TempDir, pages: u64) {
    let begun = server.listings();
    let mut opening = std::pin::pin!(opened(server, catalogs, CatalogCheck::Auto));
    while server.listings() < begun + pages {
        tokio::select! {
            _ = &mut opening => panic!("it was not interrupted"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
}

fn many_images(files: u64) -> KeyServer {
    let keys = sorted((0..files).map(|n| format!("data/img_{n:08}.jpg")));
    KeyServer::start(keys, KeyServerOptions { latency: LATENCY, ..KeyServerOptions::default() }).unwrap()
}

#[tokio::test]
async fn an_interrupted_listing_is_resumed() {
    let (server, catalogs) = (many_images(150_000), tempfile::tempdir().unwrap());
    interrupted(&server, &catalogs, 70).await;
    assert_eq!(journals(&catalogs).len(), 1);
    interrupted(&server, &catalogs, 50).await;
    let begun = server.listings();
    let resumed = opened(&server, &catalogs, CatalogCheck::Auto).await;
    let resumed_pages = server.listings() - begun;
    assert!(journals(&catalogs).is_empty(), "the listing is complete");
    let whole = opened(&server, &tempfile::tempdir().unwrap(), CatalogCheck::Auto).await;
    let pages = server.listings() - begun - resumed_pages;
    // Of the earlier 120 pages, those that recognise folders and those under way at an interruption are listed again: some 40, and
    // more on a busy machine.
    assert!(resumed_pages + 30 <= pages, "{resumed_pages} of {pages} pages");
    assert_eq!((resumed.len(), resumed.catalog().hashes()), (150_000, whole.catalog().hashes()));
}

/// 150,000 images; one of them, on the first page, is replaced by one with another name.
struct Renamed(Arc<AtomicBool>);

const RENAMED: u64 = 500;

impl Keys for Renamed {
    fn len(&self) -> u64 {
        150_000
    }

    fn key(&self, index: u64) -> String {
        let renamed = if index == RENAMED && self.0.load(Ordering::Relaxed) { "_renamed" } else { "" };
        format!("data/img_{index:08}{renamed}.jpg")
    }
}

/// A catalog of this size is not otherwise compared with a listing.
#[tokio::test]
async fn a_large_catalog_of_a_resumed_listing_is_compared_at_the_next_opening() {
    for is_renamed_between in [true, false] {
        let (renamed, catalogs) = (Arc::new(AtomicBool::new(false)), tempfile::tempdir().unwrap());
        let how = KeyServerOptions { latency: LATENCY, ..KeyServerOptions::default() };
        let server = KeyServer::start(Renamed(Arc::clone(&renamed)), how).unwrap();
        let open = async || {
            let begun = server.listings();
            let opened = opened(&server, &catalogs, CatalogCheck::Auto).await;
            let object = opened.catalog().objects().get(RENAMED as usize);
            (object.uri.contains("renamed"), server.listings() - begun)
        };
        interrupted(&server, &catalogs, 70).await;
        assert_eq!(journals(&catalogs).len(), 1);
        renamed.store(is_renamed_between, Ordering::Relaxed);
        assert!(!open().await.0, "the listing is resumed from its earlier part");
        let (is_found, pages) = open().await;
        assert!(pages >= 150, "it is listed: {pages} pages");
        assert_eq!(is_found, is_renamed_between);
        assert_eq!(open().await, (is_renamed_between, 0), "it was compared");
    }
}

/// A caller that requests a comparison with the storage gets the current objects.
#[tokio::test]
async fn a_listing_on_request_begins_anew() {
    let (server, catalogs) = (many_images(80_000), tempfile::tempdir().unwrap());
    interrupted(&server, &catalogs, 60).await;
    assert_eq!(journals(&catalogs).len(), 1);
    let begun = server.listings();
    assert_eq!(opened(&server, &catalogs, CatalogCheck::List).await.len(), 80_000);
    let pages = server.listings() - begun;
    assert!(pages >= 80, "{pages} pages");
}
