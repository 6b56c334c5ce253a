//! A plan that continues with the rest of an epoch after its data changed.

use crate::cursor::Cursor;
use crate::plan::Plan;
use crate::rest::{Left, Rest, RestFacts};
use feedstock_base::{Error, Position, Result, SampleId};
use std::sync::Arc;

impl Plan {
    /// Returns this order with one epoch replaced by its rest: see [`Rest`]. All other epochs stay.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use feedstock_base::{Position, SampleId};
    /// # use feedstock_plan::{Carried, Plan, Rest, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let old = Plan::new(input.clone(), &Shuffle::none())?;
    /// let cursor = old.cursor(0, Position(6)); // samples 6 and 7 are left
    /// let left = old.left_after(&cursor)?;
    /// let carried = Carried { fingerprint: cursor.fingerprint, position: cursor.position };
    ///
    /// let grown = PlanInput { block_starts: [0, 4, 9].into(), data: DataHashes { identity: 2, ..data }, ..input };
    /// let plan = Plan::new(grown, &Shuffle::none())?.with_rest(Arc::new(Rest::new(0, vec![carried], &left)?))?;
    /// assert_eq!((plan.len_of(0), plan.len_of(1)), (2, 9));
    /// assert_eq!(plan.epoch(0).sample_at(Position(0)).sample, SampleId(6));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an order without epochs, and for a rest with samples that the data set does not have.
    pub fn with_rest(&self, rest: Arc<Rest>) -> Result<Self> {
        if self.is_endless() {
            return Err(Error::config(
                "a mix without end has no rest of an epoch to continue with after a change of its data: load the state with \
                 on_change=next_epoch",
            ));
        }
        let facts = &self.facts;
        let starts = facts.base.block_starts();
        let rest = Arc::new(RestFacts::new(rest, starts, facts.fingerprint.lanes.max(1))?);
        Ok(self.clone().with(|facts| facts.rest = Some(rest)))
    }

    /// Returns the rest that it continues with, if there is one.
    pub fn rest(&self) -> Option<&Arc<Rest>> {
        self.facts.rest()
    }

    /// Returns the samples that are left after `cursor`, in order.
    ///
    /// ```
    /// # use feedstock_base::{Position, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::none())?;
    /// let left = plan.left_after(&plan.cursor(0, Position(6)))?;
    /// assert_eq!(left.iter().map(|left| left.sample).collect::<Vec<_>>(), [SampleId(6), SampleId(7)]);
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
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

    /// Whether the filter keeps `sample`.
    pub fn is_selected(&self, sample: SampleId) -> bool {
        self.facts.base.is_selected(sample)
    }

    /// Rejects a cursor of an epoch that continues after a change of the data, unless this plan has exactly that rest of it.
    pub(crate) fn check_carried(&self, cursor: &Cursor) -> Result<()> {
        let own = self.rest().filter(|rest| rest.epoch() == cursor.epoch);
        let own = own.map_or(&[][..], |rest| rest.carried());
        if own == cursor.carried {
            return Ok(());
        }
        Err(Error::config(match cursor.carried.is_empty() {
            true => format!(
                "epoch {} continues after a change of its data, but the cursor is of a whole epoch",
                cursor.epoch
            ),
            false => format!(
                "the cursor is of an epoch that began with other data (which changed {} times since), and this order does \
                 not have the rest of it; load the cursor into a loader, which finds the rest",
                cursor.carried.len()
            ),
        }))
    }
}
