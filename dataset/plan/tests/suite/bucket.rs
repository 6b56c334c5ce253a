//! Length bucketing and steps bounded by a total: the order keeps its guarantees, and padding shrinks.

use crate::order::extents;
use feedstock_base::{BlockId, Position, Rank, SampleId};
use feedstock_plan::{
    Cursor, Extent, Lengths, Plan, PlanInput, PlannedRow, Shuffle, Step, StepShape, StepSize, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const WORLD_SIZES: [u32; 6] = [1, 2, 3, 5, 8, 64];

fn input(blocks: &[u64]) -> PlanInput {
    crate::order::input_of(blocks, 40_000)
}

fn plan(samples: u64, shuffle: &Shuffle) -> Plan {
    let mut blocks = vec![7; usize::try_from(samples / 7).unwrap()];
    blocks.push(samples % 7);
    Plan::new(input(&blocks), shuffle).unwrap()
}

/// Audio clips of 1 to 12 s around 5 s, lognormal, the same for the same seed.
fn clips(samples: u64, seed: u64) -> Lengths {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let length = |_| {
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        (4.55 * (0.45 * normal).exp()).clamp(1.0, 12.0) as f32
    };
    Lengths::new("duration", (0..samples).map(length).collect())
}

fn shape(size: StepSize, rank: u32, world_size: u32, tail: Tail) -> StepShape {
    StepShape { size, rank: Rank::new(rank, world_size), tail }
}

fn name(sample: SampleId) -> String {
    format!("audio clip {sample}")
}

/// Returns the shortest of five runs: the time without interruptions.
fn quickest(mut work: impl FnMut()) -> Duration {
    let times = (0..5).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    });
    times.min().unwrap()
}

/// Returns the ranks' rows of every step from `position` on, after checking that all ranks take equal steps.
fn run(
    plan: &Plan,
    epoch: u64,
    from: u64,
    size: StepSize,
    world_size: u32,
    tail: Tail,
) -> Vec<(u64, Vec<Vec<PlannedRow>>)> {
    let mut steps: Vec<(u64, Vec<Vec<PlannedRow>>)> = Vec::new();
    for rank in 0..world_size {
        let shape = shape(size, rank, world_size, tail);
        shape.check(plan, &name).unwrap();
        let mut order = plan.epoch(epoch);
        let announced = order.steps_left(Position(from), &shape);
        let taken: Vec<_> = order.steps(Position(from), &shape).collect();
        assert_eq!(taken.len() as u64, announced, "announced steps");
        assert_eq!(plan.steps_left(epoch, Position(from), &shape), announced);
        if rank == 0 {
            steps.extend(taken.iter().map(|step| (step.next.0, Vec::new())));
        }
        assert_eq!(taken.len(), steps.len(), "every rank takes the same number of steps");
        for ((next, ranks), step) in steps.iter_mut().zip(taken) {
            assert_eq!(*next, step.next.0);
            assert_eq!(step.epoch, epoch);
            assert!(!step.rows.is_empty(), "rank {rank} of {world_size} has a row at {}", step.position);
            ranks.push(step.rows);
        }
    }
    steps
}

fn samples(ranks: &[Vec<PlannedRow>]) -> Vec<u64> {
    ranks.iter().flatten().map(|row| row.sample.0).collect()
}

fn padded_size(lengths: &Lengths, ranks: &[Vec<PlannedRow>]) -> f64 {
    let rows: Vec<&PlannedRow> = ranks.iter().flatten().collect();
    let longest = rows.iter().map(|row| lengths.values()[row.sample.0 as usize]).fold(0f32, f32::max);
    rows.len() as f64 * f64::from(longest)
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let window =
        (any::<u64>(), 1u32..20, 1u64..300).prop_map(|(s, c, w)| Shuffle::seeded(s).lanes(c).window(w));
    let pieces = (any::<u64>(), 1u32..20, 1u64..300, 1u32..30)
        .prop_map(|(s, c, w, k)| Shuffle::seeded(s).lanes(c).window(w).piece(k));
    let full = (any::<u64>(), 1u32..20).prop_map(|(s, c)| Shuffle::full(s).lanes(c));
    prop_oneof![4 => window, 4 => pieces, 1 => full, 1 => (1u32..20).prop_map(|c| Shuffle::none().lanes(c))]
}

/// Sizes that leave each of 64 ranks a row of twelve seconds.
fn sizes() -> impl Strategy<Value = StepSize> {
    let total = (768.0f64..3_000.0, 64u64..400).prop_map(|(total, max_rows)| StepSize::Total {
        total,
        max_rows,
        ranks: 1,
    });
    prop_oneof![(64u64..200).prop_map(StepSize::Rows), total]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bucketing_is_a_permutation_of_each_window(
        n in 1u64..1500, shuffle in shuffles(), group in sizes(), window in prop::option::of(1u64..900), seed: u64, epoch in 0u64..3
    ) {
        let base = plan(n, &shuffle);
        let bucketed = base.clone().bucketed(&clips(n, seed), window, group).unwrap();
        let (mut before, mut after) = (base.epoch(epoch), bucketed.epoch(epoch));
        let mut by_extent: BTreeMap<Extent, Vec<Position>> = BTreeMap::new();
        let ids: Vec<u64> = (0..n).map(|p| {
            let at = after.sample_at(Position(p));
            by_extent.entry(bucketed.extent_of(at.block, at.sample)).or_default().push(Position(p));
            at.sample.0
        }).collect();
        let window = match (bucketed.fingerprint().bucketing.as_ref().unwrap().window, group) {
            (window, StepSize::Rows(rows)) => window.div_ceil(rows) * rows,
            (window, StepSize::Total { .. }) => window,
        };
        for start in (0..n).step_by(window as usize) {
            let end = (start + window).min(n);
            let here: BTreeSet<u64> = ids[start as usize..end as usize].iter().copied().collect();
            let there: BTreeSet<u64> = (start..end).map(|p| before.sample_at(Position(p)).sample.0).collect();
            prop_assert_eq!(here, there, "samples stay in their window");
        }
        for (extent, positions) in by_extent {
            prop_assert!(after.earliest_position(extent).unwrap() <= positions[0]);
            prop_assert_eq!(after.positions_of(extent), positions);
        }
    }

    #[test]
    fn steps_are_the_same_for_every_world_size_and_within_the_bound(
        n in 64u64..2000, shuffle in shuffles(), group in sizes(), size in sizes(), bucket: bool, pad: bool, seed: u64, from: u64
    ) {
        let lengths = clips(n, seed);
        let plan = plan(n, &shuffle);
        let plan = if bucket { plan.bucketed(&lengths, None, group) } else { plan.with_lengths(&lengths) }.unwrap();
        let tail = if pad || n < size.max_rows() { Tail::Pad } else { Tail::Drop };
        let from = from % n;
        for world_size in WORLD_SIZES {
            let steps = run(&plan, 2, from, size, world_size, tail);
            let mut next = from;
            for (end, ranks) in &steps {
                let (least, most) = (ranks.iter().map(Vec::len).min().unwrap(), ranks.iter().map(Vec::len).max().unwrap());
                prop_assert!(most - least <= 1);
                let mut valid: Vec<u64> =
                    ranks.iter().flatten().filter(|row| row.valid).map(|row| row.position.0).collect();
                valid.sort_unstable();
                prop_assert_eq!(valid, (next..*end).collect::<Vec<_>>(), "a step is a run of positions");
                next = *end;
                match size {
                    StepSize::Rows(rows) => prop_assert_eq!(samples(ranks).len() as u64, rows),
                    StepSize::Total { total, max_rows, .. } => {
                        prop_assert!(padded_size(&lengths, ranks) <= total);
                        prop_assert!(samples(ranks).len() as u64 <= max_rows);
                    }
                }
            }
            let dropped = n - next;
            match (tail, size) {
                (Tail::Drop, StepSize::Rows(rows)) => prop_assert!(dropped < rows),
                (Tail::Drop, StepSize::Total { .. }) => prop_assert!(dropped < u64::from(world_size)),
                _ => prop_assert_eq!(dropped, 0),
            }
        }
    }

    #[test]
    fn any_step_boundary_resumes_with_any_other_shape(
        n in 64u64..1200, shuffle in shuffles(), group in sizes(), first in sizes(), then in sizes(), stop in 0usize..30,
        worlds in (1u32..9, 1u32..65), seed: u64
    ) {
        let lengths = clips(n, seed);
        let base = plan(n, &shuffle);
        let saved = base.clone().bucketed(&lengths, None, group).unwrap();
        let before = run(&saved, 1, 0, first, worlds.0, Tail::Pad);
        let stop = stop.min(before.len() - 1);
        let position = if stop == 0 { 0 } else { before[stop - 1].0 };
        let text = serde_json::to_string(&saved.cursor(1, Position(position))).unwrap();
        let cursor: Cursor = serde_json::from_str(&text).unwrap();
        // The resuming job buckets for its own batch size; the order that it continues is the saved one.
        let resumed = base.bucketed(&lengths, None, then).unwrap().regrouped_as(&cursor).unwrap();
        prop_assert_eq!(resumed.fingerprint(), saved.fingerprint());
        let same = run(&resumed, 1, position, first, worlds.0, Tail::Pad);
        prop_assert_eq!(&before[stop..], &same[..], "the same shape takes the same steps");
        let rest = run(&resumed, 1, position, then, worlds.1, Tail::Pad);
        let valid = |steps: &[(u64, Vec<Vec<PlannedRow>>)]| -> Vec<u64> {
            steps.iter().flat_map(|(_, ranks)| ranks.iter().flatten()).filter(|row| row.valid).map(|row| row.sample.0).collect()
        };
        let mut all = [valid(&before[..stop]), valid(&rest)].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..n).collect::<Vec<_>>(), "nothing lost, nothing repeated");
    }

    #[test]
    fn the_steps_that_use_a_block_are_foretold(
        n in 64u64..900, shuffle in shuffles(), group in sizes(), size in sizes(), bucket: bool, world_size in 1u32..9, from: u64, seed: u64
    ) {
        let lengths = clips(n, seed);
        let plan = plan(n, &shuffle);
        let plan = if bucket { plan.bucketed(&lengths, None, group) } else { plan.with_lengths(&lengths) }.unwrap();
        let from = Position(from % n);
        for rank in 0..world_size {
            let shape = shape(size, rank, world_size, Tail::Short);
            let mut used: BTreeMap<Extent, BTreeSet<Position>> = BTreeMap::new();
            for step in plan.epoch(1).steps(from, &shape) {
                for row in &step.rows {
                    used.entry(plan.extent_of(row.block, row.sample)).or_default().insert(step.position);
                }
            }
            let mut order = plan.epoch(1);
            for extent in extents(&plan) {
                let expected: Vec<Position> = used.remove(&extent).unwrap_or_default().into_iter().collect();
                prop_assert_eq!(order.steps_using_soon(extent, from, &shape), (expected.clone(), None), "all is soon");
                prop_assert_eq!(order.steps_using(extent, from, &shape), expected);
            }
        }
    }

    /// If every group has rows for all ranks, the batches do not depend on the world size.
    #[test]
    fn global_batches_do_not_depend_on_the_world_size(n in 64u64..1500, shuffle in shuffles(), group in sizes(), seed: u64) {
        let plan = plan(n, &shuffle).bucketed(&clips(n, seed), Some(n), group).unwrap();
        let of = |world_size| run(&plan, 0, 0, group, world_size, Tail::Short);
        let alone = of(1);
        prop_assume!(alone.iter().all(|(_, ranks)| ranks[0].len() >= 64));
        for world_size in WORLD_SIZES {
            let steps = of(world_size);
            prop_assert_eq!(steps.len(), alone.len());
            for (several, one) in steps.iter().zip(&alone) {
                prop_assert_eq!(samples(&several.1), samples(&one.1));
            }
        }
    }
}

/// The figures of the issue: audio clips of 1 to 12 s, 5 s on average, 32 to a batch.
#[test]
fn padding_shrinks_from_a_third_to_a_tenth() {
    let lengths = clips(20_000, 1);
    let mean = lengths.values().iter().sum::<f32>() / 20_000.0;
    assert!((4.8..5.2).contains(&mean), "{mean}");
    let plan = plan(20_000, &Shuffle::seeded(3).lanes(16).window(4_096)).with_lengths(&lengths).unwrap();
    for world_size in [1, 4] {
        let size = StepSize::Rows(32 * u64::from(world_size));
        let shape = shape(size, 0, world_size, Tail::Drop);
        let random = plan.epoch(0).padding_share(&shape).unwrap();
        let bucketed =
            plan.clone().bucketed(&lengths, None, size).unwrap().epoch(0).padding_share(&shape).unwrap();
        assert!(random > 0.30 && bucketed < 0.10, "{world_size} ranks: {random} {bucketed}");
        println!("{world_size} ranks: random {random:.3}, bucketed {bucketed:.3}");
    }
    let total = StepSize::Total { total: 160.0, max_rows: 128, ranks: 1 };
    let shape = shape(total, 0, 1, Tail::Drop);
    let random = plan.epoch(0).padding_share(&shape).unwrap();
    let bucketed =
        plan.clone().bucketed(&lengths, None, total).unwrap().epoch(0).padding_share(&shape).unwrap();
    assert!(random > 0.30 && bucketed < 0.10, "160 s: {random} {bucketed}");
}

#[test]
fn padding_is_counted_as_it_is_computed() {
    let lengths = Lengths::new("frames", vec![1.0, 2.0, 3.0, 10.0]);
    let plan = Plan::new(input(&[4]), &Shuffle::none()).unwrap();
    assert_eq!(plan.epoch(0).padding_share(&shape(StepSize::Rows(2), 0, 1, Tail::Drop)), None);
    let plan = plan.with_lengths(&lengths).unwrap();
    let share =
        |size, world_size, tail| plan.epoch(0).padding_share(&shape(size, 0, world_size, tail)).unwrap();
    assert!((share(StepSize::Rows(2), 1, Tail::Drop) - 8.0 / 24.0).abs() < 1e-9, "2 of 4 cells and 7 of 20");
    assert!(share(StepSize::Rows(2), 2, Tail::Drop).abs() < 1e-9, "one row a rank has no padding");
    // The last batch is audio clip 3, then audio clips 0 and 1 again: 30 cells, 20 of them repeated or empty.
    assert!((share(StepSize::Rows(3), 1, Tail::Pad) - (3.0 + 20.0) / 39.0).abs() < 1e-9);
}

#[test]
fn without_a_shuffle_the_longest_come_first() {
    let lengths = Lengths::new("frames", (0..10).map(|n| n as f32).collect());
    let plan = Plan::new(input(&[10]), &Shuffle::none()).unwrap();
    let plan = plan.bucketed(&lengths, Some(10), StepSize::Rows(4)).unwrap();
    let mut order = plan.epoch(0);
    let ids: Vec<u64> = (0..10).map(|p| order.sample_at(Position(p)).sample.0).collect();
    assert_eq!(ids, [6, 7, 8, 9, 2, 3, 4, 5, 0, 1]);
}

/// The bucketed order must be the same in every release.
#[test]
fn the_bucketed_order_is_pinned() {
    let lengths = Lengths::new("duration", (0..200).map(|n| (n * 37 % 101) as f32 / 8.0).collect());
    let plan = Plan::new(input(&[10; 20]), &Shuffle::seeded(7).lanes(4).window(80)).unwrap();
    let first = |plan: &Plan| -> Vec<u64> {
        let mut order = plan.epoch(2);
        (0..12).map(|p| order.sample_at(Position(p)).sample.0).collect()
    };
    let rows = plan.clone().bucketed(&lengths, None, StepSize::Rows(8)).unwrap();
    let total = plan
        .clone()
        .bucketed(&lengths, None, StepSize::Total { total: 60.0, max_rows: 16, ranks: 1 })
        .unwrap();
    assert_eq!((first(&rows), first(&total)), (PINNED_ROWS.to_vec(), PINNED_TOTAL.to_vec()));
    assert_eq!(serde_json::to_string(&total.cursor(2, Position(12))).unwrap(), PINNED_CURSOR);
    let before: Cursor = serde_json::from_str(&PINNED_CURSOR.replace(r#""blocks":1,"#, "")).unwrap();
    assert_eq!(before.fingerprint.blocks, None, "as releases before 0.2 saved it");
    total.check(&before).unwrap();
    assert_eq!(rows.regrouped_as(&before).unwrap().fingerprint(), total.fingerprint());
}
const PINNED_ROWS: [u64; 12] = [89, 149, 187, 37, 168, 26, 67, 138, 38, 30, 180, 169];
const PINNED_TOTAL: [u64; 12] = [146, 86, 34, 187, 165, 23, 26, 135, 64, 141, 81, 182];
const PINNED_CURSOR: &str = concat!(
    r#"{"fingerprint":{"version":1,"catalog":65261,"blocks":1,"filter":0,"shuffle":"window","#,
    r#""seed":7,"lanes":4,"window":80,"#,
    r#""bucketing":{"version":1,"column":"duration","window":80,"group":{"total":{"total":"60","max_rows":16}},"#,
    r#""lengths":13530110850185550158}},"epoch":2,"position":12}"#
);

#[test]
fn what_differs_from_the_saved_bucketing_is_named() {
    let lengths = clips(500, 1);
    let plan = plan(500, &Shuffle::seeded(1).lanes(4).window(100));
    let bucketed = plan.clone().bucketed(&lengths, None, StepSize::Rows(10)).unwrap();
    let cursor = bucketed.cursor(0, Position(20));
    bucketed.check(&cursor).unwrap();
    let renamed = Lengths::new("frames", lengths.values().to_vec());
    let mut changed = lengths.values().to_vec();
    changed[7] += 0.5;
    let foreign = [
        ("bucketing", plan.clone()),
        ("bucketing", plan.clone().bucketed(&renamed, None, StepSize::Rows(10)).unwrap()),
        ("bucketing window", plan.clone().bucketed(&lengths, Some(77), StepSize::Rows(10)).unwrap()),
        (
            "lengths",
            plan.clone()
                .bucketed(&Lengths::new("duration", changed.clone()), None, StepSize::Rows(10))
                .unwrap(),
        ),
    ];
    for (field, other) in foreign {
        let message = other.regrouped_as(&cursor).unwrap_err().to_string();
        assert!(message.contains(&format!("its {field} is")), "{field}: {message}");
    }
    let other = plan.clone().bucketed(&Lengths::new("duration", changed), None, StepSize::Rows(10)).unwrap();
    assert!(other.fingerprint().has_other_lengths(bucketed.fingerprint()));
    assert!(!bucketed.fingerprint().has_other_lengths(bucketed.fingerprint()));
    let error = other.regrouped_as(&cursor).unwrap_err().to_string();
    assert!(error.contains("on_change=next_epoch"), "{error}");
    assert_eq!(other.next_epoch_of(&cursor).unwrap(), other.cursor(1, Position(0)));
    let unbucketed = plan.cursor(0, Position(20));
    assert!(!serde_json::to_string(&unbucketed).unwrap().contains("bucketing"), "old cursors still load");
    assert!(bucketed.check(&unbucketed).unwrap_err().to_string().contains("its bucketing is off"));
    let other_group =
        plan.bucketed(&lengths, None, StepSize::Total { total: 300.0, max_rows: 30, ranks: 1 }).unwrap();
    assert!(other_group.check(&cursor).unwrap_err().to_string().contains("regrouped_as"));
    other_group.regrouped_as(&cursor).unwrap().check(&cursor).unwrap();
}

#[test]
fn what_no_batch_can_hold_is_named() {
    let plan = Plan::new(input(&[4]), &Shuffle::none()).unwrap();
    let lengths = Lengths::new("duration", vec![1.0, 9.5, 3.0, 2.0]);
    let known = plan.clone().with_lengths(&lengths).unwrap();
    let total = |total| StepSize::Total { total, max_rows: 100, ranks: 1 };
    let refused = |plan: &Plan, size, world_size| {
        shape(size, 0, world_size, Tail::Drop).check(plan, &name).unwrap_err().to_string()
    };
    let alone = refused(&known, total(9.0), 1);
    assert!(
        alone.contains("audio clip 1") && alone.contains("9.5") && alone.contains("duration <= 9"),
        "{alone}"
    );
    let together = refused(&known, total(18.0), 2);
    assert!(
        together.contains("audio clip 1") && together.contains("19") && together.contains("2 ranks"),
        "{together}"
    );
    shape(total(19.0), 1, 2, Tail::Drop).check(&known, &name).unwrap();
    assert!(refused(&plan, total(19.0), 1).contains("lengths"));
    assert!(
        refused(&known, StepSize::Total { total: 19.0, max_rows: 1, ranks: 1 }, 2).contains("at least 2")
    );
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(&known, total(bad), 1).contains("must be a finite number"));
    }
    let grouped = plan.clone().bucketed(&lengths, None, total(9.0)).unwrap_err().to_string();
    assert!(grouped.contains("sample 1") && grouped.contains("9.5"), "{grouped}");
    assert!(plan.clone().bucketed(&lengths, Some(0), total(19.0)).is_err());
    assert!(plan.clone().bucketed(&lengths, None, StepSize::Rows(0)).is_err());
    assert!(
        plan.clone()
            .bucketed(&lengths, None, StepSize::Rows(1 << 33))
            .unwrap_err()
            .to_string()
            .contains("2³²")
    );
    for bad in [f32::NAN, f32::INFINITY, -0.5] {
        let lengths = Lengths::new("duration", vec![1.0, 2.0, bad, 2.0]);
        let message = plan.clone().with_lengths(&lengths).unwrap_err().to_string();
        assert!(message.contains("sample 2") && message.contains("duration is not null"), "{message}");
    }
    assert!(plan.with_lengths(&Lengths::new("duration", vec![1.0])).is_err(), "too few lengths");
}

/// Measures the ranks that read a block, on average: a rank's run of a group is on few lanes.
#[test]
fn most_blocks_are_read_by_few_ranks() {
    let lengths = clips(200_000, 5);
    let plan = Plan::new(input(&[100; 2000]), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
    for (world_size, limit) in [(2u32, 1.3), (3, 1.4), (5, 1.6), (8, 1.7), (64, 3.2)] {
        let size = StepSize::Rows(64 * u64::from(world_size));
        let plan = plan.clone().bucketed(&lengths, None, size).unwrap();
        let mut readers: BTreeMap<BlockId, BTreeSet<u32>> = BTreeMap::new();
        for (_, ranks) in run(&plan, 0, 0, size, world_size, Tail::Drop) {
            for (rank, rows) in (0u32..).zip(ranks) {
                rows.iter().for_each(|row| readers.entry(row.block).or_default().extend([rank]));
            }
        }
        let ranks = readers.values().map(|ranks| ranks.len() as f64).sum::<f64>() / readers.len() as f64;
        println!("{world_size} ranks: {ranks:.2} ranks a block");
        assert!(ranks <= limit, "{world_size} ranks: {ranks:.2} ranks a block");
    }
}

/// The driver checks every block of a step before it fetches one. That must not walk the epoch, though blocks on the border of
/// two lanes are needed at both of its ends.
fn extents_of(plan: &Plan, step: &Step) -> BTreeSet<Extent> {
    step.rows.iter().map(|row| plan.extent_of(row.block, row.sample)).collect()
}

#[test]
fn foretelling_the_first_step_walks_no_epoch() {
    const CLIPS: u64 = 2_000_000;
    let lengths = clips(CLIPS, 5);
    let blocks = vec![100; CLIPS as usize / 100];
    let plan = Plan::new(input(&blocks), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
    let size = StepSize::Total { total: 8.0 * 160.0, max_rows: 1024, ranks: 1 };
    for plan in [plan.clone().with_lengths(&lengths).unwrap(), plan.bucketed(&lengths, None, size).unwrap()] {
        let shape = shape(size, 3, 8, Tail::Drop);
        let mut steps = 0;
        let walk = quickest(|| steps = plan.epoch(0).steps_left(Position(0), &shape)); // an order remembers its walk
        let mut order = plan.epoch(0);
        let first: Vec<_> = order.clone().steps(Position(0), &shape).take(64).collect();
        let (mut foretold, mut later) = (0, 0);
        for step in &first {
            for extent in extents_of(&plan, step) {
                let (starts, beyond) = order.steps_using_soon(extent, step.position, &shape);
                assert_eq!(starts[0], step.position);
                foretold += 1;
                let Some(beyond) = beyond else { continue };
                later += 1;
                // The rest begins no earlier than predicted, and nothing before it is left out.
                if later > 3 {
                    continue; // each costs a walk
                }
                let all = order.clone().steps_using(extent, step.position, &shape);
                let known = all.iter().filter(|start| **start <= *starts.last().unwrap()).count();
                assert_eq!(all[..known], starts[..]);
                assert!(order.positions_of(extent).iter().any(|p| *p >= beyond));
                assert!(all[known..].iter().all(|start| start.0 + 1024 > beyond.0), "{all:?} {beyond}");
            }
        }
        assert!(foretold > 300 && later > 0, "{later} of {foretold} blocks are on a border");
        let soon = quickest(|| {
            let mut order = plan.epoch(0);
            for step in &first {
                for extent in extents_of(&plan, step) {
                    order.steps_using_soon(extent, step.position, &shape);
                }
            }
        });
        println!(
            "{steps} steps walked in {walk:?}, {foretold} blocks ({later} on borders) predicted in {soon:?}"
        );
        assert!(soon < walk / 3, "{soon:?}, compared with {walk:?} for a walk");
    }
}

/// A block's samples are spread over the shuffle's window, however small the windows of bucketing are.
#[test]
fn small_bucketing_windows_are_not_sorted_again_for_every_block() {
    let lengths = clips(200_000, 5);
    let base = Plan::new(input(&[100; 2000]), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
    let size = StepSize::Rows(64);
    let shape = shape(size, 0, 1, Tail::Drop);
    let walk = |window| {
        let plan = base.clone().bucketed(&lengths, Some(window), size).unwrap();
        quickest(|| {
            let mut order = plan.epoch(0);
            let mut known: BTreeSet<Extent> = BTreeSet::new();
            for step in plan.epoch(0).steps(Position(0), &shape).take(500) {
                for row in &step.rows {
                    let extent = plan.extent_of(row.block, row.sample);
                    if known.insert(extent) {
                        assert!(!order.steps_using(extent, step.position, &shape).is_empty());
                    }
                }
            }
        })
    };
    let (whole, small) = (walk(16_384), walk(256));
    println!("windows of 16,384: {whole:?}, of 256: {small:?}");
    assert!(small < whole * 6, "{small:?}, compared with {whole:?}");
}

/// A run that continued with another batch size requests the steps left from its position, and those of the whole epoch, in
/// turn: both walks are remembered.
#[test]
fn steps_are_counted_once_after_a_resume_with_another_shape() {
    let lengths = clips(300_000, 5);
    let plan = Plan::new(input(&[100; 3000]), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
    let plan = plan.with_lengths(&lengths).unwrap();
    let shape = shape(StepSize::Total { total: 160.0, max_rows: 128, ranks: 1 }, 0, 1, Tail::Drop);
    let begun = std::time::Instant::now();
    let (whole, left) =
        (plan.steps_left(0, Position(0), &shape), plan.steps_left(0, Position(100_001), &shape));
    let walked = begun.elapsed();
    let begun = std::time::Instant::now();
    for _ in 0..50 {
        assert_eq!(plan.steps_left(0, Position(100_001), &shape), left);
        assert_eq!(plan.steps_left(0, Position(0), &shape), whole);
    }
    let again = begun.elapsed();
    println!("{whole} and {left} steps walked in {walked:?}, 50 times again in {again:?}");
    assert!(again < walked, "{again:?}, compared with {walked:?}");
}

/// A million audio clips are counted in a fraction of a second: a tenth of them takes about a tenth of the time.
#[test]
fn counting_takes_as_long_as_there_are_clips() {
    let count = |samples: u64| {
        let lengths = clips(samples, 5);
        let blocks = vec![100; usize::try_from(samples / 100).unwrap()];
        let plan = Plan::new(input(&blocks), &Shuffle::seeded(1).lanes(64).window(16_384)).unwrap();
        let size = StepSize::Total { total: 8.0 * 160.0, max_rows: 1024, ranks: 1 };
        let plan = plan.bucketed(&lengths, None, size).unwrap();
        let shape = shape(size, 3, 8, Tail::Drop);
        let mut steps = 0;
        let counted = quickest(|| steps = plan.epoch(0).steps_left(Position(0), &shape));
        println!("{steps} steps of {samples} audio clips counted in {counted:?}");
        assert_eq!(plan.epoch(0).steps(Position(0), &shape).count() as u64, steps);
        counted
    };
    let (part, whole) = (count(100_000), count(1_000_000));
    assert!(whole < part * 40, "{whole:?}, compared with {part:?} for a tenth");
}
