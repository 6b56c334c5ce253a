//! The order of one epoch: which sample stands at which position, and back.

use super::keyed::KeyedPermutation;
use super::random::permutation;
use super::{Digest, Plan, ShuffleKind};
use crate::{BlockId, Position, SampleId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Windows of one lane kept permuted: the one being read, the one a step reaches into, and the one that a
/// block on their border reaches into.
const WINDOWS_PER_LANE: usize = 3;

/// A selected sample and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSample {
    /// Its index in the catalog.
    pub sample: SampleId,
    /// The block that holds it.
    pub block: BlockId,
    /// Its row in that block.
    pub row: u32,
}

/// The permutation of all selected samples for one epoch.
///
/// Building it costs O(blocks): 13 bytes and about 30 ns a block. After that any position is found in
/// O(log blocks) plus, once a window, the shuffle of that window. Clones share the block tables.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    pub(super) plan: Plan,
    epoch: u64,
    seed: u64,
    arrangement: Arrangement,
    windows: Vec<VecDeque<Window>>, // by lane
}

#[derive(Debug, Clone)]
enum Arrangement {
    /// As in the catalog.
    Natural,
    /// Blocks permuted, their samples concatenated.
    Blocks(Arc<BlockOrder>),
    /// Samples permuted one by one.
    Samples(KeyedPermutation),
}

#[derive(Debug)]
struct BlockOrder {
    blocks: Vec<u32>,
    places: Vec<u32>,
    starts: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Window {
    index: u64,
    order: Arc<[u32]>,
    inverse: Arc<[u32]>,
}

impl EpochOrder {
    pub(super) fn new(plan: Plan, epoch: u64) -> Self {
        let facts = plan.facts();
        let seed = super::random::hash(&[facts.seed, epoch]);
        let arrangement = match facts.kind {
            ShuffleKind::None => Arrangement::Natural,
            ShuffleKind::Full => Arrangement::Samples(KeyedPermutation::new(facts.lanes.samples, seed)),
            ShuffleKind::Window => {
                Arrangement::Blocks(Arc::new(BlockOrder::new(&facts.selected_starts, seed)))
            }
        };
        let windows = vec![VecDeque::new(); as_usize(facts.lanes.lanes)];
        Self { plan, epoch, seed, arrangement, windows }
    }

    /// Which epoch this is.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Positions in the epoch: the number of selected samples.
    #[expect(clippy::len_without_is_empty, reason = "a plan without samples is refused")]
    pub fn len(&self) -> u64 {
        self.plan.len()
    }

    /// The sample at `position`.
    ///
    /// # Panics
    /// If the position is not below [`EpochOrder::len`].
    pub fn sample_at(&mut self, position: Position) -> PlannedSample {
        assert!(position.0 < self.len(), "position {position} of {}", self.len());
        let lanes = self.plan.facts().lanes;
        let (lane, entry) = (position.0 % lanes.lanes, position.0 / lanes.lanes);
        let offset = match self.window(lane, entry / lanes.window) {
            None => entry,
            Some(window) => {
                let first = entry - entry % lanes.window;
                first + u64::from(window.order[as_usize(entry - first)])
            }
        };
        self.sample_in_block_order(lanes.start(lane) + offset)
    }

    /// All positions of `block`'s selected samples, ascending.
    ///
    /// For a full shuffle it reads the whole epoch's order once per call: ask only where blocks are read whole.
    pub fn positions_of(&mut self, block: BlockId) -> Vec<Position> {
        let facts = self.plan.facts().clone();
        let lanes = facts.lanes;
        let range = match &self.arrangement {
            Arrangement::Natural => {
                facts.selected_starts[block.0 as usize]..facts.selected_starts[block.0 as usize + 1]
            }
            Arrangement::Blocks(order) => {
                let place = order.places[block.0 as usize] as usize;
                order.starts[place]..order.starts[place + 1]
            }
            Arrangement::Samples(_) => {
                let all = (0..lanes.samples).map(Position);
                return all.filter(|p| self.unshuffled_sample(*p).block == block).collect();
            }
        };
        let mut positions: Vec<Position> = range
            .map(|place| {
                let (lane, offset) = lanes.locate(place);
                let first = offset - offset % lanes.window;
                let entry = match self.window(lane, offset / lanes.window) {
                    None => offset,
                    Some(window) => first + u64::from(window.inverse[as_usize(offset - first)]),
                };
                Position(entry * lanes.lanes + lane)
            })
            .collect();
        positions.sort_unstable();
        positions
    }

    /// About when `block` is first needed: no later than its first position, and less than a window early (or at
    /// the start of a lane that it reaches into). `None` where none of its samples is selected.
    pub fn earliest_position(&self, block: BlockId) -> Option<Position> {
        let facts = self.plan.facts();
        let b = block.0 as usize;
        if facts.selected_starts[b] == facts.selected_starts[b + 1] {
            return None;
        }
        let count = facts.selected_starts[b + 1] - facts.selected_starts[b];
        let place = match &self.arrangement {
            Arrangement::Natural => facts.selected_starts[b],
            Arrangement::Blocks(order) => order.starts[order.places[b] as usize],
            Arrangement::Samples(_) => return Some(Position(0)),
        };
        let (lane, offset) = facts.lanes.locate(place);
        let here = (offset - offset % facts.lanes.window) * facts.lanes.lanes + lane;
        let reaches_next_lane = offset + count > facts.lanes.len(lane);
        // The next lane's first entry has position lane + 1.
        Some(Position(if reaches_next_lane { here.min(lane + 1) } else { here }))
    }

    /// The digest of the samples at these positions. Of the whole epoch it is computed from the selection alone,
    /// so that it also proves the order to be a permutation.
    pub fn digest(&mut self, positions: std::ops::Range<u64>) -> Digest {
        if positions == (0..self.len()) {
            return self.plan.digest();
        }
        positions.map(|p| self.sample_at(Position(p)).sample).collect()
    }

    /// The sample at `position` where lanes are not shuffled inside.
    fn unshuffled_sample(&self, position: Position) -> PlannedSample {
        let lanes = self.plan.facts().lanes;
        let (lane, entry) = (position.0 % lanes.lanes, position.0 / lanes.lanes);
        self.sample_in_block_order(lanes.start(lane) + entry)
    }

    fn sample_in_block_order(&self, place: u64) -> PlannedSample {
        let facts = self.plan.facts();
        match &self.arrangement {
            Arrangement::Natural => facts.nth_selected(place),
            Arrangement::Samples(permutation) => facts.nth_selected(permutation.at(place)),
            Arrangement::Blocks(order) => {
                let at = order.starts.partition_point(|&start| start <= place) - 1;
                facts.nth_in_block(BlockId(order.blocks[at]), place - order.starts[at])
            }
        }
    }

    /// The shuffle of one window of one lane; `None` where entries stay where they are.
    fn window(&mut self, lane: u64, index: u64) -> Option<&Window> {
        let facts = self.plan.facts();
        if facts.kind != ShuffleKind::Window || facts.lanes.window == 1 {
            return None;
        }
        let kept = &mut self.windows[as_usize(lane)];
        if let Some(at) = kept.iter().position(|window| window.index == index) {
            return kept.get(at);
        }
        if kept.len() == WINDOWS_PER_LANE {
            kept.pop_front();
        }
        #[expect(clippy::cast_possible_truncation, reason = "Shuffle::window is bounded by u32::MAX")]
        let len = facts.lanes.window_len(lane, index) as u32;
        let order = permutation(len, &[self.seed, lane, index]);
        let mut inverse = vec![0; order.len()];
        for (place, &element) in (0u32..).zip(&order) {
            inverse[element as usize] = place;
        }
        kept.push_back(Window { index, order: order.into(), inverse: inverse.into() });
        kept.back()
    }
}

impl BlockOrder {
    fn new(selected_starts: &[u64], seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
        let blocks = permutation((selected_starts.len() - 1) as u32, &[seed]);
        let mut places = vec![0; blocks.len()];
        let mut starts = Vec::with_capacity(blocks.len() + 1);
        let mut total = 0;
        for (place, &block) in (0u32..).zip(&blocks) {
            places[block as usize] = place;
            starts.push(total);
            total += selected_starts[block as usize + 1] - selected_starts[block as usize];
        }
        starts.push(total);
        Self { blocks, places, starts }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "feedstock runs on 64-bit machines; lanes and windows are u32"
)]
fn as_usize(n: u64) -> usize {
    n as usize
}
