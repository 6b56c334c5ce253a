//! Pieces that reach over the end of a block: fetched at once where one request can read over it.

use crate::order::input_of;
use arrow_buffer::BooleanBuffer;
use feedstock_base::{BlockId, Lane, Position, Rank, SampleId};
use feedstock_plan::{
    Extent, Left, Plan, PlanInput, Rest, Selection, Shuffle, StepShape, StepSize, Stop, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A block of 1 to 40 samples, or none; and whether a request can read over its end.
fn blocks() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((prop_oneof![1 => Just(0u64), 6 => 1u64..40], any::<bool>()), 1..20usize)
        .prop_filter("no sample", |blocks| blocks.iter().any(|(samples, _)| *samples > 0))
}

fn input(blocks: &[(u64, bool)]) -> PlanInput {
    input_of(&blocks.iter().map(|(samples, _)| *samples).collect::<Vec<_>>(), 1_000)
}

fn continued(blocks: &[(u64, bool)]) -> BooleanBuffer {
    blocks.iter().map(|(_, continued)| *continued).collect()
}

fn pieces(samples: u32) -> Shuffle {
    Shuffle::seeded(3).window(200).lanes(3).piece(samples)
}

/// Returns what is fetched of each piece of `samples` samples, by a walk over the blocks.
fn by_walk(blocks: &[(u64, bool)], samples: u64) -> BTreeSet<Extent> {
    let starts = input(blocks).block_starts;
    let total = *starts.last().unwrap();
    let mut extents = BTreeSet::new();
    for first in (0..total).step_by(usize::try_from(samples).unwrap()) {
        let piece = first..(first + samples).min(total);
        let parts: Vec<(usize, std::ops::Range<u64>)> = (0..blocks.len())
            .map(|b| (b, piece.start.max(starts[b])..piece.end.min(starts[b + 1])))
            .filter(|(_, part)| part.start < part.end)
            .collect();
        // Those of neighbouring blocks that a request can read over.
        let is_continued = |a: &(usize, _), b: &(usize, _)| b.0 == a.0 + 1 && blocks[a.0].1;
        for parts in parts.chunk_by(|a, b| is_continued(a, b)) {
            match parts {
                [(a, first), (b, last)] if last.end - first.start <= blocks[*a].0.max(blocks[*b].0) => {
                    extents.insert(Extent::new(BlockId(*a as u32), first.start..last.end));
                }
                _ => extents
                    .extend(parts.iter().map(|(b, part)| Extent::new(BlockId(*b as u32), part.clone()))),
            }
        }
    }
    extents
}

/// Returns the positions of each extent's selected samples.
fn positions(plan: &Plan) -> BTreeMap<Extent, Vec<Position>> {
    let (mut order, mut by_extent) = (plan.epoch(1), BTreeMap::<Extent, Vec<Position>>::new());
    for position in (0..plan.len()).map(Position) {
        let at = order.sample_at(position);
        let extent = plan.extent_of(at.block, at.sample);
        assert!(extent.row_of(at.sample).is_some(), "{extent:?} lacks {:?}", at.sample);
        by_extent.entry(extent).or_default().push(position);
    }
    by_extent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pieces_are_fetched_at_once_where_their_blocks_allow_it(blocks in blocks(), samples in 1u32..50) {
        let plan = Plan::new(input(&blocks), &pieces(samples)).unwrap();
        let alone: Vec<_> = blocks.iter().map(|(samples, _)| (*samples, false)).collect();
        let keys = |plan: &Plan| positions(plan).into_keys().collect::<BTreeSet<_>>();
        prop_assert_eq!(keys(&plan), by_walk(&alone, samples.into()));
        let fingerprint = plan.fingerprint().clone();
        let plan = plan.with_continued_blocks(continued(&blocks));
        prop_assert_eq!(plan.fingerprint(), &fingerprint, "the order is the same");
        prop_assert_eq!(keys(&plan), by_walk(&blocks, samples.into()));
        let mut order = plan.epoch(1);
        for (extent, positions) in positions(&plan) {
            prop_assert!(order.earliest_position(extent).unwrap() <= positions[0]);
            prop_assert_eq!(order.positions_of(extent), positions);
        }
    }

    #[test]
    fn what_a_filter_keeps_of_two_blocks_is_one_extent_for_all_of_its_samples(
        blocks in blocks(), samples in 1u32..20, every in 1usize..5, offset in 0usize..5
    ) {
        let mut input = input(&blocks);
        let starts = input.block_starts.clone();
        let kept: BooleanBuffer =
            (0..*starts.last().unwrap() as usize).map(|i| (i + offset).is_multiple_of(every)).collect();
        prop_assume!(kept.count_set_bits() > 0);
        input.selection = Some(Selection::from_bools(kept.clone(), &starts));
        let plan = Plan::new(input, &pieces(samples)).unwrap().with_continued_blocks(continued(&blocks));
        let mut order = plan.epoch(1);
        let mut selected = Vec::new();
        for (extent, positions) in positions(&plan) {
            let (block, range) = (extent.block.0 as usize, extent.range());
            prop_assert!((starts[block]..starts[block + 1]).contains(&range.start), "{extent:?}");
            prop_assert!(range.end <= starts[block + 1] || (blocks[block].1 && range.end <= starts[block + 2]));
            prop_assert!(order.earliest_position(extent).unwrap() <= positions[0]);
            prop_assert_eq!(order.positions_of(extent), positions);
            for sample in range.filter(|sample| kept.value(*sample as usize)) {
                let of = starts.partition_point(|start| *start <= sample) - 1;
                prop_assert_eq!(plan.extent_of(BlockId(of as u32), SampleId(sample)), extent);
                selected.push(sample as usize);
            }
        }
        selected.sort_unstable();
        prop_assert_eq!(selected, kept.set_indices().collect::<Vec<_>>(), "each is in one extent");
    }

    #[test]
    fn the_rest_of_an_epoch_knows_when_it_needs_both_blocks(
        blocks in blocks(), samples in 1u32..20, picks in prop::collection::vec(any::<u64>(), 1..100)
    ) {
        let input = input(&blocks);
        let total = *input.block_starts.last().unwrap();
        let left: Vec<Left> = picks
            .iter()
            .map(|pick| Left { sample: SampleId(pick % total), lane: Lane(0), pass: 0 })
            .collect();
        let plan = Plan::new(input, &pieces(samples)).unwrap().with_continued_blocks(continued(&blocks));
        let plan = plan.with_rest(Arc::new(Rest::new(0, Vec::new(), &left).unwrap())).unwrap();
        let mut order = plan.epoch(0);
        let mut used: BTreeMap<Extent, Vec<Position>> = BTreeMap::new();
        for position in (0..order.len()).map(Position) {
            let at = order.sample_at(position);
            used.entry(plan.extent_of(at.block, at.sample)).or_default().push(position);
        }
        let shape = StepShape { size: StepSize::Rows(1), rank: Rank::new(0, 1), tail: Tail::Drop };
        for (extent, positions) in used {
            prop_assert_eq!(order.earliest_position(extent), positions.first().copied());
            prop_assert_eq!(order.steps_using(extent, Position(0), &shape), positions.clone());
            prop_assert_eq!(order.positions_of(extent), positions);
        }
    }
}

/// A request never reads over the end of a part, whatever the bits state.
#[test]
fn the_parts_of_a_mix_stay_apart() {
    let part = |samples: u64| input_of(&[10, samples], 1_000);
    let parts = vec![(part(11), 1.0), (part(15), 1.0)];
    let plan = Plan::mixed(parts, Stop::AllExhausted, &pieces(4)).unwrap();
    let plan = plan.with_continued_blocks(vec![true; 4].into());
    let extents: Vec<_> =
        positions(&plan).into_keys().map(|extent| (extent.block.0, extent.range())).collect();
    let expected = [
        vec![(0, 0..4), (0, 4..8), (0, 8..12), (1, 12..16), (1, 16..20), (1, 20..21)],
        vec![(2, 21..25), (2, 25..29), (2, 29..33), (3, 33..37), (3, 37..41), (3, 41..45), (3, 45..46)],
    ];
    assert_eq!(extents, expected.concat());
}

#[test]
#[should_panic(expected = "one bit for each block")]
fn bits_of_other_blocks_are_a_bug() {
    let plan = Plan::new(input_of(&[3, 4], 1_000), &pieces(2)).unwrap();
    drop(plan.with_continued_blocks(vec![true].into()));
}
