//! What the tests of the disk cache share.

use crate::storage_support::data;
use feedstock_dataset::{DiskCache, DiskCacheOptions, ObjectRef};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The smallest table of small entries.
pub(crate) const TABLE: u64 = 4096;

pub(crate) fn object(n: u64) -> ObjectRef {
    ObjectRef { uri: format!("s3://bucket/{n}"), size: 1 << 30, etag: Some(format!("\"v{n}\"")) }
}

pub(crate) fn open(folder: &Path, max_bytes: u64) -> DiskCache {
    DiskCache::open(DiskCacheOptions::new(folder, max_bytes)).unwrap()
}

/// Whether the cache has the first `len` bytes of object `n`. Asserts that they are the right ones.
pub(crate) fn has(cache: &DiskCache, n: u64, len: u64) -> bool {
    let found = cache.get(&object(n), &(0..len));
    let right = |found: &bytes::Bytes| *found == data(usize::try_from(len).unwrap(), n);
    assert!(found.as_ref().is_none_or(right), "wrong bytes of object {n}");
    found.is_some()
}

pub(crate) fn put(cache: &DiskCache, n: u64, len: u64, next_use: u64) -> bool {
    cache.put(&object(n), &(0..len), &data(usize::try_from(len).unwrap(), n), next_use)
}

/// Returns all files of a folder. One may vanish meanwhile.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
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

/// Returns the files of a folder with this extension.
pub(crate) fn files_of_kind(folder: &Path, extension: &str) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|file| file.extension().is_some_and(|e| e == extension)).collect()
}

/// Returns what the file system has allocated for all files but the locks: entries, whole or half-written, and tables.
pub(crate) fn bytes_on_disk(folder: &Path) -> u64 {
    let is_lock = |file: &PathBuf| file.file_name().is_some_and(|name| name == "lock");
    let kept = files(folder).into_iter().filter(|file| !is_lock(file));
    kept.filter_map(|file| fs::metadata(file).ok()).map(|file| file.blocks() * 512).sum()
}

/// Starts another process: the test program itself, with one test, and the folder and its task in the environment.
pub(crate) fn in_another_process(test: &str, folder: &Path, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FEEDSTOCK_TEST_CACHE", folder)
        .env("FEEDSTOCK_TEST_CACHE_DOES", what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the folder and the task, in a process that [`in_another_process`] started.
pub(crate) fn task() -> Option<(PathBuf, String)> {
    let task = std::env::var("FEEDSTOCK_TEST_CACHE_DOES").ok()?;
    Some((std::env::var_os("FEEDSTOCK_TEST_CACHE")?.into(), task))
}
