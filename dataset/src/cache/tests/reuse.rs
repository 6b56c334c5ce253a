//! Holes are used again, by one process at a time, and never under a reader.

use super::super::entry::{Extent, SLAB_BYTES};
use super::super::{others, table};
use super::*;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, mpsc};
use std::time::{Duration, Instant};

/// A small generator, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn part(folder: &Path) -> PathBuf {
    folder.join("part-0")
}

fn key_of(n: u64) -> entry::Key {
    key(&object(n), &range(n)).unwrap()
}

fn extent_of(folder: &Path, n: u64) -> Option<Extent> {
    table::find(&part(folder), key_of(n))
}

#[expect(clippy::unnecessary_wraps, reason = "it replaces a function that may fail")]
fn write_nothing(_: &File, _: u64, _: &[&[u8]]) -> io::Result<()> {
    Ok(())
}

/// Entries of 40 to 180 kB are evicted in random order, until ten times the cap was written.
#[test]
fn with_random_evictions_there_are_hardly_more_slabs_than_full_ones() {
    const FULL: u64 = 8;
    let dir = tempfile::tempdir().unwrap();
    let options = DiskCacheOptions::new(dir.path(), FULL * SLAB_BYTES);
    let cache = DiskCache::open_with(options, Disk { write: write_nothing, ..Disk::REAL }).unwrap();
    let mut random = Random(3);
    let largest = Bytes::from(vec![7; 180_000]);
    let (mut written, mut n, mut most) = (0, 0, 0);
    while written < 10 * FULL * SLAB_BYTES {
        let len = 40_000 + random.below(140_000);
        let bytes = largest.slice(..usize::try_from(len).unwrap());
        assert!(cache.put(&object(n), &(0..len), &bytes, 0), "it is needed at once");
        assert!(cache.update_next_use(&object(n), &(0..len), 1 + random.below(1 << 30)));
        (written, n) = (written + len, n + 1);
        if n % 100 == 0 {
            most = most.max(list(&part(dir.path())).unwrap().slabs.len() as u64);
        }
    }
    assert!(cache.stats().evicted > 30_000, "{:?}", cache.stats());
    assert!(most <= FULL + 2, "{most} slabs");
}

/// The table shrinks with the number of its entries, although some of them are never evicted.
#[test]
fn a_table_gives_back_what_many_entries_needed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(DiskCacheOptions::new(dir.path(), 24 << 20)).unwrap();
    let small = Bytes::from_static(&[7; 100]);
    assert!((0..5000).all(|n| cache.put(&object(n), &(0..100), &small, n)));
    let table = part(dir.path()).join("table");
    assert!(fs::metadata(&table).unwrap().len() >= 64 * 4096);
    let large = Bytes::from(vec![7; 500_000]);
    assert!((10_000..10_049).all(|n| cache.put(&object(n), &(0..500_000), &large, 0)));
    let left = cache.stats().entries as u64 - 49;
    assert!((50..130).contains(&left), "{left} small entries are left");
    assert!(fs::metadata(&table).unwrap().len() <= 16 * 4096);
    assert_eq!(cache.stats().used_bytes, on_disk(dir.path()));
    assert!((0..left).all(|n| cache.get(&object(n), &(0..100)).is_some_and(|found| found == small)));
}

/// What punches of one test wait for.
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    const fn new() -> Self {
        Self { state: Mutex::new((false, 0)), changed: Condvar::new() }
    }

    fn set(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    /// Waits until it is open.
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    fn wait_for_one(&self) {
        let state = self.state.lock().unwrap();
        let waiting =
            self.changed.wait_timeout_while(state, Duration::from_secs(20), |state| state.1 == 0).unwrap();
        assert!(waiting.0.1 > 0, "nothing was punched");
    }
}

static SLOW: Gate = Gate::new();

fn slow_punch(file: &File, range: Range<u64>) -> io::Result<()> {
    SLOW.pass();
    (Disk::REAL.punch)(file, range)
}

/// Runs `work` in a thread. Returns whether it ended within seconds, and its result after the gate was opened.
fn ends<T: Send>(gate: &Gate, work: impl FnOnce() -> T + Send) -> (bool, T) {
    std::thread::scope(|scope| {
        let (send, ended) = mpsc::channel();
        let worker = scope.spawn(move || {
            let result = work();
            let _the_receiver_may_be_gone = send.send(());
            result
        });
        let in_time = ended.recv_timeout(Duration::from_secs(5)).is_ok();
        if !in_time {
            gate.set(false);
        }
        (in_time, worker.join().unwrap())
    })
}

/// While the file system is slow to punch a hole, other entries are read.
#[test]
fn hits_do_not_wait_for_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let options = DiskCacheOptions::new(dir.path(), 11 * 4096);
    let cache = DiskCache::open_with(options, Disk { punch: slow_punch, ..Disk::REAL }).unwrap();
    assert!((10..20).all(|n| put(&cache, n)));
    SLOW.set(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(&cache, 1));
        SLOW.wait_for_one();
        let (in_time, found) = ends(&SLOW, || {
            let found = (10..20).map(|n| has(&cache, n)).collect::<Vec<bool>>();
            assert!(cache.update_next_use(&object(10), &range(10), 1));
            assert_eq!(cache.stats().used_bytes, 11 * 4096, "what is not punched counts");
            found
        });
        SLOW.set(false);
        assert!(in_time, "hits waited for the hole");
        assert_eq!(found, (10..20).map(|n| n != 19).collect::<Vec<bool>>());
        assert!(writer.join().unwrap());
    });
    assert!(has(&cache, 1));
    assert_eq!(cache.stats().used_bytes, on_disk(dir.path()));
}

static DAMAGED: Gate = Gate::new();

fn slow_punch_of_damage(file: &File, range: Range<u64>) -> io::Result<()> {
    DAMAGED.pass();
    (Disk::REAL.punch)(file, range)
}

/// A hole that is being punched is not written: the bytes would be lost.
#[test]
fn a_hole_is_used_again_only_after_it_was_punched() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Disk { punch: slow_punch_of_damage, ..Disk::REAL });
    assert!((0..10).all(|n| put(&cache, n)));
    let hole = extent_of(dir.path(), 5).unwrap();
    let slab = File::options().write(true).open(slab::path(&part(dir.path()), hole.slab)).unwrap();
    slab.write_all_at(b"damage", hole.byte_range().start + 500).unwrap();
    DAMAGED.set(true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| has(&cache, 5));
        DAMAGED.wait_for_one();
        let (in_time, stored) = ends(&DAMAGED, || [20, 5].map(|n| put(&cache, n)));
        DAMAGED.set(false);
        assert!(in_time, "other entries waited for the hole");
        assert_eq!(stored, [true, false], "what is being freed is not stored again");
        assert!(!reader.join().unwrap());
    });
    assert_ne!(extent_of(dir.path(), 20), Some(hole));
    assert!(put(&cache, 21));
    assert_eq!(extent_of(dir.path(), 21), Some(hole));
    assert!((0..10).all(|n| has(&cache, n) == (n != 5)) && has(&cache, 20) && has(&cache, 21));
    assert_eq!(cache.stats().used_bytes, on_disk(dir.path()));
}

/// The slot was erased, or names another place, after a reader had found it. The bytes are still there, and about to change.
#[test]
fn bytes_whose_slot_has_changed_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Disk::REAL);
    assert!((0..3).all(|n| put(&cache, n)));
    let part = part(dir.path());
    let found = extent_of(dir.path(), 1).unwrap();
    let read = || others::read_slab(&part, key_of(1), &range(1), found);
    assert!(matches!(read(), others::InPart::Whole(found) if found == bytes(1)));
    table::erase(&part, key_of(1), found).unwrap();
    assert!(matches!(read(), others::InPart::Missing));
    let (mut table, _) = table::Table::open(&part).unwrap();
    assert!(table.insert(key_of(1), extent_of(dir.path(), 2).unwrap()).unwrap());
    assert!(matches!(read(), others::InPart::Missing));
}

/// The owner stores and evicts as fast as it can, in few blocks. Readers in other processes, which do not hold its locks, get
/// an entry's bytes or nothing, and take no entry for damaged.
#[test]
fn other_processes_never_read_another_entry_in_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(DiskCacheOptions::new(dir.path(), 30 * 4096)).unwrap();
    let part = part(dir.path());
    let (entries, began) = (5000, Instant::now());
    let mut extents = BTreeSet::new();
    let ended = AtomicBool::new(false);
    let read = |seed: u64| {
        let (mut random, mut whole) = (Random(seed), 0);
        while !ended.load(Ordering::Relaxed) {
            let n = random.below(entries);
            match others::read(&part, key_of(n), &range(n)) {
                others::InPart::Missing => {}
                others::InPart::Whole(found) => {
                    assert_eq!(found, bytes(n));
                    whole += 1;
                }
                others::InPart::Damaged => panic!("{n} is not damaged"),
            }
        }
        whole
    };
    let whole: u64 = std::thread::scope(|scope| {
        let readers = [0, 1].map(|seed| scope.spawn(move || read(seed)));
        let mut random = Random(9);
        while began.elapsed() < Duration::from_secs(2) {
            let n = random.below(entries);
            if cache.put(&object(n), &range(n), &bytes(n), 0) {
                cache.update_next_use(&object(n), &range(n), 1 + random.below(1000));
                extents.extend(extent_of(dir.path(), n).map(|extent| (extent.slab, extent.block)));
            }
        }
        ended.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(whole > 0, "the readers found nothing");
    let stats = cache.stats();
    assert!(stats.evicted > 500 && extents.len() < 60, "{stats:?}: {} places", extents.len());
    assert_eq!((stats.damaged, stats.used_bytes), (0, on_disk(dir.path())));
}
