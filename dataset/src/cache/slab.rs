//! Slabs: sparse files that many small entries share.
//!
//! ```text
//! 00000004.slab, 64 MiB:   entry │ entry │ hole │ entry │ entry │ being written │ not written yet
//! ```
//! Entries are appended, each in whole blocks of 4 KiB. The blocks of an evicted entry become a hole, which is not written
//! again. A slab without entries is deleted. The [table](super::table) has the extent of each entry; an entry is there once
//! its slot is written. A range that no slot names, because a process was killed while it wrote it, becomes a hole when the
//! part is taken over.
//!
//! Space is what the file system has allocated (`st_blocks`), not the length. What a slab takes in addition to its entries
//! (blocks that list the extents of a file with many holes) is measured after each change and counts as well.
//!
//! Cost of a put: a `pwrite` of the entry, one read and one write of the table, one `fstat`.

use super::disk::{Disk, allocated, remove_file};
use super::entry::{DISK_BLOCK_BYTES, Extent, Key, MAX_IN_SLAB_BYTES, SLAB_BLOCKS, SLAB_BYTES};
use super::table::Table;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXTENSION: &str = "slab";

/// The slabs of the part that this process owns, and their table.
pub(super) struct Slabs {
    part: PathBuf,
    disk: Disk,
    /// Whether new entries go to slabs. If not, the file system makes no holes, and there are no slabs.
    on: bool,
    pub(super) table: Table,
    slabs: HashMap<u32, Slab>,
    /// The slab that is appended to.
    current: Option<(u32, Arc<File>)>,
    /// The number of the next slab.
    next: u32,
    /// What all slabs take in addition to their entries.
    extra: u64,
}

#[derive(Default)]
struct Slab {
    /// The block after the last entry.
    end: u32,
    /// Blocks of entries, including those that are being written.
    live: u32,
    /// Bytes that it takes in addition.
    extra: u64,
}

impl Slabs {
    pub(super) fn new(part: &Path, disk: Disk, on: bool, table: Table) -> Self {
        let (part, slabs) = (part.to_owned(), HashMap::new());
        Self { part, disk, on, table, slabs, current: None, next: 0, extra: 0 }
    }

    /// Whether a new entry of this size on disk goes to a slab.
    pub(super) fn take(&self, size: u64) -> bool {
        self.on && size <= MAX_IN_SLAB_BYTES
    }

    /// Returns the bytes of slabs on disk in addition to those of entries.
    pub(super) fn extra(&self) -> u64 {
        self.extra
    }

    /// Returns the bytes on disk in addition to those of entries: also those of the table.
    pub(super) fn overhead(&self) -> u64 {
        self.extra + self.table.bytes()
    }

    /// Returns an unused number, larger than all before.
    pub(super) fn next_number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1); // a number that is taken is an error of the file system
        number
    }

    /// Lists a slab that is in the part, with its entries. Later slabs get larger numbers.
    pub(super) fn adopt(&mut self, number: u32, entries: impl Iterator<Item = Extent>) -> io::Result<()> {
        let mut slab = Slab::default();
        for extent in entries {
            slab.end = slab.end.max(extent.end());
            slab.live += u32::from(extent.blocks);
        }
        self.next = self.next.max(number.saturating_add(1));
        self.slabs.insert(number, slab);
        let file = File::options().read(true).write(true).open(path(&self.part, number))?;
        self.measure(number, &file)
    }

    /// Goes on with the slab that has the most room, of those that were adopted.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        if let Some((number, _)) = self.slabs.iter().min_by_key(|(number, slab)| (slab.end, **number)) {
            let file = File::options().read(true).write(true).open(path(&self.part, *number))?;
            self.current = Some((*number, Arc::new(file)));
        }
        Ok(())
    }

    /// Returns where an entry of `size` bytes on disk is to be written. The table grows if it has to.
    /// [`Self::keep`] or [`Self::remove`] must follow.
    pub(super) fn allocate(&mut self, key: Key, size: u64) -> io::Result<(Extent, Arc<File>)> {
        let too_large = || io::Error::other("an entry is larger than a slab");
        let blocks = u16::try_from(size.div_ceil(DISK_BLOCK_BYTES)).map_err(|_| too_large())?;
        let has_room = |(number, _): &&(u32, Arc<File>)| {
            self.slabs.get(number).is_some_and(|slab| slab.end + u32::from(blocks) <= u32::from(SLAB_BLOCKS))
        };
        let current = self.current.as_ref().filter(has_room).cloned();
        let (number, file) = match current {
            Some(current) => current,
            None => self.create()?,
        };
        let slab = self.slabs.entry(number).or_default();
        let block = u16::try_from(slab.end).map_err(|_| too_large())?;
        slab.end += u32::from(blocks);
        slab.live += u32::from(blocks);
        let extent = Extent { slab: number, block, blocks };
        let grown = match self.table.growth(key) {
            Ok(Some(0) | None) => Ok(()),
            Ok(Some(_)) => self.table.grow(),
            Err(error) => Err(error),
        };
        match grown {
            Ok(()) => Ok((extent, file)),
            Err(error) => self.free(extent).and(Err(error)),
        }
    }

    /// The file has its full length from the start: some file systems allocate more than is written at a file's end.
    fn create(&mut self) -> io::Result<(u32, Arc<File>)> {
        let number = self.next_number();
        let path = path(&self.part, number);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        if let Err(error) = file.set_len(SLAB_BYTES) {
            remove_file(&path)?;
            return Err(error);
        }
        let current = (number, Arc::new(file));
        self.current = Some(current.clone());
        Ok(current)
    }

    /// Enters a written entry into the table. Returns `false` if the table has no room for its key, or if a process has deleted the
    /// slab: the next entry then goes to another one.
    pub(super) fn keep(&mut self, key: Key, extent: Extent, file: &File) -> io::Result<bool> {
        if file.metadata()?.nlink() == 0 {
            self.current.take_if(|(current, _)| *current == extent.slab);
            return Ok(false);
        }
        self.measure(extent.slab, file)?;
        self.table.insert(key, extent)
    }

    /// Removes an entry: its slot, so that other processes do not find it, then its bytes. If that fails, its blocks count
    /// until the slab is deleted or the part is opened again.
    pub(super) fn remove(&mut self, key: Key, extent: Extent) -> io::Result<()> {
        let erased = self.table.remove(key);
        let freed = self.free(extent);
        erased.and(freed)
    }

    fn free(&mut self, extent: Extent) -> io::Result<()> {
        let number = extent.slab;
        let Some(slab) = self.slabs.get_mut(&number) else { return Ok(()) };
        slab.live -= u32::from(extent.blocks);
        let is_empty = slab.live == 0;
        let freed = if is_empty { remove_file(&path(&self.part, number)) } else { self.punch(extent) };
        if freed.is_err() {
            self.extra += extent.bytes();
            self.slabs.entry(number).or_default().extra += extent.bytes();
        } else if is_empty {
            self.extra -= self.slabs.remove(&number).map_or(0, |slab| slab.extra);
            self.current.take_if(|(current, _)| *current == number);
            if self.slabs.is_empty() {
                self.table.clear()?;
            }
        }
        freed
    }

    fn punch(&mut self, extent: Extent) -> io::Result<()> {
        match File::options().write(true).open(path(&self.part, extent.slab)) {
            Ok(file) => {
                (self.disk.punch)(&file, extent.byte_range())?;
                self.measure(extent.slab, &file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // another process cleaned the folder
            Err(error) => Err(error),
        }
    }

    fn measure(&mut self, number: u32, file: &File) -> io::Result<()> {
        let on_disk = allocated(&file.metadata()?);
        if let Some(slab) = self.slabs.get_mut(&number) {
            let extra = on_disk.saturating_sub(u64::from(slab.live) * DISK_BLOCK_BYTES);
            self.extra = self.extra - slab.extra + extra;
            slab.extra = extra;
        }
        Ok(())
    }
}

pub(super) fn path(part: &Path, number: u32) -> PathBuf {
    part.join(format!("{number:08x}.{EXTENSION}"))
}

/// Returns the number of a slab, if the file is one.
pub(super) fn number_of(path: &Path) -> Option<u32> {
    let stem = path.file_stem()?.to_str()?;
    let is_slab = path.extension()? == EXTENSION && stem.len() == 8;
    u32::from_str_radix(stem, 16).ok().filter(|_| is_slab)
}

/// Reads `len` bytes of an entry; fewer if the slab is shorter.
pub(super) fn read(part: &Path, extent: Extent, len: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path(part, extent.slab))?;
    file.seek(SeekFrom::Start(extent.byte_range().start))?;
    let mut bytes = Vec::with_capacity(usize::try_from(len.min(extent.bytes())).unwrap_or(0));
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}
