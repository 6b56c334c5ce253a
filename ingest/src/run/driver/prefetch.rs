//! How far a run reads ahead of its slots, and what it keeps for the next epoch.

use super::Driver;
use crate::run::job::Destination;

/// Steps planned ahead of the running ones at most: 64 steps × 256 rows × 40 bytes are 640 KiB.
const STEPS_AHEAD: usize = 64;

/// Steps that are fetched ahead however large they are, so that the next step loads while one is decoded.
const STEPS_ALWAYS_AHEAD: usize = 2;

/// The steps that are fetched before they have a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) steps: usize,
    /// Bytes that were fetched for them, and for no step before them.
    pub(crate) fetched_bytes: u64,
}

/// Whether one more step may be fetched before it has a place.
pub(crate) fn may_prefetch(ahead: Ahead, prefetch_bytes: u64) -> bool {
    ahead.steps < STEPS_ALWAYS_AHEAD || ahead.steps < STEPS_AHEAD && ahead.fetched_bytes < prefetch_bytes
}

impl<D: Destination> Driver<D> {
    /// Whether one more step may be fetched before it has a place.
    pub(super) fn may_prefetch(&self) -> bool {
        let fetched_bytes = self.ahead.iter().map(|admitted| admitted.fetched_bytes).sum();
        may_prefetch(Ahead { steps: self.ahead.len(), fetched_bytes }, self.prefetch_bytes)
    }

    /// Drops what only a later epoch needs, beyond `kept_bytes` in all.
    pub(super) fn forget_next_epoch(&mut self, epoch: u64) {
        for extent in self.residency.trim(self.kept_bytes, self.planner.epoch_start(epoch + 1)) {
            self.loaded.remove(&extent);
        }
    }
}
