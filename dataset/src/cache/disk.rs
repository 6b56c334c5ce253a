//! What the cache asks of its disk. Tests replace these operations by ones that fail.

use super::entry::DISK_BLOCK_BYTES;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

#[derive(Clone, Copy)]
pub(super) struct Disk {
    /// Writes the parts one after the other, from an offset on. No `fsync`: after a power cut the checksum detects broken
    /// entries, and all can be fetched again.
    pub(super) write: fn(&File, u64, &[&[u8]]) -> io::Result<()>,
    /// Frees the blocks of a range. Its bytes are zeros afterwards, and the file keeps its length.
    pub(super) punch: fn(&File, Range<u64>) -> io::Result<()>,
}

impl Disk {
    pub(super) const REAL: Self = Self { write, punch };

    /// Whether a hole of one block frees this block at once. Some file systems have no holes, some have larger blocks, and
    /// some free them seconds later, when the cache would have evicted many more entries than needed.
    ///
    /// # Errors
    /// If that is unknown: the test could not be made, as on a full disk or at the limit of open files.
    pub(super) fn makes_holes(self, scratch: &Path) -> io::Result<bool> {
        let made = self.try_hole(scratch);
        remove_file(scratch)?;
        match made {
            // A slab needs larger files than this process may write.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(false),
            made => made,
        }
    }

    fn try_hole(self, scratch: &Path) -> io::Result<bool> {
        const BLOCK: [u8; 4096] = [7; 4096];
        let file = File::create(scratch)?;
        write(&file, 0, &[&BLOCK, &BLOCK, &BLOCK])?;
        let before = allocated(&file.metadata()?);
        match (self.punch)(&file, DISK_BLOCK_BYTES..2 * DISK_BLOCK_BYTES) {
            Ok(()) => {}
            Err(error) if is_full(&error) || is_damage(&error) => return Err(error),
            Err(error) if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted) => {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(%error, "the file system of a cache makes no holes");
                return Ok(false);
            }
        }
        Ok(allocated(&file.metadata()?) + DISK_BLOCK_BYTES <= before)
    }
}

fn write(file: &File, mut at: u64, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn punch(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, range.start, range.end - range.start)?)
}

/// Whether an error of reading an entry means that its bytes are lost. With other errors, they may be whole: the process may be at
/// its limit of open files, out of memory, or not permitted to read.
pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        || Errno::from_io_error(error) == Some(Errno::IO)
}

/// Whether an error means that the disk has no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the bytes that a file takes on disk, without its holes.
pub(super) fn allocated(file: &Metadata) -> u64 {
    file.blocks() * 512 // the unit of `st_blocks`, whatever the file system's block is
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
