//! The caller's waits for a batch: their deadline, and the slots that are added while it holds all batches.
//!
//! ```text
//! all slots held for 1 s ──▶ host memory: half as many slots more, while they fit in held_bytes ──▶ else an error
//!                        └─▶ device: an error, since its buffers cannot grow
//! ```

use super::{RankIterator, RankStats, SLOW_WAIT};
use crate::memory::Allocator;
use crate::next::Next;
use crate::slots::{Column, Slot};
use crate::{Error, ErrorKind, Result};
use feedstock_ingest::{Popped, RowBuffers};
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
fn added(slots: usize, bytes: u64, limit: u64) -> usize {
    let mean = (bytes / slots.max(1) as u64).max(1);
    let room = limit.saturating_sub(bytes) / mean;
    (slots / 2).max(1).min(usize::try_from(room).unwrap_or(usize::MAX))
}

impl RankIterator {
    /// Waits for the next batch, at most `timeout`.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<Next> {
        let begun = Instant::now();
        loop {
            let turn = Instant::now();
            let left = self.deadline.saturating_sub(self.waiting);
            let left = left.min(timeout.saturating_sub(begun.elapsed())).min(self.patience());
            let popped = self.ready().pop(left);
            self.waiting += turn.elapsed();
            if !matches!(popped, Popped::TimedOut) {
                self.growth.since = None;
                return self.taken(popped);
            }
            if let Err(error) = self.relieve() {
                self.waited += std::mem::take(&mut self.waiting);
                return Err(error); // not final: the caller may drop batches
            }
            if self.waiting >= self.deadline {
                self.waited += std::mem::take(&mut self.waiting);
                return Err(self.overdue()); // not final: the batch may still come
            }
            if self.waiting >= SLOW_WAIT {
                self.warn_of_slow_wait();
            }
            if begun.elapsed() >= timeout {
                return Ok(Next::Pending);
            }
        }
    }

    fn are_all_held(&self) -> bool {
        let RankStats { held, slots, .. } = self.stats();
        slots > 0 && held >= slots // of a device whose buffers were lost, there are none
    }

    /// Whether the caller gets buffers of a device, not slots.
    fn is_on_device(&self) -> bool {
        self.stage.as_ref().is_some_and(|stage| stage.lent().is_some())
    }

    /// Returns the wait after which slots may have to be added.
    fn patience(&mut self) -> Duration {
        if !self.are_all_held() {
            self.growth.since = None;
            return Duration::MAX;
        }
        let since = *self.growth.since.get_or_insert_with(Instant::now);
        self.growth.held_wait().saturating_sub(since.elapsed())
    }

    /// Adds slots if the caller has waited long enough with all of them held.
    ///
    /// # Errors
    /// `BadConfig` if no slot can be added.
    fn relieve(&mut self) -> Result<()> {
        if !self.are_all_held() {
            self.growth.since = None;
            return Ok(());
        }
        if self.growth.since.is_none_or(|since| since.elapsed() < self.growth.held_wait()) {
            return Ok(());
        }
        self.growth.since = None;
        let home = self.assembler.home.clone();
        let (bytes, limit) = (home.leased_bytes(), self.growth.held_bytes);
        let more = if self.is_on_device() { 0 } else { added(self.slots, bytes, limit) };
        if more == 0 {
            // A batch that is being finished in host memory counts as held, and soon comes.
            let may_come = self.stage.is_some() && !self.is_on_device();
            return if may_come { Ok(()) } else { Err(self.hoarded(bytes)) };
        }
        if !std::mem::replace(&mut self.growth.has_grown, true) {
            tracing::warn!(
                rank = %self.shape.rank,
                "the caller keeps all {} batches that have a slot; slots are added until batches take {limit} bytes \
                 (held_bytes). If the batches are not needed together, drop them or copy what is needed",
                self.slots
            );
        }
        for _ in 0..more {
            let Growth { columns, buffers, allocator, rows, .. } = &self.growth;
            home.offer(Slot::new(columns.clone(), buffers.clone(), allocator.clone(), *rows)?);
            self.slots += 1;
        }
        Ok(())
    }

    fn hoarded(&self, bytes: u64) -> Error {
        let RankStats { slots, .. } = self.stats();
        let (rank, position, epoch, limit) =
            (self.shape.rank, self.position, self.epoch, self.growth.held_bytes);
        let advice = match self.is_on_device() {
            true => format!(
                "all {slots} device buffers are held by batches that were not dropped, and none can be added; drop \
                 batches, copy what is needed, or raise the depth"
            ),
            false => format!(
                "all {slots} slots are held by batches that were not dropped ({bytes} bytes), and held_bytes={limit} has no \
                 room for more; drop batches, copy what is needed, or raise held_bytes"
            ),
        };
        let message =
            format!("rank {rank} waits for the batch at position {position} of epoch {epoch}: {advice}");
        Error::new(ErrorKind::BadConfig, message)
    }

    fn overdue(&self) -> Error {
        let advice = match self.are_all_held() {
            true => {
                "all slots are held by batches that were not dropped; drop them or raise slots".to_owned()
            }
            false => self.run.waiting().to_string(),
        };
        let message = format!(
            "rank {} waited {:.1} s for the batch at position {} of epoch {}: {advice}",
            self.shape.rank,
            self.deadline.as_secs_f64(),
            self.position,
            self.epoch,
        );
        Error::new(ErrorKind::Retryable, message)
    }

    fn warn_of_slow_wait(&mut self) {
        if !std::mem::replace(&mut self.has_warned_of_slow_wait, true) {
            let (waiting, RankStats { held, slots, .. }) = (self.run.waiting(), self.stats());
            tracing::warn!(rank = %self.shape.rank, held, slots, "no batch for 10 s: {waiting}");
        }
    }
}

impl Growth {
    fn held_wait(&self) -> Duration {
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
