//! Walks a rank's steps through the epochs and knows when a block is needed next.

use crate::residency::{NEVER, Need, Piece, PlanTime};
use feedstock_dataset::{BlockId, Catalog, EpochOrder, Plan, Position, Step, StepShape};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The steps of one rank, in order, over as many epochs as asked.
#[derive(Clone)]
pub(crate) struct Planner {
    catalog: Arc<Catalog>,
    plan: Plan,
    shape: StepShape,
    order: EpochOrder,
    next_order: EpochOrder,
    position: Position,
    end_epoch: u64,
    /// When each block that is or will be in memory is used by this rank, as far as it has been planned.
    uses: HashMap<BlockId, BTreeSet<PlanTime>>,
}

/// A step and what it needs in memory.
#[derive(Debug, Clone)]
pub(crate) struct PlannedStep {
    pub(crate) step: Step,
    pub(crate) needs: Vec<Need>,
}

impl Planner {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        plan: Plan,
        shape: StepShape,
        (epoch, position): (u64, Position),
        end_epoch: Option<u64>,
    ) -> Self {
        let (order, next_order) = (plan.epoch(epoch), plan.epoch(epoch + 1));
        let end_epoch = end_epoch.unwrap_or(u64::MAX);
        Self { catalog, plan, shape, order, next_order, position, end_epoch, uses: HashMap::new() }
    }

    /// What the next `steps` steps need at most, in bytes, without taking them.
    pub(crate) fn largest_need(&self, steps: usize) -> u64 {
        let mut ahead = self.clone();
        let needs = std::iter::from_fn(|| ahead.next()).take(steps);
        needs.map(|planned| planned.needs.iter().map(|need| need.bytes).sum()).max().unwrap_or(0)
    }

    /// The next step; `None` after the last epoch's last.
    pub(crate) fn next(&mut self) -> Option<PlannedStep> {
        while self.order.epoch() < self.end_epoch {
            if let Some(step) = self.order.step(self.position, &self.shape) {
                self.position = step.next;
                if step.rows.is_empty() {
                    continue; // a short last step may have nothing for this rank
                }
                let needs = self.needs(&step);
                return Some(PlannedStep { step, needs });
            }
            let after = self.plan.epoch(self.next_order.epoch() + 1);
            self.order = std::mem::replace(&mut self.next_order, after);
            self.position = Position(0);
        }
        None
    }

    /// Where `step` lies among all steps of all epochs.
    pub(crate) fn time(&self, step: &Step) -> PlanTime {
        step.epoch.saturating_mul(self.plan.len()).saturating_add(step.position.0)
    }

    /// When `piece` is needed again after the step at `time` of `epoch`.
    ///
    /// Beyond the planned epoch it is the earliest time at which any rank may need the block: good enough to
    /// choose what to keep.
    pub(crate) fn next_use(&mut self, piece: Piece, epoch: u64, time: PlanTime) -> PlanTime {
        let Piece::Block(block) = piece else { return NEVER };
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = uses.split_off(&(time + 1));
            match uses.first() {
                Some(next) => return *next,
                None => drop(self.uses.remove(&block)),
            }
        }
        self.next_epoch_use(block, epoch)
    }

    /// When the epoch after `epoch` first needs `piece`, if it does: what a cache on disk should know.
    pub(crate) fn next_use_after_epoch(&self, piece: Piece, epoch: u64) -> PlanTime {
        match piece {
            Piece::Block(block) => self.next_epoch_use(block, epoch),
            Piece::Sample(_) => self.plan.len().saturating_mul(epoch + 1),
        }
    }

    fn next_epoch_use(&self, block: BlockId, epoch: u64) -> PlanTime {
        if epoch + 1 >= self.end_epoch {
            return NEVER;
        }
        let order = if epoch + 1 == self.order.epoch() { &self.order } else { &self.next_order };
        let earliest = order.earliest_position(block).map_or(NEVER, |position| position.0);
        order.epoch().saturating_mul(self.plan.len()).saturating_add(earliest)
    }

    fn needs(&mut self, step: &Step) -> Vec<Need> {
        if self.plan.reads_single_samples() {
            let needs: BTreeSet<_> = step.rows.iter().map(|row| (row.sample, row.block)).collect();
            return needs
                .into_iter()
                .map(|(sample, block)| {
                    let spec = self.catalog.block(block);
                    Need {
                        piece: Piece::Sample(sample),
                        bytes: spec.bytes.div_ceil(u64::from(spec.samples).max(1)),
                    }
                })
                .collect();
        }
        let time = self.time(step);
        let blocks: BTreeSet<BlockId> = step.rows.iter().map(|row| row.block).collect();
        for &block in &blocks {
            let uses = self.uses.entry(block).or_default();
            if uses.range(time..).next().is_none() {
                let epoch_start = time - step.position.0;
                let starts = self.order.steps_using(block, step.position, &self.shape);
                uses.extend(starts.into_iter().map(|start| epoch_start + start.0));
            }
        }
        blocks
            .into_iter()
            .map(|b| Need { piece: Piece::Block(b), bytes: self.catalog.block(b).bytes })
            .collect()
    }
}
