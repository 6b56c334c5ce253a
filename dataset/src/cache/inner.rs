//! What the clones of a cache share: the folder, what is held in it, and what was counted.
//!
//! Two locks, taken in this order. The folder's is held while space is reserved and bytes are freed for it: writers of all
//! processes wait for each other. The state's is held for bookkeeping and the table only, so that hits do not wait while
//! entries are written, holes are punched and files are deleted. The [table](super::table) states what its changes cost.

use super::disk::{Disk, is_damage, remove_file};
use super::entry::{Extent, Key, Place, check, header, size_on_disk, stored_bytes};
use super::folder::Folder;
use super::index::{Admission, Index, Use};
use super::others::{self, InPart};
use super::slab::{self, Slabs, Unused};
use super::takeover::take_over;
use bytes::Bytes;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing is written after a disk error.
const OFF: Duration = Duration::from_secs(300);

pub(super) struct Inner {
    pub(super) folder: Folder,
    state: Mutex<State>,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) streams: AtomicU64,
    temps: AtomicU64,
    disk: Disk,
}

pub(super) struct State {
    pub(super) index: Index,
    slabs: Slabs,
    pub(super) max_bytes: u64,
    /// Keys being written or freed: two fetches of one range write it once, and a file is not deleted after it was written
    /// again.
    busy: HashSet<Key>,
    /// The time since which nothing is written.
    off: Option<Instant>,
}

/// What [`Inner::reserve`] decided.
enum Reserved {
    Space(Target),
    /// It is held already, by this process or another.
    Resident,
    Refused,
}

/// Where an entry is to be written.
enum Target {
    File,
    Slab(Extent, File),
}

/// An entry that is not held any more. Its bytes are on disk, and count as reserved.
struct Leaving {
    key: Key,
    bytes: u64,
    /// `None` if it has a separate file.
    in_slab: Option<Unused>,
}

impl State {
    /// Returns the bytes on disk, including those that are being written.
    pub(super) fn used(&self) -> u64 {
        self.index.used() + self.slabs.overhead()
    }

    pub(super) fn is_off(&self) -> bool {
        self.off.is_some_and(|since| since.elapsed() < OFF)
    }

    /// Takes an entry out. [`Inner::free`] must follow.
    fn take_out(&mut self, key: Key) -> io::Result<Option<Leaving>> {
        let in_slab = match self.index.place(key) {
            Some(Place::Slab(extent)) => Some(self.slabs.take_out(key, extent)?),
            Some(Place::File) => None,
            None => return Ok(None),
        };
        self.busy.insert(key);
        Ok(Some(Leaving { key, bytes: self.index.leave(key), in_slab }))
    }

    /// Records that the bytes of an entry were freed. A file that could not be deleted is held again.
    fn freed(&mut self, leaving: Leaving, freed: io::Result<()>) -> io::Result<()> {
        let Leaving { key, bytes, in_slab } = leaving;
        self.busy.remove(&key);
        match in_slab {
            Some(unused) => {
                self.index.release(bytes);
                self.slabs.freed(unused, freed)
            }
            None if freed.is_err() => {
                self.index.insert(key, bytes, Place::File, Use::NEVER);
                freed
            }
            None => {
                self.index.release(bytes);
                Ok(())
            }
        }
    }

    /// Returns when another process needs an entry next, if it recorded that.
    fn recorded_use(&self, folder: &Folder, key: Key) -> Option<u64> {
        match self.index.place(key)? {
            Place::Slab(_) => self.slabs.table.recorded_use(key),
            Place::File => others::recorded_use(&folder.entry(key)),
        }
    }

    /// Returns the entries to evict for an entry of `bytes`.
    fn victims(&mut self, folder: &Folder, key: Key, bytes: u64, next: Use) -> Admission {
        loop {
            let victims = match self.index.admit(key, bytes, next) {
                Admission::Evict(victims) => victims,
                decided => return decided,
            };
            // Another process may have made the use that seems to have passed, and recorded the next one.
            let passed = victims.iter().copied().filter(|victim| self.index.has_passed(*victim));
            let recorded = passed.filter_map(|victim| Some((victim, self.recorded_use(folder, victim)?)));
            let recorded: Vec<(Key, u64)> = recorded.collect();
            if !recorded.into_iter().fold(false, |any, (key, at)| self.index.postpone(key, at) || any) {
                return Admission::Evict(victims);
            }
        }
    }
}

impl Inner {
    pub(super) fn open(at: &Path, max_bytes: u64, disk: Disk) -> io::Result<Self> {
        let (folder, free) = Folder::open(at)?;
        let (index, slabs) = take_over(&folder, &free, max_bytes, disk)?;
        Ok(Self {
            folder,
            state: Mutex::new(State { index, slabs, max_bytes, busy: HashSet::new(), off: None }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            temps: AtomicU64::new(0),
            disk,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes to other processes how much this one holds.
    fn publish(&self, state: &State) {
        self.folder.publish(state.used());
    }

    pub(super) fn find(&self, key: Key, range: &Range<u64>) -> Option<Bytes> {
        let Some(place) = self.lock().index.hold(key) else { return self.find_with_others(key, range) };
        let read = match place {
            Place::File => fs::read(self.folder.entry(key)),
            Place::Slab(extent) => slab::read(self.folder.part(), extent, stored_bytes(range)),
        };
        let (whole, is_damaged) = match read {
            Ok(read) => {
                let whole = check(read, key, range);
                let is_damaged = whole.is_none();
                (whole, is_damaged)
            }
            Err(error) => (None, is_damage(&error)),
        };
        let mut state = self.lock();
        let alone = state.index.let_go(key);
        if !is_damaged {
            return whole;
        }
        self.damaged.fetch_add(1, Ordering::Relaxed);
        if alone && let Err(error) = self.remove(state, &[key]) {
            tracing::debug!(%error, "a damaged cache entry could not be removed");
        }
        None
    }

    /// Removes entries that no thread reads, and frees their bytes.
    fn remove(&self, mut state: MutexGuard<'_, State>, keys: &[Key]) -> io::Result<()> {
        let mut leaving = Vec::with_capacity(keys.len());
        let taken = keys.iter().try_for_each(|key| {
            leaving.extend(state.take_out(*key)?);
            Ok(())
        });
        let freed = self.free(state, leaving);
        taken.and(freed)
    }

    /// Frees the bytes of entries while the state is not locked: hits do not wait for a slow disk.
    fn free(&self, state: MutexGuard<'_, State>, leaving: Vec<Leaving>) -> io::Result<()> {
        drop(state);
        let free = |leaving: &Leaving| match &leaving.in_slab {
            Some(unused) => slab::free(self.folder.part(), self.disk, unused),
            None => remove_file(&self.folder.entry(leaving.key)),
        };
        let freed: Vec<io::Result<()>> = leaving.iter().map(free).collect();
        let mut state = self.lock();
        let results = leaving.into_iter().zip(freed).map(|(leaving, freed)| state.freed(leaving, freed));
        let result = results.fold(Ok(()), io::Result::and); // all of them, also after an error
        self.publish(&state);
        result
    }

    fn find_with_others(&self, key: Key, range: &Range<u64>) -> Option<Bytes> {
        for part in self.folder.others().ok()? {
            match others::read(&part, key, range) {
                InPart::Missing => {}
                InPart::Whole(bytes) => return Some(bytes),
                InPart::Damaged => {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        None
    }

    /// Records that a range is needed again at `next`, also for the owner of its entry.
    pub(super) fn used(&self, key: Key, range: &Range<u64>, next: Use) {
        let mut state = self.lock();
        if state.index.holds(key) {
            state.index.used_at(key, next);
        } else {
            drop(state);
            let others = self.folder.others().into_iter().flatten();
            others.for_each(|part| others::record_use(&part, key, range, next.at));
        }
    }

    /// Stores an entry if it is admitted. Returns whether it is held now.
    pub(super) fn put(&self, key: Key, range: &Range<u64>, bytes: &Bytes, next: Use) -> io::Result<bool> {
        let size = size_on_disk(range);
        let target = match self.reserve(key, range, size, next)? {
            Reserved::Space(target) => target,
            Reserved::Resident => return Ok(true),
            Reserved::Refused => return Ok(false),
        };
        let written = self.write(key, bytes, &target);
        let mut state = self.lock();
        let kept = written.and_then(|()| match &target {
            Target::File => Ok(true),
            Target::Slab(extent, file) => state.slabs.keep(key, *extent, file),
        });
        if let Ok(true) = kept {
            state.busy.remove(&key);
            let place = match target {
                Target::File => Place::File,
                Target::Slab(extent, _) => Place::Slab(extent),
            };
            state.index.insert(key, size, place, next);
            self.publish(&state);
            return Ok(true);
        }
        match target {
            Target::File => {
                state.busy.remove(&key);
                state.index.release(size);
                self.publish(&state);
                kept
            }
            Target::Slab(extent, _) => {
                let unused = state.slabs.give_up(key, extent)?; // if that fails, its blocks stay reserved
                self.free(state, vec![Leaving { key, bytes: size, in_slab: Some(unused) }]).and(kept)
            }
        }
    }

    /// Reserves space, and removes what has to be evicted for it, under the folder's lock.
    fn reserve(&self, key: Key, range: &Range<u64>, size: u64, next: Use) -> io::Result<Reserved> {
        let folder = &self.folder;
        if folder.others()?.any(|part| others::has(&part, key, range)) {
            return Ok(Reserved::Resident);
        }
        let _locked = folder.lock()?; // before the state's lock, so that hits do not wait for it
        let mut state = self.lock();
        if state.is_off() || state.busy.contains(&key) {
            return Ok(Reserved::Refused);
        }
        state.off = None;
        if state.index.update(key, next) {
            return Ok(Reserved::Resident);
        }
        drop(state);
        let reserved = self.make_room(key, size, next);
        self.publish(&self.lock()); // also if room was made in vain
        reserved
    }

    /// Removes what has to be evicted for an entry, and allocates its space. The folder is locked: no other thread or process
    /// takes the room that was made.
    fn make_room(&self, key: Key, size: u64, next: Use) -> io::Result<Reserved> {
        let folder = &self.folder;
        let others = folder.used_by_others()?;
        loop {
            let mut state = self.lock();
            let in_slab = state.slabs.take(size);
            let cap = state.max_bytes.saturating_sub(others + state.slabs.overhead());
            state.index.set_cap(cap);
            let growth = if in_slab { state.slabs.table.growth(key)? } else { Some(0) };
            let Some(growth) = growth else { return Ok(Reserved::Refused) };
            let Admission::Evict(victims) = state.victims(folder, key, size + growth, next) else {
                return Ok(Reserved::Refused);
            };
            if !victims.is_empty() {
                self.remove(state, &victims)?; // gone from the disk before their space is reserved
                self.evicted.fetch_add(victims.len() as u64, Ordering::Relaxed);
                continue;
            }
            let target = if in_slab {
                let (extent, file) = state.slabs.allocate(key, size)?;
                Target::Slab(extent, file)
            } else {
                Target::File
            };
            state.index.reserve(size);
            state.busy.insert(key);
            return Ok(Reserved::Space(target));
        }
    }

    fn write(&self, key: Key, bytes: &Bytes, target: &Target) -> io::Result<()> {
        let header = header(key, bytes);
        let parts: &[&[u8]] = &[&header, bytes];
        let Target::Slab(extent, file) = target else { return self.write_file(key, parts) };
        (self.disk.write)(file, extent.byte_range().start, parts)
    }

    fn write_file(&self, key: Key, parts: &[&[u8]]) -> io::Result<()> {
        let number = self.temps.fetch_add(1, Ordering::Relaxed);
        let temp = self.folder.temporary(key, number);
        let result = File::create_new(&temp)
            .and_then(|file| (self.disk.write)(&file, 0, parts))
            .and_then(|()| fs::rename(&temp, self.folder.entry(key)));
        if result.is_err() {
            remove_file(&temp)?;
        }
        result
    }

    /// Writes nothing for a time, after a disk error.
    pub(super) fn turn_off(&self, error: &io::Error) {
        if self.lock().off.replace(Instant::now()).is_none() {
            let folder = self.folder.path().display();
            tracing::warn!(
                "cache folder {folder}: {error}; nothing is cached for {} minutes, data comes from storage",
                OFF.as_secs() / 60
            );
        }
    }
}
