//! Disks that are full or make no holes, caches of earlier releases, and take-overs that were interrupted.

use super::folder::list;
use super::*;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

mod errors;
mod reuse;

fn object(n: u64) -> ObjectRef {
    ObjectRef { uri: format!("s3://b/{n}"), size: 1 << 20, etag: Some(format!("\"{n}\"")) }
}

fn bytes(n: u64) -> Bytes {
    (0..1000 + n).map(|i| u8::try_from((i * 7 + n) % 251).unwrap()).collect::<Vec<u8>>().into()
}

fn range(n: u64) -> Range<u64> {
    0..1000 + n
}

fn put(cache: &DiskCache, n: u64) -> bool {
    cache.put(&object(n), &range(n), &bytes(n), n)
}

fn has(cache: &DiskCache, n: u64) -> bool {
    let found = cache.get(&object(n), &range(n));
    assert!(found.as_ref().is_none_or(|found| *found == bytes(n)), "wrong bytes");
    found.is_some()
}

fn open(folder: &Path, disk: Disk) -> DiskCache {
    DiskCache::open_with(DiskCacheOptions::new(folder, 1 << 20), disk).unwrap()
}

/// Returns the bytes on disk, except those of locks.
fn on_disk(folder: &Path) -> u64 {
    let parts = fs::read_dir(folder).unwrap().map(|part| part.unwrap().path()).filter(|part| part.is_dir());
    let files = parts.flat_map(|part| fs::read_dir(part).unwrap()).map(|file| file.unwrap());
    files.filter(|file| file.file_name() != "lock").map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

/// Copies a part. Files keep their lengths; what is after the last entry stays a hole.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(|file| file.unwrap()) {
        let mut copy = File::create(to.join(file.file_name())).unwrap();
        io::copy(&mut File::open(file.path()).unwrap().take(1 << 20), &mut copy).unwrap();
        copy.set_len(file.metadata().unwrap().len()).unwrap();
    }
}

fn full_disk(file: &File, _: u64, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = file;
    file.write_all(&parts[0][..7])?; // some bytes were written
    Err(io::Error::from(io::ErrorKind::StorageFull))
}

#[test]
fn a_full_disk_turns_caching_off_and_leaves_nothing() {
    for len in [1000, 2 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let full = Disk { write: full_disk, ..Disk::REAL };
        let cache = DiskCache::open_with(DiskCacheOptions::new(dir.path(), 8 << 20), full).unwrap();
        let bytes = Bytes::from(vec![7; usize::try_from(len).unwrap()]);
        assert!(!cache.put(&object(1), &(0..len), &bytes, 5));
        assert!(cache.stats().off);
        assert_eq!(cache.stats().used_bytes, 0);
        assert!(!cache.put(&object(2), &(0..len), &bytes, 5));
        assert_eq!(cache.get(&object(1), &(0..len)), None);
        let left = list(&dir.path().join("part-0")).unwrap();
        assert!(left.partial.is_empty() && left.entries.is_empty() && left.slabs.is_empty());
        assert_eq!(on_disk(dir.path()), 0);
    }
}

fn unsupported(_: &File, _: Range<u64>) -> io::Result<()> {
    Err(io::Error::from(rustix::io::Errno::OPNOTSUPP))
}

fn frees_later(_: &File, _: Range<u64>) -> io::Result<()> {
    Ok(())
}

#[test]
fn without_holes_each_entry_is_a_file_and_slabs_are_cleaned_up() {
    for punch in [unsupported, frees_later] {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), Disk::REAL);
        assert!((0..20).all(|n| put(&cache, n)));
        drop(cache);
        let cache = open(dir.path(), Disk { punch, ..Disk::REAL });
        assert_eq!((cache.stats().entries, on_disk(dir.path())), (0, 0), "slabs would never shrink");
        assert!((0..20).all(|n| put(&cache, n)));
        let part = dir.path().join("part-0");
        assert_eq!((list(&part).unwrap().entries.len(), list(&part).unwrap().slabs.len()), (20, 0));
        assert_eq!(cache.stats().used_bytes, on_disk(dir.path()));
        assert!((0..20).all(|n| has(&cache, n)));
    }
}

/// An earlier release stored every entry as a file, as the fallback does.
#[test]
fn entries_of_an_earlier_release_are_read_counted_and_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = open(dir.path(), Disk { punch: unsupported, ..Disk::REAL });
    assert!((0..20).all(|n| put(&earlier, n)));
    drop(earlier);
    let cap = 25 * 4096;
    let cache = DiskCache::open(DiskCacheOptions::new(dir.path(), cap)).unwrap();
    assert!((0..20).all(|n| has(&cache, n)));
    assert_eq!((cache.stats().entries, cache.stats().used_bytes), (20, 20 * 4096));
    assert!((20..44).all(|n| put(&cache, n)));
    assert!(
        (20..44).all(|n| has(&cache, n)) && !(0..20).any(|n| has(&cache, n)),
        "they count as needed last"
    );
    assert_eq!((cache.stats().used_bytes, on_disk(dir.path())), (cap, cap));
}

thread_local! {
    static PUNCH_FAILS: Cell<bool> = const { Cell::new(false) };
}

fn fails_at_times(file: &File, range: Range<u64>) -> io::Result<()> {
    if PUNCH_FAILS.get() {
        Err(io::Error::from(io::ErrorKind::StorageFull))
    } else {
        (Disk::REAL.punch)(file, range)
    }
}

#[test]
fn what_could_not_be_freed_still_counts() {
    let dir = tempfile::tempdir().unwrap();
    let options = || DiskCacheOptions::new(dir.path(), 21 * 4096);
    let cache = DiskCache::open_with(options(), Disk { punch: fails_at_times, ..Disk::REAL }).unwrap();
    assert!((10..30).all(|n| put(&cache, n)));
    PUNCH_FAILS.set(true);
    assert!(!put(&cache, 0) && cache.stats().off);
    PUNCH_FAILS.set(false);
    assert_eq!(cache.stats().entries, 19);
    assert_eq!((cache.stats().used_bytes, on_disk(dir.path())), (21 * 4096, 21 * 4096));
    assert!(!has(&cache, 29) && (10..29).all(|n| has(&cache, n)));
    drop(cache);
    let cache = DiskCache::open(options()).unwrap();
    assert!((0..2).all(|n| put(&cache, n)));
    assert!(on_disk(dir.path()) <= 21 * 4096 && cache.stats().used_bytes == on_disk(dir.path()));
}

thread_local! {
    static PUNCHES: Cell<u32> = const { Cell::new(0) };
}

fn fails_after_three(file: &File, range: Range<u64>) -> io::Result<()> {
    PUNCHES.set(PUNCHES.get() + 1);
    if PUNCHES.get() > 3 {
        return Err(io::Error::from(io::ErrorKind::StorageFull));
    }
    (Disk::REAL.punch)(file, range)
}

/// An eviction that fails after others have succeeded must not leave their space counted as taken: other processes would evict for it.
#[test]
fn room_that_was_made_in_vain_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let options = DiskCacheOptions::new(dir.path(), 64 * 4096);
    let cache = DiskCache::open_with(options, Disk { punch: fails_after_three, ..Disk::REAL }).unwrap();
    assert!((10..30).all(|n| put(&cache, n)));
    PUNCHES.set(0); // opening the folder tests the disk
    let published = || fs::metadata(dir.path().join("part-0/lock")).unwrap().len() * 4096;
    assert_eq!(published(), cache.stats().used_bytes);
    let large = Bytes::from(vec![7; 60 * 4096]);
    assert!(!cache.put(&object(1), &(0..large.len() as u64), &large, 5), "the fourth eviction fails");
    assert_eq!((cache.stats().entries, cache.stats().used_bytes), (2, 18 * 4096), "15 of 18 were not freed");
    assert_eq!(published(), cache.stats().used_bytes);
}

thread_local! {
    static DELETED_AFTER_WRITING: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

fn write_and_delete(file: &File, at: u64, parts: &[&[u8]]) -> io::Result<()> {
    (Disk::REAL.write)(file, at, parts)?;
    DELETED_AFTER_WRITING.take().map_or(Ok(()), fs::remove_file)
}

/// Another process cleans the folder, before an entry is written or afterwards.
#[test]
fn entries_go_to_another_slab_after_theirs_was_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let slab = |number| slab::path(&dir.path().join("part-0"), number);
    let cache = open(dir.path(), Disk { write: write_and_delete, ..Disk::REAL });
    assert!((0..3).all(|n| put(&cache, n)));
    fs::remove_file(slab(0)).unwrap();
    assert!((3..5).all(|n| put(&cache, n)));
    DELETED_AFTER_WRITING.set(Some(slab(1)));
    assert!(!put(&cache, 5), "its bytes went into the deleted file");
    assert!((5..7).all(|n| put(&cache, n)) && slab(2).exists());
    assert!(!(0..5).any(|n| has(&cache, n)) && (5..7).all(|n| has(&cache, n)));
    drop(cache);
    let cache = open(dir.path(), Disk::REAL);
    assert!((5..7).all(|n| has(&cache, n)));
    assert_eq!(cache.stats().used_bytes, on_disk(dir.path()));
}

/// Slots are lost, as those of entries that a killed process was writing.
#[test]
fn bytes_without_a_slot_are_freed_when_the_part_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Disk::REAL);
    assert!((0..20).all(|n| put(&cache, n)));
    drop(cache);
    let part = dir.path().join("part-0");
    for n in 0..10 {
        let key = entry::key(&object(n), &range(n)).unwrap();
        table::erase(&part, key, table::find(&part, key).unwrap()).unwrap();
    }
    PUNCH_FAILS.set(true);
    let cache = open(dir.path(), Disk { punch: fails_at_times, ..Disk::REAL });
    PUNCH_FAILS.set(false);
    assert_eq!(
        (cache.stats().entries, cache.stats().used_bytes),
        (10, 21 * 4096),
        "a full disk is not an error"
    );
    assert_eq!(on_disk(dir.path()), 21 * 4096);
    drop(cache);
    let cache = open(dir.path(), Disk::REAL);
    assert_eq!((cache.stats().entries, cache.stats().used_bytes), (10, 11 * 4096));
    assert_eq!(on_disk(dir.path()), 11 * 4096);
    assert!((10..20).all(|n| has(&cache, n)));
}

/// Two parts, whose owners ended, are merged. A process that is killed between any two steps loses nothing.
#[test]
fn an_interrupted_take_over_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name);
    for (name, numbers) in [("first", 0..60), ("second", 50..200)] {
        let cache = open(&folder(name), Disk::REAL);
        for n in numbers {
            assert!(put(&cache, n));
        }
    }
    let two_parts = |name: &str| {
        copy(&folder("first").join("part-0"), &folder(name).join("part-0"));
        copy(&folder("second").join("part-0"), &folder(name).join("part-1"));
    };
    let check = |name: &str| {
        let cache = open(&folder(name), Disk::REAL);
        assert_eq!(cache.stats().entries, 200, "{name}");
        assert!((0..200).all(|n| has(&cache, n)), "{name}");
        assert_eq!((cache.stats().used_bytes, cache.stats().damaged), (on_disk(&folder(name)), 0), "{name}");
        assert_eq!(list(&folder(name).join("part-0")).unwrap().slabs.len(), 2);
        let left = fs::read_dir(folder(name).join("part-1")).unwrap().map(|file| file.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
    };
    two_parts("merged");
    check("merged");
    let merged = folder("merged").join("part-0");

    // Killed after the slots were written, before the slab was renamed.
    two_parts("slots only");
    fs::copy(merged.join("table"), folder("slots only").join("part-0/table")).unwrap();
    check("slots only");

    // Killed after the slab was renamed, before the other table was removed.
    two_parts("renamed");
    fs::remove_dir_all(folder("renamed").join("part-0")).unwrap();
    copy(&merged, &folder("renamed").join("part-0"));
    fs::remove_file(slab::path(&folder("renamed").join("part-1"), 0)).unwrap();
    check("renamed");
}

/// Damaged bytes are a miss, which is counted, and the entry is dropped; the others stay.
#[test]
fn another_process_finds_damage_and_removes_the_slot() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Disk::REAL);
    assert!((0..3).all(|n| put(&cache, n)));
    let part = dir.path().join("part-0");
    let key = |n| entry::key(&object(n), &range(n)).unwrap();
    let state = |n| match others::read(&part, key(n), &range(n)) {
        others::InPart::Missing => "missing",
        others::InPart::Damaged => "damaged",
        others::InPart::Whole(found) => {
            assert_eq!(found, bytes(n));
            "whole"
        }
    };
    let slab = File::options().write(true).open(slab::path(&part, 0)).unwrap();
    (Disk::REAL.write)(&slab, 4096 + 500, &[b"x"]).unwrap();
    assert_eq!([0, 1, 2].map(state), ["whole", "damaged", "whole"]);
    assert_eq!(state(1), "missing");
    assert!(!others::has(&part, key(1), &range(1)) && others::has(&part, key(2), &range(2)));
    assert!(!has(&cache, 1), "the owner notices");
    assert_eq!((cache.stats().damaged, cache.stats().entries), (1, 2));
    assert!(put(&cache, 1));
    assert_eq!([0, 1, 2].map(state), ["whole"; 3]);
}
