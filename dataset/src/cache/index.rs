//! What one process's part of the cache holds and what is evicted first: pure bookkeeping, no files.
//!
//! Invariant: `used + reserved ≤ cap` whenever space is reserved. Space is reserved before a byte is written and released
//! only after the entry's blocks are free, so the disk never holds more either.
//!
//! Uses are places in the order of a *stream*: one data set that is read through the cache. Each stream counts separately;
//! the place that it has reached is its latest use.
//!
//! Memory: about 150 bytes an entry.

use super::entry::{Key, Place};
use std::collections::{BTreeSet, HashMap, hash_map};
use std::ops::Bound;

/// A data set that is read through the cache, numbered within this process.
pub(super) type Stream = u64;

/// When a stream needs an entry next; `u64::MAX` is never.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) stream: Stream,
    pub(super) at: u64,
}

impl Use {
    pub(super) const NEVER: Self = Self { stream: 0, at: u64::MAX };
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    next_use: u64,
    stream: Stream,
    /// Readers that read it now; such an entry is not evicted.
    readers: u32,
    place: Place,
}

/// Resident entries ordered by their next use.
#[derive(Debug)]
pub(super) struct Index {
    cap: u64,
    used: u64,
    reserved: u64,
    entries: HashMap<Key, Entry>,
    by_next_use: BTreeSet<(u64, Key)>,
    /// The place that each stream has reached.
    reached: HashMap<Stream, u64>,
}

/// How many places later than predicted a use may come: predictions name the earliest place, about a window too early.
const SLACK: u64 = 1 << 16;

/// Whether a new entry is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is already there; its next use was updated.
    Resident,
    /// Remove these, then [`Index::reserve`].
    Evict(Vec<Key>),
    /// It is larger than the cap, or everything that it would evict is needed sooner.
    Refused,
}

impl Index {
    pub(super) fn new(cap: u64) -> Self {
        Self {
            cap,
            used: 0,
            reserved: 0,
            entries: HashMap::new(),
            by_next_use: BTreeSet::new(),
            reached: HashMap::new(),
        }
    }

    /// Sets the cap: other processes hold more or less now.
    pub(super) fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    pub(super) fn used(&self) -> u64 {
        self.used + self.reserved
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides whether to admit `bytes` bytes that are needed at `next`. Entries whose use has passed are evicted first,
    /// then those needed last (Belady), if they are needed later than the new entry.
    pub(super) fn admit(&mut self, key: Key, bytes: u64, next: Use) -> Admission {
        if self.entries.contains_key(&key) {
            self.update(key, next);
            return Admission::Resident;
        }
        let wanted = (self.used + self.reserved).saturating_add(bytes);
        let mut given = 0;
        let mut victims = Vec::new();
        let later = (Bound::Excluded((next.at, Key::MAX)), Bound::Unbounded);
        let last_first = self.by_next_use.range(later).rev();
        let furthest = self.reached.values().copied().max().unwrap_or(0);
        let passed = self.by_next_use.range(..(furthest, 0)).filter(|(_, key)| self.has_passed(*key));
        let mut candidates = passed.chain(last_first.filter(|(_, key)| !self.has_passed(*key)));
        while wanted - given > self.cap {
            let Some((_, victim)) = candidates.next() else { return Admission::Refused };
            let entry = self.entries[victim];
            if entry.readers == 0 {
                given += entry.bytes;
                victims.push(*victim);
            }
        }
        Admission::Evict(victims)
    }

    /// Whether the predicted use has passed without being made: the plan changed, or another process made it.
    pub(super) fn has_passed(&self, key: Key) -> bool {
        self.entries.get(&key).is_some_and(|entry| {
            let reached = self.reached.get(&entry.stream).copied().unwrap_or(0);
            entry.next_use.saturating_add(SLACK) < reached
        })
    }

    /// Records a later use that another process predicted; `false` if there is none.
    pub(super) fn postpone(&mut self, key: Key, at: u64) -> bool {
        match self.entries.get(&key) {
            Some(entry) if entry.next_use < at => {
                let stream = entry.stream;
                self.update(key, Use { stream, at })
            }
            _ => false,
        }
    }

    /// Records that an entry was used and is needed next at `next`: the stream has reached the place of the predicted use.
    /// If the next use is before that place, a run began anew or went back.
    pub(super) fn used_at(&mut self, key: Key, next: Use) {
        let predicted =
            self.entries.get(&key).filter(|entry| entry.stream == next.stream).map(|e| e.next_use);
        let reached = self.reached.entry(next.stream).or_default();
        *reached = predicted.filter(|at| *at != u64::MAX).map_or(*reached, |at| at.max(*reached));
        if next.at < *reached {
            *reached = 0;
        }
        self.update(key, next);
    }

    /// Ends the stream: its entries are never needed.
    pub(super) fn end(&mut self, stream: Stream) {
        self.reached.remove(&stream);
        let of_stream: Vec<Key> =
            self.entries.iter().filter(|(_, entry)| entry.stream == stream).map(|(key, _)| *key).collect();
        for key in of_stream {
            self.update(key, Use { stream, at: u64::MAX });
        }
    }

    /// Reserves space for an entry about to be written.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
        assert!(self.used + self.reserved <= self.cap, "the cache's cap would be exceeded");
    }

    /// Releases the space of a reserved entry that was not written, or of one that left and is not on disk any more.
    pub(super) fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.reserved, "more released than reserved");
        self.reserved -= bytes;
    }

    /// Adds an entry: the reserved bytes are on disk.
    pub(super) fn insert(&mut self, key: Key, bytes: u64, place: Place, next: Use) {
        self.release(bytes);
        let entry = Entry { bytes, next_use: next.at, stream: next.stream, readers: 0, place };
        let fresh = self.entries.insert(key, entry).is_none();
        assert!(fresh, "an entry was written twice");
        self.by_next_use.insert((next.at, key));
        self.used += bytes;
    }

    /// Makes room in memory for entries to be loaded.
    pub(super) fn expect(&mut self, entries: usize) {
        self.entries.reserve(entries);
    }

    /// Adds an entry that an earlier process wrote, beyond the cap if need be; `false` if the key is there. It is needed
    /// never, until a stream states another use. [`Self::loaded`] must follow.
    pub(super) fn load(&mut self, key: Key, bytes: u64, place: Place) -> bool {
        let hash_map::Entry::Vacant(vacant) = self.entries.entry(key) else { return false };
        vacant.insert(Entry { bytes, next_use: u64::MAX, stream: 0, readers: 0, place });
        self.used += bytes;
        true
    }

    /// Orders the loaded entries by their next use, all at once, which is faster than one by one.
    pub(super) fn loaded(&mut self) {
        self.by_next_use = self.entries.iter().map(|(key, entry)| (entry.next_use, *key)).collect();
    }

    /// Takes out an entry whose bytes are still on disk, and returns how many. They stay reserved until [`Self::release`].
    pub(super) fn leave(&mut self, key: Key) -> u64 {
        let Some(entry) = self.entries.remove(&key) else { return 0 };
        self.by_next_use.remove(&(entry.next_use, key));
        self.used -= entry.bytes;
        self.reserved += entry.bytes;
        entry.bytes
    }

    /// Removes an entry whose bytes are gone.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.by_next_use.remove(&(entry.next_use, key));
            self.used -= entry.bytes;
        }
    }

    pub(super) fn update(&mut self, key: Key, next: Use) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        self.by_next_use.remove(&(entry.next_use, key));
        (entry.next_use, entry.stream) = (next.at, next.stream);
        self.by_next_use.insert((next.at, key));
        true
    }

    pub(super) fn holds(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    /// Returns where an entry is.
    pub(super) fn place(&self, key: Key) -> Option<Place> {
        Some(self.entries.get(&key)?.place)
    }

    /// Keeps the entry while it is read, and returns where it is.
    pub(super) fn hold(&mut self, key: Key) -> Option<Place> {
        let entry = self.entries.get_mut(&key)?;
        entry.readers += 1;
        Some(entry.place)
    }

    /// Ends a [`hold`](Self::hold); `true` if the entry has no other readers.
    pub(super) fn let_go(&mut self, key: Key) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        entry.readers -= 1;
        entry.readers == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The rule in its simplest form, over (key → bytes, next use).
    fn model_put(model: &mut BTreeMap<Key, (u64, u64)>, cap: u64, key: Key, bytes: u64, next_use: u64) {
        if let Some(entry) = model.get_mut(&key) {
            entry.1 = next_use;
            return;
        }
        let mut after = model.clone();
        while after.values().map(|e| e.0).sum::<u64>() + bytes > cap {
            let last =
                after.iter().max_by_key(|(key, entry)| (entry.1, **key)).map(|(key, entry)| (*key, entry.1));
            match last {
                Some((victim, use_at)) if use_at > next_use => after.remove(&victim),
                _ => return,
            };
        }
        after.insert(key, (bytes, next_use));
        *model = after;
    }

    fn at(at: u64) -> Use {
        Use { stream: 0, at }
    }

    fn put(index: &mut Index, key: Key, bytes: u64, next_use: u64) {
        if let Admission::Evict(victims) = index.admit(key, bytes, at(next_use)) {
            victims.into_iter().for_each(|victim| index.remove(victim));
            index.reserve(bytes);
            index.insert(key, bytes, Place::File, at(next_use));
        }
    }

    proptest! {
        #[test]
        fn it_keeps_what_the_model_keeps_and_never_exceeds_the_cap(
            cap in 0_u64..200,
            steps in proptest::collection::vec((0_u128..24, 1_u64..60, 0_u64..1000, 0_u8..8), 0..200),
        ) {
            let mut index = Index::new(cap);
            let mut model = BTreeMap::new();
            for (key, bytes, next_use, action) in steps {
                match action {
                    0 => {
                        index.update(key, at(next_use));
                        model.entry(key).and_modify(|e: &mut (u64, u64)| e.1 = next_use);
                    }
                    1 => {
                        index.remove(key);
                        model.remove(&key);
                    }
                    _ => {
                        put(&mut index, key, bytes, next_use);
                        model_put(&mut model, cap, key, bytes, next_use);
                    }
                }
                prop_assert!(index.used() <= cap);
                let held: BTreeMap<_, _> =
                    index.entries.iter().map(|(k, e)| (*k, (e.bytes, e.next_use))).collect();
                prop_assert_eq!(&held, &model);
                prop_assert_eq!(index.by_next_use.len(), model.len());
            }
        }

        /// On a known sequence of uses of equal blocks, the hits equal those of Belady's optimum with bypass.
        #[test]
        fn it_hits_as_often_as_the_optimum(
            uses in proptest::collection::vec(0_u128..8, 1..40),
            slots in 1_usize..5,
        ) {
            let next = |at: usize| {
                uses[at + 1..].iter().position(|k| *k == uses[at]).map_or(u64::MAX, |n| (at + 1 + n) as u64)
            };
            let mut index = Index::new(slots as u64);
            let mut hits = 0;
            for (at, key) in uses.iter().enumerate() {
                hits += usize::from(index.entries.contains_key(key));
                put(&mut index, *key, 1, next(at));
            }
            prop_assert_eq!(hits, best_hits(&uses, slots));
        }
    }

    /// The optimum by exhaustive search over what to keep after each use.
    fn best_hits(uses: &[Key], slots: usize) -> usize {
        let mut states: BTreeMap<BTreeSet<Key>, usize> = BTreeMap::from([(BTreeSet::new(), 0)]);
        for key in uses {
            let mut after: BTreeMap<BTreeSet<Key>, usize> = BTreeMap::new();
            for (held, hits) in states {
                let hits = hits + usize::from(held.contains(key));
                let mut all = held.clone();
                all.insert(*key);
                let mut options = vec![held.clone()];
                if all.len() <= slots {
                    options.push(all.clone());
                } else {
                    options.extend(held.iter().map(|out| all.iter().copied().filter(|k| k != out).collect()));
                }
                for option in options {
                    let best = after.entry(option).or_default();
                    *best = (*best).max(hits);
                }
            }
            states = after;
        }
        states.into_values().max().unwrap_or(0)
    }

    #[test]
    fn an_entry_being_read_stays() {
        let mut index = Index::new(10);
        put(&mut index, 1, 10, 100);
        assert_eq!(index.hold(1), Some(Place::File));
        assert_eq!(index.admit(2, 10, at(1)), Admission::Refused);
        assert!(index.let_go(1));
        assert_eq!(index.admit(2, 10, at(1)), Admission::Evict(vec![1]));
    }

    #[test]
    fn entries_whose_use_has_passed_go_first() {
        let mut index = Index::new(3);
        let of = |stream, place: u64| Use { stream, at: place * 100_000 };
        for (key, next) in [(1, of(1, 10)), (2, of(1, 20)), (3, of(2, 5))] {
            assert_eq!(index.admit(key, 1, next), Admission::Evict(Vec::new()));
            index.reserve(1);
            index.insert(key, 1, Place::File, next);
        }
        assert_eq!(index.admit(4, 1, of(1, 30)), Admission::Refused, "all are needed sooner");
        index.used_at(2, of(1, 120)); // the stream has reached place 20, and 1 was not used at 10
        assert!(
            index.has_passed(1) && !index.has_passed(2) && !index.has_passed(3),
            "each stream counts on its own"
        );
        assert_eq!(index.admit(4, 1, of(1, 200)), Admission::Evict(vec![1]));
        assert!(index.postpone(1, 11_000_000) && !index.postpone(1, 9_000_000));
        assert_eq!(index.admit(4, 1, of(1, 200)), Admission::Refused, "another process needs it");
        index.end(2);
        assert_eq!(index.admit(4, 1, of(1, 200)), Admission::Evict(vec![3]));
        index.used_at(1, of(1, 3)); // the stream went back, so that its uses have not passed
        assert!(!index.has_passed(1) && !index.has_passed(2));
        index.set_cap(1); // another process holds more now
        assert_eq!(index.admit(4, 1, of(1, 0)), Admission::Evict(vec![3, 2, 1]));
        index.set_cap(0);
        assert_eq!(index.admit(4, 1, of(1, 0)), Admission::Refused);
    }
}
