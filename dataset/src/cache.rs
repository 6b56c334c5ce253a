//! Disk cache of fetched ranges.
//!
//! ```text
//! read ─▶ held? ─ yes ─▶ file, checksum ─▶ bytes
//!           └ no ─▶ storage ─▶ bytes ─▶ needed sooner than what would go? ─▶ temporary file ─▶ rename
//! ```
//! Invariants
//! - The files hold at most `max_bytes` at every moment: space is reserved before a byte is written.
//! - What is handed out is what was put in: the key names endpoint, object (without the signature of its URL), ETag and
//!   range, and a checksum covers the bytes. A damaged entry is dropped and fetched again. Objects without an ETag are
//!   not cached.
//! - A crash leaves at worst a temporary file, which the next owner removes.
//! - What the plan needs last goes first (Belady's rule; the future is known), and an entry that is needed
//!   later than all residents is not admitted.
//! - A full disk or a read-only one turns caching off with one warning; data still flows.
//!
//! Several processes: the folder has `shares` parts, each with an equal part of the cap and one owner at a
//! time (an advisory lock). A process takes the first free part; when all are taken it runs uncached.
//!
//! Cost: a hit of 4 MiB is one `read` and a CRC-32 (about 1 ms from the page cache).

mod index;

use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use bytes::Bytes;
use index::{Admission, Index, Key};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::hash::Hasher;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use twox_hash::XxHash64;

/// Where the cache is and how much it may hold.
#[derive(Debug, Clone)]
pub struct DiskCacheOptions {
    /// The folder; made when missing. Nothing but caches should be in it.
    pub folder: PathBuf,
    /// The most bytes that all files in the folder take together, rounded up to 4 KiB each.
    pub max_bytes: u64,
    /// How many processes share the folder (ranks of one machine), 1 … 1024. Default 1.
    pub shares: u32,
}

impl DiskCacheOptions {
    /// A cache for one process in `folder`, of at most `max_bytes`.
    pub fn new(folder: impl Into<PathBuf>, max_bytes: u64) -> Self {
        Self { folder: folder.into(), max_bytes, shares: 1 }
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
    /// Entries that went to make room.
    pub evicted: u64,
    /// Entries held.
    pub entries: usize,
    /// Bytes on disk, those being written included.
    pub used_bytes: u64,
    /// Caching has turned itself off, or no part of the folder was free.
    pub off: bool,
}

/// Fetched ranges on local disk; clones share everything.
///
/// `get` and `put` do file I/O: call them off the async threads, or use [`read_through`](Self::read_through).
#[derive(Clone)]
pub struct DiskCache(Arc<Inner>);

type WriteFile = fn(&Path, &[&[u8]]) -> io::Result<()>;

struct Inner {
    /// This process's part of the folder; `None` when every part has another owner.
    part: Option<Part>,
    state: Mutex<State>,
    off: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    temps: AtomicU64,
    write_file: WriteFile,
}

struct Part {
    folder: PathBuf,
    /// Held open for its lock, which the kernel releases when the process ends, however it ends.
    _lock: File,
}

struct State {
    index: Index,
    /// Being written now, so that two fetches of one range write one file.
    writing: HashSet<Key>,
}

/// Name and format version · CRC-32 of the bytes · key · length: 8 + 4 + 16 + 8 bytes, little-endian.
const MAGIC: [u8; 8] = *b"fscache1";
const HEADER_BYTES: usize = 36;
/// Files take whole file-system blocks.
const DISK_BLOCK_BYTES: u64 = 4096;
const SHARES_MAX: u32 = 1024;
const ENTRY: &str = "block";
const TEMP: &str = "tmp";

impl DiskCache {
    /// Opens the cache: takes a free part of the folder, removes half-written files, and lists what is held.
    /// Entries of earlier runs count as never needed until [`update_next_use`](Self::update_next_use).
    ///
    /// # Errors
    /// `BadConfig` when the folder cannot be made or read, or `shares` is out of range.
    pub fn open(options: DiskCacheOptions) -> Result<Self> {
        Self::open_with(options, write_file)
    }

    fn open_with(options: DiskCacheOptions, write_file: WriteFile) -> Result<Self> {
        if !(1..=SHARES_MAX).contains(&options.shares) {
            return Err(Error::config(format!(
                "cache shares: {} is not in 1 … {SHARES_MAX}",
                options.shares
            )));
        }
        let folder = &options.folder;
        let failed = |e| {
            Error::config(format!("cache folder {}: it cannot be used; name another", folder.display()))
                .with_source(e)
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let part = take_part(folder, options.shares).map_err(failed)?;
        let mut index = Index::new(options.max_bytes / u64::from(options.shares));
        match &part {
            Some(part) => load(&part.folder, &mut index).map_err(failed)?,
            None => tracing::warn!(
                "cache folder {}: all {} parts are in use by other processes; running without a cache",
                folder.display(),
                options.shares
            ),
        }
        Ok(Self(Arc::new(Inner {
            off: AtomicBool::new(part.is_none()),
            part,
            state: Mutex::new(State { index, writing: HashSet::new() }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            temps: AtomicU64::new(0),
            write_file,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of `range`, if they are held and whole.
    ///
    /// The object's URI is the key, unchanged, here and in [`put`](Self::put): where one URI has several endpoints or
    /// signatures, use [`read_through`](Self::read_through).
    pub fn get(&self, object: &ObjectRef, range: &Range<u64>) -> Option<Bytes> {
        let found = self.find(object, range);
        let counter = if found.is_some() { &self.0.hits } else { &self.0.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn find(&self, object: &ObjectRef, range: &Range<u64>) -> Option<Bytes> {
        let part = self.0.part.as_ref()?;
        let key = key(object, range)?;
        if !self.lock().index.hold(key) {
            return None;
        }
        let path = part.entry(key);
        let read = fs::read(&path).map(|file| check(file, key, range));
        let mut state = self.lock();
        let alone = state.index.let_go(key);
        if let Ok(Some(bytes)) = read {
            return Some(bytes);
        }
        self.0.damaged.fetch_add(1, Ordering::Relaxed);
        if alone && remove_file(&path).is_ok() {
            state.index.remove(key);
        }
        None
    }

    /// Keeps `bytes`, the content of `range`, if the plan needs them sooner than what would have to go.
    /// Returns whether they are held now.
    ///
    /// `next_use` says when the plan needs the range next: smaller is sooner, `u64::MAX` is never. Values
    /// are only compared with each other, so use places in the plan (epoch · N + position) rather than
    /// distances from now: those stay true while the plan goes on.
    pub fn put(&self, object: &ObjectRef, range: &Range<u64>, bytes: &Bytes, next_use: u64) -> bool {
        assert_eq!(bytes.len() as u64, range.end - range.start, "the bytes are not the range's");
        let (Some(part), Some(key)) = (&self.0.part, key(object, range)) else { return false };
        let size = size_on_disk(bytes.len() as u64);
        if self.0.off.load(Ordering::Relaxed) {
            return false;
        }
        {
            let mut state = self.lock();
            if state.writing.contains(&key) {
                return false;
            }
            match state.index.admit(key, size, next_use) {
                Admission::Resident => return true,
                Admission::Refused => return false,
                Admission::Evict(victims) => {
                    // gone from the disk before their space is given away
                    for victim in victims {
                        if let Err(e) = remove_file(&part.entry(victim)) {
                            self.turn_off(&e);
                            return false;
                        }
                        state.index.remove(victim);
                        self.0.evicted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            state.index.reserve(size);
            state.writing.insert(key);
        }
        let written = self.write(part, key, bytes);
        let mut state = self.lock();
        state.writing.remove(&key);
        match written {
            Ok(()) => state.index.insert(key, size, next_use),
            Err(e) => {
                state.index.release(size);
                self.turn_off(&e);
                return false;
            }
        }
        true
    }

    fn write(&self, part: &Part, key: Key, bytes: &Bytes) -> io::Result<()> {
        let number = self.0.temps.fetch_add(1, Ordering::Relaxed);
        let temp = part.folder.join(format!("{key:032x}-{number}.{TEMP}"));
        let header = header(key, bytes);
        let result =
            (self.0.write_file)(&temp, &[&header, bytes]).and_then(|()| fs::rename(&temp, part.entry(key)));
        if result.is_err() {
            remove_file(&temp)?;
        }
        result
    }

    fn turn_off(&self, error: &io::Error) {
        if !self.0.off.swap(true, Ordering::Relaxed) {
            let folder = self.0.part.as_ref().map(|p| p.folder.display().to_string()).unwrap_or_default();
            tracing::warn!("cache folder {folder}: {error}; nothing more is cached, data comes from storage");
        }
    }

    /// Tells when the plan needs a held range next; `false` when it is not held.
    pub fn update_next_use(&self, object: &ObjectRef, range: &Range<u64>, next_use: u64) -> bool {
        key(object, range).is_some_and(|key| self.lock().index.update(key, next_use))
    }

    /// The bytes of `range` from the cache, else from `storage` and then kept until `next_use` as
    /// [`put`](Self::put) says. File I/O runs off the async threads.
    ///
    /// # Errors
    /// Storage's own; the cache has none.
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
                    this.update_next_use(&keyed, &range, next_use);
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

    /// What it did so far and holds now.
    pub fn stats(&self) -> DiskCacheStats {
        let (entries, used_bytes) = {
            let state = self.lock();
            (state.index.len(), state.index.used())
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCacheStats {
            hits: read(&self.0.hits),
            misses: read(&self.0.misses),
            damaged: read(&self.0.damaged),
            evicted: read(&self.0.evicted),
            entries,
            used_bytes,
            off: self.0.off.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.0.part.as_ref().map(|part| &part.folder);
        f.debug_struct("DiskCache").field("folder", &folder).field("stats", &self.stats()).finish()
    }
}

impl Part {
    fn entry(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key:032x}.{ENTRY}"))
    }
}

async fn blocking<T: Send + 'static>(
    storage: &Storage,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = storage.io().handle().spawn_blocking(work).await;
    done.map_err(|e| Error::new(ErrorKind::Bug, format!("a cache operation ended without a result: {e}")))
}

/// Two 64-bit hashes with different seeds over (URI, ETag, range): at 10⁹ entries the chance that any two
/// agree is 10⁻²¹. URIs themselves stay out of the files, for they may be signed.
fn key(object: &ObjectRef, range: &Range<u64>) -> Option<Key> {
    let etag = object.etag.as_deref()?;
    let half = |seed| {
        let mut hasher = XxHash64::with_seed(seed);
        for text in [object.uri.as_str(), etag] {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        for number in [object.size, range.start, range.end] {
            hasher.write(&number.to_le_bytes());
        }
        u128::from(hasher.finish())
    };
    Some((half(1) << 64) | half(2))
}

fn size_on_disk(bytes: u64) -> u64 {
    (bytes + HEADER_BYTES as u64).next_multiple_of(DISK_BLOCK_BYTES)
}

fn header(key: Key, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    out[12..28].copy_from_slice(&key.to_le_bytes());
    out[28..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    out
}

/// The bytes in a file, if header, length and checksum agree.
fn check(file: Vec<u8>, key: Key, range: &Range<u64>) -> Option<Bytes> {
    let bytes = file.get(HEADER_BYTES..)?;
    let whole = bytes.len() as u64 == range.end - range.start && file[..HEADER_BYTES] == header(key, bytes);
    whole.then(|| Bytes::from(file).slice(HEADER_BYTES..))
}

/// No `fsync`: after a power cut the checksum tells whole entries from broken ones, and all can be fetched again.
fn write_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Locks the first free part. Parts beyond `shares`, left by a run with more, are emptied when free.
fn take_part(folder: &Path, shares: u32) -> io::Result<Option<Part>> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("part-")?.parse::<u32>().ok());
        if let Some(number) = number.filter(|n| *n >= shares) {
            let old = folder.join(format!("part-{number}"));
            if let Some(_lock) = lock(&old)? {
                for (path, _) in our_files(&old)? {
                    remove_file(&path)?;
                }
            }
        }
    }
    for number in 0..shares {
        let part = folder.join(format!("part-{number}"));
        fs::create_dir_all(&part)?;
        if let Some(lock) = lock(&part)? {
            return Ok(Some(Part { folder: part, _lock: lock }));
        }
    }
    Ok(None)
}

fn lock(part: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(part.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// The files in a part that a cache wrote, whole (with their key) or half.
fn our_files(part: &Path) -> io::Result<Vec<(PathBuf, Option<Key>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(part)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        match path.extension().and_then(|e| e.to_str()) {
            Some(TEMP) => files.push((path, None)),
            Some(ENTRY) if stem.len() == 32 => {
                let key = Key::from_str_radix(stem, 16).ok();
                files.push((path, key));
            }
            _ => {} // the lock, or not ours
        }
    }
    Ok(files)
}

/// Lists what an earlier run left. Half files go, and so do entries beyond the cap.
fn load(part: &Path, index: &mut Index) -> io::Result<()> {
    for (path, key) in our_files(part)? {
        let bytes = fs::metadata(&path)?.len().next_multiple_of(DISK_BLOCK_BYTES);
        match key {
            // never needed until the plan says so; nothing is evicted for it
            Some(key) if index.admit(key, bytes, u64::MAX) == Admission::Evict(Vec::new()) => {
                index.reserve(bytes);
                index.insert(key, bytes, u64::MAX);
            }
            _ => remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(n: u64) -> ObjectRef {
        ObjectRef { uri: format!("s3://b/{n}"), size: 1 << 20, etag: Some(format!("\"{n}\"")) }
    }

    fn full_disk(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        File::create_new(path)?.write_all(&parts[0][..7])?; // some of it got through
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    #[test]
    fn a_full_disk_turns_caching_off_and_leaves_no_half_file() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open_with(DiskCacheOptions::new(dir.path(), 1 << 20), full_disk).unwrap();
        let bytes = Bytes::from(vec![7; 1000]);
        assert!(!cache.put(&object(1), &(0..1000), &bytes, 5));
        assert!(cache.stats().off);
        assert_eq!(cache.stats().used_bytes, 0);
        assert!(!cache.put(&object(2), &(0..1000), &bytes, 5));
        assert_eq!(cache.get(&object(1), &(0..1000)), None);
        assert!(our_files(&dir.path().join("part-0")).unwrap().is_empty());
    }

    #[test]
    fn the_key_tells_objects_versions_and_ranges_apart() {
        let base = object(1);
        let mut keys = HashSet::from([key(&base, &(0..10)).unwrap()]);
        assert!(keys.insert(key(&base, &(0..11)).unwrap()));
        assert!(keys.insert(key(&base, &(1..10)).unwrap()));
        assert!(keys.insert(key(&object(2), &(0..10)).unwrap()));
        assert!(keys.insert(key(&ObjectRef { etag: Some("x".into()), ..base.clone() }, &(0..10)).unwrap()));
        assert_eq!(key(&ObjectRef { etag: None, ..base }, &(0..10)), None);
    }
}
