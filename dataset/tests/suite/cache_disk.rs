//! The disk cache through its public API: cap, order of eviction, crashes, damage, several processes.

use crate::cache_support::{
    TABLE, bytes_on_disk, files, files_of_kind, has, in_another_process, object, open, put, task,
};
use crate::storage_support::{S3, data, options, storage};
use bytes::Bytes;
use feedstock_dataset::{DiskCache, ObjectRef};
use feedstock_testkit::{Fault, Rule};
use proptest::prelude::*;
use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let cache = open(dir.path(), TABLE + 3 * 4096);
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

/// Every kind of damage is noticed, in slabs and files; the entry is dropped and fetched again.
#[test]
fn damaged_entries_are_dropped() {
    const LARGE: u64 = (1 << 20) + 2000;
    let damages: [fn(&mut Vec<u8>); 6] =
        [|f| f[1000] ^= 1, |f| f[0] ^= 1, |f| f[9] ^= 1, |f| f.truncate(500), |f| f.clear(), |f| f.push(0)];
    for (len, kind, damages) in [(2000, "slab", &damages[..5]), (LARGE, "block", &damages[..])] {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), 8 << 20);
        for (n, damage) in (0..).zip(damages) {
            assert!(put(&cache, n, len, 1));
            let path = files_of_kind(dir.path(), kind).remove(0);
            let mut file = fs::read(&path).unwrap();
            damage(&mut file);
            fs::write(&path, &file).unwrap();
            assert!(!has(&cache, n, len), "damage {n} of a {kind} was not noticed");
            assert!(!path.exists());
            assert_eq!(cache.stats().damaged, 2 * n + 1);
            assert_eq!(cache.stats().used_bytes, 0);
            assert!(put(&cache, n, len, 1), "it can be stored again");
            assert!(has(&cache, n, len));
            fs::remove_file(files_of_kind(dir.path(), kind).remove(0)).unwrap(); // another process cleans the folder
            assert!(!has(&cache, n, len));
            assert_eq!((cache.stats().damaged, cache.stats().entries), (2 * n + 2, 0));
        }
    }
}

/// Entries up to 1 MiB, with their header of 36 bytes, are in slabs.
#[test]
fn small_entries_share_a_file_and_large_ones_have_one_each() {
    const LARGEST: u64 = (1 << 20) - 36;
    let dir = tempfile::tempdir().unwrap();
    let mut cache = open(dir.path(), 1 << 30);
    let lens = [LARGEST, LARGEST + 1, 1, LARGEST - 1, 3 << 20, 4060, 4061];
    for reopened in [false, true] {
        for (n, len) in (0..).zip(lens) {
            assert_eq!(has(&cache, n, len), reopened);
            assert!(put(&cache, n, len, n));
            assert!(has(&cache, n, len) && !has(&cache, n, len + 1));
        }
        assert_eq!(files_of_kind(dir.path(), "block").len(), 2);
        assert_eq!(files_of_kind(dir.path(), "slab").len(), 1);
        assert_eq!(cache.stats().used_bytes, bytes_on_disk(dir.path()));
        drop(cache);
        cache = open(dir.path(), 1 << 30);
    }
    for n in 100..220 {
        assert!(put(&cache, n, LARGEST, n)); // 120 MiB
    }
    assert_eq!(files_of_kind(dir.path(), "slab").len(), 2);
    drop(cache);
    let cache = open(dir.path(), 2 << 20);
    assert!(cache.stats().used_bytes <= 2 << 20 && cache.stats().entries > 0);
    assert_eq!(
        cache.stats().used_bytes,
        bytes_on_disk(dir.path()),
        "evicted entries and empty slabs are gone"
    );
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
    let cache = open(dir.path(), TABLE + 5 * 4096);
    assert_eq!(cache.stats().entries, 5);
    assert!(bytes_on_disk(dir.path()) <= TABLE + 5 * 4096);
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
    let (first, second) = (open(dir.path(), TABLE + 2 * 4096), open(&dir.path().join("."), TABLE + 3 * 4096));
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

/// Each of the two processes has a table.
const PROCESSES_CAP: u64 = 2 * TABLE + 8 * 4096;

/// Not a separate test: others run it.
#[test]
fn run_as_another_process() {
    let Some((folder, what)) = task() else { return };
    match what.split_once(' ') {
        None => {
            let cache = open(&folder, PROCESSES_CAP);
            for n in 0..4 {
                match what.as_str() {
                    "puts" => assert!(put(&cache, n, 100, n)),
                    _ => assert!(has(&cache, n, 100)),
                }
            }
            println!("done");
            std::io::stdin().read_line(&mut String::new()).unwrap(); // holds its entries until its input ends or it is killed
        }
        Some((path, use_and_len)) => {
            let [next_use, len] = [0, 1].map(|n| use_and_len.split(' ').nth(n).unwrap().parse().unwrap());
            let cache = open(&folder, 1 << 20);
            let read = async {
                let storage = storage(options());
                let seen = storage.head(path).await.unwrap();
                cache.read_through(&storage, &seen, 0..len, next_use).await.unwrap()
            };
            futures::executor::block_on(read);
            assert_eq!((cache.stats().hits, cache.stats().entries), (1, 0), "the owner has it");
        }
    }
}

fn start(folder: &Path, what: &str) -> std::process::Child {
    in_another_process("cache_disk::run_as_another_process", folder, what)
}

fn wait_until_done(process: &mut std::process::Child) {
    let mut lines = std::io::BufReader::new(process.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("done")), "the process failed");
}

/// The ranks of a node: each reads what another has fetched, all share the cap, and the entries of a killed one are taken over.
#[test]
fn processes_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = start(dir.path(), "puts");
    wait_until_done(&mut owner);
    let cache = open(dir.path(), PROCESSES_CAP);
    for n in 0..4 {
        assert_eq!(cache.get(&object(n), &(0..100)).unwrap(), data(100, n), "the other process holds it");
        assert!(cache.put(&object(n), &(0..100), &data(100, n), n), "and does not write again");
    }
    assert_eq!((cache.stats().hits, cache.stats().entries), (4, 0));
    let kept = (10..20).filter(|n| cache.put(&object(*n), &(0..100), &data(100, *n), *n)).count();
    assert_eq!(kept, 4, "the two share the cap");
    assert_eq!(bytes_on_disk(dir.path()), PROCESSES_CAP);
    let mut third = start(dir.path(), "gets");
    wait_until_done(&mut third);
    for process in [&mut owner, &mut third] {
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
    for len in [100_u64, (1 << 20) + 100] {
        let folder = dir.path().join(len.to_string());
        let path = dir.path().join("x");
        fs::write(&path, data(20 << 20, 1)).unwrap();
        let storage = storage(options());
        let seen = storage.head(path.to_str().unwrap()).await.unwrap();
        let cache = open(&folder, TABLE + 3 * (len + 36).next_multiple_of(4096));
        let read = |n: u64, next_use| {
            let (cache, storage, seen) = (&cache, &storage, &seen);
            async move {
                cache.read_through(storage, seen, n * (2 << 20)..n * (2 << 20) + len, next_use).await.unwrap()
            }
        };
        for n in 0..3 {
            read(n, (10 + n) * 100_000).await;
        }
        read(2, 10_000_000).await; // the stream has reached 1,200,000: the uses at 1,000,000 and 1,100,000 have passed
        let other = start(&folder, &format!("{} 11000000 {len}", path.display())).wait_with_output().unwrap();
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
        read(5, 9_000_000).await;
        let before = cache.stats().misses;
        read(0, 20_000_000).await;
        assert_eq!(cache.stats().misses, before, "another process needs it at 11,000,000");
        read(1, 20_000_000).await;
        assert_eq!(cache.stats().misses, before + 1, "the second was evicted");
    }
}

/// Many threads put, get and update, while a watcher measures the disk.
#[test]
fn the_cap_holds_at_every_moment_under_many_threads() {
    const CAP: u64 = TABLE + 20 * 4096;
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
        let cap = TABLE + blocks * 4096;
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
                    let fits = |m: &[((u64, u64), u64)]| m.iter().map(|e| size(e.0.1)).sum::<u64>() + size(len) <= cap - TABLE;
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Bytes of slabs and of the table are changed, or their ends are cut off, while the cache is open or before it is
    /// opened again. What was hit is a miss, nothing is wrong, and everything can be stored again.
    #[test]
    fn damage_is_a_miss(
        entries in 1_u64..150,
        hits in proptest::collection::vec((0_usize..3, any::<u64>()), 1..12),
        cut in proptest::option::of((0_usize..3, 0_u64..1 << 20)),
        reopens in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let len = |n: u64| 50 + n * 331 % 9000;
        let mut cache = open(dir.path(), 16 << 20);
        for n in 0..entries {
            prop_assert!(put(&cache, n, len(n), n));
        }
        let written: u64 = (0..entries).map(|n| (len(n) + 36).next_multiple_of(4096)).sum();
        let targets = [files_of_kind(dir.path(), "slab").remove(0), dir.path().join("part-0/table")];
        for (target, at) in &hits {
            let path = &targets[target / 2]; // a slab twice as often as the table
            let end = if *target < 2 { written } else { fs::metadata(path).unwrap().len() };
            let file = fs::File::options().read(true).write(true).open(path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at % end).unwrap();
            file.write_all_at(&[byte[0] ^ (1 + u8::try_from(at >> 57).unwrap())], at % end).unwrap();
        }
        if let Some((target, len)) = cut {
            let file = fs::File::options().write(true).open(&targets[target / 2]).unwrap();
            file.set_len(len % file.metadata().unwrap().len()).unwrap();
        }
        if reopens {
            drop(cache);
            cache = open(dir.path(), 16 << 20);
        }
        let held = (0..entries).filter(|n| has(&cache, *n, len(*n))).count();
        if cut.is_none() {
            prop_assert!(held + hits.len() >= usize::try_from(entries).unwrap(), "only what was hit is lost");
        }
        prop_assert_eq!(cache.stats().entries, held, "damaged entries are dropped");
        prop_assert!(!cache.stats().off);
        drop(cache);
        let cache = open(dir.path(), 16 << 20);
        for n in 0..entries {
            prop_assert!(put(&cache, n, len(n), n) && has(&cache, n, len(n)));
        }
        prop_assert_eq!(cache.stats().used_bytes, bytes_on_disk(dir.path()));
        prop_assert!(cache.stats().used_bytes <= 16 << 20);
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
