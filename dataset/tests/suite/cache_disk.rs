//! The disk cache through its public API: cap, order of eviction, crashes, damage, several processes.

use crate::storage_support::{S3, data, options, storage};
use bytes::Bytes;
use feedstock_dataset::{DiskCache, DiskCacheOptions, ObjectRef};
use feedstock_testkit::{Fault, Rule};
use proptest::prelude::*;
use std::fs;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn object(n: u64) -> ObjectRef {
    ObjectRef { uri: format!("s3://bucket/{n}"), size: 1 << 30, etag: Some(format!("\"v{n}\"")) }
}

fn open(folder: &Path, max_bytes: u64) -> DiskCache {
    DiskCache::open(DiskCacheOptions::new(folder, max_bytes)).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Returns what the entries take, whole or half-written, in whole disk blocks. A file may vanish meanwhile.
fn bytes_on_disk(folder: &Path) -> u64 {
    let is_entry = |file: &&PathBuf| file.extension().is_some_and(|e| e == "block" || e == "tmp");
    files(folder)
        .iter()
        .filter(is_entry)
        .filter_map(|f| fs::metadata(f).ok())
        .map(|m| m.len().next_multiple_of(4096))
        .sum()
}

#[test]
fn what_is_put_comes_back_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    for n in 0..5 {
        assert!(cache.put(&object(n), &(n * 10..n * 10 + 5000), &data(5000, n), n));
    }
    drop(cache);
    let cache = open(dir.path(), 1 << 20);
    for n in 0..5 {
        assert_eq!(cache.get(&object(n), &(n * 10..n * 10 + 5000)).unwrap(), data(5000, n));
        assert_eq!(cache.get(&object(n), &(n * 10..n * 10 + 4999)), None);
        let replaced = ObjectRef { etag: Some("\"new\"".into()), ..object(n) };
        assert_eq!(cache.get(&replaced, &(n * 10..n * 10 + 5000)), None);
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.damaged), (5, 10, 5, 0));
}

#[test]
fn what_the_plan_needs_last_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 3 * 4096);
    let put = |n: u64, next_use| cache.put(&object(n), &(0..100), &data(100, n), next_use);
    let held = |n: u64| cache.get(&object(n), &(0..100)).is_some();
    assert!(put(1, 10) && put(2, 30) && put(3, 20));
    assert!(!put(4, 40), "needed later than all entries that are held");
    assert!(!put(4, u64::MAX));
    assert!(put(4, 15));
    assert!(held(1) && !held(2) && held(3) && held(4));
    assert!(cache.update_next_use(&object(1), &(0..100), 99));
    assert!(put(5, 50));
    assert!(!held(1) && held(3) && held(4) && held(5));
    assert!(!cache.put(&object(6), &(0..13_000), &data(13_000, 6), 0), "larger than the whole cache");
    assert!(held(3) && held(4) && held(5), "a rejected entry evicts nothing");
}

/// Every kind of damage is noticed; the entry is dropped and fetched again.
#[test]
fn damaged_entries_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    let damages: [fn(&mut Vec<u8>); 6] =
        [|f| f[1000] ^= 1, |f| f[0] ^= 1, |f| f[9] ^= 1, |f| f.truncate(500), |f| f.clear(), |f| f.push(0)];
    for (n, damage) in damages.iter().enumerate() {
        let n = n as u64;
        assert!(cache.put(&object(n), &(0..2000), &data(2000, n), 1));
        let path =
            files(dir.path()).into_iter().find(|p| p.extension().is_some_and(|e| e == "block")).unwrap();
        let mut file = fs::read(&path).unwrap();
        damage(&mut file);
        fs::write(&path, &file).unwrap();
        assert_eq!(cache.get(&object(n), &(0..2000)), None, "damage {n} was not noticed");
        assert!(!path.exists());
        assert_eq!(cache.stats().damaged, 2 * n + 1);
        assert_eq!(cache.stats().used_bytes, 0);
        assert!(cache.put(&object(n), &(0..2000), &data(2000, n), 1), "it can be stored again");
        assert_eq!(cache.get(&object(n), &(0..2000)).unwrap(), data(2000, n));
        fs::remove_file(&path).unwrap(); // another process cleans the folder
        assert_eq!(cache.get(&object(n), &(0..2000)), None);
        assert_eq!((cache.stats().damaged, cache.stats().entries), (2 * n + 2, 0));
    }
}

#[test]
fn half_files_of_a_crash_are_removed_and_foreign_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), 1 << 20).put(&object(1), &(0..10), &data(10, 1), 1);
    let part = dir.path().join("part-0");
    fs::write(part.join(format!("{:032x}-7.tmp", 5)), b"half").unwrap();
    fs::write(part.join("README"), b"mine").unwrap();
    let cache = open(dir.path(), 1 << 20);
    assert!(cache.get(&object(1), &(0..10)).is_some());
    assert!(!files(&part).iter().any(|f| f.extension().is_some_and(|e| e == "tmp")));
    assert!(part.join("README").exists());
}

#[test]
fn a_smaller_cap_at_the_next_start_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    (0..50).for_each(|n| assert!(cache.put(&object(n), &(0..100), &data(100, n), n)));
    drop(cache);
    let cache = open(dir.path(), 5 * 4096);
    assert_eq!(cache.stats().entries, 5);
    assert!(bytes_on_disk(dir.path()) <= 5 * 4096);
}

#[test]
fn objects_without_an_etag_are_not_cached() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    let loose = ObjectRef { etag: None, ..object(1) };
    assert!(!cache.put(&loose, &(0..10), &data(10, 1), 1));
    assert_eq!(cache.get(&loose, &(0..10)), None);
}

#[test]
fn data_sets_of_a_process_share_a_folder_and_the_larger_cap() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (open(dir.path(), 2 * 4096), open(&dir.path().join("."), 3 * 4096));
    assert!(first.put(&object(1), &(0..100), &data(100, 1), 1));
    assert_eq!(second.get(&object(1), &(0..100)).unwrap(), data(100, 1));
    assert!(
        second.put(&object(2), &(0..100), &data(100, 2), 2)
            && second.put(&object(3), &(0..100), &data(100, 3), 3)
    );
    assert!(!second.put(&object(4), &(0..100), &data(100, 4), 4), "both share one cap");
    drop(first); // what it needed is no longer needed
    assert!(second.put(&object(4), &(0..100), &data(100, 4), 4));
    assert_eq!(second.get(&object(1), &(0..100)), None);
    assert!(!second.stats().off);
}

/// Starts another process: the test program itself, with the folder and its task in the environment.
fn in_another_process(folder: &Path, what: &str) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache_disk::run_as_another_process", "--nocapture"])
        .env("FEEDSTOCK_TEST_CACHE", folder)
        .env("FEEDSTOCK_TEST_CACHE_DOES", what)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

const PROCESSES_CAP: u64 = 8 * 4096;

/// Not a separate test: [`in_another_process`] runs it.
#[test]
fn run_as_another_process() {
    let (Ok(folder), Ok(what)) =
        (std::env::var("FEEDSTOCK_TEST_CACHE"), std::env::var("FEEDSTOCK_TEST_CACHE_DOES"))
    else {
        return;
    };
    let cache = open(Path::new(&folder), PROCESSES_CAP);
    for n in 0..4 {
        match what.as_str() {
            "puts" => assert!(cache.put(&object(n), &(0..100), &data(100, n), n)),
            _ => assert_eq!(cache.get(&object(n), &(0..100)).unwrap(), data(100, n)),
        }
    }
    println!("done");
    std::io::stdin().read_line(&mut String::new()).unwrap(); // holds its entries until its input ends or it is killed
}

fn wait_until_done(process: &mut std::process::Child) {
    let mut lines = std::io::BufReader::new(process.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("done")), "the process failed");
}

/// The ranks of a node: each reads what another has fetched, all share the cap, and the entries of a killed one are taken over.
#[test]
fn processes_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut beside = in_another_process(dir.path(), "puts");
    wait_until_done(&mut beside);
    let cache = open(dir.path(), PROCESSES_CAP);
    for n in 0..4 {
        assert_eq!(cache.get(&object(n), &(0..100)).unwrap(), data(100, n), "the other process holds it");
        assert!(cache.put(&object(n), &(0..100), &data(100, n), n), "and does not write again");
    }
    assert_eq!((cache.stats().hits, cache.stats().entries), (4, 0));
    let kept = (10..20).filter(|n| cache.put(&object(*n), &(0..100), &data(100, *n), *n)).count();
    assert_eq!(kept, 4, "the two share the cap");
    assert_eq!(bytes_on_disk(dir.path()), PROCESSES_CAP);
    let mut third = in_another_process(dir.path(), "gets");
    wait_until_done(&mut third);
    for process in [&mut beside, &mut third] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    drop(cache);
    let alone = open(dir.path(), PROCESSES_CAP);
    assert_eq!(alone.stats().entries, 8, "all entries of the killed processes");
    assert_eq!(alone.get(&object(3), &(0..100)).unwrap(), data(100, 3));
}

/// An entry that another process has used meanwhile, and will use again, is not evicted.
#[tokio::test]
async fn the_owner_learns_when_others_need_an_entry_again() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(options());
    storage.write("memory://m/x", data(30_000, 1)).await.unwrap();
    let seen = storage.head("memory://m/x").await.unwrap();
    let cache = open(dir.path(), 3 * 4096);
    let read = |range: std::ops::Range<u64>, next_use| {
        let (cache, storage, seen) = (&cache, &storage, &seen);
        async move { cache.read_through(storage, seen, range, next_use).await.unwrap() }
    };
    for n in 0..3 {
        read(n * 1000..n * 1000 + 100, (10 + n) * 100_000).await;
    }
    read(2000..2100, 10_000_000).await; // the stream has reached 1,200,000: the uses at 1,000,000 and 1,100,000 have passed
    let of_the_first = data(30_000, 1).slice(0..100);
    let first =
        files(dir.path()).into_iter().find(|f| fs::read(f).unwrap().ends_with(&of_the_first)).unwrap();
    let place_11_000_000 = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(11);
    fs::File::options().write(true).open(&first).unwrap().set_modified(place_11_000_000).unwrap();
    read(5000..5100, 9_000_000).await;
    assert!(first.exists(), "another process needs it at 11,000,000");
    let before = cache.stats().misses;
    read(1000..1100, 20_000_000).await;
    assert_eq!(cache.stats().misses, before + 1, "the second was evicted");
}

/// Many threads put, get and update, while a watcher measures the disk.
#[test]
fn the_cap_holds_at_every_moment_under_many_threads() {
    const CAP: u64 = 20 * 4096;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), CAP);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            loop {
                assert!(cache.stats().used_bytes <= CAP);
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let workers: Vec<_> = (0..4_u64)
            .map(|worker| {
                let cache = &cache;
                scope.spawn(move || {
                    for i in 0..400_u64 {
                        let n = (i * 7 + worker * 13) % 60;
                        let len = 100 + n * 150;
                        let range = 0..len;
                        match cache.get(&object(n), &range) {
                            Some(bytes) => assert_eq!(bytes, data(usize::try_from(len).unwrap(), n)),
                            None => {
                                let bytes = data(usize::try_from(len).unwrap(), n);
                                cache.put(&object(n), &range, &bytes, (i * 31) % 500);
                            }
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    let stats = cache.stats();
    assert!(stats.hits > 0 && stats.evicted > 0 && stats.damaged == 0, "{stats:?}");
    assert_eq!(bytes_on_disk(dir.path()), stats.used_bytes);
}

#[tokio::test]
async fn read_through_asks_storage_once() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(options());
    storage.write("memory://m/x", data(10_000, 1)).await.unwrap();
    let seen = storage.head("memory://m/x").await.unwrap();
    let cache = open(dir.path(), 1 << 20);
    let before = storage.stats().requests;
    for _ in 0..3 {
        let got = cache.read_through(&storage, &seen, 100..9_000, 1).await.unwrap();
        assert_eq!(got, data(10_000, 1).slice(100..9_000));
    }
    assert_eq!(storage.stats().requests - before, 1);
    assert_eq!((cache.stats().hits, cache.stats().misses), (2, 1));
}

/// Two buckets of the same name, whose objects agree in size and ETag.
#[tokio::test]
async fn one_uri_at_two_endpoints_is_two_objects() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    let stores = [S3::start(), S3::start()];
    for _ in 0..2 {
        for (seed, store) in (1..).zip(&stores) {
            store.put("x", &data(10_000, seed));
            store.proxy.inject(Rule::always(Fault::OtherEtag("same".into())));
            let storage = store.storage(options());
            let seen = storage.head("s3://bucket/x").await.unwrap();
            assert_eq!(seen.etag.as_deref(), Some("\"same\""));
            let got = cache.read_through(&storage, &seen, 100..9_000, 1).await.unwrap();
            assert_eq!(got, data(10_000, seed).slice(100..9_000));
        }
    }
    assert_eq!((cache.stats().hits, cache.stats().misses), (2, 2));
}

/// The cache's folder disappears: data still flows.
#[tokio::test]
async fn a_broken_folder_turns_caching_off_and_data_still_flows() {
    let dir = tempfile::tempdir().unwrap();
    let storage = storage(options());
    storage.write("memory://m/x", data(10_000, 1)).await.unwrap();
    let seen = storage.head("memory://m/x").await.unwrap();
    let cache = open(&dir.path().join("cache"), 1 << 20);
    fs::remove_dir_all(dir.path().join("cache")).unwrap();
    for _ in 0..3 {
        let got = cache.read_through(&storage, &seen, 0..10_000, 1).await.unwrap();
        assert_eq!(got, data(10_000, 1));
    }
    assert!(cache.stats().off);
}

#[derive(Debug, Clone)]
enum Step {
    Put { n: u64, len: u64, next_use: u64 },
    Update { n: u64, next_use: u64 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u64..12, 1_u64..20_000, 0_u64..1_000).prop_map(|(n, len, next_use)| Step::Put { n, len, next_use }),
        2 => (0_u64..12, 0_u64..1_000).prop_map(|(n, next_use)| Step::Update { n, next_use }),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Compares with a model of (n, len) → next use: the same entries after every step, and the disk within the cap.
    #[test]
    fn it_follows_the_model(steps in proptest::collection::vec(step(), 1..60), blocks in 1_u64..20) {
        let cap = blocks * 4096;
        let dir = tempfile::tempdir().unwrap();
        let mut cache = open(dir.path(), cap);
        let mut model: Vec<((u64, u64), u64)> = Vec::new();
        let size = |len: u64| (len + 36).next_multiple_of(4096);
        for step in steps {
            match step {
                Step::Put { n, len, next_use } => {
                    let bytes: Bytes = data(usize::try_from(len).unwrap(), n);
                    let held = cache.put(&object(n), &(0..len), &bytes, next_use);
                    if let Some(entry) = model.iter_mut().find(|e| e.0 == (n, len)) {
                        entry.1 = next_use;
                        prop_assert!(held);
                        continue;
                    }
                    let mut after = model.clone();
                    after.sort_by_key(|e| e.1);
                    let fits = |m: &[((u64, u64), u64)]| m.iter().map(|e| size(e.0.1)).sum::<u64>() + size(len) <= cap;
                    while !fits(&after) && after.last().is_some_and(|e| e.1 > next_use) {
                        after.pop();
                    }
                    prop_assert_eq!(held, fits(&after));
                    if held && has_ties(&model) {
                        // It is not specified which of two equals is evicted: adopt the cache's choice.
                        after = model.iter().filter(|e| resident(&cache, e.0)).copied().collect();
                    }
                    if held {
                        after.push(((n, len), next_use));
                        model = after;
                    }
                }
                Step::Update { n, next_use } => {
                    for entry in model.iter_mut().filter(|e| e.0.0 == n) {
                        prop_assert!(cache.update_next_use(&object(n), &(0..entry.0.1), next_use));
                        entry.1 = next_use;
                    }
                }
                Step::Reopen => {
                    drop(cache);
                    cache = open(dir.path(), cap);
                    for ((n, len), next_use) in &model {
                        prop_assert!(cache.update_next_use(&object(*n), &(0..*len), *next_use));
                    }
                }
            }
            prop_assert_eq!(cache.stats().entries, model.len());
            for entry in &model {
                prop_assert!(resident(&cache, entry.0));
            }
            prop_assert!(bytes_on_disk(dir.path()) <= cap);
            prop_assert_eq!(bytes_on_disk(dir.path()), cache.stats().used_bytes);
        }
    }
}

fn has_ties(model: &[((u64, u64), u64)]) -> bool {
    let mut uses: Vec<_> = model.iter().map(|e| e.1).collect();
    uses.sort_unstable();
    uses.windows(2).any(|pair| pair[0] == pair[1])
}

fn resident(cache: &DiskCache, (n, len): (u64, u64)) -> bool {
    cache.get(&object(n), &(0..len)).is_some_and(|bytes| bytes == data(usize::try_from(len).unwrap(), n))
}
