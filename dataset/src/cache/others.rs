//! Entries in the parts of other processes: this one reads them, records when it needs them, and removes damaged ones.
//!
//! A range is looked up in the table of a part, then as a file. The owner may evict the entry meanwhile, and write another
//! one where it was. It erases the slot before it changes the bytes. So the bytes are the entry's only if the slot is the
//! same after they were read; header and checksum are tested as well. An entry is damaged if its slot is still there after
//! the bytes were found to be wrong.
//!
//! After this process has used an entry, its slot (or the time of modification of its file) states when it is needed next:
//! the place in the order (in microseconds since 1970).

use super::disk::{is_damage, remove_file};
use super::entry::{Extent, Key, MAX_IN_SLAB_BYTES, check, size_on_disk, stored_bytes};
use super::{folder, slab, table};
use bytes::Bytes;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Larger values are not places but times of writing: 10¹⁵ microseconds is a date in 2001.
const MAX_PLACE: u64 = 1_000_000_000_000_000;

/// How often an entry whose bytes are wrong is read: its owner may have evicted and stored it again during one read.
const READS: u32 = 2;

/// What a part has of a range.
pub(super) enum InPart {
    Missing,
    Whole(Bytes),
    /// It was damaged and is removed if possible; the owner notices at its next read.
    Damaged,
}

pub(super) fn read(part: &Path, key: Key, range: &Range<u64>) -> InPart {
    match in_slab(part, key, range) {
        Some(extent) => read_slab(part, key, range, extent),
        None => read_file(part, key, range),
    }
}

fn in_slab(part: &Path, key: Key, range: &Range<u64>) -> Option<Extent> {
    (size_on_disk(range) <= MAX_IN_SLAB_BYTES).then(|| table::find(part, key)).flatten()
}

/// Reads an entry that the table has at `extent`.
pub(super) fn read_slab(part: &Path, key: Key, range: &Range<u64>, extent: Extent) -> InPart {
    for _ in 0..READS {
        let bytes = match slab::read(part, extent, stored_bytes(range)) {
            Ok(read) => check(read, key, range),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return InPart::Missing, // deleted, or moved by a new owner
            Err(error) if is_damage(&error) => None,
            Err(_) => return InPart::Missing, // for this process, now
        };
        if table::find(part, key) != Some(extent) {
            return InPart::Missing;
        }
        if let Some(bytes) = bytes {
            return InPart::Whole(bytes);
        }
    }
    log_kept(table::erase(part, key, extent));
    InPart::Damaged
}

fn read_file(part: &Path, key: Key, range: &Range<u64>) -> InPart {
    let path = folder::entry(part, key);
    let whole = match fs::read(&path) {
        Ok(read) => check(read, key, range),
        Err(error) if error.kind() != io::ErrorKind::NotFound && is_damage(&error) => None,
        Err(_) => return InPart::Missing,
    };
    whole.map_or_else(
        || {
            log_kept(remove_file(&path));
            InPart::Damaged
        },
        InPart::Whole,
    )
}

fn log_kept(removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(%error, "a damaged cache entry of another process could not be removed");
    }
}

pub(super) fn has(part: &Path, key: Key, range: &Range<u64>) -> bool {
    in_slab(part, key, range).is_some() || folder::entry(part, key).exists()
}

/// Records for an entry's owner when this process needs it next. An entry that is gone, or belongs to another user, is left
/// unchanged.
pub(super) fn record_use(part: &Path, key: Key, range: &Range<u64>, at: u64) {
    if in_slab(part, key, range).is_some() {
        let _recorded = table::record_use(part, key, at);
    } else if let Ok(file) = File::open(folder::entry(part, key)) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(at.min(MAX_PLACE - 1));
        let _recorded = file.set_modified(time);
    }
}

/// Returns when another process needs the entry in this file next, if it recorded that.
pub(super) fn recorded_use(path: &Path) -> Option<u64> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    let at = u64::try_from(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_micros()).ok()?;
    (at < MAX_PLACE).then_some(at)
}
