//! Slabs: sparse files that many small entries share.
//!
//! ```text
//! 00000004.slab, 64 MiB:   entry │ entry │ hole │ entry │ being written │ entry │ hole (not written yet)
//! evict: erase the slot ─▶ punch the hole, without the lock ─▶ list it ─▶ write a new entry ─▶ write its slot
//! ```
//! An entry has whole blocks of 4 KiB. The blocks of an evicted entry become a hole, and new entries are written in holes.
//! A slab without entries is deleted. The [table](super::table) has the extent of each entry; an entry is there once its
//! slot is written. A range that no slot names, because a process was killed while it wrote it, becomes a hole when the
//! part is taken over.
//!
//! Invariant: a block is written only if no slot names it, no thread of this process reads or punches it, and no other entry
//! is being written there. So a reader in another process has an entry's bytes if the slot still names them *after* they
//! were read. Otherwise they may be zeros or another entry's: the reader discards them.
//!
//! Space is what the file system has allocated (`st_blocks`), not the length. What a slab takes in addition to its entries
//! (blocks that list the extents of a file with many holes) is measured after each change and counts as well.
//!
//! Cost of a put: a `pwrite` of the entry, one read and one write of the table, one `open`, one `fstat`.

use super::disk::{Disk, allocated, remove_file};
use super::entry::{DISK_BLOCK_BYTES, Extent, Key, MAX_IN_SLAB_BYTES, SLAB_BLOCKS, SLAB_BYTES};
use super::holes::{Holes, gaps};
use super::table::Table;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXTENSION: &str = "slab";

/// The slabs of the part that this process owns, and their table.
pub(super) struct Slabs {
    part: PathBuf,
    disk: Disk,
    /// Whether new entries go to slabs. If not, the file system makes no holes, and there are no slabs.
    on: bool,
    pub(super) table: Table,
    slabs: HashMap<u32, Slab>,
    holes: Holes,
    /// The number of the next slab.
    next: u32,
    /// What all slabs take in addition to their entries.
    extra: u64,
}

#[derive(Default)]
struct Slab {
    /// Blocks of entries, including those that are being written.
    live: u32,
    /// Blocks of removed entries that are being freed.
    leaving: u32,
    /// Bytes that it takes in addition.
    extra: u64,
}

/// The bytes of a removed entry, which no slot names. Nothing is written there until [`Slabs::freed`] was called.
pub(super) struct Unused {
    extent: Extent,
    /// The slab, if this was its last entry. It is not listed any more, and its file is to be deleted.
    emptied: Option<Slab>,
}

impl Slabs {
    pub(super) fn new(part: &Path, disk: Disk, on: bool, table: Table) -> Self {
        let (part, slabs, holes) = (part.to_owned(), HashMap::new(), Holes::default());
        Self { part, disk, on, table, slabs, holes, next: 0, extra: 0 }
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

    /// Lists a slab that is in the part, with its sorted entries. Later slabs get larger numbers.
    pub(super) fn adopt(&mut self, number: u32, sorted: &[Extent]) -> io::Result<()> {
        let live = sorted.iter().map(|extent| u32::from(extent.blocks)).sum();
        self.next = self.next.max(number.saturating_add(1));
        self.slabs.insert(number, Slab { live, ..Slab::default() });
        gaps(number, sorted.iter().copied()).for_each(|gap| self.holes.insert(gap));
        self.measure(number, &fs::metadata(path(&self.part, number))?);
        Ok(())
    }

    /// Returns where an entry of `size` bytes on disk is to be written. The table grows if it has to.
    /// [`Self::keep`] or [`Self::give_up`] must follow.
    pub(super) fn allocate(&mut self, key: Key, size: u64) -> io::Result<(Extent, File)> {
        let blocks =
            u16::try_from(size.div_ceil(DISK_BLOCK_BYTES)).ok().filter(|blocks| *blocks <= SLAB_BLOCKS);
        let blocks = blocks.ok_or_else(|| io::Error::other("an entry is larger than a slab"))?;
        if self.table.growth(key)?.is_some_and(|growth| growth > 0) {
            self.table.grow()?;
        }
        let (extent, file) = match self.open_hole(blocks)? {
            Some(hole) => hole,
            None => self.create(blocks)?,
        };
        self.slabs.entry(extent.slab).or_default().live += u32::from(blocks);
        Ok((extent, file))
    }

    fn open_hole(&mut self, blocks: u16) -> io::Result<Option<(Extent, File)>> {
        while let Some(extent) = self.holes.take(blocks) {
            match File::options().read(true).write(true).open(path(&self.part, extent.slab)) {
                Ok(file) => return Ok(Some((extent, file))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.holes.forget(extent.slab), // another process cleaned the folder
                Err(error) => {
                    self.holes.insert(extent);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// The file has its full length from the start: some file systems allocate more than is written at a file's end.
    fn create(&mut self, blocks: u16) -> io::Result<(Extent, File)> {
        let number = self.next_number();
        let path = path(&self.part, number);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        if let Err(error) = file.set_len(SLAB_BYTES) {
            remove_file(&path)?;
            return Err(error);
        }
        let extent = Extent { slab: number, block: 0, blocks };
        gaps(number, [extent].into_iter()).for_each(|gap| self.holes.insert(gap));
        Ok((extent, file))
    }

    /// Enters a written entry into the table. Returns `false` if the table has no room for its key, or if a process has
    /// deleted the slab: later entries then go to others. If it is not kept, [`Self::give_up`] must follow.
    pub(super) fn keep(&mut self, key: Key, extent: Extent, file: &File) -> io::Result<bool> {
        let status = file.metadata()?;
        if status.nlink() == 0 {
            self.holes.forget(extent.slab);
            return Ok(false);
        }
        self.measure(extent.slab, &status);
        self.table.insert(key, extent)
    }

    /// Erases the slot of an entry that was kept, so that other processes do not find it. Its bytes still count: [`free`] must
    /// follow, and then [`Self::freed`]. If the slot cannot be erased, the entry stays.
    pub(super) fn take_out(&mut self, key: Key, extent: Extent) -> io::Result<Unused> {
        self.table.remove(key)?;
        Ok(self.unlist(extent))
    }

    /// Takes back what was allocated for an entry that is not kept. Then as after [`Self::take_out`].
    pub(super) fn give_up(&mut self, key: Key, extent: Extent) -> io::Result<Unused> {
        self.table.withdraw(key)?;
        Ok(self.unlist(extent))
    }

    fn unlist(&mut self, extent: Extent) -> Unused {
        let number = extent.slab;
        let mut emptied = None;
        if let Some(slab) = self.slabs.get_mut(&number) {
            slab.live -= u32::from(extent.blocks);
            slab.leaving += u32::from(extent.blocks);
            if slab.live == 0 {
                self.holes.forget(number);
                emptied = self.slabs.remove(&number);
            }
        }
        Unused { extent, emptied }
    }

    /// Takes the result of [`free`]: the bytes become a hole. What could not be freed counts until it is written again, the
    /// slab is deleted, or the part is opened again.
    pub(super) fn freed(&mut self, unused: Unused, freed: io::Result<()>) -> io::Result<()> {
        let Unused { extent, emptied } = unused;
        let number = extent.slab;
        if let Some(slab) = emptied {
            self.extra -= slab.extra;
            if freed.is_err() {
                self.extra += slab.extra + u64::from(slab.leaving) * DISK_BLOCK_BYTES;
            }
            let cleared = if self.slabs.is_empty() { self.table.clear() } else { Ok(()) };
            return freed.and(cleared);
        }
        if let Some(slab) = self.slabs.get_mut(&number) {
            slab.leaving -= u32::from(extent.blocks);
            self.holes.insert(extent);
            match fs::metadata(path(&self.part, number)) {
                Ok(status) => self.measure(number, &status),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // another process cleaned the folder
                Err(error) => {
                    slab.extra += extent.bytes();
                    self.extra += extent.bytes();
                    return freed.and(Err(error));
                }
            }
        }
        freed
    }

    /// Frees the bytes of a removed entry at once, while no other thread uses the cache.
    pub(super) fn free_now(&mut self, unused: Unused) -> io::Result<()> {
        let freed = free(&self.part, self.disk, &unused);
        self.freed(unused, freed)
    }

    fn measure(&mut self, number: u32, status: &Metadata) {
        if let Some(slab) = self.slabs.get_mut(&number) {
            let counted = u64::from(slab.live + slab.leaving) * DISK_BLOCK_BYTES;
            let extra = allocated(status).saturating_sub(counted);
            self.extra = self.extra - slab.extra + extra;
            slab.extra = extra;
        }
    }
}

/// Punches a hole, or deletes the slab if it was emptied. Needs no lock: nothing else uses these bytes.
pub(super) fn free(part: &Path, disk: Disk, unused: &Unused) -> io::Result<()> {
    let path = path(part, unused.extent.slab);
    if unused.emptied.is_some() {
        return remove_file(&path);
    }
    match File::options().write(true).open(path) {
        Ok(file) => (disk.punch)(&file, unused.extent.byte_range()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // another process cleaned the folder
        Err(error) => Err(error),
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
