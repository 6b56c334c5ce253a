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

/// What more slots are made of, and how many bytes they may take.
pub(super) struct Growth {
    pub(super) columns: Arc<[Column]>,
    pub(super) buffers: Arc<RowBuffers>,
    pub(super) allocator: Allocator,
    /// Rows that a slot has room for at first.
    pub(super) rows: usize,
    /// The most bytes of batches that the caller may hold for slots to be added.
    pub(super) held_bytes: u64,
    /// Since when the caller has waited with all slots held.
    pub(super) since: Option<Instant>,
    pub(super) has_grown: bool,
}

/// Returns the number of slots to add to `slots` slots, which hold `bytes` bytes: half as many, as far as `limit` allows.
pub(super) fn added(slots: usize, bytes: u64, limit: u64) -> usize {
    let mean = (bytes / slots.max(1) as u64).max(1);
    let room = limit.saturating_sub(bytes) / mean;
    (slots / 2).max(1).min(usize::try_from(room).unwrap_or(usize::MAX))
}

impl Growth {
    /// Returns a slot like those that the run began with.
    pub(super) fn slot(&self) -> Result<Slot> {
        Slot::new(self.columns.clone(), self.buffers.clone(), self.allocator.clone(), self.rows)
    }

    /// Returns the wait with all slots held after which slots are added.
    pub(super) fn held_wait(&self) -> Duration {
        if self.has_grown { HELD_WAIT_AGAIN } else { HELD_WAIT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_grow_by_half_and_stay_within_the_limit() {
        assert_eq!((added(4, 400, 10_000), added(2, 200, 10_000), added(1, 100, 10_000)), (2, 1, 1));
        assert_eq!((added(4, 400, 500), added(4, 400, 499), added(4, 400, 0)), (1, 0, 0));
        assert_eq!(added(4, 0, 1 << 30), 2, "batches without bytes");
        let (mut slots, limit) = (4, 1_000);
        while added(slots, 10 * slots as u64, limit) > 0 {
            slots += added(slots, 10 * slots as u64, limit);
        }
        assert_eq!(slots, 100);
    }
}
