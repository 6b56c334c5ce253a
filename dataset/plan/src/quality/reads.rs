//! What an epoch reads from storage, without caches.

use super::sampled::{SampledSteps, whole};
use crate::extent::Extent;
use crate::order::EpochOrder;
use crate::plan::Plan;
use crate::size::StepSize;
use feedstock_base::Position;
use std::collections::{BTreeMap, BTreeSet};

/// Places of the epoch where the readers of extents are counted.
const ANCHORS: usize = 8;

/// Rows of the step at an anchor whose extents are followed.
const ROWS_PER_ANCHOR: usize = 32;

/// Rows of steps after which no further anchor is taken: about 1 s. One anchor walks the steps of up to three windows.
const ROWS_WALKED: usize = 1 << 22;

/// What reading one extent takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentReads {
    /// Requests that read it.
    pub requests: u32,
    /// Bytes that they read.
    pub bytes: u64,
}

/// What all ranks together read in an epoch, without caches: each rank reads each block, or piece, that has some of its rows once.
/// That holds if the memory for blocks has room for a window. With a full shuffle, each sample is read alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochReads {
    /// Requests of all ranks.
    pub requests: f64,
    /// Encoded bytes of all ranks.
    pub bytes: f64,
    /// Ranks that read a block, or a piece, on average; 1 with a full shuffle.
    pub readers: f64,
}

impl SampledSteps {
    /// Returns what the ranks read in the epoch. `stored` describes an extent. `None` for an epoch without end.
    ///
    /// `plan` must be the plan that was sampled. The number of readers is counted for up to 256 extents, at up to 8 places.
    pub fn reads(&self, plan: &Plan, stored: &impl Fn(Extent) -> ExtentReads) -> Option<EpochReads> {
        if plan.is_endless() {
            return None;
        }
        let rows = self.steps.iter().map(|step| step.rows.len()).sum::<usize>().max(1) as f64;
        let mut rows_of: BTreeMap<Extent, f64> = BTreeMap::new();
        for row in self.steps.iter().flat_map(|step| &step.rows) {
            *rows_of.entry(plan.extent_of(row.block, row.sample)).or_default() += 1.0;
        }
        let (mut requests, mut bytes) = (0.0, 0.0); // a row's parts of what is read, over all sampled rows
        for (extent, rows) in rows_of {
            let of = stored(extent);
            let of_row = rows / plan.selected_of(extent).max(1) as f64;
            requests += of_row * f64::from(of.requests);
            bytes += of_row * of.bytes as f64;
        }
        let readers = self.readers(plan);
        let times = self.delivered as f64 / rows * readers;
        Some(EpochReads { requests: requests * times, bytes: bytes * times, readers })
    }

    /// Returns the number of ranks that need an extent, on average over extents.
    fn readers(&self, plan: &Plan) -> f64 {
        if self.world_size == 1 {
            return 1.0;
        }
        let mut readers = Readers::new(self, self.order.clone());
        let (mut sum, mut weights) = (0.0, 0.0);
        for step in self.steps.iter().take(ANCHORS) {
            if readers.walked > ROWS_WALKED {
                break;
            }
            readers.ranks.clear();
            for row in step.rows.iter().step_by(step.rows.len().div_ceil(ROWS_PER_ANCHOR).max(1)) {
                // Rows are found in proportion to the extent's selected samples.
                let extent = plan.extent_of(row.block, row.sample);
                let weight = 1.0 / plan.selected_of(extent).max(1) as f64;
                if let Some(ranks) = readers.of(extent, row.pass) {
                    sum += weight * ranks as f64;
                    weights += weight;
                }
            }
        }
        if weights > 0.0 { sum / weights } else { 1.0 }
    }
}

/// Counts the ranks that read extents.
struct Readers<'a> {
    sampled: &'a SampledSteps,
    order: EpochOrder,
    /// Rows of a step; with a total, the mean of the sampled steps.
    rows: u64,
    /// The rank of each position, by the start of the step.
    ranks: BTreeMap<u64, Vec<u32>>,
    /// Rows of the steps that were walked.
    walked: usize,
}

impl<'a> Readers<'a> {
    fn new(sampled: &'a SampledSteps, order: EpochOrder) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "rows of one batch")]
        let rows = (sampled.rows_per_step().round() as u64).max(1);
        Self { sampled, order, rows, ranks: BTreeMap::new(), walked: 0 }
    }

    /// Returns how many ranks have rows of an extent in one pass; `None` if no step has any.
    fn of(&mut self, extent: Extent, pass: u64) -> Option<usize> {
        let (positions, _) = self.order.positions_in_pass(extent, pass, u64::MAX)?;
        let mut ranks = BTreeSet::new();
        for position in positions {
            if position < self.sampled.delivered {
                ranks.insert(self.rank_of(position));
            }
        }
        (!ranks.is_empty()).then_some(ranks.len())
    }

    fn rank_of(&mut self, position: u64) -> u32 {
        let start = position - position % self.rows;
        if !self.ranks.contains_key(&start) {
            let ranks = self.ranks_from(start);
            self.walked += ranks.len();
            self.ranks.insert(start, ranks);
        }
        self.ranks[&start].get(crate::step::narrow(position - start)).copied().unwrap_or(0)
    }

    /// Returns the rank of each position of a step.
    fn ranks_from(&mut self, start: u64) -> Vec<u32> {
        let Some(step) = self.order.step(Position(start), &whole(StepSize::Rows(self.rows))) else {
            return Vec::new();
        };
        let mut ranks = vec![0; step.rows.len()];
        for (rank, share) in (0u32..).zip(self.sampled.shares(step.rows.len())) {
            for row in &step.rows[share] {
                ranks[crate::step::narrow(row.position.0 - start)] = rank;
            }
        }
        ranks
    }
}
