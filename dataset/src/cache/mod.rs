//! Disk cache of fetched ranges.
//!
//! ```text
//! read ─▶ held? ─ yes ─▶ file, checksum ─▶ bytes
//!           └ no ─▶ storage ─▶ bytes ─▶ needed sooner than what it evicts? ─▶ temporary file ─▶ rename
//! ```
//! Invariants
//! - At every moment, the files that all processes have in the folder hold at most `max_bytes` together: space is reserved
//!   before a byte is written, under a lock of the folder.
//! - A hit returns the bytes that were stored: the key names endpoint, object (without the signature of its URL), ETag and
//!   range, and a checksum covers the bytes. A damaged entry is dropped and fetched again. Objects without an ETag are not
//!   cached.
//! - A crash leaves at worst a temporary file, which the next owner removes.
//! - Entries whose use has passed are evicted first, then those that the plan needs last (Belady's rule; the future is
//!   known). An entry that is needed later than all residents is not admitted.
//! - A full or read-only disk turns caching off for five minutes with a warning; data still flows.
//!
//! A folder has one cache ([`folder`]), which the data sets of a process share, and so do processes. A process writes and
//! removes entries in its part only, and reads those of all parts.
//!
//! Cost: a hit of 4 MiB is one `read` and a CRC-32 (about 1 ms from the page cache).

mod entry;
mod folder;
mod index;
mod options;
mod ranges;

pub use options::{DiskCacheOptions, DiskCacheStats};
pub(crate) use ranges::RangeReader;

use crate::{Error, ErrorKind, ObjectRef, PerProcess, Result, Storage};
use bytes::Bytes;
use entry::{check, header, key, size_on_disk, write_file};
use folder::{DISK_BLOCK_BYTES, Folder, our_files, remove_file};
use index::{Admission, Index, Key, Stream, Use};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Fetched ranges on local disk. Clones share everything, and caches of one folder share their entries.
///
/// `get` and `put` do file I/O: call them off the async threads, or use [`read_through`](Self::read_through).
#[derive(Clone)]
pub struct DiskCache {
    inner: Arc<Inner>,
    /// The data set whose uses are recorded.
    stream: Arc<OpenStream>,
}

type WriteFile = fn(&Path, &[&[u8]]) -> io::Result<()>;

struct Inner {
    folder: Folder,
    state: Mutex<State>,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    temps: AtomicU64,
    streams: AtomicU64,
    write_file: WriteFile,
    /// Keeps the list of this process's caches alive.
    _open: Arc<OpenCaches>,
}

struct State {
    index: Index,
    max_bytes: u64,
    /// Keys being written, so that two fetches of one range write one file.
    writing: HashSet<Key>,
    /// The time since which nothing is written.
    off: Option<Instant>,
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

/// How long nothing is written after a disk error.
const OFF: Duration = Duration::from_secs(300);
/// The use of entries of earlier runs: never, until a stream states another.
const NEVER: Use = Use { stream: 0, at: u64::MAX };

impl DiskCache {
    /// Opens the cache of a folder. The first of a process takes over what ended processes left, removes partial files and
    /// lists the entries. They count as never needed until [`update_next_use`](Self::update_next_use).
    ///
    /// # Errors
    /// `BadConfig` if the folder cannot be made or read.
    pub fn open(options: DiskCacheOptions) -> Result<Self> {
        Self::open_with(options, write_file)
    }

    fn open_with(options: DiskCacheOptions, write_file: WriteFile) -> Result<Self> {
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
                let inner =
                    Inner::open(&at, options.max_bytes, write_file, caches.clone()).map_err(failed)?;
                let inner = Arc::new(inner);
                known.insert(at, Arc::downgrade(&inner));
                inner
            }
        };
        drop(known);
        let number = 1 + inner.streams.fetch_add(1, Ordering::Relaxed);
        let stream = OpenStream { inner: inner.clone(), number, process: std::process::id() };
        Ok(Self { stream: Arc::new(stream), inner })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.lock()
    }

    fn next(&self, at: u64) -> Use {
        Use { stream: self.stream.number, at }
    }

    /// Returns the bytes of `range`, if they are held and whole.
    ///
    /// The key contains the object's URI unchanged, here and in [`put`](Self::put). If one URI has several endpoints or
    /// signatures, use [`read_through`](Self::read_through).
    pub fn get(&self, object: &ObjectRef, range: &Range<u64>) -> Option<Bytes> {
        let found = self.find(object, range);
        let counter = if found.is_some() { &self.inner.hits } else { &self.inner.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn find(&self, object: &ObjectRef, range: &Range<u64>) -> Option<Bytes> {
        let key = key(object, range)?;
        if !self.lock().index.hold(key) {
            return self.find_with_others(key, range);
        }
        let path = self.inner.folder.entry(key);
        let read = fs::read(&path).map(|file| check(file, key, range));
        let mut state = self.lock();
        let alone = state.index.let_go(key);
        if let Ok(Some(bytes)) = read {
            return Some(bytes);
        }
        self.inner.damaged.fetch_add(1, Ordering::Relaxed);
        if alone && remove_file(&path).is_ok() {
            state.index.remove(key);
            self.inner.publish(&state);
        }
        None
    }

    /// Looks in the parts of other processes. A damaged file is removed there; its owner notices at the next read.
    fn find_with_others(&self, key: Key, range: &Range<u64>) -> Option<Bytes> {
        for path in self.inner.folder.entries_of_others(key) {
            let Ok(file) = fs::read(&path) else { continue };
            if let Some(bytes) = check(file, key, range) {
                return Some(bytes);
            }
            self.inner.damaged.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = remove_file(&path) {
                tracing::debug!(%error, "a damaged cache entry of another process could not be removed");
            }
        }
        None
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
        let size = size_on_disk(bytes.len() as u64);
        match self.reserve(key, size, self.next(next_use)) {
            Ok(Reserved::Space) => {}
            Ok(Reserved::Resident) => return true,
            Ok(Reserved::Refused) => return false,
            Err(error) => {
                self.turn_off(&error);
                return false;
            }
        }
        let written = self.write(key, bytes);
        let mut state = self.lock();
        state.writing.remove(&key);
        if let Err(error) = written {
            state.index.release(size);
            self.inner.publish(&state);
            drop(state);
            self.turn_off(&error);
            return false;
        }
        state.index.insert(key, size, self.next(next_use));
        true
    }

    /// Reserves space, and removes what has to be evicted for it, under the folder's lock.
    fn reserve(&self, key: Key, size: u64, next: Use) -> io::Result<Reserved> {
        let inner = &self.inner;
        if inner.folder.entries_of_others(key).iter().any(|path| path.exists()) {
            return Ok(Reserved::Resident);
        }
        let _locked = inner.folder.lock()?; // before the state's lock, so that hits do not wait for it
        let mut state = self.lock();
        if state.off.is_some_and(|since| since.elapsed() < OFF) || state.writing.contains(&key) {
            return Ok(Reserved::Refused);
        }
        state.off = None;
        let cap = state.max_bytes.saturating_sub(inner.folder.used_by_others()?);
        state.index.set_cap(cap);
        let victims = loop {
            let victims = match state.index.admit(key, size, next) {
                Admission::Resident => return Ok(Reserved::Resident),
                Admission::Refused => return Ok(Reserved::Refused),
                Admission::Evict(victims) => victims,
            };
            // Another process may have made the use that seems to have passed, and recorded the next one.
            let passed = victims.iter().copied().filter(|victim| state.index.has_passed(*victim));
            let recorded = passed.filter_map(|victim| Some((victim, inner.folder.recorded_use(victim)?)));
            let recorded: Vec<(Key, u64)> = recorded.collect();
            if !recorded.into_iter().fold(false, |any, (key, at)| state.index.postpone(key, at) || any) {
                break victims;
            }
        };
        for victim in victims {
            remove_file(&inner.folder.entry(victim))?; // gone from the disk before its space is reserved
            state.index.remove(victim);
            inner.evicted.fetch_add(1, Ordering::Relaxed);
        }
        state.index.reserve(size);
        state.writing.insert(key);
        inner.publish(&state);
        Ok(Reserved::Space)
    }

    fn write(&self, key: Key, bytes: &Bytes) -> io::Result<()> {
        let number = self.inner.temps.fetch_add(1, Ordering::Relaxed);
        let temp = self.inner.folder.temporary(key, number);
        let header = header(key, bytes);
        let result = (self.inner.write_file)(&temp, &[&header, bytes])
            .and_then(|()| fs::rename(&temp, self.inner.folder.entry(key)));
        if result.is_err() {
            remove_file(&temp)?;
        }
        result
    }

    fn turn_off(&self, error: &io::Error) {
        if self.lock().off.replace(Instant::now()).is_none() {
            let folder = self.inner.folder.path().display();
            tracing::warn!(
                "cache folder {folder}: {error}; nothing is cached for {} minutes, data comes from storage",
                OFF.as_secs() / 60
            );
        }
    }

    /// Records when the plan needs a held range next; `false` if this process does not hold it.
    pub fn update_next_use(&self, object: &ObjectRef, range: &Range<u64>, next_use: u64) -> bool {
        key(object, range).is_some_and(|key| self.lock().index.update(key, self.next(next_use)))
    }

    /// Records that a held range was used and is needed again at `next_use`, also for the owner of its file.
    fn used(&self, object: &ObjectRef, range: &Range<u64>, next_use: u64) {
        let Some(key) = key(object, range) else { return };
        let mut state = self.lock();
        if state.index.holds(key) {
            state.index.used_at(key, self.next(next_use));
        } else {
            drop(state);
            self.inner.folder.record_use(key, next_use);
        }
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
                if held.is_some() {
                    this.used(&keyed, &range, next_use);
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
            let state = self.lock();
            (state.index.len(), state.index.used(), state.off.is_some_and(|since| since.elapsed() < OFF))
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

enum Reserved {
    Space,
    /// It is held already, by this process or another.
    Resident,
    Refused,
}

impl Inner {
    fn open(at: &Path, max_bytes: u64, write_file: WriteFile, open: Arc<OpenCaches>) -> io::Result<Self> {
        let folder = Folder::open(at)?;
        let mut index = Index::new(0);
        {
            let _locked = folder.lock()?;
            index.set_cap(max_bytes.saturating_sub(folder.used_by_others()?));
            load(&folder, &mut index)?;
            folder.publish(index.used());
        }
        Ok(Self {
            folder,
            state: Mutex::new(State { index, max_bytes, writing: HashSet::new(), off: None }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            temps: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            write_file,
            _open: open,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes to other processes how much this one holds.
    fn publish(&self, state: &State) {
        self.folder.publish(state.index.used());
    }
}

async fn blocking<T: Send + 'static>(
    storage: &Storage,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = storage.io().handle().spawn_blocking(work).await;
    done.map_err(|e| Error::new(ErrorKind::Bug, format!("a cache operation ended without a result: {e}")))
}

/// Lists what earlier runs left. Removes partial files, and entries beyond the cap.
fn load(folder: &Folder, index: &mut Index) -> io::Result<()> {
    for (path, key) in our_files(folder.part())? {
        let bytes = fs::metadata(&path)?.len().next_multiple_of(DISK_BLOCK_BYTES);
        match key {
            // without evicting others
            Some(key) if index.admit(key, bytes, NEVER) == Admission::Evict(Vec::new()) => {
                index.reserve(bytes);
                index.insert(key, bytes, NEVER);
            }
            _ => remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
