//! The order of a mix: which part each position draws from, and which sample of that part.
//!
//! ```text
//! position p ─▶ cycle p/Q, slot p%Q ─▶ part k, its draw number i ─▶ pass i/N_k of the part, entry i%N_k of that pass
//! ```
//! - A cycle is Q positions in which every part has exactly its quota (largest remainder of weight × Q). With a shuffle, the
//!   slots of a cycle are permuted with (seed, epoch, cycle); otherwise they are spread evenly.
//! - Draw i of part k is position i mod N_k of that part's order in pass ⌊i / N_k⌋. Each pass is a new epoch of the part's
//!   plain order, which has a separate seed, lanes and window.
//! - So position → sample and back take O(1) in addition to the part's order, with the tables of a few cycles.
//! - The cycle in which epochs end is permuted in the same way in every epoch, so that all epochs have the same length.
//!
//! The rows of a step are sorted by lane ÷ lanes of the part, part, draw. So a rank stays on the same stretch of every part.

use crate::extent::Extent;
use crate::plain::{PlainFacts, PlainOrder};
use crate::planned::{PlannedSample, RowKey};
use crate::quotas::MAX_CYCLE;
use crate::random::{hash, permutation};
use crate::shuffle::MIXING_SALT;
use feedstock_base::{BlockId, Lane, SampleId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// The version of this stage's arithmetic; a change that moves any sample raises it.
pub(crate) const VERSION: u32 = 1;

/// Positions of cycles kept in tables: 3 MiB, and eight batches of 32,768.
const POSITIONS_KEPT: u64 = 1 << 18;
/// Passes of a part kept open: the one being read, the one into which a step reaches, and the next that uses a block.
const PASSES_KEPT: usize = 3;
/// Positions of an epoch without end: JSON and doubles hold numbers up to here exactly, and reading 10⁶ samples a second takes
/// 285 years to get there.
pub(crate) const ENDLESS: u64 = 1 << 53;
/// Marks the cycle in which epochs end.
const EVERY_EPOCH: u64 = u64::MAX;

/// When an epoch of a mix ends; the first two are `stopping_strategy` values of Hugging Face's `interleave_datasets`.
///
/// ```
/// # use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Shuffle, Stop};
/// # let part = |samples: u64| PlanInput {
/// #     block_starts: [0, samples].into(),
/// #     selection: None,
/// #     data: DataHashes { identity: samples, blocks: 1, legacy: 1 },
/// #     filter: None,
/// #     encoded_bytes: samples * 1_000,
/// #     access: Access::Blocks,
/// # };
/// let len = |stop| Plan::mixed(vec![(part(10), 1.0), (part(30), 1.0)], stop, &Shuffle::none()).map(|mix| mix.len());
/// assert_eq!(len(Stop::FirstExhausted)?, 20); // 10 of each, before the first would repeat
/// assert_eq!(len(Stop::AllExhausted)?, 60); // 30 of each: the first three times
/// assert_eq!(len(Stop::Never)?, 1 << 53);
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Before the first part would repeat (`first_exhausted`): an epoch has no sample twice, and does not reach the end of
    /// larger parts.
    FirstExhausted,
    /// When every part was read whole (`all_exhausted`): smaller parts repeat, each time in a new order.
    AllExhausted,
    /// Never: one epoch without end, in which every part repeats.
    Never,
}

/// The parts of a mix that a cursor must agree with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixing {
    /// The version of the mixing's arithmetic.
    pub version: u32,
    /// Each part's positions in a cycle: the weights.
    pub quotas: Vec<u64>,
    /// When an epoch ends.
    pub stop: Stop,
    /// A hash of the parts: catalogs, filters, lanes, windows.
    pub parts: u64,
    /// A hash of the parts' identities alone; none in cursors that releases before 0.2 saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
}

impl Mixing {
    /// Returns [`data`](Self::data) of parts with these identities.
    pub fn hash_of(identities: &[u64]) -> u64 {
        hash(identities)
    }
}

/// One part of a mix.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) facts: Arc<PlainFacts>,
    /// The ids of its first block and sample in the mix.
    pub(crate) first_block: u32,
    pub(crate) first_sample: u64,
    pub(crate) first_lane: u32,
    pub(crate) quota: u64,
    /// Draws from it in an epoch.
    draws: u64,
}

/// The input of the mixed order of every epoch.
#[derive(Debug)]
pub(crate) struct MixedFacts {
    pub(crate) parts: Vec<Part>,
    cycle_len: u64,
    seed: u64,
    shuffled: bool,
    pub(crate) len: u64,
    pub(crate) stop: Stop,
    last_cycle: u64,
}

/// The slots of one cycle.
#[derive(Debug)]
struct Cycle {
    index: u64,
    /// Part and number among the part's draws of this cycle, by slot.
    draws: Vec<(u32, u32)>,
    /// Slots of each part's draws, rising.
    slots: Vec<Vec<u32>>,
}

impl MixedFacts {
    /// `parts` are facts and quotas, in the order of their ids.
    pub(crate) fn new(parts: Vec<(PlainFacts, u64)>, seed: u64, shuffled: bool, stop: Stop) -> Self {
        let (mut first_block, mut first_sample, mut first_lane) = (0, 0, 0);
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(facts, quota)| {
                let facts = Arc::new(facts);
                let part = Part { first_block, first_sample, first_lane, quota, draws: u64::MAX, facts };
                #[expect(clippy::cast_possible_truncation, reason = "block ids are u32, in a mix as well")]
                {
                    first_block += (part.facts.block_starts.len() - 1) as u32;
                }
                first_sample += part.facts.block_starts.last().copied().unwrap_or(0);
                first_lane += part.facts.lanes.count();
                part
            })
            .collect();
        let cycle_len = parts.iter().map(|part| part.quota).sum();
        let last_cycle = EVERY_EPOCH;
        let mut facts = Self { parts, cycle_len, seed, shuffled, len: ENDLESS, stop, last_cycle };
        facts.end();
        facts
    }

    /// Finds where epochs end.
    fn end(&mut self) {
        // The draw that ends the epoch if this part decides: the first that would repeat, or the last of the first pass.
        let last_draw = |part: &Part| match self.stop {
            Stop::FirstExhausted => part.facts.lanes.samples,
            Stop::AllExhausted | Stop::Never => part.facts.lanes.samples - 1,
        };
        let cycles = self.parts.iter().map(|part| last_draw(part) / part.quota);
        let last_cycle = match self.stop {
            Stop::FirstExhausted => cycles.min(),
            Stop::AllExhausted => cycles.max(),
            Stop::Never => return,
        };
        self.last_cycle = last_cycle.unwrap_or(0);
        let cycle = self.cycle(0, self.last_cycle);
        let ends =
            self.parts.iter().enumerate().filter(|(_, part)| last_draw(part) / part.quota == self.last_cycle);
        let slots = ends.map(|(k, part)| u64::from(cycle.slots[k][as_usize(last_draw(part) % part.quota)]));
        let slot = match self.stop {
            Stop::FirstExhausted => slots.min().unwrap_or(0),
            Stop::AllExhausted | Stop::Never => slots.max().unwrap_or(0) + 1,
        };
        self.len = self.last_cycle * self.cycle_len + slot;
        for (k, part) in self.parts.iter_mut().enumerate() {
            let before = cycle.slots[k].partition_point(|&s| u64::from(s) < slot) as u64;
            part.draws = self.last_cycle * part.quota + before;
        }
    }

    /// Returns the part that holds a block.
    fn part_of(&self, block: BlockId) -> usize {
        self.parts.partition_point(|part| part.first_block <= block.0) - 1
    }

    pub(crate) fn selected(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.parts
            .iter()
            .flat_map(|part| part.facts.selected().map(|sample| SampleId(sample.0 + part.first_sample)))
    }

    /// Whether the filter of its part keeps a sample.
    pub(crate) fn is_selected(&self, sample: SampleId) -> bool {
        let part = &self.parts[self.parts.partition_point(|part| part.first_sample <= sample.0) - 1];
        part.facts.is_selected(SampleId(sample.0 - part.first_sample))
    }

    /// Returns the samples before each block of all parts, and their total last.
    pub(crate) fn block_starts(&self) -> Arc<[u64]> {
        let before_blocks = self.parts.iter().flat_map(|part| {
            let starts = &part.facts.block_starts[..part.facts.block_starts.len() - 1];
            starts.iter().map(|start| start + part.first_sample)
        });
        let all = self
            .parts
            .last()
            .map_or(0, |part| part.first_sample + part.facts.block_starts.last().copied().unwrap_or(0));
        before_blocks.chain([all]).collect()
    }

    pub(crate) fn selected_in(&self, block: BlockId) -> u64 {
        let part = &self.parts[self.part_of(block)];
        part.facts.selected_in(BlockId(block.0 - part.first_block))
    }

    pub(crate) fn extent_of(
        &self,
        block: BlockId,
        sample: SampleId,
        continues: &impl Fn(BlockId) -> bool,
    ) -> Extent {
        let part = &self.parts[self.part_of(block)];
        let (block, sample) = (BlockId(block.0 - part.first_block), SampleId(sample.0 - part.first_sample));
        let of_part = |block: BlockId| continues(BlockId(block.0 + part.first_block));
        part.facts.extent_of(block, sample, &of_part).later_by(part.first_block, part.first_sample)
    }

    pub(crate) fn selected_of(&self, extent: Extent) -> u64 {
        let part = &self.parts[self.part_of(extent.block)];
        part.facts.selected_of(extent.earlier_by(part.first_block, part.first_sample))
    }

    fn cycle(&self, epoch: u64, index: u64) -> Cycle {
        let in_order: Vec<u32> = match self.shuffled {
            true => {
                let epoch = if index == self.last_cycle { EVERY_EPOCH } else { epoch };
                let parts = (0u32..).zip(&self.parts);
                let parts: Vec<u32> =
                    parts.flat_map(|(k, part)| std::iter::repeat_n(k, as_usize(part.quota))).collect();
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_CYCLE")]
                let places = permutation(self.cycle_len as u32, &[self.seed, MIXING_SALT, epoch, index]);
                places.into_iter().map(|place| parts[place as usize]).collect()
            }
            false => self.spread(),
        };
        let mut slots = vec![Vec::new(); self.parts.len()];
        let draws = (0u32..).zip(&in_order).map(|(slot, &part)| {
            let mine = &mut slots[part as usize];
            mine.push(slot);
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_CYCLE")]
            (part, mine.len() as u32 - 1)
        });
        let draws = draws.collect();
        Cycle { index, draws, slots }
    }

    /// Returns the parts of a cycle's slots, each part's at even distances.
    fn spread(&self) -> Vec<u32> {
        let mut places: Vec<(u64, u32)> = (0u32..)
            .zip(&self.parts)
            .flat_map(|(k, part)| {
                // The middles of `quota` equal stretches, in units of 1 / (2 × MAX_CYCLE²), exact in u64.
                (0..part.quota).map(move |n| ((2 * n + 1) * MAX_CYCLE * MAX_CYCLE / part.quota, k))
            })
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(_, part)| part).collect()
    }
}

/// The mixed order of one epoch.
#[derive(Debug, Clone)]
pub(crate) struct MixedOrder {
    pub(crate) facts: Arc<MixedFacts>,
    epoch: u64,
    /// By cycle modulo the number of cycles kept.
    cycles: Vec<Option<Arc<Cycle>>>,
    /// By part: orders by pass, the latest last.
    passes: Vec<VecDeque<(u64, PlainOrder)>>,
}

/// Which sample of which part a position draws.
#[derive(Debug, Clone, Copy)]
struct Draw {
    part: usize,
    /// Its number in the epoch.
    number: u64,
}

impl MixedOrder {
    pub(crate) fn new(facts: Arc<MixedFacts>, epoch: u64) -> Self {
        let cycles = vec![None; as_usize((POSITIONS_KEPT / facts.cycle_len).max(1))];
        let passes = vec![VecDeque::new(); facts.parts.len()];
        Self { facts, epoch, cycles, passes }
    }

    pub(crate) fn sample_at(&mut self, position: u64) -> PlannedSample {
        let draw = self.draw(position);
        let samples = self.facts.parts[draw.part].facts.lanes.samples;
        let pass = draw.number / samples;
        let local = self.pass(draw.part, pass).sample_at(draw.number % samples);
        let part = &self.facts.parts[draw.part];
        PlannedSample {
            sample: SampleId(local.sample.0 + part.first_sample),
            block: BlockId(local.block.0 + part.first_block),
            row: local.row,
            pass,
            lane: Lane(local.lane.0 + part.first_lane),
            turn: local.turn,
        }
    }

    pub(crate) fn row_key(&mut self, position: u64) -> RowKey {
        let draw = self.draw(position);
        let lanes = self.facts.parts[draw.part].facts.lanes;
        let lane = draw.number % lanes.samples % lanes.lanes;
        RowKey { lane: (lane << 32) / lanes.lanes, part: draw.part, entry: draw.number }
    }

    /// Returns the current pass of `block`'s part at `position`.
    pub(crate) fn pass_at(&mut self, block: BlockId, position: u64) -> u64 {
        let k = self.facts.part_of(block);
        let (index, offset) = (position / self.facts.cycle_len, position % self.facts.cycle_len);
        let before = self.cycle(index).slots[k].partition_point(|&slot| u64::from(slot) < offset) as u64;
        let part = &self.facts.parts[k];
        (index * part.quota + before) / part.facts.lanes.samples
    }

    /// Returns the positions of an extent's selected samples in a pass of its part, ascending, without those after the epoch's
    /// end. `None` if the epoch ends before the pass.
    pub(crate) fn positions_in_pass(&mut self, extent: Extent, pass: u64) -> Option<Vec<u64>> {
        let k = self.facts.part_of(extent.block);
        let (draws, samples, extent) = self.in_part(k, extent);
        if pass.saturating_mul(samples) >= draws {
            return None;
        }
        let entries = self.pass(k, pass).positions_of(extent);
        let numbers =
            entries.into_iter().map(|entry| pass * samples + entry).take_while(|number| *number < draws);
        Some(numbers.map(|number| self.position(Draw { part: k, number })).collect())
    }

    /// Returns a position no later than the extent's first in a pass of its part, less than a window early.
    pub(crate) fn earliest_in_pass(&mut self, extent: Extent, pass: u64) -> Option<u64> {
        let k = self.facts.part_of(extent.block);
        let (draws, samples, extent) = self.in_part(k, extent);
        if pass.saturating_mul(samples) >= draws {
            return None;
        }
        let number = pass * samples + self.pass(k, pass).earliest_position(extent)?;
        (number < draws).then(|| self.position(Draw { part: k, number }))
    }

    /// Returns a part's draws in an epoch, its selected samples, and an extent of it with the part's own ids.
    fn in_part(&self, part: usize, extent: Extent) -> (u64, u64, Extent) {
        let part = &self.facts.parts[part];
        let extent = extent.earlier_by(part.first_block, part.first_sample);
        (part.draws, part.facts.lanes.samples, extent)
    }

    fn draw(&mut self, position: u64) -> Draw {
        assert!(position < self.facts.len, "position {position} of {}", self.facts.len);
        let (index, slot) = (position / self.facts.cycle_len, position % self.facts.cycle_len);
        let (part, nth) = self.cycle(index).draws[as_usize(slot)];
        let part = part as usize;
        Draw { part, number: index * self.facts.parts[part].quota + u64::from(nth) }
    }

    fn position(&mut self, draw: Draw) -> u64 {
        let quota = self.facts.parts[draw.part].quota;
        let (index, nth) = (draw.number / quota, draw.number % quota);
        index * self.facts.cycle_len + u64::from(self.cycle(index).slots[draw.part][as_usize(nth)])
    }

    fn cycle(&mut self, index: u64) -> &Cycle {
        let place = as_usize(index % self.cycles.len() as u64);
        let kept = &mut self.cycles[place];
        if kept.as_ref().is_none_or(|cycle| cycle.index != index) {
            *kept = None;
        }
        kept.get_or_insert_with(|| Arc::new(self.facts.cycle(self.epoch, index)))
    }

    /// Returns the part's order in a pass of this epoch; the epochs of that order are the passes of all epochs in sequence.
    fn pass(&mut self, part: usize, pass: u64) -> &mut PlainOrder {
        let kept = &mut self.passes[part];
        let at = match kept.iter().position(|(index, _)| *index == pass) {
            Some(at) => at,
            None => {
                if kept.len() == PASSES_KEPT {
                    kept.pop_front();
                }
                let of_part = &self.facts.parts[part];
                let in_epoch = of_part.draws.div_ceil(of_part.facts.lanes.samples);
                let order = PlainOrder::new(
                    of_part.facts.clone(),
                    self.epoch.wrapping_mul(in_epoch).wrapping_add(pass),
                );
                kept.push_back((pass, order));
                kept.len() - 1
            }
        };
        &mut kept[at].1
    }
}

#[expect(clippy::cast_possible_truncation, reason = "cycles and parts are held in memory")]
fn as_usize(n: u64) -> usize {
    n as usize
}
