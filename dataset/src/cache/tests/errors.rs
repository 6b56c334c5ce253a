//! Errors after which the bytes may be whole: no entry is removed for them.

use super::super::disk::is_damage;
use super::super::{others, table};
use super::*;
use rustix::io::Errno;
use std::os::unix::fs::symlink;

fn key_of(n: u64) -> entry::Key {
    key(&object(n), &range(n)).unwrap()
}

/// Runs `work` while `path` can neither be opened nor is missing.
fn while_unreadable<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let aside = path.with_extension("aside");
    fs::rename(path, &aside).unwrap();
    symlink(path, path).unwrap(); // a loop
    let done = work();
    fs::rename(&aside, path).unwrap();
    done
}

#[test]
fn only_errors_that_lose_bytes_are_damage() {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::LOOP, Errno::INTR] {
        assert!(!is_damage(&errno.into()), "{errno}");
    }
    for errno in [Errno::IO, Errno::NOENT] {
        assert!(is_damage(&errno.into()), "{errno}");
    }
    assert!(is_damage(&io::ErrorKind::UnexpectedEof.into()));
}

#[test]
fn an_entry_that_cannot_be_opened_stays() {
    let dir = tempfile::tempdir().unwrap();
    let part = dir.path().join("part-0");
    for (punch, path) in [
        (Disk::REAL.punch, slab::path(&part, 0)),
        (unsupported as fn(&File, Range<u64>) -> io::Result<()>, super::folder::entry(&part, key_of(1))),
    ] {
        let cache = open(dir.path(), Disk { punch, ..Disk::REAL });
        assert!((0..3).all(|n| put(&cache, n)));
        while_unreadable(&path, || {
            assert!(!has(&cache, 1));
            assert!(matches!(others::read(&part, key_of(1), &range(1)), others::InPart::Missing));
        });
        assert_eq!((cache.stats().damaged, cache.stats().entries), (0, 3), "{}", path.display());
        assert!((0..3).all(|n| has(&cache, n)), "{}", path.display());
        assert!(matches!(others::read(&part, key_of(1), &range(1)), others::InPart::Whole(_)));
    }
}

/// The process cannot open the file in which it tests the file system.
#[test]
fn entries_stay_if_the_disk_cannot_be_tested() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Disk::REAL);
    assert!((0..3).all(|n| put(&cache, n)));
    drop(cache);
    let scratch = dir.path().join("part-0/scratch.tmp");
    symlink(&scratch, &scratch).unwrap();
    let cache = open(dir.path(), Disk::REAL);
    assert!(!scratch.is_symlink());
    assert!((0..3).all(|n| has(&cache, n)));
}

thread_local! {
    static TABLE: RefCell<PathBuf> = RefCell::default();
}

/// Makes it impossible to create the table.
fn punch_and_block(file: &File, range: Range<u64>) -> io::Result<()> {
    TABLE.with_borrow(|table| match symlink("missing/table", table) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => (Disk::REAL.punch)(file, range),
    })
}

/// The part that takes over cannot create its table.
#[test]
fn a_take_over_that_fails_removes_no_entries() {
    let dir = tempfile::tempdir().unwrap();
    let [part, other] = [0, 1].map(|number| dir.path().join(format!("part-{number}")));
    let cache = open(dir.path(), Disk::REAL);
    assert!((0..20).all(|n| put(&cache, n)));
    drop(cache);
    for n in 0..10 {
        table::erase(&part, key_of(n), table::find(&part, key_of(n)).unwrap()).unwrap(); // so that holes are punched
    }
    fs::rename(&part, &other).unwrap();
    fs::create_dir(&part).unwrap();
    TABLE.set(part.join("table"));
    let options = || DiskCacheOptions::new(dir.path(), 1 << 20);
    assert!(DiskCache::open_with(options(), Disk { punch: punch_and_block, ..Disk::REAL }).is_err());
    assert!(part.join("table").is_symlink());
    let cache = DiskCache::open(options()).unwrap();
    assert!((10..20).all(|n| has(&cache, n)));
}
