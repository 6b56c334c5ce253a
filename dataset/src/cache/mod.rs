//! Disk cache of fetched ranges.
//!
//! ```text
//! read ─▶ held? ─ yes ─▶ slab or file, checksum ─▶ bytes
//!           └ no ─▶ storage ─▶ bytes ─▶ needed sooner than what it evicts? ─┬─▶ hole of a slab, then slot of the table
//!                                                                         └─▶ more than 1 MiB: temporary file, rename
//! ```
//! Invariants
//! - At every moment, the files that all processes have in the folder hold at most `max_bytes` together: space is reserved
//!   before a byte is written, under a lock of the folder. What counts is what the file system has allocated. (While a
//!   process opens the folder, a test of its file system takes 12 KiB. The blocks in which a file system lists the extents
//!   of a slab count once they are measured, after the change that made them.)
//! - A hit returns the bytes that were stored: the key names endpoint, object (without the signature of its URL), ETag and
//!   range, and a checksum covers the bytes. A damaged entry is dropped and fetched again. Objects without an ETag are not
//!   cached.
//! - A range of a slab is written only while no slot names it, and no thread of this process reads it or punches a hole
//!   there. A reader in another process accepts bytes only if their slot is the same afterwards ([`slab`], [`others`]).
//! - A crash leaves at worst a temporary file, or a range of a slab that no slot names. The next owner frees both.
//! - Hits do not wait while an entry is written, a hole is punched or a file is deleted: these run without the lock that hits
//!   take ([`inner`]). They do wait for changes of the table. Most changes read one bucket of 4 KiB and write one slot. The change
//!   that doubles or halves the table rewrites it: at 10⁷ entries, doubling reads 1 GiB and writes 1 GiB. This happens once
//!   for each doubling or halving of the number of entries ([`table`]).
//! - Entries whose use has passed are evicted first, then those that the plan needs last (Belady's rule; the future is
//!   known). An entry that is needed later than all residents is not admitted.
//! - A full or read-only disk turns caching off for five minutes with a warning; data still flows.
//!
//! A folder has one cache ([`folder`]), which the data sets of a process share, and so do processes. A process writes and
//! removes entries in its part only, and reads those of all parts ([`others`]). [`slab`] and [`table`] have the format,
//! [`takeover`] what happens to a part whose process ended. If the file system does not free holes at once, each entry is a
//! file.
//!
//! Cost: a hit of 4 MiB is one `read` and a CRC-32 (about 1 ms from the page cache).

mod bucket;
mod disk;
mod entry;
mod folder;
mod holes;
mod index;
mod inner;
mod options;
mod others;
mod ranges;
mod slab;
mod table;
mod takeover;

pub use options::{DiskCacheOptions, DiskCacheStats};
pub(crate) use ranges::RangeReader;

use crate::{Error, ErrorKind, ObjectRef, PerProcess, Result, Storage};
use bytes::Bytes;
use disk::Disk;
use entry::key;
use index::{Stream, Use};
use inner::Inner;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Fetched ranges on local disk. Clones share everything, and caches of one folder share their entries.
///
/// `get` and `put` do file I/O: call them off the async threads, or use [`read_through`](Self::read_through).
#[derive(Clone)]
pub struct DiskCache {
    inner: Arc<Inner>,
    /// The data set whose uses are recorded.
    stream: Arc<OpenStream>,
    /// Keeps the list of this process's caches alive.
    _open: Arc<OpenCaches>,
}

/// One data set's use of the cache.
struct OpenStream {
    inner: Arc<Inner>,
    number: Stream,
    process: u32,
}

impl Drop for OpenStream {
    /// A forked child must not wait for a lock that a thread of its parent held.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.inner.lock().index.end(self.number);
        }
    }
}

/// The caches that this process has open, by folder.
type OpenCaches = Mutex<HashMap<PathBuf, Weak<Inner>>>;

static OPEN: PerProcess<OpenCaches> = PerProcess::new();

impl DiskCache {
    /// Opens the cache of a folder. The first of a process takes over what ended processes left, removes partial files and
    /// lists the entries. They count as never needed until [`update_next_use`](Self::update_next_use).
    ///
    /// # Errors
    /// `BadConfig` if the folder cannot be made or read.
    pub fn open(options: DiskCacheOptions) -> Result<Self> {
        Self::open_with(options, Disk::REAL)
    }

    fn open_with(options: DiskCacheOptions, disk: Disk) -> Result<Self> {
        let folder = &options.folder;
        let failed = |e| {
            Error::config(format!("cache folder {}: it cannot be used; name another", folder.display()))
                .with_source(e)
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let at = folder.canonicalize().map_err(failed)?;
        let caches = {
            let mut open = OPEN.lock();
            open.upgrade().unwrap_or_else(|| {
                let caches = Arc::new(OpenCaches::default());
                *open = Arc::downgrade(&caches);
                caches
            })
        };
        let mut known = caches.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, inner| inner.strong_count() > 0);
        let inner = match known.get(&at).and_then(Weak::upgrade) {
            Some(inner) => {
                let mut state = inner.lock();
                state.max_bytes = state.max_bytes.max(options.max_bytes);
                drop(state);
                inner
            }
            None => {
                let inner = Arc::new(Inner::open(&at, options.max_bytes, disk).map_err(failed)?);
                known.insert(at, Arc::downgrade(&inner));
                inner
            }
        };
        drop(known);
        let number = 1 + inner.streams.fetch_add(1, Ordering::Relaxed);
        let stream = OpenStream { inner: inner.clone(), number, process: std::process::id() };
        Ok(Self { stream: Arc::new(stream), inner, _open: caches })
    }

    fn next(&self, at: u64) -> Use {
        Use { stream: self.stream.number, at }
    }

    /// Returns the bytes of `range`, if they are held and whole.
    ///
    /// The key contains the object's URI unchanged, here and in [`put`](Self::put). If one URI has several endpoints or
    /// signatures, use [`read_through`](Self::read_through).
    pub fn get(&self, object: &ObjectRef, range: &Range<u64>) -> Option<Bytes> {
        let found = key(object, range).and_then(|key| self.inner.find(key, range));
        let counter = if found.is_some() { &self.inner.hits } else { &self.inner.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps `bytes`, the content of `range`, if the plan needs them sooner than what they would evict. Returns whether
    /// they are held now.
    ///
    /// `next_use` states when the plan needs the range next: smaller is sooner, `u64::MAX` is never. Values are only
    /// compared with each other, so use places in the plan (epoch · N + position) and not distances from now: places stay
    /// true while the plan goes on.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use feedstock_dataset::{DiskCache, DiskCacheOptions, ObjectRef};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let folder = folder.path();
    /// let cache = DiskCache::open(DiskCacheOptions::new(folder, 1 << 20))?;
    /// let object = ObjectRef { uri: "s3://b/a.tar".into(), size: 10, etag: Some("\"1\"".into()) };
    /// assert!(cache.put(&object, &(0..4), &Bytes::from_static(b"0123"), 7)); // needed at place 7 of the plan
    /// assert_eq!(cache.get(&object, &(0..4)).unwrap(), "0123");
    ///
    /// let replaced = ObjectRef { etag: Some("\"2\"".into()), ..object };
    /// assert_eq!(cache.get(&replaced, &(0..4)), None); // another version
    /// assert_eq!((cache.stats().hits, cache.stats().misses, cache.stats().entries), (1, 1, 1));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    pub fn put(&self, object: &ObjectRef, range: &Range<u64>, bytes: &Bytes, next_use: u64) -> bool {
        assert_eq!(bytes.len() as u64, range.end - range.start, "the bytes are not the range's");
        let Some(key) = key(object, range) else { return false };
        self.inner.put(key, range, bytes, self.next(next_use)).unwrap_or_else(|error| {
            self.inner.turn_off(&error);
            false
        })
    }

    /// Records when the plan needs a held range next; `false` if this process does not hold it.
    pub fn update_next_use(&self, object: &ObjectRef, range: &Range<u64>, next_use: u64) -> bool {
        key(object, range).is_some_and(|key| self.inner.lock().index.update(key, self.next(next_use)))
    }

    /// Returns the bytes of `range` from the cache, else from `storage`, and then keeps them as [`put`](Self::put) does.
    /// File I/O runs off the async threads.
    ///
    /// ```
    /// use feedstock_dataset::{DiskCache, DiskCacheOptions};
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    ///
    /// # let cached = tempfile::tempdir().unwrap();
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// let cache = DiskCache::open(DiskCacheOptions::new(cached.path(), 1 << 20))?;
    /// storage.write(&uri("a.tar"), "0123456789".into()).await?;
    /// let object = storage.head(&uri("a.tar")).await?;
    /// for _ in 0..2 {
    ///     assert_eq!(cache.read_through(&storage, &object, 0..4, 7).await?, "0123");
    /// }
    /// assert_eq!((cache.stats().hits, storage.stats().read_bytes), (1, 4)); // read from storage once
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Storage's; the cache has none.
    pub async fn read_through(
        &self,
        storage: &Storage,
        object: &ObjectRef,
        range: Range<u64>,
        next_use: u64,
    ) -> Result<Bytes> {
        let keyed = ObjectRef { uri: storage.place_key(&object.uri), ..object.clone() };
        let held = {
            let (this, keyed, range) = (self.clone(), keyed.clone(), range.clone());
            blocking(storage, move || {
                let held = this.get(&keyed, &range);
                if let Some(key) = held.as_ref().and_then(|_| key(&keyed, &range)) {
                    this.inner.used(key, &range, this.next(next_use));
                }
                held
            })
        };
        if let Some(bytes) = held.await? {
            return Ok(bytes);
        }
        let bytes = storage.read(object, range.clone()).await?;
        let (this, copy) = (self.clone(), bytes.clone());
        blocking(storage, move || this.put(&keyed, &range, &copy, next_use)).await?;
        Ok(bytes)
    }

    /// Returns what it did so far and holds now.
    pub fn stats(&self) -> DiskCacheStats {
        let (entries, used_bytes, off) = {
            let state = self.inner.lock();
            (state.index.len(), state.used(), state.is_off())
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCacheStats {
            hits: read(&self.inner.hits),
            misses: read(&self.inner.misses),
            damaged: read(&self.inner.damaged),
            evicted: read(&self.inner.evicted),
            entries,
            used_bytes,
            off,
        }
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.inner.folder.path();
        f.debug_struct("DiskCache").field("folder", &folder).field("stats", &self.stats()).finish()
    }
}

async fn blocking<T: Send + 'static>(
    storage: &Storage,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = storage.io().handle().spawn_blocking(work).await;
    done.map_err(|e| Error::new(ErrorKind::Bug, format!("a cache operation ended without a result: {e}")))
}

#[cfg(test)]
mod tests;
