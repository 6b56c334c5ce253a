//! The plain order of one epoch of one data set: blocks permuted, lanes cut, windows shuffled.

use crate::input::PlanInput;
use crate::keyed::KeyedPermutation;
use crate::lanes::Lanes;
use crate::planned::PlannedSample;
use crate::random::permutation;
use crate::selection::Selection;
use crate::shuffle::{Shuffle, ShuffleKind};
use feedstock_base::{BlockId, Error, Lane, Result, SampleId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Windows of one lane kept permuted: the one being read, the one into which a step reaches, and the one into which a block on
/// their border reaches.
const WINDOWS_PER_LANE: usize = 3;

/// The input of the plain order of every epoch.
#[derive(Debug)]
pub(crate) struct PlainFacts {
    pub(crate) kind: ShuffleKind,
    pub(crate) seed: u64,
    pub(crate) lanes: Lanes,
    pub(crate) block_starts: Arc<[u64]>,
    pub(crate) selected_starts: Arc<[u64]>,
    pub(crate) selection: Option<Selection>,
}

impl PlainFacts {
    /// Computes the facts of one data set, and W.
    pub(crate) fn new(input: PlanInput, shuffle: &Shuffle) -> Result<(Self, u64)> {
        let selected_starts = match &input.selection {
            Some(selection) => selection.starts().clone(),
            None => input.block_starts.clone(),
        };
        assert_eq!(selected_starts.len(), input.block_starts.len(), "the selection belongs to these blocks");
        let samples = selected_starts.last().copied().unwrap_or(0);
        if samples == 0 {
            return Err(Error::config(
                "no sample is selected: the data set is empty or the filter keeps nothing",
            ));
        }
        let (lanes, window) = shuffle.resolve(samples, &input)?;
        let lanes = Lanes { samples, lanes: u64::from(lanes), window: window.div_ceil(u64::from(lanes)) };
        let facts = Self {
            kind: shuffle.kind(),
            seed: shuffle.seed(),
            lanes,
            block_starts: input.block_starts,
            selected_starts,
            selection: input.selection,
        };
        Ok((facts, window))
    }

    /// Returns the ids of all selected samples, in catalog order.
    pub(crate) fn selected(&self) -> impl Iterator<Item = SampleId> + '_ {
        let all = 0..self.block_starts.last().copied().unwrap_or(0);
        all.map(SampleId).filter(|&sample| self.is_selected(sample))
    }

    /// Whether the filter keeps a sample.
    pub(crate) fn is_selected(&self, sample: SampleId) -> bool {
        self.selection.as_ref().is_none_or(|kept| kept.contains(sample))
    }

    /// Returns the number of selected samples of `block`.
    pub(crate) fn selected_in(&self, block: BlockId) -> u64 {
        let b = block.0 as usize;
        self.selected_starts[b + 1] - self.selected_starts[b]
    }

    /// Returns the `nth` selected sample in catalog order.
    fn nth_selected(&self, nth: u64) -> PlannedSample {
        let block = self.selected_starts.partition_point(|&start| start <= nth) - 1;
        #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
        self.nth_in_block(BlockId(block as u32), nth - self.selected_starts[block])
    }

    /// Returns the `nth` selected sample of `block`.
    fn nth_in_block(&self, block: BlockId, nth: u64) -> PlannedSample {
        let start = self.block_starts[block.0 as usize];
        let sample = match &self.selection {
            None => start + nth,
            Some(selection) => selection.nth_from(start, nth),
        };
        #[expect(clippy::cast_possible_truncation, reason = "a block's samples are counted in u32")]
        PlannedSample {
            sample: SampleId(sample),
            block,
            row: (sample - start) as u32,
            pass: 0,
            lane: Lane(0),
            turn: block.0.into(),
        }
    }
}

/// The permutation of all selected samples in one epoch, without later stages.
#[derive(Debug, Clone)]
pub(crate) struct PlainOrder {
    pub(crate) facts: Arc<PlainFacts>,
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

impl PlainOrder {
    pub(crate) fn new(facts: Arc<PlainFacts>, epoch: u64) -> Self {
        let seed = crate::random::hash(&[facts.seed, epoch]);
        let arrangement = match facts.kind {
            ShuffleKind::None => Arrangement::Natural,
            ShuffleKind::Full => Arrangement::Samples(KeyedPermutation::new(facts.lanes.samples, seed)),
            ShuffleKind::Window => {
                Arrangement::Blocks(Arc::new(BlockOrder::new(&facts.selected_starts, seed)))
            }
        };
        let windows = vec![VecDeque::new(); as_usize(facts.lanes.lanes)];
        Self { facts, seed, arrangement, windows }
    }

    /// Returns the sample at `position`, which must exist.
    pub(crate) fn sample_at(&mut self, position: u64) -> PlannedSample {
        let lanes = self.facts.lanes;
        assert!(position < lanes.samples, "position {position} of {}", lanes.samples);
        let (lane, entry) = (position % lanes.lanes, position / lanes.lanes);
        let offset = match self.window(lane, entry / lanes.window) {
            None => entry,
            Some(window) => {
                let first = entry - entry % lanes.window;
                first + u64::from(window.order[as_usize(entry - first)])
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "Shuffle::lanes is a u32")]
        let on_lane = Lane(lane as u32);
        PlannedSample { lane: on_lane, ..self.sample_in_block_order(lanes.start(lane) + offset) }
    }

    /// Returns all positions of `block`'s selected samples, ascending.
    ///
    /// With a full shuffle, each call reads the whole epoch's order: call it only if blocks are read whole.
    pub(crate) fn positions_of(&mut self, block: BlockId) -> Vec<u64> {
        let facts = self.facts.clone();
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
                return (0..lanes.samples).filter(|&p| self.unshuffled_sample(p).block == block).collect();
            }
        };
        let mut positions: Vec<u64> = range
            .map(|place| {
                let (lane, offset) = lanes.locate(place);
                let first = offset - offset % lanes.window;
                let entry = match self.window(lane, offset / lanes.window) {
                    None => offset,
                    Some(window) => first + u64::from(window.inverse[as_usize(offset - first)]),
                };
                entry * lanes.lanes + lane
            })
            .collect();
        positions.sort_unstable();
        positions
    }

    /// Returns about when `block` is first needed: no later than its first position, and less than a window early (or at
    /// the start of a lane that it reaches into). `None` if none of its samples is selected.
    pub(crate) fn earliest_position(&self, block: BlockId) -> Option<u64> {
        let facts = &self.facts;
        let b = block.0 as usize;
        let count = facts.selected_in(block);
        if count == 0 {
            return None;
        }
        let place = match &self.arrangement {
            Arrangement::Natural => facts.selected_starts[b],
            Arrangement::Blocks(order) => order.starts[order.places[b] as usize],
            Arrangement::Samples(_) => return Some(0),
        };
        let (lane, offset) = facts.lanes.locate(place);
        let here = (offset - offset % facts.lanes.window) * facts.lanes.lanes + lane;
        let reaches_next_lane = offset + count > facts.lanes.len(lane);
        // The next lane's first entry has position lane + 1.
        Some(if reaches_next_lane { here.min(lane + 1) } else { here })
    }

    /// Returns the sample at `position` if lanes are not shuffled inside.
    fn unshuffled_sample(&self, position: u64) -> PlannedSample {
        let lanes = self.facts.lanes;
        let (lane, entry) = (position % lanes.lanes, position / lanes.lanes);
        self.sample_in_block_order(lanes.start(lane) + entry)
    }

    fn sample_in_block_order(&self, place: u64) -> PlannedSample {
        let facts = &self.facts;
        match &self.arrangement {
            Arrangement::Natural => facts.nth_selected(place),
            Arrangement::Samples(permutation) => {
                PlannedSample { turn: place, ..facts.nth_selected(permutation.at(place)) }
            }
            Arrangement::Blocks(order) => {
                let at = order.starts.partition_point(|&start| start <= place) - 1;
                let planned = facts.nth_in_block(BlockId(order.blocks[at]), place - order.starts[at]);
                PlannedSample { turn: at as u64, ..planned }
            }
        }
    }

    /// Returns the shuffle of one window of one lane; `None` if entries keep their places.
    fn window(&mut self, lane: u64, index: u64) -> Option<&Window> {
        let facts = &self.facts;
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
