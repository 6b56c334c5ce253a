//! Slots that are added for a caller that keeps its batches: when, and how many.

use crate::Result;
use crate::memory::Allocator;
use crate::slots::{Column, Slot};
use feedstock_ingest::RowBuffers;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The wait with all slots held after which the caller is taken to keep its batches. It is longer than a step of most trainers,
/// which drop their batches after it.
const HELD_WAIT: Duration = Duration::from_secs(1);

/// The same wait once the caller is known to keep its batches.
const HELD_WAIT_AGAIN: Duration = Duration::from_millis(10);

/// The wait after which batches that are finished in host memory are taken to be held, although one of them may be in work.
const FINISHING_WAIT: Duration = Duration::from_secs(10);

/// What more slots are made of, and how many bytes they may take.
pub(super) struct Growth {
    pub(super) columns: Arc<[Column]>,
    pub(super) buffers: Arc<RowBuffers>,
    pub(super) allocator: Allocator,
    /// Rows that a slot has room for at first.
    pub(super) rows: usize,
    /// The most bytes of the batches in added slots.
    pub(super) held_bytes: u64,
    /// Since when the caller has waited with all slots held.
    pub(super) since: Option<Instant>,
    pub(super) has_grown: bool,
}

/// Returns the number of slots to add to `base` slots and those `added` before, which hold `bytes` bytes together: half as many, as
/// far as added ones stay within `limit` bytes.
pub(super) fn more(base: usize, added: usize, bytes: u64, limit: u64) -> usize {
    let slots = base + added;
    let mean = (bytes / slots.max(1) as u64).max(1);
    let room = (limit / mean).saturating_sub(added as u64);
    (slots / 2).max(1).min(usize::try_from(room).unwrap_or(usize::MAX))
}

impl Growth {
    /// Returns a slot like those that the run began with.
    pub(super) fn slot(&self) -> Result<Slot> {
        Slot::new(self.columns.clone(), self.buffers.clone(), self.allocator.clone(), self.rows)
    }

    /// Returns the wait with all slots held after which slots are added, or after which the caller gets an error if none can be.
    pub(super) fn held_wait(&self, can_grow: bool, is_finishing: bool) -> Duration {
        match (can_grow, is_finishing) {
            (true, _) if self.has_grown => HELD_WAIT_AGAIN,
            (false, true) => FINISHING_WAIT,
            _ => HELD_WAIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_grow_by_half_and_stay_within_the_limit() {
        let of = |base, bytes, limit| more(base, 0, bytes, limit);
        assert_eq!((of(4, 400, 10_000), of(2, 200, 10_000), of(1, 100, 10_000)), (2, 1, 1));
        assert_eq!((of(4, 400, 100), of(4, 400, 99), of(4, 400, 0)), (1, 0, 0));
        assert_eq!(of(4, 0, 1 << 30), 2, "batches without bytes");
        let (mut added, limit) = (0, 1_000);
        while more(4, added, 10 * (4 + added as u64), limit) > 0 {
            added += more(4, added, 10 * (4 + added as u64), limit);
        }
        assert_eq!(added, 100);
    }
}
