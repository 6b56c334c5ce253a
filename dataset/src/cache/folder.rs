//! A cache's folder, which processes share.
//!
//! ```text
//! <folder>/lock                       held while space is reserved or parts change owners
//! <folder>/part-0/lock                held by the part's owner; its length is what the part holds, in 4-KiB blocks
//! <folder>/part-0/<key>.block         an entry: written and removed by the owner, read by all
//! ```
//! Each process owns a part. A part is free after its owner ended, for whatever reason; the next process that opens the
//! folder takes over its entries.
//!
//! After another process has used an entry, the file's time of modification states when the plan needs it next: the place
//! in the order, in microseconds since 1970.

use super::index::Key;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Files take whole file-system blocks.
pub(super) const DISK_BLOCK_BYTES: u64 = 4096;
const ENTRY: &str = "block";
const TEMP: &str = "tmp";
const LOCK: &str = "lock";
/// Larger values are not places but times of writing: 10¹⁵ microseconds is a date in 2001.
const MAX_PLACE: u64 = 1_000_000_000_000_000;

pub(super) struct Folder {
    path: PathBuf,
    part: PathBuf,
    /// Stays open for its lock, which the kernel releases when the process ends, however it ends.
    owned: File,
    /// The folder's lock; the mutex separates the threads of this process, which share the file's lock.
    guard: Mutex<File>,
    process: u32,
}

impl Drop for Folder {
    /// Releases the part even if a forked child holds a duplicate of the file.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _a_closed_file_is_unlocked = self.owned.unlock();
        }
    }
}

/// The folder's lock, released when dropped.
pub(super) struct Locked<'a>(MutexGuard<'a, File>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _a_closed_file_is_unlocked = self.0.unlock();
    }
}

impl Folder {
    /// Takes a part of the folder, with the entries of all free parts.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let guard = Mutex::new(lock_file(path)?);
        let locked = lock(&guard)?;
        let mut own: Option<(PathBuf, File)> = None;
        let mut next = 0;
        for (number, part) in parts(path)? {
            next = next.max(number + 1);
            let file = lock_file(&part)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            match &own {
                None => own = Some((part, file)),
                Some((own, owned)) => {
                    // Published first: if this is interrupted, no process counts the entries as free space.
                    owned.set_len(owned.metadata()?.len() + file.metadata()?.len())?;
                    for (entry, _) in our_files(&part)? {
                        fs::rename(&entry, own.join(entry.file_name().unwrap_or_default()))?;
                    }
                    file.set_len(0)?;
                }
            }
        }
        let (part, owned) = match own {
            Some(own) => own,
            None => {
                let part = path.join(format!("part-{next}"));
                fs::create_dir_all(&part)?;
                let file = lock_file(&part)?;
                file.lock()?;
                (part, file)
            }
        };
        drop(locked);
        Ok(Self { path: path.to_owned(), part, owned, guard, process: std::process::id() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    pub(super) fn entry(&self, key: Key) -> PathBuf {
        entry(&self.part, key)
    }

    pub(super) fn temporary(&self, key: Key, number: u64) -> PathBuf {
        self.part.join(format!("{key:032x}-{number}.{TEMP}"))
    }

    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        lock(&self.guard)
    }

    /// Returns where other processes would hold the entry.
    pub(super) fn entries_of_others(&self, key: Key) -> Vec<PathBuf> {
        let others = parts(&self.path).unwrap_or_default().into_iter().filter(|(_, part)| *part != self.part);
        others.map(|(_, part)| entry(&part, key)).collect()
    }

    /// Returns the bytes that other parts hold.
    pub(super) fn used_by_others(&self) -> io::Result<u64> {
        let mut blocks = 0;
        for (_, part) in parts(&self.path)?.into_iter().filter(|(_, part)| *part != self.part) {
            blocks += fs::metadata(part.join(LOCK)).map_or(0, |lock| lock.len());
        }
        Ok(blocks * DISK_BLOCK_BYTES)
    }

    /// Publishes to other processes how much this part holds.
    pub(super) fn publish(&self, bytes: u64) {
        if let Err(error) = self.owned.set_len(bytes.div_ceil(DISK_BLOCK_BYTES)) {
            tracing::debug!(%error, "the size of this part of the cache could not be published to other processes");
        }
    }

    /// Records for an entry's owner when it is needed next.
    pub(super) fn record_use(&self, key: Key, at: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(at.min(MAX_PLACE - 1));
        for path in self.entries_of_others(key) {
            // An entry that is gone, or belongs to another user, is left unchanged.
            if let Ok(file) = File::open(&path) {
                let _recorded = file.set_modified(time);
            }
        }
    }

    /// Returns when an entry of this part is needed next, if another process recorded it.
    pub(super) fn recorded_use(&self, key: Key) -> Option<u64> {
        let modified = fs::metadata(self.entry(key)).ok()?.modified().ok()?;
        let at = u64::try_from(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_micros()).ok()?;
        (at < MAX_PLACE).then_some(at)
    }
}

fn lock(guard: &Mutex<File>) -> io::Result<Locked<'_>> {
    let file = guard.lock().unwrap_or_else(PoisonError::into_inner);
    file.lock()?;
    Ok(Locked(file))
}

fn entry(part: &Path, key: Key) -> PathBuf {
    part.join(format!("{key:032x}.{ENTRY}"))
}

fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

/// Returns the parts of a folder, by number.
fn parts(folder: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut parts = Vec::new();
    for found in fs::read_dir(folder)? {
        let found = found?;
        let name = found.file_name();
        if let Some(number) = name.to_str().and_then(|n| n.strip_prefix("part-")?.parse::<u32>().ok()) {
            parts.push((number, found.path()));
        }
    }
    parts.sort_unstable();
    Ok(parts)
}

/// Returns the files in a part that a cache wrote, whole (with their key) or partial.
pub(super) fn our_files(part: &Path) -> io::Result<Vec<(PathBuf, Option<Key>)>> {
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

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
