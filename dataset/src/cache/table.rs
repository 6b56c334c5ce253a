//! Where a part's entries are in its slabs: a hash table in a file. The part's owner writes it, and all processes read it.
//!
//! ```text
//! bucket 0 │ bucket 1 │ …     4 KiB each; their number is a power of two; key k is in bucket k mod that number
//! ```
//! The table doubles when a bucket is full. The upper half is written first, with the entries that belong there, and
//! the file has its new length when all of it is written. Then the lower half is cleared of them. A slot keeps its position
//! in its bucket, so a write at a position that was found before hits no other slot that was there. Readers take the largest
//! power of two of whole buckets, so they find every entry until the last step, and almost every entry during it: a
//! reader that has computed a bucket from the old length may miss an entry, which then counts as not held.
//!
//! The table is halved when less than 1/16 of its slots are in use: the reverse of doubling. The entries of the upper half
//! are added to the lower one, where the others keep their slots, and then the file is cut. Until then, they are in both
//! halves, and readers find them in the upper one.
//!
//! Other processes write to the table under a shared lock of its file, and the owner halves it under the exclusive lock.
//! Otherwise a late write to the upper half could make the file longer again, and slots would be in the wrong buckets. No process
//! waits for this lock: a use is not recorded, a damaged slot is erased by its next reader, and the table is halved at a later change,
//! at most once a change. If something still wrote after the end, the owner cuts the file at its next change. The owner takes no
//! lock to insert or remove an entry: it may use a slot again just before another process erases what was there. Other
//! processes then miss the new entry.
//!
//! A slot is free if its checksum is wrong or its key belongs to another bucket. So a slot that was written halfway, a
//! damaged one, and those that an interrupted doubling or halving left are free.
//!
//! Cost: one `pread` a look-up, one `pread`, one `pwrite` and one `fstat` a change. Doubling reads a table twice and writes twice
//! its length, and halving reads it once and writes half of it, during one change. A table is about 45 % full on average: 80
//! bytes an entry.

use super::bucket::{
    BUCKET_BYTES, Bucket, EMPTY, SLOT_BYTES, SLOTS, USE_AT, bucket_of, decode, encode, free_slot, only_of,
    slots, with,
};
use super::disk::remove_file;
use super::entry::{DISK_BLOCK_BYTES, Extent, Key};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const NAME: &str = "table";
/// Keys are hashes, so buckets fill evenly: in 10⁶ of them the first is full when the table is half full. If one is full
/// long before, doubling does not help, and the entry is not admitted.
const MIN_FILLED_TO_GROW: u64 = 8;
/// A table is halved if fewer than one of 16 slots is in use. After doubling, at least one of 16 is, since one of
/// [`MIN_FILLED_TO_GROW`] was; so a table is not halved and doubled in turn. A table takes at most 580 bytes an entry, and
/// entries take at least 4 KiB.
const MIN_FILLED_TO_STAY: u64 = 2 * MIN_FILLED_TO_GROW;

/// The table of the part that this process owns.
pub(super) struct Table {
    path: PathBuf,
    /// `None` until something is stored.
    file: Option<File>,
    buckets: u64,
    entries: u64,
    /// Whether halving was not possible since the table last grew or was opened.
    stays: bool,
}

impl Table {
    /// Opens the table of a part, which need not exist, and returns what it has.
    pub(super) fn open(part: &Path) -> io::Result<(Self, Vec<(Key, Extent)>)> {
        let mut table = Self { path: part.join(NAME), file: None, buckets: 0, entries: 0, stays: false };
        let file = match File::options().read(true).write(true).open(&table.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((table, Vec::new())),
            Err(error) => return Err(error),
        };
        table.buckets = buckets(file.metadata()?.len());
        file.set_len(table.bytes())?; // without what an interrupted doubling wrote
        let mut found = Vec::new();
        for bucket in 0..table.buckets {
            let read = read(&file, bucket)?;
            found.extend(slots(&read).filter(|(key, _)| bucket_of(*key, table.buckets) == bucket));
        }
        table.entries = found.len() as u64;
        table.file = Some(file);
        table.shrink();
        Ok((table, found))
    }

    /// Returns what it takes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets * DISK_BLOCK_BYTES
    }

    /// Returns by how many bytes the table has to grow for `key`, or `None` if that would not help.
    pub(super) fn growth(&self, key: Key) -> io::Result<Option<u64>> {
        let Some(file) = &self.file else { return Ok(Some(DISK_BLOCK_BYTES)) };
        if self.buckets == 0 {
            return Ok(Some(DISK_BLOCK_BYTES));
        }
        let bucket = bucket_of(key, self.buckets);
        if free_slot(&read(file, bucket)?, bucket, self.buckets).is_some() {
            return Ok(Some(0));
        }
        let filled = self.entries * MIN_FILLED_TO_GROW >= self.buckets * SLOTS as u64;
        Ok((self.buckets < MIN_FILLED_TO_GROW || filled).then(|| self.bytes()))
    }

    /// Doubles the table, or begins it with one bucket.
    pub(super) fn grow(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let new = File::options().read(true).write(true).create(true).truncate(true).open(&self.path)?;
            self.file = Some(new);
        }
        let Some(file) = &self.file else { return Ok(()) };
        match double(file, self.buckets) {
            Ok(buckets) => {
                (self.buckets, self.stays) = (buckets, false);
                Ok(())
            }
            Err(error) => file.set_len(self.bytes()).and(Err(error)),
        }
    }

    /// Stores where an entry is; `false` if its bucket is full.
    pub(super) fn insert(&mut self, key: Key, extent: Extent) -> io::Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.buckets > 0) else { return Ok(false) };
        let bucket = bucket_of(key, self.buckets);
        let Some(slot) = free_slot(&read(file, bucket)?, bucket, self.buckets) else { return Ok(false) };
        cut(file, self.bytes())?;
        file.write_all_at(&encode(key, extent), offset(bucket, slot))?;
        self.entries += 1;
        Ok(true)
    }

    /// Removes an entry that was inserted. Another process may have erased its slot. The table shrinks if few are left.
    pub(super) fn remove(&mut self, key: Key) -> io::Result<()> {
        self.withdraw(key)?;
        self.entries = self.entries.saturating_sub(1);
        self.shrink();
        Ok(())
    }

    /// Removes what an [`insert`](Self::insert) that failed may have written.
    pub(super) fn withdraw(&self, key: Key) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(slot) = find_in(file, self.buckets, key)? {
            file.write_all_at(&EMPTY, slot.at)?;
        }
        cut(file, self.bytes())
    }

    /// Halves the table if few of its slots are in use and no other process is writing to it. If it cannot be halved, it stays
    /// unchanged.
    fn shrink(&mut self) {
        let Some(file) = &self.file else { return };
        let is_fixed = self.stays || self.buckets <= 1;
        if is_fixed || self.entries * MIN_FILLED_TO_STAY >= self.buckets * SLOTS as u64 {
            return;
        }
        let halved = match file.try_lock() {
            Ok(()) => halve(file, self.buckets),
            Err(TryLockError::WouldBlock) => return, // the next change tries again
            Err(TryLockError::Error(error)) => Err(error),
        };
        let _a_closed_file_is_unlocked = file.unlock();
        match halved {
            Ok(true) => self.buckets /= 2,
            Ok(false) => self.stays = true,
            Err(error) => {
                tracing::debug!(%error, "the table of a cache could not be halved");
                self.stays = true;
            }
        }
    }

    /// Removes all entries, and the file.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        (self.file, self.buckets, self.entries) = (None, 0, 0);
        remove_file(&self.path)
    }

    /// Returns when another process needs the entry next, if one recorded it.
    pub(super) fn recorded_use(&self, key: Key) -> Option<u64> {
        let file = self.file.as_ref()?;
        let slot = find_in(file, self.buckets, key).ok()??;
        slot.next_use.checked_sub(1)
    }
}

/// A slot in use.
#[derive(Debug, Clone, Copy)]
struct Slot {
    extent: Extent,
    next_use: u64,
    /// Its offset in the file.
    at: u64,
}

/// Returns where the process that owns `part` has put an entry.
pub(super) fn find(part: &Path, key: Key) -> Option<Extent> {
    let file = File::open(part.join(NAME)).ok()?;
    let buckets = buckets(file.metadata().ok()?.len());
    Some(find_in(&file, buckets, key).ok()??.extent)
}

/// Records for the process that owns `part` when this one needs an entry next. Does nothing if the entry is not there, or if
/// the table is being halved.
pub(super) fn record_use(part: &Path, key: Key, at: u64) -> io::Result<()> {
    let recorded = at.saturating_add(1).to_le_bytes();
    change(part, key, |file, slot| file.write_all_at(&recorded, slot.at + USE_AT as u64))
}

/// Removes an entry whose bytes are damaged from the table of another process's part. Does nothing if the table is being
/// halved: the next reader finds the damage again.
pub(super) fn erase(part: &Path, key: Key, extent: Extent) -> io::Result<()> {
    change(part, key, |file, slot| match slot.extent == extent {
        true => file.write_all_at(&EMPTY, slot.at),
        false => Ok(()),
    })
}

fn change(part: &Path, key: Key, change: impl FnOnce(&File, Slot) -> io::Result<()>) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(part.join(NAME))?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let changed = change_locked(&file, key, change);
    let _a_closed_file_is_unlocked = file.unlock(); // also if a forked child holds a duplicate
    changed
}

/// The table is not halved meanwhile: its length, the position of the slot and the write belong together.
fn change_locked(
    file: &File,
    key: Key,
    change: impl FnOnce(&File, Slot) -> io::Result<()>,
) -> io::Result<()> {
    let buckets = buckets(file.metadata()?.len());
    find_in(file, buckets, key)?.map_or(Ok(()), |slot| change(file, slot))
}

/// Removes the table of a part that nothing is in.
pub(super) fn remove(part: &Path) -> io::Result<()> {
    remove_file(&part.join(NAME))
}

/// Removes what another process wrote after the end.
fn cut(file: &File, end: u64) -> io::Result<()> {
    if file.metadata()?.len() > end { file.set_len(end) } else { Ok(()) }
}

/// Returns the number of buckets in a file of this length.
fn buckets(len: u64) -> u64 {
    (len / DISK_BLOCK_BYTES).checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

fn offset(bucket: u64, slot: usize) -> u64 {
    bucket * DISK_BLOCK_BYTES + (slot * SLOT_BYTES) as u64
}

fn read(file: &File, bucket: u64) -> io::Result<Bucket> {
    let mut read = [0; BUCKET_BYTES];
    file.read_exact_at(&mut read, bucket * DISK_BLOCK_BYTES)?;
    Ok(read)
}

fn find_in(file: &File, buckets: u64, key: Key) -> io::Result<Option<Slot>> {
    if buckets == 0 {
        return Ok(None);
    }
    let bucket = bucket_of(key, buckets);
    let read = match read(file, bucket) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None), // the file was cut
        read => read?,
    };
    let begins_with_key = |(_, slot): &(usize, &[u8])| slot[..16] == key.to_le_bytes();
    let slot =
        read.chunks_exact(SLOT_BYTES).enumerate().filter(begins_with_key).find_map(|(number, slot)| {
            let (_, extent) = decode(slot)?;
            let next_use = u64::from_le_bytes(slot[USE_AT..].try_into().ok()?);
            Some(Slot { extent, next_use, at: offset(bucket, number) })
        });
    Ok(slot)
}

/// Returns the number of buckets afterwards.
fn double(file: &File, buckets: u64) -> io::Result<u64> {
    if buckets == 0 {
        file.write_all_at(&[0; BUCKET_BYTES], 0)?;
        return Ok(1);
    }
    for bucket in 0..buckets {
        let upper = only_of(&read(file, bucket)?, bucket + buckets, 2 * buckets);
        file.write_all_at(&upper, (bucket + buckets) * DISK_BLOCK_BYTES)?;
    }
    for bucket in 0..buckets {
        let lower = only_of(&read(file, bucket)?, bucket, 2 * buckets);
        file.write_all_at(&lower, bucket * DISK_BLOCK_BYTES)?;
    }
    Ok(2 * buckets)
}

/// Merges the upper half of a table into the lower one; `false` if a bucket has no room. What was added until then is free.
fn halve(file: &File, buckets: u64) -> io::Result<bool> {
    let half = buckets / 2;
    for bucket in 0..half {
        let upper = only_of(&read(file, bucket + half)?, bucket + half, buckets);
        let Some(merged) = with(&read(file, bucket)?, bucket, buckets, &upper) else { return Ok(false) };
        file.write_all_at(&merged, bucket * DISK_BLOCK_BYTES)?;
    }
    file.set_len(half * DISK_BLOCK_BYTES)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
