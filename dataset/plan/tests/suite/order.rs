//! The order's guarantees, as properties over data sets, lanes, windows, batches and world sizes.

use arrow_buffer::BooleanBuffer;
use feedstock_base::{BlockId, Position, Rank, SampleId};
use feedstock_plan::{
    Access, Cursor, DataHashes, Extent, Plan, PlanInput, PlannedRow, Selection, Shuffle, StepShape, StepSize,
    Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

fn input(blocks: &[u64]) -> PlanInput {
    input_of(blocks, 110_000)
}

/// Blocks with these numbers of samples, each of `sample_bytes` bytes.
pub(crate) fn input_of(blocks: &[u64], sample_bytes: u64) -> PlanInput {
    let mut starts = vec![0];
    starts.extend(blocks.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    }));
    PlanInput {
        encoded_bytes: starts.last().unwrap() * sample_bytes,
        access: Access::Blocks,
        block_starts: starts.into(),
        selection: None,
        data: DataHashes { identity: 0xFEED, blocks: 1, legacy: 0xFEED },
        filter: None,
    }
}

fn shape(global_batch: u64, rank: u32, world_size: u32, tail: Tail) -> StepShape {
    StepShape { size: StepSize::Rows(global_batch), rank: Rank::new(rank, world_size), tail }
}

/// Returns the extents of all selected samples.
pub(crate) fn extents(plan: &Plan) -> BTreeSet<Extent> {
    let mut order = plan.epoch(0);
    let samples = (0..plan.len()).map(|p| order.sample_at(Position(p)));
    samples.map(|at| plan.extent_of(at.block, at.sample)).collect()
}

/// Returns all ranks' rows of every step from `position` on, step by step, rank by rank.
fn run(
    plan: &Plan,
    epoch: u64,
    position: u64,
    batch: u64,
    world_size: u32,
    tail: Tail,
) -> Vec<Vec<Vec<PlannedRow>>> {
    let mut by_step: Vec<Vec<Vec<PlannedRow>>> = Vec::new();
    for rank in 0..world_size {
        let mut order = plan.epoch(epoch);
        let shape = shape(batch, rank, world_size, tail);
        let steps: Vec<_> = order.steps(Position(position), &shape).collect();
        assert_eq!(steps.len() as u64, plan.steps_left(epoch, Position(position), &shape), "announced steps");
        if rank == 0 {
            by_step.resize_with(steps.len(), Vec::new);
        }
        assert_eq!(steps.len(), by_step.len(), "every rank takes the same number of steps");
        for (all, step) in by_step.iter_mut().zip(steps) {
            all.push(step.rows);
        }
    }
    by_step
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let window =
        (any::<u64>(), 1u32..70, 1u64..600).prop_map(|(s, c, w)| Shuffle::seeded(s).lanes(c).window(w));
    let pieces = (any::<u64>(), 1u32..70, 1u64..600, 1u32..40)
        .prop_map(|(s, c, w, k)| Shuffle::seeded(s).lanes(c).window(w).piece(k));
    let full = (any::<u64>(), 1u32..70).prop_map(|(s, c)| Shuffle::full(s).lanes(c));
    let none = (1u32..70).prop_map(|c| Shuffle::none().lanes(c));
    prop_oneof![4 => window, 4 => pieces, 1 => full, 1 => none]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_order_is_a_permutation_and_positions_of_is_its_inverse(
        blocks in prop::collection::vec(0u64..60, 1..30usize), shuffle in shuffles(), epoch in 0u64..4
    ) {
        let input = input(&blocks);
        prop_assume!(blocks.iter().sum::<u64>() > 0);
        let starts = input.block_starts.clone();
        let plan = Plan::new(input, &shuffle).unwrap();
        let mut order = plan.epoch(epoch);
        let mut seen = BTreeSet::new();
        let mut by_extent: HashMap<Extent, Vec<Position>> = HashMap::new();
        for p in 0..plan.len() {
            let at = order.sample_at(Position(p));
            prop_assert!(seen.insert(at.sample), "sample {} twice", at.sample);
            by_extent.entry(plan.extent_of(at.block, at.sample)).or_default().push(Position(p));
        }
        prop_assert_eq!(seen.len() as u64, plan.len());
        let mut samples = Vec::new();
        for (extent, positions) in by_extent {
            prop_assert!(order.earliest_position(extent).unwrap() <= positions[0]);
            prop_assert_eq!(order.positions_of(extent), positions);
            samples.extend(extent.range());
        }
        samples.sort_unstable();
        prop_assert_eq!(samples, (0..plan.len()).collect::<Vec<_>>(), "extents tile the samples");
        for block in (0..blocks.len() as u32).map(BlockId) {
            let range = starts[block.0 as usize]..starts[block.0 as usize + 1];
            let positions = (0..plan.len()).filter(|p| order.sample_at(Position(*p)).block == block).map(Position);
            let positions: Vec<Position> = positions.collect();
            prop_assert_eq!(order.positions_of(Extent::new(block, range)), positions);
        }
    }

    #[test]
    fn global_batches_do_not_depend_on_the_world_size(
        blocks in prop::collection::vec(0u64..60, 1..12usize), shuffle in shuffles(), batch in 64u64..200, pad: bool, from: u64
    ) {
        let samples = blocks.iter().sum::<u64>();
        let tail = if pad { Tail::Pad } else { Tail::Drop };
        prop_assume!(samples > 0);
        let plan = Plan::new(input(&blocks), &shuffle).unwrap();
        let from = from % (samples + 1);
        let key = |rows: &[PlannedRow]| -> Vec<(u64, bool)> { rows.iter().map(|r| (r.position.0, r.valid)).collect() };
        let alone: Vec<Vec<(u64, bool)>> =
            run(&plan, 3, from, batch, 1, tail).iter().map(|ranks| key(&ranks[0])).collect();
        for world_size in [2u32, 3, 5, 8, 64] {
            let steps = run(&plan, 3, from, batch, world_size, tail);
            prop_assert_eq!(steps.len(), alone.len());
            for (ranks, whole) in steps.iter().zip(&alone) {
                let joined: Vec<(u64, bool)> = ranks.iter().flat_map(|rows| key(rows)).collect();
                prop_assert_eq!(&joined, whole, "ranks cut one list");
                let (least, most) = (ranks.iter().map(Vec::len).min().unwrap(), ranks.iter().map(Vec::len).max().unwrap());
                prop_assert!(most - least <= 1);
            }
        }
        let valid: Vec<u64> = alone.iter().flatten().filter(|(_, valid)| *valid).map(|(p, _)| *p).collect();
        let mut sorted = valid.clone();
        sorted.sort_unstable();
        let end = if pad { samples } else { from + (samples - from) / batch * batch };
        prop_assert_eq!(sorted, (from..end).collect::<Vec<_>>(), "each position once");
    }

    #[test]
    fn the_steps_that_use_an_extent_are_foretold(
        blocks in prop::collection::vec(0u64..60, 1..12usize), shuffle in shuffles(), batch in 8u64..90, world_size in 1u32..8, from: u64
    ) {
        prop_assume!(blocks.iter().sum::<u64>() > 0);
        let plan = Plan::new(input(&blocks), &shuffle).unwrap();
        let from = Position(from % plan.len());
        for rank in 0..world_size {
            let shape = shape(batch, rank, world_size, Tail::Drop);
            let mut used: BTreeMap<Extent, BTreeSet<Position>> = BTreeMap::new();
            for step in plan.epoch(1).steps(from, &shape) {
                for row in &step.rows {
                    used.entry(plan.extent_of(row.block, row.sample)).or_default().insert(step.position);
                }
            }
            let mut order = plan.epoch(1);
            for extent in extents(&plan) {
                let expected: Vec<Position> = used.remove(&extent).unwrap_or_default().into_iter().collect();
                prop_assert_eq!(order.steps_using(extent, from, &shape), expected);
            }
        }
    }

    #[test]
    fn a_resumed_run_goes_on_where_it_stopped(
        blocks in prop::collection::vec(1u64..60, 2..12usize), shuffle in shuffles(), first in 1u64..50, stop in 0usize..20,
        then in 1u64..50, world_size in 1u32..9
    ) {
        let plan = Plan::new(input(&blocks), &shuffle).unwrap();
        let mut order = plan.epoch(1);
        let before = shape(first, 0, 1, Tail::Drop);
        let taken: Vec<_> = order.steps(Position(0), &before).take(stop).collect();
        let cursor = plan.cursor(1, taken.last().map_or(Position(0), |step| step.next));
        let text = serde_json::to_string(&cursor).unwrap();
        let cursor: Cursor = serde_json::from_str(&text).unwrap();
        plan.check(&cursor).unwrap();
        let batch = then.max(u64::from(world_size));
        let rest = run(&plan, cursor.epoch, cursor.position.0, batch, world_size, Tail::Pad);
        let mut all: Vec<SampleId> = taken.iter().flat_map(|s| s.rows.iter().map(|r| r.sample)).collect();
        all.extend(rest.iter().flatten().flatten().filter(|r| r.valid).map(|r| r.sample));
        all.sort_unstable();
        prop_assert_eq!(all, (0..plan.len()).map(SampleId).collect::<Vec<_>>());
    }

    #[test]
    fn a_filter_keeps_what_it_selects(
        blocks in prop::collection::vec(0u64..60, 1..12usize), shuffle in shuffles(), every in 1u64..7
    ) {
        let mut input = input(&blocks);
        let total = *input.block_starts.last().unwrap();
        prop_assume!(total > 0);
        let bits: BooleanBuffer = (0..total).map(|i| i % every == 0).collect();
        input.selection = Some(Selection::from_bools(bits, &input.block_starts));
        let starts = input.block_starts.clone();
        let plan = Plan::new(input, &shuffle).unwrap();
        let mut order = plan.epoch(0);
        let mut found: Vec<u64> = Vec::new();
        for p in 0..plan.len() {
            let at = order.sample_at(Position(p));
            prop_assert_eq!(starts[at.block.0 as usize] + u64::from(at.row), at.sample.0);
            found.push(at.sample.0);
            let extent = plan.extent_of(at.block, at.sample);
            prop_assert!(extent.row_of(at.sample).is_some(), "{extent:?}");
            prop_assert!(extent.first.0 >= starts[at.block.0 as usize]);
            prop_assert!(extent.range().end <= starts[at.block.0 as usize + 1]);
            prop_assert!(order.positions_of(extent).contains(&Position(p)));
        }
        found.sort_unstable();
        prop_assert_eq!(found, (0..total).step_by(every as usize).collect::<Vec<_>>());
        prop_assert_eq!(plan.digest(), order.steps(Position(0), &shape(1, 0, 1, Tail::Drop)).map(|s| s.rows[0].sample).collect());
    }
}

/// Returns the ranks that read a block, on average, over `steps` steps in the middle of an epoch.
fn ranks_per_block(plan: &Plan, batch: u64, world_size: u32) -> f64 {
    let mut readers: BTreeMap<BlockId, BTreeSet<u32>> = BTreeMap::new();
    for rank in 0..world_size {
        let shape = shape(batch, rank, world_size, Tail::Drop);
        for step in plan.epoch(0).steps(Position(0), &shape) {
            for row in step.rows {
                readers.entry(row.block).or_default().insert(rank);
            }
        }
    }
    readers.values().map(|r| r.len() as f64).sum::<f64>() / readers.len() as f64
}

#[test]
fn nearly_every_block_is_read_by_one_rank() {
    let plan = Plan::new(input(&[40; 5000]), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
    for world_size in [2, 3, 5, 8, 64] {
        for batch in [64, 96, 100, 128, 200, 256] {
            let ranks = ranks_per_block(&plan, batch * u64::from(world_size), world_size);
            assert!(ranks <= 1.3, "{world_size} ranks of {batch} rows: {ranks:.2} ranks a block");
        }
    }
}

#[test]
fn epochs_differ_and_repeat() {
    let plan = Plan::new(input(&[40; 100]), &Shuffle::seeded(1)).unwrap();
    let order = |epoch| {
        let mut order = plan.epoch(epoch);
        (0..plan.len()).map(|p| order.sample_at(Position(p)).sample.0).collect::<Vec<_>>()
    };
    assert_eq!(order(0), order(0));
    let moved = order(0).iter().zip(order(1)).filter(|(a, b)| **a != *b).count();
    assert!(moved > 3900, "{moved} of 4000 moved");
}

#[test]
fn no_shuffle_is_the_catalogs_order() {
    let plan = Plan::new(input(&[7, 0, 3]), &Shuffle::none()).unwrap();
    let mut order = plan.epoch(5);
    assert!((0..10).all(|p| order.sample_at(Position(p)).sample == SampleId(p)));
}

/// The order must be the same in every release: the first samples of known plans, by value.
#[test]
fn the_order_is_pinned() {
    let plan = Plan::new(input(&[10; 20]), &Shuffle::seeded(7).lanes(4).window(80)).unwrap();
    let mut order = plan.epoch(2);
    let ids: Vec<u64> = (0..12).map(|p| order.sample_at(Position(p)).sample.0).collect();
    assert_eq!(ids, PINNED);
    let pieces = Plan::new(input(&[10; 20]), &Shuffle::seeded(7).lanes(4).window(80).piece(3)).unwrap();
    let mut order = pieces.epoch(2);
    let ids: Vec<u64> = (0..12).map(|p| order.sample_at(Position(p)).sample.0).collect();
    assert_eq!(ids, PINNED_PIECES);
}
const PINNED_PIECES: [u64; 12] = [46, 56, 160, 148, 196, 10, 49, 23, 15, 31, 161, 14];
const PINNED: [u64; 12] = [87, 183, 168, 136, 143, 34, 165, 63, 80, 185, 169, 66];

#[test]
fn a_foreign_cursor_is_refused_by_name() {
    let plan = Plan::new(input(&[40; 100]), &Shuffle::seeded(1)).unwrap();
    let cursor = plan.cursor(0, Position(12));
    let mut other_catalog = input(&[40; 100]);
    other_catalog.data.identity += 1;
    let mut filtered = input(&[40; 100]);
    filtered.filter = Some("label < 3".into());
    let foreign = [
        ("catalog", Plan::new(other_catalog, &Shuffle::seeded(1))),
        ("filter", Plan::new(filtered, &Shuffle::seeded(1))),
        ("seed", Plan::new(input(&[40; 100]), &Shuffle::seeded(2))),
        ("lanes", Plan::new(input(&[40; 100]), &Shuffle::seeded(1).lanes(3))),
        ("window", Plan::new(input(&[40; 100]), &Shuffle::seeded(1).lanes(25).window(77))),
        ("shuffle", Plan::new(input(&[40; 100]), &Shuffle::full(1))),
    ];
    plan.check(&cursor).unwrap();
    for (field, other) in foreign {
        let message = other.unwrap().check(&cursor).unwrap_err().to_string();
        assert!(message.contains(&format!("its {field} is")), "{field}: {message}");
    }
    let past = plan.check(&plan.cursor(0, Position(4001))).unwrap_err().to_string();
    assert!(past.contains("4001") && past.contains("4000"), "{past}");
}

#[test]
fn shapes_without_batches_are_refused() {
    let plan = Plan::new(input(&[63]), &Shuffle::none()).unwrap();
    let larger = Plan::new(input(&[100]), &Shuffle::none()).unwrap();
    let name = |sample: SampleId| format!("sample {sample}");
    let empty = shape(64, 0, 1, Tail::Drop).check(&plan, &name).unwrap_err().to_string();
    assert!(empty.contains("63") && empty.contains("tail=pad"), "{empty}");
    shape(64, 0, 1, Tail::Pad).check(&plan, &name).unwrap();
    assert!(shape(4, 0, 8, Tail::Pad).check(&larger, &name).unwrap_err().to_string().contains("at least 8"));
    assert!(Plan::new(input(&[0, 0]), &Shuffle::seeded(1)).is_err());
    assert!(Plan::new(input(&[10]), &Shuffle::seeded(1).lanes(0)).is_err());
    assert!(Plan::new(input(&[10]), &Shuffle::seeded(1).window(0)).is_err());
}

#[test]
fn parts_of_few_lanes_have_equal_shares_of_every_stretch() {
    // Each of 8 lanes has 80 blocks; a window spans four of them and a stretch eight.
    let (lanes, block) = (8, 50);
    let window = u64::from(lanes) * 4 * block;
    let plan = Plan::new(input(&[block; 640]), &Shuffle::seeded(3).lanes(lanes).window(window)).unwrap();
    let strands = plan.strands();
    assert_eq!(strands.parts(), 64);
    let mut stretches = 0;
    for stretch in plan.epoch(1).steps(Position(0), &shape(2 * window, 0, 1, Tail::Short)) {
        let mut rows = [0; 64];
        stretch.rows.iter().for_each(|row| rows[strands.part_of(strands.of(row)) as usize] += 1);
        assert_eq!(rows, [block; 64]);
        stretches += 1;
    }
    assert_eq!(stretches, 10);
}
