//! Samples that an epoch draws several times: each draw once, wherever it is, with its own pass.

use crate::order::{extents, input_of};
use arrow_buffer::BooleanBuffer;
use feedstock_base::{Position, Rank, SampleId};
use feedstock_plan::{
    Cursor, Digest, Extent, Plan, PlanInput, Selection, Shuffle, StepShape, StepSize, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![
        (any::<u64>(), 1u32..20, 1u64..300).prop_map(|(s, c, w)| Shuffle::seeded(s).lanes(c).window(w)),
        (any::<u64>(), 1u32..20, 1u64..300, 1u32..20)
            .prop_map(|(s, c, w, k)| Shuffle::seeded(s).lanes(c).window(w).piece(k)),
        (any::<u64>(), 1u32..20).prop_map(|(s, c)| Shuffle::full(s).lanes(c)),
        Just(Shuffle::none()),
    ]
}

/// Blocks of samples, and for each sample how often it is drawn: `None` for filtered out.
fn data() -> impl Strategy<Value = (Vec<u64>, Vec<Option<u64>>)> {
    prop::collection::vec(0u64..40, 1..12usize).prop_flat_map(|blocks| {
        let samples = blocks.iter().sum::<u64>() as usize;
        let draws = prop_oneof![1 => Just(None), 2 => Just(Some(0)), 3 => Just(Some(1)), 3 => (2u64..9).prop_map(Some), 1 => (30u64..60).prop_map(Some)];
        (Just(blocks), prop::collection::vec(draws, samples))
    })
}

fn weighted(blocks: &[u64], draws: &[Option<u64>]) -> PlanInput {
    let input = input_of(blocks, 110_000);
    let kept: BooleanBuffer = draws.iter().map(Option::is_some).collect::<Vec<_>>().into();
    let kept = Selection::from_bools(kept, &input.block_starts);
    let selection = kept.repeated(draws.iter().flatten().copied().collect(), &input.block_starts);
    PlanInput { selection: Some(selection), filter: Some("weights".into()), ..input }
}

/// Returns the (sample, pass) of each step, over all ranks, from a position on.
fn steps(plan: &Plan, world_size: u32, from: u64) -> Vec<BTreeSet<(u64, u64)>> {
    let mut all: Vec<BTreeSet<(u64, u64)>> = Vec::new();
    for rank in 0..world_size {
        let shape =
            StepShape { size: StepSize::Rows(24), rank: Rank::new(rank, world_size), tail: Tail::Short };
        let mut order = plan.epoch(1);
        for (number, step) in order.steps(Position(from), &shape).enumerate() {
            if number == all.len() {
                all.push(BTreeSet::new());
            }
            for row in &step.rows {
                assert!(all[number].insert((row.sample.0, row.pass)), "{row:?} twice in a step");
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn each_draw_is_at_one_position(
        (blocks, draws) in data(), shuffle in shuffles(), epoch in 0u64..3, continued: bool,
    ) {
        let total: u64 = draws.iter().flatten().sum();
        prop_assume!(total > 0);
        let plan = Plan::new(weighted(&blocks, &draws), &shuffle).unwrap();
        let plan = plan.with_continued_blocks(vec![continued; blocks.len()].into());
        prop_assert_eq!(plan.len(), total);
        let mut order = plan.epoch(epoch);
        let mut drawn: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut by_extent: BTreeMap<Extent, Vec<Position>> = BTreeMap::new();
        for p in (0..total).map(Position) {
            let at = order.sample_at(p);
            drawn.entry(at.sample.0).or_default().push(at.pass);
            let extent = plan.extent_of(at.block, at.sample);
            prop_assert!(extent.range().contains(&at.sample.0));
            by_extent.entry(extent).or_default().push(p);
        }
        for (sample, draws) in (0u64..).zip(&draws) {
            let mut passes = drawn.remove(&sample).unwrap_or_default();
            passes.sort_unstable();
            prop_assert_eq!(passes, (0..draws.unwrap_or(0)).collect::<Vec<_>>(), "sample {}", sample);
        }
        let mut last = 0;
        for (extent, positions) in &by_extent {
            prop_assert_eq!(&order.positions_of(*extent), positions);
            prop_assert!(order.earliest_position(*extent).unwrap() <= positions[0]);
            prop_assert!(extent.range().start >= last, "extents overlap");
            last = extent.range().end;
        }
        prop_assert_eq!(extents(&plan), by_extent.into_keys().collect::<BTreeSet<_>>(), "as in other epochs");
        let multiset = (0u64..).zip(&draws).flat_map(|(sample, draws)| {
            std::iter::repeat_n(SampleId(sample), draws.unwrap_or(0) as usize)
        });
        let digest: Digest = multiset.collect();
        prop_assert_eq!(order.digest(0..total), digest);
        let mut halves = order.digest(0..total / 2);
        halves.merge(&order.digest(total / 2..total));
        prop_assert_eq!(halves, digest);
    }

    #[test]
    fn ranks_share_the_draws_and_a_cursor_goes_on(
        (blocks, draws) in data(), shuffle in shuffles(), world_size in 2u32..9, at in 0u64..5,
    ) {
        prop_assume!(draws.iter().flatten().sum::<u64>() > 0);
        let plan = Plan::new(weighted(&blocks, &draws), &shuffle).unwrap();
        let alone = steps(&plan, 1, 0);
        prop_assert_eq!(alone.iter().map(BTreeSet::len).sum::<usize>() as u64, plan.len());
        prop_assert_eq!(&steps(&plan, world_size, 0), &alone);
        let position = (at * 24).min(plan.len());
        let cursor = serde_json::to_string(&plan.cursor(1, Position(position))).unwrap();
        let cursor: Cursor = serde_json::from_str(&cursor).unwrap();
        let again = Plan::new(weighted(&blocks, &draws), &shuffle).unwrap();
        again.check(&cursor).unwrap();
        prop_assert_eq!(&steps(&again, world_size, position)[..], &alone[position.div_ceil(24) as usize..]);
    }

    #[test]
    fn draws_of_one_each_are_the_order_without_weights(
        blocks in prop::collection::vec(1u64..40, 1..12usize), kept in prop::collection::vec(any::<bool>(), 440), shuffle in shuffles(),
    ) {
        let input = input_of(&blocks, 110_000);
        let samples = blocks.iter().sum::<u64>() as usize;
        let kept = Selection::from_bools(kept[..samples].to_vec().into(), &input.block_starts);
        prop_assume!(!kept.is_empty());
        let once = kept.repeated(vec![1; kept.len() as usize], &input.block_starts);
        let order = |selection: Selection| {
            let plan = Plan::new(PlanInput { selection: Some(selection), ..input.clone() }, &shuffle).unwrap();
            let mut order = plan.epoch(2);
            (0..plan.len()).map(|p| order.sample_at(Position(p))).collect::<Vec<_>>()
        };
        prop_assert_eq!(order(once), order(kept));
    }
}

#[test]
fn other_draws_of_the_same_samples_are_another_order() {
    let plan = |draws: &[u64]| {
        let draws: Vec<Option<u64>> = draws.iter().copied().map(Some).collect();
        Plan::new(weighted(&[2, 2], &draws), &Shuffle::seeded(7)).unwrap()
    };
    let cursor = plan(&[2, 1, 1, 2]).cursor(0, Position(3));
    plan(&[2, 1, 1, 2]).check(&cursor).unwrap();
    let refused = plan(&[1, 2, 1, 2]).check(&cursor).unwrap_err();
    assert!(refused.message().contains("its filter is"), "{refused}");
}
