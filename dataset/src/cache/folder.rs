//! A cache's folder, which processes share.
//!
//! ```text
//! <folder>/lock                       held while space is reserved or parts change owners
//! <folder>/part-0/lock                held by the part's owner; its length is what the part holds, in 4-KiB blocks
//! <folder>/part-0/<number>.slab       small entries: written and removed by the owner, read by all
//! <folder>/part-0/table               where they are in slabs
//! <folder>/part-0/<key>.block         a large entry; earlier releases stored all entries this way
//! ```
//! Each process owns a part. A part is free after its owner ended, for whatever reason; the next process that opens the
//! folder takes over its entries.

use super::entry::{DISK_BLOCK_BYTES, Key};
use super::slab;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ENTRY: &str = "block";
const TEMP: &str = "tmp";
const LOCK: &str = "lock";

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

/// A part whose owner ended. Its lock is ours until this is dropped.
pub(super) struct FreePart {
    pub(super) path: PathBuf,
    lock: File,
}

impl Folder {
    /// Takes a part of the folder, and locks all free ones.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<FreePart>)> {
        let guard = Mutex::new(lock_file(path)?);
        let locked = lock(&guard)?;
        let mut free = Vec::new();
        let mut next = 0;
        for (number, part) in parts(path)? {
            next = next.max(number + 1);
            let file = lock_file(&part)?;
            match file.try_lock() {
                Ok(()) => free.push(FreePart { path: part, lock: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let own = if free.is_empty() {
            let part = path.join(format!("part-{next}"));
            fs::create_dir_all(&part)?;
            let file = lock_file(&part)?;
            file.lock()?;
            FreePart { path: part, lock: file }
        } else {
            free.remove(0)
        };
        drop(locked);
        let process = std::process::id();
        Ok((Self { path: path.to_owned(), part: own.path, owned: own.lock, guard, process }, free))
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

    /// Returns a file of our part for a test of the disk. The next owner removes it if this process is killed.
    pub(super) fn scratch(&self) -> PathBuf {
        self.part.join(format!("scratch.{TEMP}"))
    }

    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        lock(&self.guard)
    }

    /// Returns the parts of other processes, and free ones.
    pub(super) fn others(&self) -> io::Result<impl Iterator<Item = PathBuf>> {
        Ok(parts(&self.path)?.into_iter().map(|(_, part)| part).filter(|part| *part != self.part))
    }

    /// Returns the bytes that other parts hold.
    pub(super) fn used_by_others(&self) -> io::Result<u64> {
        let blocks = |part: PathBuf| fs::metadata(part.join(LOCK)).map_or(0, |lock| lock.len());
        Ok(self.others()?.map(blocks).sum::<u64>() * DISK_BLOCK_BYTES)
    }

    /// Publishes to other processes how much this part holds.
    pub(super) fn publish(&self, bytes: u64) {
        if let Err(error) = self.owned.set_len(bytes.div_ceil(DISK_BLOCK_BYTES)) {
            tracing::debug!(%error, "the size of this part of the cache could not be published to other processes");
        }
    }

    /// Counts what free parts hold as ours, before it is moved here. Ours grows first: if this is interrupted, no process
    /// counts the entries as free space.
    pub(super) fn count(&self, free: &[FreePart]) -> io::Result<()> {
        for part in free {
            self.owned.set_len(self.owned.metadata()?.len() + part.lock.metadata()?.len())?;
            part.lock.set_len(0)?;
        }
        Ok(())
    }
}

fn lock(guard: &Mutex<File>) -> io::Result<Locked<'_>> {
    let file = guard.lock().unwrap_or_else(PoisonError::into_inner);
    file.lock()?;
    Ok(Locked(file))
}

/// Returns the file of an entry that is not in a slab.
pub(super) fn entry(part: &Path, key: Key) -> PathBuf {
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

/// The files in a part that a cache wrote, except its lock and table.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) slabs: Vec<u32>,
    pub(super) entries: Vec<(PathBuf, Key)>,
    pub(super) partial: Vec<PathBuf>,
}

pub(super) fn list(part: &Path) -> io::Result<Listed> {
    let mut listed = Listed::default();
    for entry in fs::read_dir(part)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        match path.extension().and_then(|e| e.to_str()) {
            Some(TEMP) => listed.partial.push(path),
            Some(ENTRY) if stem.len() == 32 => match Key::from_str_radix(stem, 16) {
                Ok(key) => listed.entries.push((path, key)),
                Err(_) => listed.partial.push(path),
            },
            _ => listed.slabs.extend(slab::number_of(&path)), // else the lock, the table, or not ours
        }
    }
    Ok(listed)
}
