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
    /// Steps that have ended in this run.
    pub(crate) ended_steps: u64,
}

/// Whether one more step may be fetched before it has a place.
///
/// A run begins with few steps ahead and may double them as steps end: what is read for later steps would delay the next ones, for
/// which the trainer waits.
pub(crate) fn may_prefetch(ahead: Ahead, prefetch_bytes: u64) -> bool {
    let so_far = usize::try_from(ahead.ended_steps).unwrap_or(usize::MAX).saturating_mul(2);
    ahead.steps < STEPS_ALWAYS_AHEAD
        || ahead.steps < STEPS_AHEAD.min(so_far) && ahead.fetched_bytes < prefetch_bytes
}

impl<D: Destination> Driver<D> {
    /// Whether one more step may be fetched before it has a place.
    pub(super) fn may_prefetch(&self) -> bool {
        let fetched_bytes = self.ahead.iter().map(|admitted| admitted.fetched_bytes).sum();
        let ended_steps = self.ended_steps;
        may_prefetch(Ahead { steps: self.ahead.len(), fetched_bytes, ended_steps }, self.prefetch_bytes)
    }

    /// Drops what only a later epoch needs, beyond `kept_bytes` in all.
    pub(super) fn forget_next_epoch(&mut self, epoch: u64) {
        for extent in self.residency.trim(self.kept_bytes, self.planner.epoch_start(epoch + 1)) {
            self.loaded.remove(&extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_ahead_grow_with_the_steps_that_have_ended() {
        let most = |ended_steps, prefetch_bytes| {
            let ahead = |steps| Ahead { steps, fetched_bytes: steps as u64, ended_steps };
            (0..).find(|steps| !may_prefetch(ahead(*steps), prefetch_bytes)).unwrap()
        };
        assert_eq!([0, 1, 3, 32, 1000].map(|ended| most(ended, u64::MAX)), [2, 2, 6, 64, 64]);
        assert_eq!([0, 1000].map(|ended| most(ended, 10)), [2, 10]);
    }
}
