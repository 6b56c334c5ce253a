//! What a process does when it opens a folder: it lists what ended processes left, moves it into one part, and removes
//! what cannot be used.
//!
//! ```text
//! part-0 (now ours): table, slabs, files ─┐
//! part-3 (free): for each slab, slots into our table, then rename ─┴─▶ index of part-0 ─▶ trim to the cap
//! ```
//! A process that is killed here loses nothing. Until a slab is renamed, the slots in our table name a file that does not
//! exist, and are removed by the next take-over; the slots in the old table are still valid. Afterwards it is the reverse.

use super::disk::{Disk, allocated, is_full, remove_file};
use super::entry::{DISK_BLOCK_BYTES, Extent, Key, Place, SLAB_BYTES};
use super::folder::{Folder, FreePart, list};
use super::holes::gaps;
use super::index::{Admission, Index, Use};
use super::slab::{self, Slabs};
use super::table::{self, Table};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A slab may take this much more than its entries before holes are made where it has none. The blocks in which ext4 lists
/// the extents of a file take 4 KiB for 340 of them.
const MAX_EXTRA_BYTES: u64 = 4 * DISK_BLOCK_BYTES;

/// A part's entries, after what cannot be used was removed.
struct Found {
    path: PathBuf,
    table: Table,
    slabs: BTreeMap<u32, Vec<(Key, Extent)>>,
    files: Vec<(PathBuf, Key)>,
    /// What all of it takes on disk.
    bytes: u64,
}

impl Found {
    fn entries(&self) -> usize {
        self.files.len() + self.slabs.values().map(Vec::len).sum::<usize>()
    }
}

/// Lists the entries of our part and of free ones, whose files it moves. Returns them within the cap.
pub(super) fn take_over(
    folder: &Folder,
    free: &[FreePart],
    max_bytes: u64,
    disk: Disk,
) -> io::Result<(Index, Slabs)> {
    let _locked = folder.lock()?;
    folder.count(free)?;
    let cap = max_bytes.saturating_sub(folder.used_by_others()?);
    let holes = makes_holes(folder, disk);
    let own = find(folder.part(), disk, holes)?;
    let found: Vec<Found> =
        free.iter().map(|part| find(&part.path, disk, holes)).collect::<io::Result<_>>()?;

    let mut index = Index::new(cap);
    index.expect(own.entries() + found.iter().map(Found::entries).sum::<usize>());
    let mut slabs = Slabs::new(folder.part(), disk, holes, own.table);
    for (number, mut entries) in own.slabs {
        entries.retain(|(key, extent)| index.load(*key, extent.bytes(), Place::Slab(*extent)));
        let kept: Vec<Extent> = entries.iter().map(|(_, extent)| *extent).collect();
        slabs.adopt(number, &kept)?;
    }
    load_files(folder, own.files, &mut index)?;
    let mut elsewhere: u64 = found.iter().map(|part| part.bytes).sum();
    for part in found {
        elsewhere -= part.bytes;
        let mut rest = part.bytes;
        for (number, entries) in part.slabs {
            let room = cap.saturating_sub(index.used() + slabs.extra() + elsewhere + rest);
            let moved = Moved { part: &part.path, number, entries };
            rest = rest.saturating_sub(merge(folder, moved, room, disk, &mut index, &mut slabs)?);
        }
        load_files(folder, part.files, &mut index)?;
        drop(part.table);
        table::remove(&part.path)?;
    }
    index.loaded();
    trim(folder, cap, &mut index, &mut slabs)?;
    folder.publish(index.used() + slabs.overhead());
    Ok((index, slabs))
}

fn makes_holes(folder: &Folder, disk: Disk) -> bool {
    let at = folder.path().display();
    match disk.makes_holes(&folder.scratch()) {
        Ok(true) => true,
        Ok(false) => {
            tracing::info!(
                "cache folder {at}: the file system frees no parts of files; each entry is a file"
            );
            false
        }
        Err(error) => {
            // Holes are the rule. Without them, the entries of all slabs would be removed now.
            tracing::debug!(%error, "cache folder {at}: whether the file system makes holes is unknown");
            true
        }
    }
}

/// Lists a part. Removes partial files, slabs without entries, slots without a slab, and bytes without a slot.
fn find(part: &Path, disk: Disk, holes: bool) -> io::Result<Found> {
    let listed = list(part)?;
    listed.partial.iter().try_for_each(|path| remove_file(path))?;
    if !holes {
        table::remove(part)?;
    }
    let (mut table, slots) = Table::open(part)?;
    let mut by_slab: BTreeMap<u32, Vec<(Key, Extent)>> = BTreeMap::new();
    for (key, extent) in slots {
        by_slab.entry(extent.slab).or_default().push((key, extent));
    }
    let mut slabs = BTreeMap::new();
    let mut bytes = 0;
    for number in listed.slabs {
        let mut entries = by_slab.remove(&number).unwrap_or_default();
        for key in overlapping(&mut entries) {
            table.remove(key)?;
        }
        if entries.is_empty() {
            remove_file(&slab::path(part, number))?;
        } else {
            let file = File::options().read(true).write(true).open(slab::path(part, number))?;
            bytes += clean(&file, &entries, disk)?;
            slabs.insert(number, entries);
        }
    }
    if slabs.is_empty() {
        table.clear()?;
    } else {
        for (key, _) in by_slab.into_values().flatten() {
            table.remove(key)?;
        }
    }
    bytes += table.bytes();
    for (path, _) in &listed.entries {
        bytes += file_bytes(path)?;
    }
    Ok(Found { path: part.to_owned(), table, slabs, files: listed.entries, bytes })
}

/// Sorts entries, and takes out those that overlap others: at most one of them can be whole.
fn overlapping(entries: &mut Vec<(Key, Extent)>) -> Vec<Key> {
    entries.sort_unstable_by_key(|(_, extent)| (extent.block, extent.blocks));
    let (mut end, mut removed) = (0, Vec::new());
    entries.retain(|(key, extent)| {
        let is_disjoint = u32::from(extent.block) >= end;
        if is_disjoint {
            end = extent.end();
        } else {
            removed.push(*key);
        }
        is_disjoint
    });
    removed
}

/// Gives a slab its length, and frees what is between its sorted entries. Returns what it takes on disk.
fn clean(file: &File, entries: &[(Key, Extent)], disk: Disk) -> io::Result<u64> {
    let status = file.metadata()?;
    if status.len() != SLAB_BYTES {
        file.set_len(SLAB_BYTES)?;
    }
    let live: u64 = entries.iter().map(|(_, extent)| extent.bytes()).sum();
    if allocated(&status) > live + MAX_EXTRA_BYTES {
        punch_gaps(file, entries.iter().map(|(_, extent)| *extent), disk);
    }
    Ok(allocated(&file.metadata()?).max(live))
}

/// Frees what is between sorted entries. What cannot be freed, for example on a full disk, counts as used.
fn punch_gaps(file: &File, sorted: impl Iterator<Item = Extent>, disk: Disk) {
    for gap in gaps(0, sorted) {
        if let Err(error) = (disk.punch)(file, gap.byte_range()) {
            tracing::debug!(%error, "unused bytes of a slab could not be freed");
        }
    }
}

/// A slab of a free part.
struct Moved<'a> {
    part: &'a Path,
    number: u32,
    entries: Vec<(Key, Extent)>,
}

/// Moves a slab to our part. Entries that we hold already, and those for which the table would have to grow beyond `room` or
/// the disk, are removed. Returns the bytes that the slab took. After another error, nothing is lost.
fn merge(
    folder: &Folder,
    moved: Moved<'_>,
    room: u64,
    disk: Disk,
    index: &mut Index,
    slabs: &mut Slabs,
) -> io::Result<u64> {
    let from = slab::path(moved.part, moved.number);
    let took = allocated(&fs::metadata(&from)?);
    let number = slabs.next_number();
    let mut kept = Vec::new();
    for (key, extent) in moved.entries {
        let extent = Extent { slab: number, ..extent };
        if !index.holds(key) && enter(&mut slabs.table, key, extent, room)? {
            let _new = index.load(key, extent.bytes(), Place::Slab(extent));
            kept.push(extent);
        }
    }
    if kept.is_empty() {
        remove_file(&from)?;
        return Ok(took);
    }
    let to = slab::path(folder.part(), number);
    fs::rename(from, &to)?;
    if kept.iter().map(|extent| extent.bytes()).sum::<u64>() + MAX_EXTRA_BYTES < took {
        let file = File::options().read(true).write(true).open(&to)?;
        punch_gaps(&file, kept.iter().copied(), disk);
    }
    slabs.adopt(number, &kept)?;
    Ok(took)
}

/// Moves files to our part, and removes those of entries that we hold already.
fn load_files(folder: &Folder, files: Vec<(PathBuf, Key)>, index: &mut Index) -> io::Result<()> {
    for (path, key) in files {
        if index.load(key, file_bytes(&path)?, Place::File) {
            fs::rename(&path, folder.entry(key))?;
        } else {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// Enters an entry into the table, which may grow to `room` bytes; `false` if that is not enough, or if the disk is full.
fn enter(table: &mut Table, key: Key, extent: Extent, room: u64) -> io::Result<bool> {
    let entered = match table.growth(key)? {
        Some(0) => table.insert(key, extent),
        Some(growth) if table.bytes() + growth <= room => {
            table.grow().and_then(|()| table.insert(key, extent))
        }
        _ => return Ok(false),
    };
    match entered {
        Err(error) if is_full(&error) => table.withdraw(key).and(Ok(false)),
        entered => entered,
    }
}

/// Removes entries beyond the cap.
fn trim(folder: &Folder, cap: u64, index: &mut Index, slabs: &mut Slabs) -> io::Result<()> {
    let nothing = Use { stream: 0, at: 0 };
    loop {
        index.set_cap(cap.saturating_sub(slabs.overhead()));
        let victims = match index.admit(0, 0, nothing) {
            Admission::Evict(victims) if !victims.is_empty() => victims,
            _ => return Ok(()),
        };
        for victim in victims {
            match index.place(victim) {
                Some(Place::Slab(extent)) => {
                    let unused = slabs.take_out(victim, extent)?;
                    if let Err(error) = slabs.free_now(unused) {
                        tracing::debug!(%error, "an entry of a slab could not be freed; it still counts");
                    }
                }
                _ => remove_file(&folder.entry(victim))?,
            }
            index.remove(victim);
        }
    }
}

fn file_bytes(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.len().next_multiple_of(DISK_BLOCK_BYTES))
}
