//! Walks a rank's steps through the epochs and knows when a block, or a part of it, is needed next.

use crate::run::job::Job;
use crate::run::residency::{NEVER, Need, PlanTime};
use crate::run::walk::Walk;
use feedstock_dataset::{Catalog, Extent, Position, Step};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// The steps of one rank, in order, over as many epochs as asked.
#[derive(Clone)]
pub(crate) struct Planner {
    catalog: Arc<Catalog>,
    walk: Walk,
    /// When each extent that is or will be in memory is used, as far as it has been planned.
    uses: HashMap<Extent, Uses>,
}

/// When an extent is used.
#[derive(Debug, Clone, Default)]
struct Uses {
    /// By this rank, rising, as far as it was predicted.
    starts: VecDeque<PlanTime>,
    /// By any rank, beyond that; no later than it comes.
    beyond: Option<PlanTime>,
}

/// A step and what it needs in memory.
#[derive(Debug, Clone)]
pub(crate) struct PlannedStep {
    pub(crate) step: Step,
    /// What is fetched for each row.
    pub(crate) extents: Vec<Extent>,
    /// The same, each once.
    pub(crate) needs: Vec<Need>,
}

/// Steps whose needs are compared with the budget before the run starts: further ones differ little, and one that does not fit
/// is an error when it is reached.
const STEPS_CHECKED: usize = 64;

impl Planner {
    pub(crate) fn of(job: &Job) -> Self {
        let start = (job.epoch, job.position);
        let walk = Walk::new(job.plan.clone(), job.shape, job.strands.clone(), start, job.end_epoch);
        Self::new(job.dataset.catalog().clone(), walk)
    }

    /// Whether the data set is a mix, whose parts may repeat.
    pub(crate) fn is_mix(&self) -> bool {
        self.walk.plan().is_mix()
    }

    fn new(catalog: Arc<Catalog>, walk: Walk) -> Self {
        Self { catalog, walk, uses: HashMap::new() }
    }

    /// Returns the most bytes that one of the first steps needs, and the number of its rows.
    pub(crate) fn largest_need(&self) -> (u64, u64) {
        let mut ahead = self.clone();
        let needs = std::iter::from_fn(|| ahead.next()).take(STEPS_CHECKED);
        let needs = needs.map(|planned| {
            (planned.needs.iter().map(|need| need.bytes).sum(), planned.step.rows.len() as u64)
        });
        needs.max().unwrap_or((0, 0))
    }

    /// The next step; `None` after the last epoch's last.
    pub(crate) fn next(&mut self) -> Option<PlannedStep> {
        let step = self.walk.next()?;
        let plan = self.walk.plan();
        let extents: Vec<Extent> =
            step.rows.iter().map(|row| plan.extent_of(row.block, row.sample)).collect();
        let needs = self.needs(&step, &extents);
        Some(PlannedStep { step, extents, needs })
    }

    /// The time of `step` among all steps of all epochs.
    pub(crate) fn time(&self, step: &Step) -> PlanTime {
        self.epoch_start(step.epoch).saturating_add(step.position.0)
    }

    /// The time at which `epoch` begins.
    pub(crate) fn epoch_start(&self, epoch: u64) -> PlanTime {
        epoch.saturating_mul(self.walk.plan().stride())
    }

    /// When `extent` is needed again after the step at `time` of `epoch`.
    ///
    /// Beyond the planned epoch, or the pass over its part of a mix, it is the earliest time at which any rank may need it:
    /// good enough to choose what to keep.
    pub(crate) fn next_use(&mut self, extent: Extent, epoch: u64, time: PlanTime) -> PlanTime {
        if let Some(uses) = self.uses.get_mut(&extent) {
            while uses.starts.front().is_some_and(|used| *used <= time) {
                uses.starts.pop_front();
            }
            match uses.starts.front() {
                Some(next) => return *next,
                None => {
                    // Predicted anew when a step needs it.
                    let beyond = self.uses.remove(&extent).and_then(|uses| uses.beyond);
                    if let Some(beyond) = beyond.filter(|beyond| *beyond > time) {
                        return beyond;
                    }
                }
            }
        }
        self.next_pass_use(extent, epoch, time)
    }

    /// When `extent`, fetched for the step at `time` of `epoch`, is needed after all that it is fetched for: by the next
    /// pass over its part of a mix, or the next epoch. What a cache on disk should know.
    pub(crate) fn next_use_from_disk(&mut self, extent: Extent, epoch: u64, time: PlanTime) -> PlanTime {
        self.next_pass_use(extent, epoch, time)
    }

    fn next_pass_use(&mut self, extent: Extent, epoch: u64, time: PlanTime) -> PlanTime {
        if self.walk.order.epoch() == epoch {
            let epoch_start = self.epoch_start(epoch);
            let position = Position(time.saturating_sub(epoch_start));
            if let Some(next) = self.walk.order.next_pass(extent, position) {
                return epoch_start.saturating_add(next.0);
            }
        }
        self.next_epoch_use(extent, epoch)
    }

    fn next_epoch_use(&mut self, extent: Extent, epoch: u64) -> PlanTime {
        let walk = &mut self.walk;
        let stride = walk.plan().stride();
        if epoch + 1 >= walk.end_epoch() || walk.plan().is_endless() {
            return NEVER;
        }
        let order = if epoch + 1 == walk.order.epoch() { &mut walk.order } else { &mut walk.next_order };
        let earliest = order.earliest_position(extent).map_or(NEVER, |position| position.0);
        order.epoch().saturating_mul(stride).saturating_add(earliest)
    }

    fn needs(&mut self, step: &Step, extents: &[Extent]) -> Vec<Need> {
        let time = self.time(step);
        let extents: BTreeSet<Extent> = extents.iter().copied().collect();
        for &extent in &extents {
            let uses = self.uses.entry(extent).or_default();
            if uses.starts.back().is_none_or(|last| *last < time) {
                let epoch_start = time - step.position.0;
                let shape = *self.walk.shape();
                let (starts, beyond) = self.walk.order.steps_using_soon(extent, step.position, &shape);
                *uses = Uses {
                    starts: starts.into_iter().map(|start| epoch_start.saturating_add(start.0)).collect(),
                    beyond: beyond.map(|beyond| epoch_start.saturating_add(beyond.0)),
                };
            }
        }
        let need = |extent| Need { extent, bytes: self.catalog.extent_memory_bytes(extent) };
        extents.into_iter().map(need).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_dataset::{
        BlockId, CatalogOptions, CatalogStore, Dataset, OpenOptions, Rank, Shuffle, StepShape, StepSize,
        Stop, Tail,
    };

    async fn folder(root: &std::path::Path, samples: u64, name: &str) -> Dataset {
        for sample in 0..samples {
            std::fs::write(root.join(format!("{sample:04}.jpg")), [7; 2048]).unwrap();
        }
        let options = OpenOptions {
            catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
            block_bytes: 16 << 10,
            ..OpenOptions::default()
        };
        Dataset::open_with(root.to_str().unwrap(), options).await.unwrap().named(name)
    }

    #[test]
    fn a_cache_on_disk_hears_of_the_next_pass() {
        let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dataset = futures::executor::block_on(async {
            let large = folder(large.path(), 400, "large").await;
            Dataset::mix(vec![(large, 0.5), (folder(small.path(), 40, "small").await, 0.5)], Stop::Never)
        });
        let dataset = dataset.unwrap();
        let plan = dataset.plan(&Shuffle::seeded(3).window(64).lanes(2)).unwrap();
        let shape = StepShape { size: StepSize::Rows(16), rank: Rank::new(0, 1), tail: Tail::Drop };
        let mut planner =
            Planner::new(dataset.catalog().clone(), Walk::new(plan, shape, None, (0, Position(0)), None));
        let mut walk = planner.clone();
        let mut steps = Vec::new();
        while steps.len() < 60 {
            steps.push(walk.next().unwrap());
        }
        let of_small = BlockId(u32::try_from(dataset.catalog().blocks() - 1).unwrap());
        let pass_of = |planned: &PlannedStep| {
            planned.step.rows.iter().find(|row| row.block == of_small).map(|row| row.pass)
        };
        let first = steps.iter().find(|planned| pass_of(planned) == Some(0)).unwrap();
        let second = steps.iter().find(|planned| pass_of(planned) == Some(1)).unwrap();
        let time = planner.time(&first.step);
        let of_small = Extent::new(of_small, dataset.catalog().block_samples(of_small));
        let next = planner.next_use_from_disk(of_small, 0, time);
        assert!(next > time && next <= planner.time(&second.step) + 15, "{time} {next}");
    }
}
