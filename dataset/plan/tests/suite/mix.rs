//! Weighted mixing: exact shares, ends, passes, and all guarantees of the plain order.

use feedstock_base::{BlockId, Position, Rank, SampleId};
use feedstock_plan::{
    Access, Cursor, DataHashes, Extent, Lengths, Plan, PlanInput, PlannedRow, Shuffle, StepShape, StepSize,
    Stop, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const WORLD_SIZES: [u32; 6] = [1, 2, 3, 5, 8, 64];

fn input(samples: u64, hash: u64) -> PlanInput {
    let block_starts: Vec<u64> = (0..samples.div_ceil(7)).map(|block| block * 7).chain([samples]).collect();
    PlanInput {
        encoded_bytes: samples * 40_000,
        access: Access::Blocks,
        block_starts: block_starts.into(),
        selection: None,
        data: DataHashes { identity: hash, blocks: 1, legacy: hash },
        filter: None,
    }
}

fn mix(parts: &[(u64, f64)], stop: Stop, shuffle: &Shuffle) -> Plan {
    let parts = (1..).zip(parts).map(|(hash, (samples, weight))| (input(*samples, hash), *weight)).collect();
    Plan::mixed(parts, stop, shuffle).unwrap()
}

/// Returns the part of a sample of the mix, and the sample in it.
fn part_of(parts: &[(u64, f64)], sample: SampleId) -> (usize, u64) {
    let mut first = 0;
    for (part, (samples, _)) in parts.iter().enumerate() {
        if sample.0 < first + samples {
            return (part, sample.0 - first);
        }
        first += samples;
    }
    panic!("sample {sample} of no part")
}

/// Returns what the positions from `from` to `to` draw: (part, its sample).
fn draws(plan: &Plan, parts: &[(u64, f64)], epoch: u64, from: u64, to: u64) -> Vec<(usize, u64)> {
    let mut order = plan.epoch(epoch);
    (from..to).map(|p| part_of(parts, order.sample_at(Position(p)).sample)).collect()
}

fn shape(size: StepSize, rank: u32, world_size: u32, tail: Tail) -> StepShape {
    StepShape { size, rank: Rank::new(rank, world_size), tail }
}

fn ranks(plan: &Plan, epoch: u64, from: u64, size: StepSize, world_size: u32) -> Vec<Vec<Vec<PlannedRow>>> {
    let mut steps: Vec<Vec<Vec<PlannedRow>>> = Vec::new();
    for rank in 0..world_size {
        let shape = shape(size, rank, world_size, Tail::Drop);
        let mut order = plan.epoch(epoch);
        let announced = order.steps_left(Position(from), &shape);
        let taken: Vec<_> = order.steps(Position(from), &shape).collect();
        assert_eq!(taken.len() as u64, announced);
        steps.resize_with(taken.len(), Vec::new);
        steps.iter_mut().zip(taken).for_each(|(all, step)| all.push(step.rows));
    }
    steps
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let window =
        (any::<u64>(), 1u32..20, 1u64..300).prop_map(|(s, c, w)| Shuffle::seeded(s).lanes(c).window(w));
    let pieces = (any::<u64>(), 1u32..20, 1u64..300, 1u32..30)
        .prop_map(|(s, c, w, k)| Shuffle::seeded(s).lanes(c).window(w).piece(k));
    let full = (any::<u64>(), 1u32..20).prop_map(|(s, c)| Shuffle::full(s).lanes(c));
    prop_oneof![4 => window, 4 => pieces, 1 => full, 1 => (1u32..20).prop_map(|c| Shuffle::none().lanes(c))]
}

fn parts() -> impl Strategy<Value = Vec<(u64, f64)>> {
    prop::collection::vec((1u64..900, 0.05f64..5.0), 1..5)
}

fn ends() -> impl Strategy<Value = Stop> {
    prop_oneof![Just(Stop::FirstExhausted), Just(Stop::AllExhausted), Just(Stop::Never)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_cycle_has_exact_shares(parts in parts(), shuffle in shuffles(), epoch in 0u64..3) {
        let plan = mix(&parts, Stop::Never, &shuffle);
        let quotas = plan.fingerprint().mixing.as_ref().unwrap().quotas.clone();
        let cycle: u64 = quotas.iter().sum();
        for index in [0, 1, 7] {
            let mut counts = vec![0; parts.len()];
            draws(&plan, &parts, epoch, index * cycle, (index + 1) * cycle).iter().for_each(|(part, _)| counts[*part] += 1);
            prop_assert_eq!(&counts, &quotas);
        }
    }

    #[test]
    fn each_pass_has_each_sample_once_and_ends_are_where_they_should(
        parts in parts(), shuffle in shuffles(), all: bool, epoch in 0u64..3
    ) {
        let stop = if all { Stop::AllExhausted } else { Stop::FirstExhausted };
        let plan = mix(&parts, stop, &shuffle);
        prop_assume!(plan.len() < 200_000);
        let drawn = draws(&plan, &parts, epoch, 0, plan.len());
        let mut by_part: Vec<Vec<u64>> = vec![Vec::new(); parts.len()];
        drawn.iter().for_each(|(part, sample)| by_part[*part].push(*sample));
        for (mine, (samples, _)) in by_part.iter().zip(&parts) {
            for pass in mine.chunks(*samples as usize) {
                let once: BTreeSet<u64> = pass.iter().copied().collect();
                prop_assert_eq!(once.len(), pass.len(), "a pass has no sample twice");
            }
            if all {
                prop_assert!(mine.len() as u64 >= *samples, "every part is read whole");
            } else {
                prop_assert!(mine.len() as u64 <= *samples, "no part repeats");
            }
        }
        if all {
            let (last, _) = drawn[drawn.len() - 1];
            prop_assert_eq!(by_part[last].len() as u64 % parts[last].0, 0, "the last draw ends a part's pass");
        } else {
            let full: Vec<usize> = (0..parts.len()).filter(|k| by_part[*k].len() as u64 == parts[*k].0).collect();
            prop_assert!(!full.is_empty(), "some part is used up");
        }
    }

    #[test]
    fn blocks_are_found_back(parts in parts(), shuffle in shuffles(), stop in ends(), bucket: bool, from: u64) {
        let total: u64 = parts.iter().map(|(samples, _)| samples).sum();
        let lengths = Lengths::new("duration", (0..total).map(|n| (n * 37 % 101) as f32 / 8.0).collect());
        let plan = mix(&parts, stop, &shuffle);
        let plan = if bucket { plan.bucketed(&lengths, Some(500), StepSize::Rows(32)).unwrap() } else { plan };
        let end = plan.len().min(6_000);
        let mut order = plan.epoch(1);
        let mut by_extent: BTreeMap<Extent, Vec<Position>> = BTreeMap::new();
        for p in 0..end {
            let at = order.sample_at(Position(p));
            by_extent.entry(plan.extent_of(at.block, at.sample)).or_default().push(Position(p));
        }
        for (extent, positions) in &by_extent {
            prop_assert!(order.earliest_position(*extent).unwrap() <= positions[0]);
            let found = order.positions_of(*extent);
            prop_assert!(found.iter().all(|p| p.0 >= end || positions.contains(p)));
            if stop != Stop::Never && end == plan.len() {
                prop_assert_eq!(&found, positions);
            }
        }
        // Every use of a block is predicted before it comes.
        let size = StepSize::Rows(16);
        let from = Position(from % end);
        for world_size in [1, 3] {
            let shape = shape(size, world_size - 1, world_size, Tail::Drop);
            let mut known: BTreeMap<Extent, Vec<Position>> = BTreeMap::new();
            let mut walk = plan.epoch(1);
            for step in order.steps(from, &shape).take(60) {
                for row in &step.rows {
                    let extent = plan.extent_of(row.block, row.sample);
                    let uses = known.entry(extent).or_default();
                    if uses.last().is_none_or(|last| *last < step.position) {
                        *uses = walk.steps_using(extent, step.position, &shape);
                    }
                    prop_assert!(uses.contains(&step.position), "{} at {}", row.block, step.position);
                }
            }
        }
    }

    #[test]
    fn batches_are_the_same_for_every_world_size_and_resume_anywhere(
        parts in parts(), shuffle in shuffles(), all: bool, bucket: bool, batch in 64u64..200, from: u64
    ) {
        let stop = if all { Stop::AllExhausted } else { Stop::FirstExhausted };
        let total: u64 = parts.iter().map(|(samples, _)| samples).sum();
        let lengths = Lengths::new("duration", (0..total).map(|n| (n * 37 % 101) as f32 / 8.0).collect());
        let size = StepSize::Rows(batch);
        let plan = mix(&parts, stop, &shuffle);
        prop_assume!(plan.len() < 20_000);
        let plan = if bucket { plan.bucketed(&lengths, None, size).unwrap() } else { plan };
        let cursor = plan.cursor(1, Position(from % plan.len()));
        let cursor: Cursor = serde_json::from_str(&serde_json::to_string(&cursor).unwrap()).unwrap();
        plan.check(&cursor).unwrap();
        let alone = ranks(&plan, 1, cursor.position.0, size, 1);
        let mut order = plan.epoch(1);
        let mut position = cursor.position.0;
        for step in &alone {
            let mut samples: Vec<SampleId> = step[0].iter().map(|row| row.sample).collect();
            let mut planned: Vec<SampleId> =
                (position..position + batch).map(|p| order.sample_at(Position(p)).sample).collect();
            samples.sort_unstable();
            planned.sort_unstable();
            prop_assert_eq!(samples, planned);
            position += batch;
        }
        for world_size in WORLD_SIZES {
            let steps = ranks(&plan, 1, cursor.position.0, size, world_size);
            prop_assert_eq!(steps.len(), alone.len());
            for (several, one) in steps.iter().zip(&alone) {
                prop_assert_eq!(&several.concat(), &one[0]);
                let sizes: BTreeSet<usize> = several.iter().map(Vec::len).collect();
                prop_assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1);
            }
        }
    }
}

#[test]
fn epochs_differ_and_parts_go_on_with_fresh_passes() {
    let parts = [(700, 1.0), (100, 1.0)];
    let plan = mix(&parts, Stop::AllExhausted, &Shuffle::seeded(5));
    let passes = |epoch| -> Vec<Vec<u64>> {
        let small = draws(&plan, &parts, epoch, 0, plan.len()).into_iter().filter(|(part, _)| *part == 1);
        let small: Vec<u64> = small.map(|(_, sample)| sample).collect();
        small.chunks(100).filter(|pass| pass.len() == 100).map(<[u64]>::to_vec).collect()
    };
    let all: Vec<Vec<u64>> = [passes(0), passes(1)].concat();
    assert!(all.len() >= 12, "{}", all.len());
    let distinct: BTreeSet<&Vec<u64>> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "every pass has a different order");
    assert_eq!(passes(1), passes(1));
}

#[test]
fn without_a_shuffle_parts_alternate_evenly() {
    let parts = [(600, 3.0), (600, 1.0)];
    let plan = mix(&parts, Stop::FirstExhausted, &Shuffle::none());
    assert_eq!(
        plan.len(),
        800,
        "600 draws of the first are 800 positions; the next would be its first again"
    );
    let drawn = draws(&plan, &parts, 3, 0, 8);
    assert_eq!(drawn, [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4), (1, 1), (0, 5)]);
}

#[test]
fn an_endless_epoch_can_be_sought_and_counted() {
    let parts = [(50, 0.5), (3000, 0.5)];
    let plan = mix(&parts, Stop::Never, &Shuffle::seeded(1));
    assert!(plan.is_endless() && plan.is_mix());
    assert_eq!(plan.len(), 1 << 53);
    let rows = shape(StepSize::Rows(64), 0, 2, Tail::Drop);
    assert_eq!(plan.steps_left(0, Position(0), &rows), 1 << 47);
    let far = Position(3_000_000_000_000);
    let mut order = plan.epoch(0);
    let step = order.step(far, &rows).unwrap();
    assert_eq!(step.rows.len(), 32);
    let first = step.rows[0];
    assert!(order.steps_using(plan.extent_of(first.block, first.sample), far, &rows).contains(&far));
    assert!(order.next_pass(Extent::new(BlockId(0), 0..7), far).unwrap() > far);
    let lengths = Lengths::new("duration", vec![2.0; 3050]);
    let total = shape(StepSize::Total { total: 100.0, max_rows: 64, ranks: 1 }, 0, 2, Tail::Drop);
    let bounded = plan.with_lengths(&lengths).unwrap();
    total.check(&bounded, &|_| String::new()).unwrap();
    assert_eq!(bounded.steps_left(0, Position(0), &total), 1 << 47, "at least this number");
    assert_eq!(bounded.epoch(0).step(far, &total).unwrap().next, Position(far.0 + 50));
    assert_eq!(bounded.epoch(0).padding_share(&total), None);
}

/// The mixed order must be the same in every release.
#[test]
fn the_mixed_order_is_pinned() {
    let parts = [(200, 0.6), (90, 0.3), (40, 0.1)];
    let plan = mix(&parts, Stop::AllExhausted, &Shuffle::seeded(7).lanes(4).window(80));
    let mut order = plan.epoch(2);
    let ids: Vec<u64> = (0..12).map(|p| order.sample_at(Position(p)).sample.0).collect();
    assert_eq!((plan.len(), ids), (PINNED_LEN, PINNED.to_vec()));
}
const PINNED_LEN: u64 = 419;
const PINNED: [u64; 12] = [179, 194, 45, 120, 242, 64, 288, 282, 259, 192, 246, 174];

#[test]
fn what_differs_from_the_saved_mix_is_named() {
    let shuffle = Shuffle::seeded(1);
    let parts = [(500, 0.7), (300, 0.3)];
    let plan = mix(&parts, Stop::AllExhausted, &shuffle);
    let cursor = plan.cursor(0, Position(20));
    plan.check(&cursor).unwrap();
    let other = |parts: &[(u64, f64)], stop| mix(parts, stop, &shuffle);
    let changed = vec![(input(500, 1), 0.7), (input(300, 77), 0.3)];
    let foreign = [
        ("mixing", Plan::new(input(500, 1), &shuffle).unwrap()),
        ("mixing", other(&[(500, 0.7), (300, 0.2), (10, 0.1)], Stop::AllExhausted)),
        ("mixing weights", other(&[(500, 0.6), (300, 0.4)], Stop::AllExhausted)),
        ("mixing stop", other(&parts, Stop::FirstExhausted)),
        ("mixed data sets", Plan::mixed(changed, Stop::AllExhausted, &shuffle).unwrap()),
        ("seed", mix(&parts, Stop::AllExhausted, &Shuffle::seeded(2))),
    ];
    for (field, other) in foreign {
        let message = other.check(&cursor).unwrap_err().to_string();
        assert!(message.contains(&format!("its {field} is")), "{field}: {message}");
    }
    assert!(Plan::mixed(Vec::new(), Stop::Never, &shuffle).is_err());
    let far = plan.cursor(u64::MAX / plan.len() - 1, Position(0));
    let message = plan.check(&far).unwrap_err().to_string();
    assert!(message.contains("past the last that can be counted"), "{message}");
    let endless = mix(&parts, Stop::Never, &shuffle);
    endless.check(&endless.cursor(2_045, Position(7))).unwrap();
    let message = endless.check(&endless.cursor(2_048, Position(7))).unwrap_err().to_string();
    assert!(message.contains("epoch 2048") && message.contains("which is 2045"), "{message}");
    let empty = Plan::mixed(vec![(input(5, 1), 1.0), (input(0, 2), 1.0)], Stop::Never, &shuffle);
    assert!(empty.unwrap_err().to_string().contains("part 1"));
}

/// Measures the ranks that read a block, on average, in one pass over it.
#[test]
fn nearly_every_block_is_read_by_one_rank() {
    let parts = [(70_000, 0.7), (30_000, 0.3)];
    let plan = mix(&parts, Stop::FirstExhausted, &Shuffle::seeded(1).lanes(64).window(16_384));
    for (world_size, limit) in [(2u32, 1.3), (3, 1.4), (5, 1.6), (8, 1.8)] {
        let mut readers: BTreeMap<BlockId, BTreeSet<u32>> = BTreeMap::new();
        for step in ranks(&plan, 0, 0, StepSize::Rows(64 * u64::from(world_size)), world_size) {
            for (rank, rows) in (0u32..).zip(step) {
                rows.iter().for_each(|row| readers.entry(row.block).or_default().extend([rank]));
            }
        }
        let ranks = readers.values().map(|r| r.len() as f64).sum::<f64>() / readers.len() as f64;
        println!("{world_size} ranks: {ranks:.2} ranks a block");
        assert!(ranks <= limit, "{world_size} ranks: {ranks:.2} ranks a block");
    }
}
