//! The rest of an epoch that began with other data, as a part of a plan.

use crate::order::{extents, input_of};
use feedstock_base::{ErrorKind, Lane, Position, Rank, SampleId};
use feedstock_plan::{
    Carried, Cursor, Extent, Left, Plan, PlannedRow, Rest, Shuffle, StepShape, StepSize, Stop, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const EPOCH: u64 = 2;

fn carried(plan: &Plan) -> Vec<Carried> {
    let mut fingerprint = plan.fingerprint().clone();
    fingerprint.catalog ^= 1;
    vec![Carried { fingerprint, position: Position(30) }]
}

/// Makes a plan of these blocks that continues with these samples in one epoch.
fn plan(blocks: &[u64], samples: &[u64], shuffle: &Shuffle) -> Plan {
    let plan = Plan::new(input_of(blocks, 1_000), shuffle).unwrap();
    let left: Vec<Left> = samples
        .iter()
        .map(|&sample| Left { sample: SampleId(sample), lane: Lane((sample % 100) as u32), pass: sample % 2 })
        .collect();
    plan.with_rest(Arc::new(Rest::new(EPOCH, carried(&plan), &left).unwrap())).unwrap()
}

fn shape(rows: u64, rank: u32, world_size: u32, tail: Tail) -> StepShape {
    StepShape { size: StepSize::Rows(rows), rank: Rank::new(rank, world_size), tail }
}

fn rows(plan: &Plan, epoch: u64, shape: &StepShape) -> Vec<Vec<PlannedRow>> {
    plan.epoch(epoch).steps(Position(0), shape).map(|step| step.rows).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_rank_has_its_share_of_what_was_left_and_knows_when_it_needs_a_block(
        blocks in prop::collection::vec(1u64..40, 1..12usize), picks in prop::collection::vec(any::<u64>(), 1..300),
        lanes in 1u32..40, world_size in 1u32..7, batch in 7u64..40, seed: u64
    ) {
        let samples: u64 = blocks.iter().sum();
        let picks: Vec<u64> = picks.iter().map(|pick| pick % samples).collect();
        let plan = plan(&blocks, &picks, &Shuffle::seeded(seed).lanes(lanes));
        prop_assert_eq!(plan.len_of(EPOCH), picks.len() as u64);
        let mut order = plan.epoch(EPOCH);
        let listed: Vec<u64> = (0..order.len()).map(|p| order.sample_at(Position(p)).sample.0).collect();
        prop_assert_eq!(&listed, &picks);
        let mut all: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for rank in 0..world_size {
            let shape = shape(batch, rank, world_size, Tail::Pad);
            let mut used: BTreeMap<Extent, BTreeSet<Position>> = BTreeMap::new();
            for step in plan.epoch(EPOCH).steps(Position(0), &shape) {
                for row in &step.rows {
                    if row.valid {
                        all.entry(step.position.0).or_default().push((row.position.0, row.sample.0));
                    }
                    prop_assert!(plan.strands().of(row) < plan.strands().count());
                    used.entry(plan.extent_of(row.block, row.sample)).or_default().insert(step.position);
                }
            }
            for extent in extents(&plan) {
                // The rows of a padded last step count for every rank.
                let expected = used.remove(&extent).unwrap_or_default();
                let found: BTreeSet<Position> = order.steps_using(extent, Position(0), &shape).into_iter().collect();
                prop_assert!(expected.is_subset(&found) || !(picks.len() as u64).is_multiple_of(batch), "{expected:?} {found:?}");
                if (picks.len() as u64).is_multiple_of(batch) {
                    prop_assert_eq!(expected, found);
                }
                let positions = order.positions_of(extent);
                prop_assert_eq!(order.earliest_position(extent), positions.first().copied());
            }
        }
        for rows in all.values_mut() {
            rows.sort_unstable();
        }
        let delivered: Vec<(u64, u64)> = all.into_values().flatten().collect();
        prop_assert_eq!(delivered, (0u64..).zip(picks).collect::<Vec<_>>());
    }
}

#[test]
fn all_other_epochs_are_those_of_the_whole_data_set() {
    let shuffle = Shuffle::seeded(7);
    let whole = Plan::new(input_of(&[40; 10], 1_000), &shuffle).unwrap();
    let plan = plan(&[40; 10], &[3, 1, 2], &shuffle);
    let shape = shape(16, 0, 1, Tail::Drop);
    for epoch in [0, 1, 3, 4] {
        assert_eq!(plan.len_of(epoch), 400);
        assert_eq!(rows(&plan, epoch, &shape), rows(&whole, epoch, &shape));
        assert_eq!(plan.steps_left(epoch, Position(0), &shape), 25);
    }
    assert_eq!(plan.steps_left(EPOCH, Position(0), &shape), 0, "3 samples are no batch of 16");
    assert_eq!(plan.stride(), 400);
    let many: Vec<u64> = (0..500).map(|n| n % 400).collect();
    assert_eq!(self::plan(&[40; 10], &many, &shuffle).stride(), 500, "a mix may have drawn samples twice");
}

#[test]
fn a_cursor_of_the_rest_fits_the_plan_with_that_rest_alone() {
    let shuffle = Shuffle::seeded(7);
    let whole = Plan::new(input_of(&[40; 10], 1_000), &shuffle).unwrap();
    let plan = plan(&[40; 10], &[3, 1, 2], &shuffle);
    let cursor = plan.cursor(EPOCH, Position(2));
    let text = serde_json::to_string(&cursor).unwrap();
    assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
    plan.check(&cursor).unwrap();
    for (plan, cursor) in [
        (&whole, cursor.clone()),
        (&plan, whole.cursor(EPOCH, Position(2))),
        (&plan, plan.cursor(EPOCH, Position(4))),
        (&plan, Cursor { epoch: 3, ..cursor.clone() }),
    ] {
        assert_eq!(plan.check(&cursor).unwrap_err().kind(), ErrorKind::BadConfig, "{cursor:?}");
    }
    let after = plan.cursor(3, Position(9));
    assert!(after.carried.is_empty(), "the next epoch is a whole one");
    whole.check(&after).unwrap();
    let next = whole.next_epoch_of(&plan.cursor(EPOCH, Position(0))).unwrap();
    assert_eq!(next.epoch, 3, "an epoch that continues has delivered something");
}

#[test]
fn what_cannot_be_the_rest_of_an_epoch_is_refused() {
    let whole = Plan::new(input_of(&[40; 10], 1_000), &Shuffle::seeded(7)).unwrap();
    let left = [Left { sample: SampleId(400), lane: Lane(0), pass: 0 }];
    let error = whole.with_rest(Arc::new(Rest::new(0, Vec::new(), &left).unwrap())).unwrap_err();
    assert!(error.to_string().contains("a sample 400"), "{error}");
    let parts = || vec![(input_of(&[40], 1_000), 1.0), (input_of(&[40], 1_000), 1.0)];
    let endless = Plan::mixed(parts(), Stop::Never, &Shuffle::seeded(7)).unwrap();
    let rest = Arc::new(Rest::new(0, Vec::new(), &[]).unwrap());
    for error in [
        endless.with_rest(rest).unwrap_err(),
        endless.left_after(&endless.cursor(0, Position(5))).unwrap_err(),
    ] {
        assert!(error.to_string().contains("on_change=next_epoch"), "{error}");
    }
}

#[test]
fn what_is_left_of_a_mix_keeps_its_passes() {
    let parts = vec![(input_of(&[40; 4], 1_000), 1.0), (input_of(&[7], 1_000), 1.0)];
    let mix = Plan::mixed(parts, Stop::AllExhausted, &Shuffle::seeded(7)).unwrap();
    let cursor = mix.cursor(1, Position(50));
    let left = mix.left_after(&cursor).unwrap();
    assert!(left.iter().any(|left| left.pass > 10), "the 7 samples are drawn as often as the 160");
    let rest = Rest::new(1, carried(&mix), &left).unwrap();
    let mut order = mix.with_rest(Arc::new(rest)).unwrap().epoch(1);
    let mut before = mix.epoch(1);
    for (position, was) in (0..order.len()).zip(50..) {
        let (now, was) = (order.sample_at(Position(position)), before.sample_at(Position(was)));
        assert_eq!(
            (now.sample, now.block, now.row, now.pass, now.lane),
            (was.sample, was.block, was.row, was.pass, was.lane)
        );
    }
}
