//! The plain order of one epoch of one data set: blocks or pieces permuted, lanes cut, windows shuffled.

use crate::extent::Extent;
use crate::input::PlanInput;
use crate::lanes::Lanes;
use crate::pieces::Pieces;
use crate::planned::PlannedSample;
use crate::random::permutation;
use crate::selection::Selection;
use crate::shuffle::{Resolved, Shuffle, ShuffleKind};
use feedstock_base::{BlockId, Error, Lane, Result, SampleId};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Windows of one lane kept permuted: the one being read, the one into which a step reaches, and the one into which a block on
/// their border reaches.
const WINDOWS_PER_LANE: usize = 3;

/// The input of the plain order of every epoch.
#[derive(Debug)]
pub(crate) struct PlainFacts {
    pub(crate) kind: ShuffleKind,
    pub(crate) seed: u64,
    /// Selected samples of a piece; `None` if whole blocks are permuted, or nothing.
    pub(crate) piece: Option<u64>,
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
        let Resolved { kind, lanes, window, piece } = shuffle.resolve(samples, &input)?;
        let lanes = Lanes { samples, lanes: u64::from(lanes), window: window.div_ceil(u64::from(lanes)) };
        let facts = Self {
            kind,
            seed: shuffle.seed(),
            piece,
            lanes,
            block_starts: input.block_starts,
            selected_starts,
            selection: input.selection,
        };
        Ok((facts, window))
    }

    /// Returns the samples of all draws, in catalog order.
    pub(crate) fn selected(&self) -> Box<dyn Iterator<Item = SampleId> + '_> {
        match &self.selection {
            None => Box::new((0..self.block_starts.last().copied().unwrap_or(0)).map(SampleId)),
            Some(selection) => Box::new(selection.draws()),
        }
    }

    /// Whether the filter keeps a sample.
    pub(crate) fn is_selected(&self, sample: SampleId) -> bool {
        self.selection.as_ref().is_none_or(|kept| kept.contains(sample))
    }

    /// Returns the number of draws from `block`.
    pub(crate) fn selected_in(&self, block: BlockId) -> u64 {
        let ranks = self.ranks_in(block);
        ranks.end - ranks.start
    }

    /// Returns the extent that is fetched for a selected sample of `block`. `continues` states whether one request can read over the
    /// end of a block.
    pub(crate) fn extent_of(
        &self,
        block: BlockId,
        sample: SampleId,
        continues: &impl Fn(BlockId) -> bool,
    ) -> Extent {
        let Some(piece) = self.piece else {
            let b = block.0 as usize;
            return Extent::new(block, self.block_starts[b]..self.block_starts[b + 1]);
        };
        let first = self.rank_of(block, sample.0) / piece * piece;
        let of_piece = first..(first + piece).min(self.lanes.samples);
        let (block, within) = self.reach(block, &of_piece, continues);
        let ranks = within.start.max(of_piece.start)..within.end.min(of_piece.end);
        let run = match &self.selection {
            None => ranks,
            Some(selection) => {
                // A sample that is drawn several times belongs to the piece of its first draw.
                let at = block.0 as usize;
                let (start, samples) = selection.begun_in(ranks, at, self.block_starts[at]);
                selection.near(start, samples, sample.0, piece)
            }
        };
        let is_in_next = run.start >= self.block_starts[block.0 as usize + 1];
        Extent::new(BlockId(block.0 + u32::from(is_in_next)), run)
    }

    /// Returns the ranks of `block`, and of the block before or after it if more of the piece is there and is read with it; and the
    /// first block of these. What is larger than both blocks, or reaches over three, is read block by block.
    fn reach(
        &self,
        block: BlockId,
        piece: &Range<u64>,
        continues: &impl Fn(BlockId) -> bool,
    ) -> (BlockId, Range<u64>) {
        // A block without selected samples has nothing of the piece.
        let has_some = |block: BlockId| !self.ranks_in(block).is_empty();
        let begins_before = |block: BlockId, ranks: &Range<u64>| {
            let is_joined = |previous: BlockId| continues(previous) && has_some(previous);
            piece.start < ranks.start && is_joined(BlockId(block.0 - 1))
        };
        let ends_after = |block: BlockId, ranks: &Range<u64>| {
            piece.end > ranks.end && continues(block) && has_some(BlockId(block.0 + 1))
        };
        let own = self.ranks_in(block);
        let first = match (begins_before(block, &own), ends_after(block, &own)) {
            (true, false) => BlockId(block.0 - 1),
            (false, true) => block,
            (false, false) | (true, true) => return (block, own),
        };
        let second = BlockId(first.0 + 1);
        let (before, after) = (self.ranks_in(first), self.ranks_in(second));
        let samples = piece.end.min(after.end) - piece.start.max(before.start);
        let larger = (before.end - before.start).max(after.end - after.start);
        match samples <= larger && !begins_before(first, &before) && !ends_after(second, &after) {
            true => (first, before.start..after.end),
            false => (block, own),
        }
    }

    /// Returns the ranks of `block`'s draws: their numbers among all draws.
    fn ranks_in(&self, block: BlockId) -> Range<u64> {
        let b = block.0 as usize;
        self.selected_starts[b]..self.selected_starts[b + 1]
    }

    /// Returns the number of draws from an extent.
    pub(crate) fn selected_of(&self, extent: Extent) -> u64 {
        let ranks = self.ranks_of(extent);
        ranks.end - ranks.start
    }

    /// Returns the ranks of the draws from an extent.
    fn ranks_of(&self, extent: Extent) -> Range<u64> {
        let samples = extent.range();
        self.rank_of(extent.block, samples.start)..self.rank_of(extent.block, samples.end)
    }

    /// Returns the number of draws before `sample`, which is in `block` or at its end.
    fn rank_of(&self, block: BlockId, sample: u64) -> u64 {
        let b = block.0 as usize;
        match &self.selection {
            None => sample,
            Some(selection) => selection.draws_before(b, self.block_starts[b], sample),
        }
    }

    /// Returns the `nth` draw in catalog order.
    fn nth_selected(&self, nth: u64) -> PlannedSample {
        let block = self.selected_starts.partition_point(|&start| start <= nth) - 1;
        #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
        self.nth_in_block(BlockId(block as u32), nth - self.selected_starts[block])
    }

    /// Returns the `nth` draw from `block`.
    fn nth_in_block(&self, block: BlockId, nth: u64) -> PlannedSample {
        let start = self.block_starts[block.0 as usize];
        let (sample, pass) = match &self.selection {
            None => (start + nth, 0),
            Some(selection) => selection.draw(block.0 as usize, start, nth),
        };
        #[expect(clippy::cast_possible_truncation, reason = "a block's samples are counted in u32")]
        PlannedSample {
            sample: SampleId(sample),
            block,
            row: (sample - start) as u32,
            pass,
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
    /// Pieces permuted, their samples concatenated.
    Pieces(Pieces),
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
        let arrangement = match (facts.kind, facts.piece) {
            (ShuffleKind::None, _) => Arrangement::Natural,
            (_, Some(piece)) => Arrangement::Pieces(Pieces::new(facts.lanes.samples, piece, seed)),
            (_, None) => Arrangement::Blocks(Arc::new(BlockOrder::new(&facts.selected_starts, seed))),
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

    /// Returns all positions of an extent's selected samples, ascending.
    pub(crate) fn positions_of(&mut self, extent: Extent) -> Vec<u64> {
        let lanes = self.facts.lanes;
        let mut positions: Vec<u64> = self
            .places_of(extent)
            .into_iter()
            .flatten()
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

    /// Returns about when an extent is first needed: no later than its first position, and less than a window early (or at
    /// the start of a lane that it reaches into). `None` if none of its samples is selected.
    pub(crate) fn earliest_position(&self, extent: Extent) -> Option<u64> {
        let lanes = self.facts.lanes;
        let earliest = |places: Range<u64>| {
            let (lane, offset) = lanes.locate(places.start);
            let here = (offset - offset % lanes.window) * lanes.lanes + lane;
            let reaches_next_lane = offset + (places.end - places.start) > lanes.len(lane);
            // The next lane's first entry has position lane + 1.
            if reaches_next_lane { here.min(lane + 1) } else { here }
        };
        self.places_of(extent).into_iter().map(earliest).min()
    }

    /// Returns the places of an extent's selected samples before lanes are shuffled, in runs that are not empty.
    fn places_of(&self, extent: Extent) -> Vec<Range<u64>> {
        let ranks = self.facts.ranks_of(extent);
        if ranks.is_empty() {
            return Vec::new();
        }
        match &self.arrangement {
            Arrangement::Natural => vec![ranks],
            Arrangement::Blocks(order) => {
                let block = extent.block.0 as usize;
                let start = order.starts[order.places[block] as usize];
                let place = |rank| start + (rank - self.facts.selected_starts[block]);
                std::iter::once(place(ranks.start)..place(ranks.end)).collect()
            }
            Arrangement::Pieces(pieces) => pieces.places_of(ranks).collect(),
        }
    }

    fn sample_in_block_order(&self, place: u64) -> PlannedSample {
        let facts = &self.facts;
        match &self.arrangement {
            Arrangement::Natural => facts.nth_selected(place),
            Arrangement::Pieces(pieces) => {
                let (rank, turn) = pieces.rank_at(place);
                PlannedSample { turn, ..facts.nth_selected(rank) }
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
