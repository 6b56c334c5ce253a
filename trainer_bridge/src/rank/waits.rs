//! The caller's waits for a batch: their deadline, and the slots that are added while it holds all batches.
//!
//! ```text
//! all slots held for 1 s ──▶ host memory: half as many slots more, while they fit in held_bytes ──▶ else an error
//!                        └─▶ device: an error, since its buffers cannot grow
//! ```

use super::growth::more;
use super::{RankIterator, RankStats, SLOW_WAIT};
use crate::next::Next;
use crate::{Error, ErrorKind, Result};
use feedstock_ingest::Popped;
use std::time::{Duration, Instant};

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

    /// Returns the number of slots that can be added now.
    fn addable(&self) -> usize {
        let home = &self.assembler.home;
        match self.is_on_device() {
            true => 0,
            false => more(self.slots, home.added(), home.leased_bytes(), self.growth.held_bytes),
        }
    }

    /// Returns how long the caller waits with all slots held before slots are added or it gets an error.
    fn held_wait(&self) -> Duration {
        // A batch that is being finished in host memory counts as held, and soon comes.
        let is_finishing = self.stage.is_some() && !self.is_on_device();
        self.growth.held_wait(self.addable() > 0, is_finishing)
    }

    /// Returns the wait after which slots may have to be added.
    fn patience(&mut self) -> Duration {
        if !self.are_all_held() {
            self.growth.since = None;
            return Duration::MAX;
        }
        let since = *self.growth.since.get_or_insert_with(Instant::now);
        self.held_wait().saturating_sub(since.elapsed())
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
        let held_wait = self.held_wait();
        if self.growth.since.is_none_or(|since| since.elapsed() < held_wait) {
            return Ok(());
        }
        self.growth.since = None;
        let more = self.addable();
        let home = self.assembler.home.clone();
        if more == 0 {
            return Err(self.hoarded(home.leased_bytes()));
        }
        if !std::mem::replace(&mut self.growth.has_grown, true) {
            tracing::warn!(
                rank = %self.shape.rank,
                "the caller keeps all {} batches that have a slot; slots are added until batches in added slots take {} \
                 bytes (held_bytes). If the batches are not needed together, drop them or copy what is needed",
                self.slots,
                self.growth.held_bytes
            );
        }
        for _ in 0..more {
            home.add(self.growth.slot()?);
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
