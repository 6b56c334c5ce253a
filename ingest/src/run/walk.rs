//! A rank's steps, one after another, through the epochs.

use feedstock_dataset::{EpochOrder, Plan, Position, Step, StepShape, StrandSet};

/// After this number of epochs without a row on the requested strands, the walk ends. In a data set of a few blocks, a strand
/// can have no rows in an epoch, but not in so long a run of epochs.
const EMPTY_EPOCHS: u64 = 64;

/// The steps of one rank, in order, over the requested epochs; of each, the rows on the requested strands.
#[derive(Clone)]
pub(crate) struct Walk {
    plan: Plan,
    shape: StepShape,
    strands: Option<StrandSet>,
    pub(crate) order: EpochOrder,
    pub(crate) next_order: EpochOrder,
    position: Position,
    end_epoch: u64,
}

impl Walk {
    pub(crate) fn new(
        plan: Plan,
        shape: StepShape,
        strands: Option<StrandSet>,
        (epoch, position): (u64, Position),
        end_epoch: Option<u64>,
    ) -> Self {
        let (order, next_order) = (plan.epoch(epoch), plan.epoch(epoch + 1));
        let mut end_epoch = end_epoch.unwrap_or(u64::MAX);
        let count = plan.strands().count();
        if strands.as_ref().is_some_and(|strands| strands.iter().all(|strand| strand >= count)) {
            end_epoch = epoch; // there are no such strands
        }
        Self { plan, shape, strands, order, next_order, position, end_epoch }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn shape(&self) -> &StepShape {
        &self.shape
    }

    /// The epoch before which it ends.
    pub(crate) fn end_epoch(&self) -> u64 {
        self.end_epoch
    }

    /// The next step that has rows; `None` after the last epoch's last.
    pub(crate) fn next(&mut self) -> Option<Step> {
        let mut empty_epochs = 0;
        while self.order.epoch() < self.end_epoch {
            if let Some(mut step) = self.order.step(self.position, &self.shape) {
                self.position = step.next;
                if let Some(wanted) = &self.strands {
                    let strands = self.plan.strands();
                    step.rows.retain(|row| wanted.contains(strands.of(row)));
                }
                if step.rows.is_empty() {
                    continue; // a short last step may have nothing for this rank, and any step nothing on a strand
                }
                return Some(step);
            }
            empty_epochs += 1;
            if empty_epochs > EMPTY_EPOCHS {
                self.end_epoch = self.order.epoch();
                return None;
            }
            let after = self.plan.epoch(self.next_order.epoch() + 1);
            self.order = std::mem::replace(&mut self.next_order, after);
            self.position = Position(0);
        }
        None
    }
}
