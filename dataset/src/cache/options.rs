//! Options and statistics of a disk cache.

use std::path::PathBuf;

/// Where the cache is and how much it may hold.
#[derive(Debug, Clone)]
pub struct DiskCacheOptions {
    /// The folder; created if missing. It should hold nothing but caches.
    pub folder: PathBuf,
    /// The most bytes that all files in the folder take on disk together: those of all data sets and processes that share
    /// the folder. Each entry is rounded up to 4 KiB, and the table of small entries counts, too (about 80 bytes an
    /// entry, at least 4 KiB). If data sets of one process give several values, the largest counts.
    pub max_bytes: u64,
}

impl DiskCacheOptions {
    /// Returns options for a cache in `folder`, of at most `max_bytes`.
    pub fn new(folder: impl Into<PathBuf>, max_bytes: u64) -> Self {
        Self { folder: folder.into(), max_bytes }
    }
}

/// What the cache did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCacheStats {
    /// Ranges found.
    pub hits: u64,
    /// Ranges not found.
    pub misses: u64,
    /// Entries dropped because their checksum or header was wrong.
    pub damaged: u64,
    /// Entries evicted to make room.
    pub evicted: u64,
    /// Entries that this process wrote, or took over, and holds.
    pub entries: usize,
    /// Bytes of those on disk and of their table, including those being written.
    pub used_bytes: u64,
    /// Whether caching is off for a time, after a disk error.
    pub off: bool,
}
