//! What is in memory: a state machine without I/O or clock.
//!
//! The future is known, so the choice is Belady's: what is needed last goes first. An extent (a block, or a part of one) is
//! *pinned* by every planned step that has not finished with it, and only unpinned extents are evicted. Steps are admitted in
//! plan order and pin all their extents at once; if the next one does not fit, some admitted step is unfinished and will
//! free room without needing any itself, so waiting cannot deadlock. Tasks borrow bytes for samples that take much working
//! memory (`large.rs`).

use feedstock_dataset::Extent;
use std::collections::{BTreeSet, HashMap};

/// A place in plan order over all epochs; smaller is sooner.
pub(crate) type PlanTime = u64;

/// Needed no more.
pub(crate) const NEVER: PlanTime = u64::MAX;

/// An extent that a step needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    pub(crate) extent: Extent,
    /// Bytes that it holds in memory, decompressed.
    pub(crate) bytes: u64,
}

/// What admitting a step asks the shell to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Drop these from memory.
    pub(crate) evict: Vec<Extent>,
    /// Fetch these.
    pub(crate) fetch: Vec<Extent>,
}

/// Why a step was not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Room will come when an admitted step finishes.
    Later,
    /// The step alone exceeds the budget: it would wait for ever.
    Never { step_bytes: u64 },
}

#[derive(Debug)]
struct Resident {
    bytes: u64,
    pins: u32,
    next_use: PlanTime,
}

/// Resident extents within a byte budget.
#[derive(Debug)]
pub(crate) struct Residency {
    budget_bytes: u64,
    used_bytes: u64,
    idle_bytes: u64,
    /// Of the used bytes, those that tasks have.
    lent_bytes: u64,
    resident: HashMap<Extent, Resident>,
    /// Unpinned extents by next use: the last is evicted first.
    idle: BTreeSet<(PlanTime, Extent)>,
}

impl Residency {
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            used_bytes: 0,
            idle_bytes: 0,
            lent_bytes: 0,
            resident: HashMap::new(),
            idle: BTreeSet::new(),
        }
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Pins all of the extents of the step at `now`, or none. Room for loans of `loan_bytes` in all stays free.
    ///
    /// Idle extents whose predicted next use was before `now` have been passed by (another rank took them): they go
    /// first.
    pub(crate) fn admit(
        &mut self,
        needs: &[Need],
        now: PlanTime,
        loan_bytes: u64,
    ) -> Result<Admitted, Refused> {
        let step_bytes = needs.iter().map(|need| need.bytes).sum();
        if step_bytes > self.budget_bytes {
            return Err(Refused::Never { step_bytes });
        }
        let (mut missing, mut own_idle) = (0, 0);
        for need in needs {
            match self.resident.get(&need.extent) {
                None => missing += need.bytes,
                Some(resident) if resident.pins == 0 => own_idle += resident.bytes,
                Some(_) => {}
            }
        }
        let evictable = self.idle_bytes - own_idle;
        let free = loan_bytes.saturating_sub(self.lent_bytes);
        if self.used_bytes - evictable + missing + free > self.budget_bytes {
            return Err(Refused::Later);
        }
        let mut admitted = Admitted::default();
        for need in needs {
            match self.resident.get_mut(&need.extent) {
                Some(resident) => {
                    if resident.pins == 0 {
                        self.idle.remove(&(resident.next_use, need.extent));
                        self.idle_bytes -= resident.bytes;
                    }
                    resident.pins += 1;
                }
                None => {
                    self.used_bytes += need.bytes;
                    let resident = Resident { bytes: need.bytes, pins: 1, next_use: NEVER };
                    self.resident.insert(need.extent, resident);
                    admitted.fetch.push(need.extent);
                }
            }
        }
        while self.used_bytes > self.budget_bytes {
            admitted.evict.extend(self.evict(now));
        }
        Ok(admitted)
    }

    /// A step is done with `extent`, which is needed again at `next_use`. Returns it if it was let go at once.
    pub(crate) fn unpin(&mut self, extent: Extent, next_use: PlanTime) -> Option<Extent> {
        let resident = self.resident.get_mut(&extent)?;
        assert!(resident.pins > 0, "{extent:?} is unpinned more often than pinned");
        resident.pins -= 1;
        resident.next_use = next_use;
        if resident.pins > 0 {
            return None;
        }
        if next_use == NEVER {
            self.used_bytes -= resident.bytes;
            self.resident.remove(&extent);
            return Some(extent);
        }
        self.idle_bytes += resident.bytes;
        self.idle.insert((next_use, extent));
        None
    }

    /// Lends `bytes` of the budget to a task, and returns what must be dropped for it; `None` if there is no room now.
    pub(crate) fn lend(&mut self, bytes: u64, now: PlanTime) -> Option<Vec<Extent>> {
        if self.lacking_bytes(bytes) > 0 {
            return None;
        }
        self.used_bytes += bytes;
        self.lent_bytes += bytes;
        let mut evicted = Vec::new();
        while self.used_bytes > self.budget_bytes {
            evicted.extend(self.evict(now));
        }
        Some(evicted)
    }

    /// Takes lent bytes back.
    pub(crate) fn take_back(&mut self, bytes: u64) {
        assert!(bytes <= self.lent_bytes, "more bytes came back than were lent");
        self.used_bytes -= bytes;
        self.lent_bytes -= bytes;
    }

    /// Bytes that tasks have.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Bytes by which `bytes` more than what is pinned or lent exceed the budget.
    pub(crate) fn lacking_bytes(&self, bytes: u64) -> u64 {
        (self.used_bytes - self.idle_bytes).saturating_add(bytes).saturating_sub(self.budget_bytes)
    }

    /// Makes the budget larger.
    pub(crate) fn extend_to(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
    }

    /// Makes the budget smaller, and returns what must be dropped for it; `None` if pinned extents and loans need it.
    pub(crate) fn shrink_to(&mut self, budget_bytes: u64, now: PlanTime) -> Option<Vec<Extent>> {
        if self.used_bytes - self.idle_bytes > budget_bytes {
            return None;
        }
        self.budget_bytes = budget_bytes;
        let mut evicted = Vec::new();
        while self.used_bytes > self.budget_bytes {
            evicted.extend(self.evict(now));
        }
        Some(evicted)
    }

    /// Drops what is not needed before `from`, the last first, until at most `kept_bytes` are used, and returns it.
    pub(crate) fn trim(&mut self, kept_bytes: u64, from: PlanTime) -> Vec<Extent> {
        let mut dropped = Vec::new();
        while self.used_bytes > kept_bytes && self.idle.last().is_some_and(|(next_use, _)| *next_use >= from)
        {
            dropped.extend(self.idle.pop_last().and_then(|(_, extent)| self.forget(extent)));
        }
        dropped
    }

    fn evict(&mut self, now: PlanTime) -> Option<Extent> {
        let passed_by = self.idle.first().is_some_and(|(next_use, _)| *next_use < now);
        let (_, extent) = if passed_by { self.idle.pop_first() } else { self.idle.pop_last() }?;
        self.forget(extent)
    }

    /// Takes `extent`, which is idle no more, out of the books.
    fn forget(&mut self, extent: Extent) -> Option<Extent> {
        let resident = self.resident.remove(&extent)?;
        self.used_bytes -= resident.bytes;
        self.idle_bytes -= resident.bytes;
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_dataset::BlockId;
    use proptest::prelude::*;

    fn need(block: u32, bytes: u64) -> Need {
        Need { extent: Extent::new(BlockId(block), 0..1), bytes }
    }

    #[test]
    fn what_is_needed_last_goes_first() {
        let mut residency = Residency::new(30);
        residency.admit(&[need(0, 10), need(1, 10), need(2, 10)], 0, 0).unwrap();
        for (block, next_use) in [(0, 7), (1, 9), (2, 8)] {
            assert_eq!(residency.unpin(need(block, 0).extent, next_use), None);
        }
        let admitted = residency.admit(&[need(3, 15), need(2, 10)], 6, 0).unwrap();
        assert_eq!(admitted.evict, [need(1, 0).extent, need(0, 0).extent]);
        assert_eq!(admitted.fetch, [need(3, 0).extent]);
        assert_eq!(residency.used_bytes(), 25);
    }

    #[test]
    fn what_was_passed_by_goes_before_what_is_needed() {
        let mut residency = Residency::new(30);
        residency.admit(&[need(0, 10), need(1, 10), need(2, 10)], 0, 0).unwrap();
        for (block, next_use) in [(0, 7), (1, 40), (2, 30)] {
            residency.unpin(need(block, 0).extent, next_use);
        }
        assert_eq!(residency.admit(&[need(3, 5)], 20, 0).unwrap().evict, [need(0, 0).extent], "7 is past");
        assert_eq!(
            residency.admit(&[need(4, 10)], 21, 0).unwrap().evict,
            [need(1, 0).extent],
            "then the latest"
        );
    }

    #[test]
    fn a_step_larger_than_the_budget_is_refused_for_good() {
        let mut residency = Residency::new(30);
        assert_eq!(
            residency.admit(&[need(0, 16), need(1, 15)], 0, 0),
            Err(Refused::Never { step_bytes: 31 })
        );
        residency.admit(&[need(0, 16)], 0, 0).unwrap();
        assert_eq!(residency.admit(&[need(1, 15)], 1, 0), Err(Refused::Later));
        assert_eq!(residency.unpin(need(0, 0).extent, NEVER), Some(need(0, 0).extent));
        assert_eq!(residency.admit(&[need(1, 15)], 1, 0).unwrap().fetch.len(), 1);
    }

    #[test]
    fn a_smaller_budget_evicts_what_is_idle_and_nothing_that_is_pinned() {
        let mut residency = Residency::new(20);
        residency.extend_to(40);
        residency.admit(&[need(0, 15), need(1, 15)], 0, 0).unwrap();
        assert_eq!(residency.shrink_to(20, 0), None);
        residency.unpin(need(1, 0).extent, 5);
        assert_eq!(residency.shrink_to(20, 0), Some(vec![need(1, 0).extent]));
        assert_eq!((residency.used_bytes(), residency.lacking_bytes(5)), (15, 0));
        assert_eq!(residency.lacking_bytes(6), 1);
    }

    #[test]
    fn trimming_drops_what_a_later_epoch_needs_and_nothing_else() {
        let mut residency = Residency::new(100);
        residency.admit(&[need(0, 10), need(1, 10), need(2, 10), need(3, 10)], 0, 0).unwrap();
        for (block, next_use) in [(0, 7), (1, 120), (2, 105)] {
            residency.unpin(need(block, 0).extent, next_use);
        }
        assert_eq!(residency.trim(40, 100), []);
        assert_eq!(residency.trim(30, 100), [need(1, 0).extent]);
        assert_eq!(residency.trim(0, 100), [need(2, 0).extent], "7 is soon, and 3 is pinned");
        assert_eq!(residency.used_bytes(), 20);
    }

    proptest! {
        /// Steps that each fit are all served, in order, within the budget, whatever finishes when.
        #[test]
        fn never_over_budget_and_never_stuck(
            steps in prop::collection::vec(prop::collection::btree_map(0u32..20, 1u64..10, 1..5), 1..60), depth in 1usize..6
        ) {
            let bytes = |block: u32| u64::from(block % 9 + 1);
            let steps: Vec<Vec<Need>> =
                steps.iter().map(|s| s.keys().map(|&b| need(b, bytes(b))).collect()).collect();
            let mut residency = Residency::new(40);
            let mut running = std::collections::VecDeque::new();
            let mut next = 0;
            while next < steps.len() || !running.is_empty() {
                if next < steps.len() && running.len() < depth {
                    match residency.admit(&steps[next], next as u64, 0) {
                        Ok(_) => {
                            running.push_back(next);
                            next += 1;
                            prop_assert!(residency.used_bytes() <= 40);
                            continue;
                        }
                        Err(refused) => {
                            prop_assert_eq!(refused, Refused::Later);
                            prop_assert!(!running.is_empty(), "no step is running");
                        }
                    }
                }
                let done: usize = running.pop_front().unwrap();
                for need in &steps[done] {
                    let later = steps[done + 1..].iter().position(|s| s.iter().any(|n| n.extent == need.extent));
                    residency.unpin(need.extent, later.map_or(NEVER, |i| (done + 1 + i) as u64));
                }
            }
            prop_assert_eq!(residency.used_bytes(), 0);
        }
    }
}
