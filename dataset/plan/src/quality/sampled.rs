//! Walks the sampled steps of a plan.

use super::starts::{ENDLESS_SPAN, starts};
use crate::order::EpochOrder;
use crate::plan::Plan;
use crate::size::StepSize;
use crate::step::{StepShape, Tail};
use feedstock_base::{BlockId, Error, Position, Rank, Result, SampleId};

/// The most rows of a step, and the most ranks, for which an order is measured: 64 steps of 4,096 rows, or 4 of this number, are
/// walked in about 0.2 s.
pub const MAX_MEASURED_ROWS: u64 = 1 << 18;

/// Sampled steps of one epoch of a plan: at most 64, spread over the epoch. A prefix of them is spread over it, too.
///
/// ```
/// # use feedstock_base::Rank;
/// # use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Shuffle, StepShape, StepSize, Tail};
/// # use feedstock_plan::SampledSteps;
/// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
/// # let block_starts = (0..=100).map(|block| block * 10).collect();
/// # let input = PlanInput { block_starts, selection: None, data, filter: None, encoded_bytes: 1_000 * 110_000, access: Access::Blocks };
/// let plan = Plan::new(input.clone(), &Shuffle::seeded(7).window(100))?; // 1,000 samples in 100 blocks
/// let shape = StepShape { size: StepSize::Rows(50), rank: Rank::new(0, 2), tail: Tail::Drop };
/// let sampled = SampledSteps::new(&plan, 0, &shape)?;
/// let full = sampled.like(&Plan::new(input, &Shuffle::full(7))?);
///
/// let class = |sample: feedstock_base::SampleId| sample.0 / 10; // 100 classes, sorted
/// let (window, full_shuffle) = (sampled.global_labels(64, &class), full.global_labels(64, &class));
/// assert!(window.entropy_bits < full_shuffle.entropy_bits);
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SampledSteps {
    pub(super) order: EpochOrder,
    pub(super) world_size: u32,
    /// Rows of the epoch that its steps deliver; without an end, those of the part that is sampled.
    pub(super) delivered: u64,
    pub(super) steps: Vec<SampledStep>,
}

#[derive(Debug, Clone)]
pub(super) struct SampledStep {
    start: u64,
    pub(super) rows: Vec<SampledRow>,
}

/// One row of a sampled step, in the order of the step's rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampledRow {
    pub(super) position: u64,
    pub(super) sample: SampleId,
    pub(super) block: BlockId,
    pub(super) row: u32,
    pub(super) pass: u64,
}

impl SampledSteps {
    /// Walks the sampled steps of `epoch`. The rank of `shape` does not matter; its world size does.
    ///
    /// Of steps bounded by a total, each is the one after a step that begins at any position. These are like the steps of a run,
    /// which only a walk over the epoch would find.
    ///
    /// # Errors
    /// `BadConfig` for a step of more than [`MAX_MEASURED_ROWS`], for more ranks than that, for an epoch that cannot be counted,
    /// and as [`StepShape::check`].
    pub fn new(plan: &Plan, epoch: u64, shape: &StepShape) -> Result<Self> {
        shape.check(plan, &|sample| format!("sample {sample}"))?;
        plan.check_epoch(epoch)?;
        let rows = if let StepSize::Rows(rows) = shape.size { rows.min(plan.len_of(epoch)) } else { 0 };
        for (what, number) in [("rows in a global batch", rows), ("ranks", shape.rank.world_size.into())] {
            if number > MAX_MEASURED_ROWS {
                return Err(Error::config(format!(
                    "the quality of a shuffle is measured for at most {MAX_MEASURED_ROWS} {what}; got {number}"
                )));
            }
        }
        let mut order = plan.epoch(epoch);
        let whole = whole(shape.size);
        let first = order.step(Position(0), &whole).map_or(0, |step| step.rows.len() as u64);
        let span = if plan.is_endless() { ENDLESS_SPAN.min(order.len()) } else { order.len() };
        let shapes = starts(span, first, shape.size).into_iter().map(|start| (start, whole)).collect();
        let delivered = match (shape.size, shape.tail) {
            (StepSize::Rows(rows), Tail::Drop) => span - span % rows,
            _ => span,
        };
        let steps = walk(&mut order, shapes);
        Ok(Self { order, world_size: shape.rank.world_size, delivered, steps })
    }

    /// Walks steps of another plan at the same positions and with the same numbers of rows.
    #[must_use]
    pub fn like(&self, plan: &Plan) -> Self {
        let mut order = plan.epoch(self.order.epoch());
        let shapes =
            self.steps.iter().map(|step| (step.start, whole(StepSize::Rows(step.rows.len() as u64))));
        let shapes = shapes.filter(|(start, _)| *start < order.len()).collect();
        let steps = walk(&mut order, shapes);
        Self { order, world_size: self.world_size, delivered: self.delivered.min(plan.len()), steps }
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Returns the number of sampled steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns the encoded bytes of a sample, on average over the data set.
    pub fn sample_bytes(&self) -> u64 {
        self.order.facts.sample_bytes
    }

    /// Returns the mean number of rows of a sampled step, over all ranks.
    pub fn rows_per_step(&self) -> f64 {
        let rows: usize = self.steps.iter().map(|step| step.rows.len()).sum();
        rows as f64 / self.steps.len().max(1) as f64
    }

    /// Returns the samples of the first `steps` sampled steps, as they come.
    pub fn samples(&self, steps: usize) -> impl Iterator<Item = SampleId> + '_ {
        self.steps.iter().take(steps).flat_map(|step| step.rows.iter().map(|row| row.sample))
    }

    /// Returns each rank's share of a step's `rows`, as ranges of them.
    pub(super) fn shares(&self, rows: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (world_size, rows) = (self.world_size, rows as u64);
        (0..world_size).map(move |rank| {
            let shape = StepShape { rank: Rank { rank, world_size }, ..whole(StepSize::Rows(rows)) };
            let share = shape.share(rows);
            crate::step::narrow(share.start)..crate::step::narrow(share.end)
        })
    }
}

/// Returns the shape of whole steps: the rows of all ranks, one rank's after the other's.
pub(super) fn whole(size: StepSize) -> StepShape {
    StepShape { size, rank: Rank { rank: 0, world_size: 1 }, tail: Tail::Short }
}

/// Walks the steps at these positions; in ascending order, so that each window is permuted once.
fn walk(order: &mut EpochOrder, shapes: Vec<(u64, StepShape)>) -> Vec<SampledStep> {
    let mut numbered: Vec<(usize, (u64, StepShape))> = shapes.into_iter().enumerate().collect();
    numbered.sort_unstable_by_key(|(_, (start, _))| *start);
    let mut steps: Vec<(usize, SampledStep)> = Vec::with_capacity(numbered.len());
    for (number, (start, shape)) in numbered {
        let Some(mut step) = order.step(Position(start), &shape) else { continue };
        if let StepSize::Total { .. } = shape.size
            && let Some(next) = order.step(step.next, &shape)
        {
            step = next; // a step from the middle of a group of similar lengths is only the group's rest
        }
        let rows = step.rows.into_iter().map(|row| SampledRow {
            position: row.position.0,
            sample: row.sample,
            block: row.block,
            row: row.row,
            pass: row.pass,
        });
        steps.push((number, SampledStep { start: step.position.0, rows: rows.collect() }));
    }
    steps.sort_unstable_by_key(|(number, _)| *number);
    steps.into_iter().map(|(_, step)| step).collect()
}
