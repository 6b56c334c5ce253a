//! A plan that goes on with what was left of an epoch when its data changed.

use crate::cursor::Cursor;
use crate::plan::Plan;
use crate::rest::{Left, Rest, RestFacts};
use feedstock_base::{Error, Position, Result, SampleId};
use std::sync::Arc;

impl Plan {
    /// This order with one epoch replaced by what is left of it: see [`Rest`]. All other epochs stay.
    ///
    /// # Errors
    /// `BadConfig` for a rest of an order without epochs, and one with samples that the data set does not have.
    pub fn with_rest(&self, rest: Arc<Rest>) -> Result<Self> {
        if self.is_endless() {
            return Err(Error::config(
                "a mix without end has no rest of an epoch to go on with after a change of its data: load the state with \
                 on_change=next_epoch",
            ));
        }
        let facts = &self.facts;
        let starts = facts.base.block_starts();
        let rest = Arc::new(RestFacts::new(rest, starts, facts.fingerprint.lanes.max(1))?);
        Ok(self.clone().with(|facts| facts.rest = Some(rest)))
    }

    /// The rest that it goes on with, if there is one.
    pub fn rest(&self) -> Option<&Arc<Rest>> {
        self.facts.rest()
    }

    /// The samples that are left after `cursor`, in order.
    ///
    /// # Errors
    /// As [`check`](Self::check); `BadConfig` for a mix without end.
    pub fn left_after(&self, cursor: &Cursor) -> Result<Vec<Left>> {
        if self.is_endless() {
            return Err(Error::config(
                "what is left of an epoch that never ends cannot be listed: load the state with on_change=next_epoch",
            ));
        }
        let plan = self.regrouped_as(cursor)?;
        let mut order = plan.epoch(cursor.epoch);
        Ok((cursor.position.0..order.len())
            .map(|position| order.sample_at(Position(position)))
            .map(|planned| Left { sample: planned.sample, lane: planned.lane, pass: planned.pass })
            .collect())
    }

    /// Whether `sample` is one that the filter keeps.
    pub fn is_selected(&self, sample: SampleId) -> bool {
        self.facts.base.is_selected(sample)
    }

    /// Refuses a cursor of an epoch that goes on after a change of the data, unless this plan has that very rest of it.
    pub(crate) fn check_carried(&self, cursor: &Cursor) -> Result<()> {
        let own = self.rest().filter(|rest| rest.epoch() == cursor.epoch);
        let own = own.map_or(&[][..], |rest| rest.carried());
        if own == cursor.carried {
            return Ok(());
        }
        Err(Error::config(match cursor.carried.is_empty() {
            true => format!(
                "epoch {} goes on after a change of its data, and the cursor is of a whole one",
                cursor.epoch
            ),
            false => format!(
                "the cursor is of an epoch that began with other data ({} times changed since), and this order does not have \
                 what was left of it: load it into a loader, which finds that",
                cursor.carried.len()
            ),
        }))
    }
}
