//! What the cache holds and what goes first: pure bookkeeping, no files.
//!
//! Invariant: `used + reserved ≤ cap`, always. Space is reserved before a byte is written and given back only
//! after a file is gone, so the disk never holds more either.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// 128 bits of (object, version, range).
pub(super) type Key = u128;

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    next_use: u64,
    /// Readers that have the file open; such an entry stays.
    readers: u32,
}

/// Resident entries ordered by their next use.
#[derive(Debug)]
pub(super) struct Index {
    cap: u64,
    used: u64,
    reserved: u64,
    entries: HashMap<Key, Entry>,
    by_next_use: BTreeSet<(u64, Key)>,
}

/// Whether a new entry may come in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is there already; its next use is up to date now.
    Resident,
    /// Remove these, then [`Index::reserve`].
    Evict(Vec<Key>),
    /// Everything that would have to go is needed sooner, or it is larger than the cap.
    Refused,
}

impl Index {
    pub(super) fn new(cap: u64) -> Self {
        Self { cap, used: 0, reserved: 0, entries: HashMap::new(), by_next_use: BTreeSet::new() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used + self.reserved
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides about `bytes` bytes that are needed at `next_use`: those needed last go first (Belady), and
    /// only those needed later than the new entry.
    pub(super) fn admit(&mut self, key: Key, bytes: u64, next_use: u64) -> Admission {
        if self.entries.contains_key(&key) {
            self.update(key, next_use);
            return Admission::Resident;
        }
        let mut free = self.cap - self.used - self.reserved;
        let mut victims = Vec::new();
        let later = (Bound::Excluded((next_use, Key::MAX)), Bound::Unbounded);
        let mut candidates = self.by_next_use.range(later).rev();
        while free < bytes {
            let Some((_, victim)) = candidates.next() else { return Admission::Refused };
            let entry = self.entries[victim];
            if entry.readers == 0 {
                free += entry.bytes;
                victims.push(*victim);
            }
        }
        Admission::Evict(victims)
    }

    /// Sets space aside for a file about to be written.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
        assert!(self.used + self.reserved <= self.cap, "the cache's cap would be exceeded");
    }

    /// The reserved file was not written after all.
    pub(super) fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.reserved, "more released than reserved");
        self.reserved -= bytes;
    }

    /// The reserved file is in place.
    pub(super) fn insert(&mut self, key: Key, bytes: u64, next_use: u64) {
        self.release(bytes);
        let fresh = self.entries.insert(key, Entry { bytes, next_use, readers: 0 }).is_none();
        assert!(fresh, "an entry was written twice");
        self.by_next_use.insert((next_use, key));
        self.used += bytes;
    }

    /// The entry's file is gone.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.by_next_use.remove(&(entry.next_use, key));
            self.used -= entry.bytes;
        }
    }

    pub(super) fn update(&mut self, key: Key, next_use: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        self.by_next_use.remove(&(entry.next_use, key));
        entry.next_use = next_use;
        self.by_next_use.insert((next_use, key));
        true
    }

    /// Keeps the entry while it is read; `false` when there is none.
    pub(super) fn hold(&mut self, key: Key) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        entry.readers += 1;
        true
    }

    /// Ends a [`hold`](Self::hold); `true` when nobody else reads the entry.
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

    /// The rule in its plainest form, over (key → bytes, next use).
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

    fn put(index: &mut Index, key: Key, bytes: u64, next_use: u64) {
        if let Admission::Evict(victims) = index.admit(key, bytes, next_use) {
            victims.into_iter().for_each(|victim| index.remove(victim));
            index.reserve(bytes);
            index.insert(key, bytes, next_use);
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
                        index.update(key, next_use);
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

        /// On a known sequence of uses of equal blocks the hits are those of Belady's optimum with bypass.
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
        assert!(index.hold(1));
        assert_eq!(index.admit(2, 10, 1), Admission::Refused);
        assert!(index.let_go(1));
        assert_eq!(index.admit(2, 10, 1), Admission::Evict(vec![1]));
    }
}
