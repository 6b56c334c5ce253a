//! What the disk cache costs: files, time of a put and of a hit, and time to open a folder again.

use crate::storage_support::data;
use feedstock_dataset::{DiskCache, DiskCacheOptions, ObjectRef};
use std::fs;
use std::path::Path;
use std::time::Instant;

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// Prints a table. Numbers of a disk are only as good as the disk is idle.
#[test]
#[ignore = "a measurement: it writes 2.3 GB"]
fn what_entries_cost() {
    println!("entries | bytes each | files | µs a put | µs a hit | µs a put that evicts | ms to open again");
    for (entries, len) in [(10_000_u64, 110_000_usize), (100_000, 10_000)] {
        let dir = tempfile::tempdir().unwrap();
        let options = || DiskCacheOptions::new(dir.path(), 4 << 30);
        let (bytes, range) = (data(len, 1), 0..len as u64);
        let object = |n| ObjectRef { uri: format!("s3://b/{n}"), size: 1 << 30, etag: Some("\"1\"".into()) };
        let micros = |began: Instant| began.elapsed().as_secs_f64() * 1e6 / entries as f64;
        let cache = DiskCache::open(options()).unwrap();
        let began = Instant::now();
        (0..entries).for_each(|n| assert!(cache.put(&object(n), &range, &bytes, n)));
        let put = micros(began);
        let began = Instant::now();
        (0..entries).for_each(|n| assert!(cache.get(&object(n), &range).is_some()));
        let hit = micros(began);
        drop(cache);
        let opened: Vec<f64> = (0..3)
            .map(|_| {
                let began = Instant::now();
                let cache = DiskCache::open(options()).unwrap();
                let took = began.elapsed().as_secs_f64() * 1e3;
                assert_eq!(cache.stats().entries as u64, entries);
                took
            })
            .collect();
        let opened = opened.into_iter().fold(f64::INFINITY, f64::min);
        let files = files(dir.path());
        let used = DiskCache::open(options()).unwrap().stats().used_bytes;
        let cache = DiskCache::open(DiskCacheOptions::new(dir.path(), used)).unwrap();
        let began = Instant::now();
        (entries..entries + entries / 5).for_each(|n| assert!(cache.put(&object(n), &range, &bytes, n)));
        let evicting = 5.0 * micros(began);
        assert!(cache.stats().evicted >= entries / 5);
        println!("{entries} | {len} | {files} | {put:.1} | {hit:.1} | {evicting:.1} | {opened:.1}");
    }
}
