//! Where a part's entries are in its slabs: a hash table in a file. The part's owner writes it, and all processes read it.
//!
//! ```text
//! bucket 0 │ bucket 1 │ …     4 KiB each; their number is a power of two; key k is in bucket k mod that number
//! slot · slot · … · slot      113 of 36 bytes: key (16) · slab (4) · first block (2) · blocks (2) · CRC-32 (4) · use (8)
//! ```
//! The table doubles when a bucket is full. The upper half is written first, with the entries that belong there, and
//! the file has its new length when all of it is written. Then the lower half is cleared of them. Readers take the largest
//! power of two of whole buckets, so they find every entry until the last step, and almost every entry during it: a
//! reader that has computed a bucket from the old length may miss an entry, which then counts as not held.
//!
//! A slot is free if its checksum is wrong or its key belongs to another bucket. So a slot that was written halfway, a
//! damaged one and those that an interrupted doubling did not clear are free. `use` is written by other processes: the
//! place in the order, plus one, where they need the entry next.
//!
//! Cost: one `pread` a look-up, one `pread` and one `pwrite` a change. A table is about 45 % full on average: 80 bytes an
//! entry.

use super::disk::remove_file;
use super::entry::{DISK_BLOCK_BYTES, Extent, Key, SLAB_BLOCKS};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const NAME: &str = "table";
const BUCKET_BYTES: usize = 4096;
const SLOT_BYTES: usize = 36;
/// What the checksum covers is before it, the use after it.
const CRC_AT: usize = 24;
const USE_AT: usize = 28;
const SLOTS: usize = BUCKET_BYTES / SLOT_BYTES;
/// The checksum also covers name and format version.
const MAGIC: &[u8; 8] = b"fstable1";
/// Keys are hashes, so buckets fill evenly: in 10⁶ of them the first is full when the table is half full. If one is full
/// long before, doubling does not help, and the entry is not admitted.
const MIN_FILLED_TO_GROW: u64 = 8;

type Bucket = [u8; BUCKET_BYTES];

const EMPTY: [u8; SLOT_BYTES] = [0; SLOT_BYTES];

/// The table of the part that this process owns.
pub(super) struct Table {
    path: PathBuf,
    /// `None` until something is stored.
    file: Option<File>,
    buckets: u64,
    entries: u64,
}

impl Table {
    /// Opens the table of a part, which need not exist, and returns what it has.
    pub(super) fn open(part: &Path) -> io::Result<(Self, Vec<(Key, Extent)>)> {
        let mut table = Self { path: part.join(NAME), file: None, buckets: 0, entries: 0 };
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
                self.buckets = buckets;
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
        file.write_all_at(&encode(key, extent), offset(bucket, slot))?;
        self.entries += 1;
        Ok(true)
    }

    /// Removes an entry, if it is there.
    pub(super) fn remove(&mut self, key: Key) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(slot) = find_in(file, self.buckets, key)? {
            file.write_all_at(&EMPTY, slot.at)?;
            self.entries = self.entries.saturating_sub(1);
        }
        Ok(())
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

/// Records for the process that owns `part` when this one needs an entry next. Does nothing if the entry is not there.
pub(super) fn record_use(part: &Path, key: Key, at: u64) -> io::Result<()> {
    let recorded = at.saturating_add(1).to_le_bytes();
    change(part, key, |file, slot| file.write_all_at(&recorded, slot.at + USE_AT as u64))
}

/// Removes an entry whose bytes are damaged from the table of another process's part.
pub(super) fn erase(part: &Path, key: Key, extent: Extent) -> io::Result<()> {
    change(part, key, |file, slot| match slot.extent == extent {
        true => file.write_all_at(&EMPTY, slot.at),
        false => Ok(()),
    })
}

fn change(part: &Path, key: Key, change: impl FnOnce(&File, Slot) -> io::Result<()>) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(part.join(NAME))?;
    let buckets = buckets(file.metadata()?.len());
    find_in(&file, buckets, key)?.map_or(Ok(()), |slot| change(&file, slot))
}

/// Removes the table of a part that nothing is in.
pub(super) fn remove(part: &Path) -> io::Result<()> {
    remove_file(&part.join(NAME))
}

/// Returns the number of buckets in a file of this length.
fn buckets(len: u64) -> u64 {
    (len / DISK_BLOCK_BYTES).checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

fn bucket_of(key: Key, buckets: u64) -> u64 {
    let masked = key & u128::from(buckets.saturating_sub(1)); // a power of two
    u64::try_from(masked).unwrap_or(0)
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
    let read = read(file, bucket)?;
    let begins_with_key = |(_, slot): &(usize, &[u8])| slot[..16] == key.to_le_bytes();
    let slot =
        read.chunks_exact(SLOT_BYTES).enumerate().filter(begins_with_key).find_map(|(number, slot)| {
            let (_, extent) = decode(slot)?;
            let next_use = u64::from_le_bytes(slot[USE_AT..].try_into().ok()?);
            Some(Slot { extent, next_use, at: offset(bucket, number) })
        });
    Ok(slot)
}

fn slots(bucket: &Bucket) -> impl Iterator<Item = (Key, Extent)> {
    bucket.chunks_exact(SLOT_BYTES).filter_map(decode)
}

fn free_slot(read: &Bucket, bucket: u64, buckets: u64) -> Option<usize> {
    let is_free = |slot: &[u8]| decode(slot).is_none_or(|(key, _)| bucket_of(key, buckets) != bucket);
    let empty = read.chunks_exact(SLOT_BYTES).position(|slot| slot == EMPTY); // without checksums
    empty.or_else(|| read.chunks_exact(SLOT_BYTES).position(is_free))
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

/// Returns the slots of a bucket whose keys belong to the bucket `of` among `buckets`.
fn only_of(read: &Bucket, of: u64, buckets: u64) -> Bucket {
    let mut only = [0; BUCKET_BYTES];
    let belongs = |slot: &&[u8]| decode(slot).is_some_and(|(key, _)| bucket_of(key, buckets) == of);
    for (to, from) in only.chunks_exact_mut(SLOT_BYTES).zip(read.chunks_exact(SLOT_BYTES).filter(belongs)) {
        to.copy_from_slice(from);
    }
    only
}

fn encode(key: Key, extent: Extent) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..16].copy_from_slice(&key.to_le_bytes());
    slot[16..20].copy_from_slice(&extent.slab.to_le_bytes());
    slot[20..22].copy_from_slice(&extent.block.to_le_bytes());
    slot[22..CRC_AT].copy_from_slice(&extent.blocks.to_le_bytes());
    let crc = checksum(&slot[..CRC_AT]);
    slot[CRC_AT..USE_AT].copy_from_slice(&crc);
    slot
}

fn decode(slot: &[u8]) -> Option<(Key, Extent)> {
    if slot == EMPTY || slot[CRC_AT..USE_AT] != checksum(&slot[..CRC_AT]) {
        return None;
    }
    let extent = Extent {
        slab: u32::from_le_bytes(slot[16..20].try_into().ok()?),
        block: u16::from_le_bytes(slot[20..22].try_into().ok()?),
        blocks: u16::from_le_bytes(slot[22..CRC_AT].try_into().ok()?),
    };
    let fits = extent.blocks > 0 && extent.end() <= u32::from(SLAB_BLOCKS);
    fits.then_some((Key::from_le_bytes(slot[..16].try_into().ok()?), extent))
}

fn checksum(covered: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(MAGIC);
    hasher.update(covered);
    hasher.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;

    fn extent(n: u16) -> Extent {
        Extent { slab: u32::from(n) * 3, block: n % 1000, blocks: 1 + n % 256 }
    }

    /// Spreads small numbers over buckets as hashes are spread.
    fn key(n: u16) -> Key {
        (u128::from(n) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835) >> 3
    }

    fn put(table: &mut Table, key: Key, extent: Extent) {
        if table.growth(key).unwrap().unwrap() > 0 {
            table.grow().unwrap();
        }
        assert!(table.insert(key, extent).unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Compares with a map after every step, also through the functions for other processes and after opening again.
        #[test]
        fn it_has_what_a_map_has(steps in proptest::collection::vec((0_u16..900, 0_u8..10), 1..2000)) {
            let dir = tempfile::tempdir().unwrap();
            let (mut table, found) = Table::open(dir.path()).unwrap();
            prop_assert!(found.is_empty());
            let mut model: BTreeMap<Key, Extent> = BTreeMap::new();
            for (n, action) in steps {
                let key = key(n);
                match action {
                    0..6 => {
                        if let std::collections::btree_map::Entry::Vacant(free) = model.entry(key) {
                            put(&mut table, key, extent(n));
                            free.insert(extent(n));
                        }
                        record_use(dir.path(), key, u64::from(n)).unwrap();
                        prop_assert_eq!(table.recorded_use(key), Some(u64::from(n)));
                    }
                    6..9 => {
                        if model.remove(&key).is_some() {
                            match action {
                                6 => erase(dir.path(), key, extent(n)).unwrap(),
                                _ => table.remove(key).unwrap(),
                            }
                        }
                        prop_assert_eq!(table.recorded_use(key), None);
                    }
                    _ => {
                        let (again, mut found) = Table::open(dir.path()).unwrap();
                        table = again;
                        found.sort_by_key(|(key, _)| *key);
                        let expected: Vec<_> = model.iter().map(|(key, extent)| (*key, *extent)).collect();
                        prop_assert_eq!(found, expected);
                    }
                }
                prop_assert_eq!(find(dir.path(), key), model.get(&key).copied());
            }
            let len = dir.path().join(NAME).metadata().map_or(0, |file| file.len());
            prop_assert_eq!(table.bytes(), len);
        }

        /// Any bytes are a table. Damaged slots are free, and the others stay.
        #[test]
        fn damage_loses_only_what_it_hits(
            entries in 1_u16..500,
            hits in proptest::collection::vec((0_usize..1 << 20, 1_u8..=255), 1..20),
            cut in proptest::option::of(0_u64..30_000),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut table, _) = Table::open(dir.path()).unwrap();
            (0..entries).for_each(|n| put(&mut table, key(n), extent(n)));
            drop(table);
            let path = dir.path().join(NAME);
            let mut bytes = fs::read(&path).unwrap();
            let len = bytes.len();
            hits.iter().for_each(|(at, flip)| bytes[at % len] ^= flip);
            bytes.truncate(cut.map_or(len, |cut| usize::try_from(cut).unwrap()));
            fs::write(&path, &bytes).unwrap();
            let (mut table, found) = Table::open(dir.path()).unwrap();
            let all: BTreeMap<Key, Extent> = (0..entries).map(|n| (key(n), extent(n))).collect();
            prop_assert!(found.iter().all(|(key, extent)| all.get(key) == Some(extent)));
            if cut.is_none() {
                prop_assert!(found.len() + hits.len() >= all.len());
            }
            let missing = (0..entries).filter(|n| !found.iter().any(|(found, _)| *found == key(*n)));
            missing.for_each(|n| put(&mut table, key(n), extent(n)));
            prop_assert!((0..entries).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
        }
    }

    /// A process that is killed while it doubles the table loses nothing: at every length of the upper half, and with any
    /// number of buckets of the lower half cleared.
    #[test]
    fn an_interrupted_doubling_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut table, _) = Table::open(dir.path()).unwrap();
        (0..400).for_each(|n| put(&mut table, key(n), extent(n)));
        let buckets = table.buckets;
        assert!(buckets >= 4);
        let path = dir.path().join(NAME);
        let before = fs::read(&path).unwrap();
        table.grow().unwrap();
        let after = fs::read(&path).unwrap();
        assert_eq!(after.len(), 2 * before.len());
        let whole = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let (table, found) = Table::open(dir.path()).unwrap();
            assert_eq!(found.len(), 400);
            assert!((0..400).all(|n| find(dir.path(), key(n)) == Some(extent(n))));
            table.buckets
        };
        for written in before.len()..after.len() {
            if written % 1000 == 0 {
                assert_eq!(whole(&[&before, &after[before.len()..written]].concat()), buckets);
            }
        }
        for cleared in 0..=before.len() / BUCKET_BYTES {
            let cleared = cleared * BUCKET_BYTES;
            assert_eq!(
                whole(&[&after[..cleared], &before[cleared..], &after[before.len()..]].concat()),
                2 * buckets
            );
        }
    }

    #[test]
    fn keys_that_all_belong_to_one_bucket_do_not_grow_it_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (mut table, _) = Table::open(dir.path()).unwrap();
        let admitted = (1..1000_u128).take_while(|n| {
            let key = n << 64;
            loop {
                match table.growth(key).unwrap() {
                    None => return false,
                    Some(0) => return table.insert(key, extent(1)).unwrap(),
                    Some(_) => table.grow().unwrap(),
                }
            }
        });
        assert_eq!(admitted.count(), SLOTS);
        assert_eq!(table.buckets, 2 * MIN_FILLED_TO_GROW);
    }
}
