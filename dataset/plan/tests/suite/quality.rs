//! How well an order mixes: sampled steps against whole epochs, known orders and a full shuffle.

use crate::order::input_of;
use arrow_buffer::BooleanBuffer;
use feedstock_base::{BlockId, Position, Rank, SampleId};
use feedstock_plan::{
    Access, EpochReads, Extent, ExtentReads, LabelMix, Lengths, Plan, PlanInput, SampledSteps, Selection,
    Shuffle, StepShape, StepSize, Stop, Tail,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// 1,000 classes of 128 samples, sorted by class; 110 kB a sample, so blocks of 4 MiB have 38.
const SAMPLES: u64 = 128_000;
const BLOCK: u64 = 38;
const BATCH: u64 = 1_024;
/// Blocks of a shard: 134 MB.
const SHARD: usize = 32;

fn sorted_classes() -> PlanInput {
    let mut blocks = vec![BLOCK; (SAMPLES / BLOCK) as usize];
    blocks.push(SAMPLES % BLOCK);
    input_of(&blocks, 110_000)
}

fn class(sample: SampleId) -> u64 {
    sample.0 / 128
}

fn shape(global_batch: u64, world_size: u32) -> StepShape {
    StepShape { size: StepSize::Rows(global_batch), rank: Rank::new(0, world_size), tail: Tail::Drop }
}

/// Makes the plan of objects, or row groups, of `blocks` blocks each: a request can read over the end of the others.
fn in_objects(input: PlanInput, blocks: usize, shuffle: &Shuffle) -> Plan {
    let continued = (1..input.block_starts.len()).map(|block| !block.is_multiple_of(blocks)).collect();
    Plan::new(input, shuffle).unwrap().with_continued_blocks(continued)
}

fn sampled(shuffle: &Shuffle) -> (Plan, SampledSteps) {
    let plan = in_objects(sorted_classes(), SHARD, shuffle);
    let sampled = SampledSteps::new(&plan, 0, &shape(BATCH, 8)).unwrap();
    (plan, sampled)
}

fn about(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not about {expected}");
}

fn is(found: LabelMix, labels: f64, bits: f64) {
    about(found.labels, labels, 0.03);
    about(found.entropy_bits, bits, 0.01);
}

#[test]
fn the_labels_of_class_sorted_data_are_those_of_a_measured_epoch() {
    let (_, default) = sampled(&Shuffle::seeded(7));
    is(default.global_labels(64, &class), 187.0, 7.26);
    let (_, wide) = sampled(&Shuffle::seeded(7).window(16_384));
    is(wide.global_labels(64, &class), 386.0, 8.35);
    let (full_plan, full) = sampled(&Shuffle::full(7));
    is(full.global_labels(64, &class), 642.0, 9.16);
    let reference = default.like(&full_plan);
    is(reference.global_labels(64, &class), 642.0, 9.16);
    assert_eq!(reference.global_labels(64, &class), full.global_labels(64, &class));
    is(reference.global_labels(16, &class), 642.0, 9.16); // a prefix is a sample, too
    // 128 rows of 1,000 classes: 1,000 × (1 − 0.999^128) classes.
    is(reference.rank_labels(64, &class), 120.2, 6.88);
    assert!(default.rank_labels(64, &class).entropy_bits < 0.9 * 6.88);
}

/// Prints the table of `docs/shuffle.md`, with `--nocapture`: a wider window mixes more and reads the same.
#[test]
fn the_table_of_the_documentation() {
    let (full_plan, full) = sampled(&Shuffle::full(7));
    let (global, rank) = (full.global_labels(64, &class), full.rank_labels(64, &class));
    let shard = |block: BlockId| block.0 / 32; // 134 MB
    let mut before = 0.0;
    let window = |samples| Shuffle::seeded(7).window(samples);
    let orders =
        [Shuffle::none(), window(1_220), window(2_440), Shuffle::seeded(7), window(9_760), window(16_384)];
    for shuffle in orders.into_iter().chain([window(65_536), Shuffle::full(7)]) {
        let (plan, steps) = sampled(&shuffle);
        let mix = steps.global_labels(64, &class);
        let ratio = mix.entropy_bits / global.entropy_bits;
        let of_rank = steps.rank_labels(64, &class).entropy_bits / rank.entropy_bits;
        let reads = steps.reads(&plan, &stored).unwrap();
        println!(
            "| {:?} | {} | {} | {:.0} | {:.2} | {ratio:.2} | {of_rank:.2} | {:.1} % | {:.2} | {:.0} |",
            plan.fingerprint().shuffle,
            plan.fingerprint().window,
            plan.fingerprint().lanes,
            mix.labels,
            mix.entropy_bits,
            steps.same_shard_pairs(&shard).unwrap() * 100.0,
            reads.readers,
            reads.requests / 8.0,
        );
        assert!(ratio > before && ratio <= 1.001, "{ratio} after {before}");
        before = ratio;
    }
    about(full.reads(&full_plan, &stored).unwrap().requests, SAMPLES as f64, 1e-9);
}

/// Prints the table of pieces of `docs/shuffle.md`, with `--nocapture`.
#[test]
fn pieces_mix_like_a_full_shuffle() {
    let (_, full) = sampled(&Shuffle::full(7));
    let (global, rank) = (full.global_labels(64, &class), full.rank_labels(64, &class));
    let ratios = |shuffle: &Shuffle| {
        let (plan, steps) = sampled(shuffle);
        let of_global = steps.global_labels(64, &class).entropy_bits / global.entropy_bits;
        let of_rank = steps.rank_labels(64, &class).entropy_bits / rank.entropy_bits;
        let reads = steps.reads(&plan, &stored).unwrap();
        let print = plan.fingerprint();
        println!(
            "| {} | {of_global:.3} | {of_rank:.3} | {:.3} | {:.0} |",
            print.describe_shuffle(),
            reads.bytes / (SAMPLES * 110_000) as f64,
            reads.requests
        );
        (of_global, of_rank, reads)
    };
    let mib = |bytes: u64| Shuffle::seeded(7).shuffle_bytes(bytes << 20);
    for pieces in [1, 2, 3, 4, 8, 38] {
        for size in [256, 512, 2_048] {
            ratios(&mib(size).piece(pieces));
        }
    }
    // The default of tars on object storage, within 350 MiB: 640,000 requests for 1.28 million images.
    let (of_global, _, reads) = ratios(&mib(256).piece(2));
    assert!(of_global >= 0.97 && reads.requests <= 64_000.5, "{of_global} {reads:?}");
    // Within 512 MiB: 427,400 requests. Only the ends of shards cut pieces.
    let (of_global, _, reads) = ratios(&mib(512).piece(3));
    assert!(of_global >= 0.97 && reads.requests <= 43_000.0, "{of_global} {reads:?}");
    // Eight ranks with 256 MiB each.
    let (of_global, of_rank, _) = ratios(&mib(2_048).piece(2));
    assert!(of_global >= 0.99 && of_rank >= 0.95, "{of_global} {of_rank}");
}

/// Prints the rows of Parquet with pages of 1 to 3 samples in the table of `docs/shuffle.md`, with `--nocapture`.
#[test]
fn pages_mix_like_a_full_shuffle() {
    let (_, full) = sampled(&Shuffle::full(7));
    let (global, rank) = (full.global_labels(64, &class), full.rank_labels(64, &class));
    for (samples, page) in [(1, Access::Ranges), (2, pages(2)), (3, pages(3))] {
        // A rank reads the labels of a row group of 32 MiB with one request.
        let labels = 8 * SAMPLES.div_ceil((32 << 20) / 110_000 / samples * samples);
        let block = BLOCK / samples * samples;
        let in_group = (32 << 20) / 110_000 / block;
        let mut blocks = vec![block; (SAMPLES / block) as usize];
        blocks.extend(Some(SAMPLES % block).filter(|rest| *rest > 0));
        let input = PlanInput { access: page, ..input_of(&blocks, 110_000) };
        let (of_global, of_rank, requests) = {
            let plan = in_objects(input, in_group as usize, &Shuffle::seeded(7));
            let steps = SampledSteps::new(&plan, 0, &shape(BATCH, 8)).unwrap();
            let reads = steps.reads(&plan, &stored).unwrap();
            let of_global = steps.global_labels(64, &class).entropy_bits / global.entropy_bits;
            let of_rank = steps.rank_labels(64, &class).entropy_bits / rank.entropy_bits;
            let bytes = reads.bytes / (SAMPLES * 110_000) as f64;
            let requests = reads.requests + labels as f64;
            let order = plan.fingerprint().describe_shuffle();
            println!(
                "| pages of {samples}: {order} | {of_global:.3} | {of_rank:.3} | {bytes:.3} | {requests:.0} |"
            );
            assert!(bytes <= 1.05, "{bytes} of the data are read");
            (of_global, of_rank, requests)
        };
        assert!(of_global >= 0.97 && of_rank >= 0.95, "pages of {samples}: {of_global} {of_rank}");
        let pieces = SAMPLES.div_ceil(samples.max(2)) as f64;
        assert!(requests <= pieces * 1.15, "pages of {samples}: {requests} requests for {pieces} pieces");
    }
}

#[test]
fn default_pieces_are_whole_pages() {
    let input = |blocks: &[u64], sample_bytes, samples, is_local| PlanInput {
        access: Access::Pages { samples, is_local },
        ..input_of(blocks, sample_bytes)
    };
    let piece = |input: PlanInput, shuffle: Shuffle| Plan::new(input, &shuffle).unwrap().fingerprint().piece;
    let default = || Shuffle::seeded(7);
    assert_eq!(piece(input(&[390; 20], 110_000, 3, false), default()), Some(3));
    assert_eq!(piece(input(&[390; 20], 10_000, 3, false), default()), Some(24)); // 240 kB
    assert_eq!(piece(input(&[390; 20], 10_000, 3, true), default()), Some(3)); // on a local disk
    assert_eq!(piece(input(&[7; 20], 10_000, 3, false), default()), Some(6)); // at most a block
    assert_eq!(piece(input(&[2; 20], 10_000, 3, false), default()), Some(3)); // at least a page
    assert_eq!(piece(input(&[390; 20], 10_000, 3, false), default().piece(5)), Some(5));
    assert_eq!(piece(input(&[390; 20], 10_000, 3, false), default().window(1_000)), None);
    let mut filtered = input(&[390; 20], 10_000, 3, false);
    let kept = BooleanBuffer::collect_bool(7_800, |sample| sample > 100);
    filtered.selection = Some(Selection::from_bools(kept, &filtered.block_starts));
    assert_eq!(piece(filtered, default()), None);
    let window = |sample_bytes| {
        Plan::new(input(&[3_000; 20], sample_bytes, 3, false), &default()).unwrap().fingerprint().window
    };
    assert_eq!((window(80_000), window(100_000)), ((256 << 20) / 80_000, (512 << 20) / 100_000));
}

fn pages(samples: u32) -> Access {
    Access::Pages { samples, is_local: false }
}

#[test]
fn sampled_figures_are_those_of_the_whole_epoch() {
    let (plan, sampled) = sampled(&Shuffle::seeded(3).window(4_000));
    assert_eq!((sampled.steps(), sampled.rows_per_step()), (64, 1_024.0));
    let (mut order, shape) = (plan.epoch(0), shape(BATCH, 1));
    let steps: Vec<_> = order.steps(Position(0), &shape).collect();
    let (mut pairs, mut moved, mut labels) = (0.0, 0.0, 0.0);
    for step in &steps {
        let mut shards: BTreeMap<u32, f64> = BTreeMap::new();
        for row in &step.rows {
            *shards.entry(row.block.0 / 10).or_default() += 1.0;
            moved += row.position.0.abs_diff(row.sample.0) as f64;
        }
        pairs += shards.values().map(|n| n * (n - 1.0)).sum::<f64>() / (1_024.0 * 1_023.0);
        labels += step.rows.iter().map(|row| class(row.sample)).collect::<BTreeSet<_>>().len() as f64;
    }
    let steps = steps.len() as f64;
    about(sampled.same_shard_pairs(&|block| block.0 / 10).unwrap(), pairs / steps, 0.03);
    about(sampled.displacement(&plan).unwrap(), moved / steps / 1_024.0 / SAMPLES as f64, 0.03);
    about(sampled.global_labels(64, &class).labels, labels / steps, 0.02);
}

#[test]
fn known_orders_have_known_figures() {
    let (none_plan, none) = sampled(&Shuffle::none());
    assert_eq!(none.displacement(&none_plan), Some(0.0));
    assert_eq!(none.global_labels(64, &class), LabelMix { entropy_bits: 3.0, labels: 8.0 }); // 8 classes of 128
    assert_eq!(none.rank_labels(64, &class), LabelMix { entropy_bits: 0.0, labels: 1.0 });
    assert_eq!(none.same_shard_pairs(&|_| 0), Some(1.0));
    let (full_plan, full) = sampled(&Shuffle::full(7));
    about(full.displacement(&full_plan).unwrap(), 1.0 / 3.0, 0.01);
    // 3,369 blocks in shards of 337: about a tenth of the pairs.
    about(full.same_shard_pairs(&|block| block.0 / 337).unwrap(), 0.1, 0.01);
}

fn stored(extent: Extent) -> ExtentReads {
    ExtentReads { requests: 1, bytes: u64::from(extent.samples) * 110_000 }
}

#[test]
fn reads_are_those_of_all_ranks() {
    let bytes = SAMPLES as f64 * 110_000.0;
    for (shuffle, batch, world_size) in [
        (Shuffle::seeded(7), BATCH, 1),
        (Shuffle::seeded(7), BATCH, 8),
        (Shuffle::seeded(7).lanes(30), 96, 3), // 32 rows a rank do not divide 30 lanes
        (Shuffle::none(), BATCH, 8),
    ] {
        let plan = Plan::new(sorted_classes(), &shuffle).unwrap();
        let shape = shape(batch, world_size);
        let reads = SampledSteps::new(&plan, 0, &shape).unwrap().reads(&plan, &stored).unwrap();
        let mut pairs = 0u64;
        for rank in 0..world_size {
            let mut order = plan.epoch(0);
            let shape = StepShape { rank: Rank::new(rank, world_size), ..shape };
            let steps = order.steps(Position(0), &shape);
            pairs +=
                steps.flat_map(|step| step.rows).map(|row| row.block).collect::<BTreeSet<_>>().len() as u64;
        }
        about(reads.requests, pairs as f64, 0.03);
        about(reads.bytes / reads.readers, bytes, 0.01);
        about(reads.readers, pairs as f64 / 3_369.0, 0.03);
    }
    let (full_plan, full) = sampled(&Shuffle::full(7));
    let EpochReads { requests, bytes: read, readers } = full.reads(&full_plan, &stored).unwrap();
    about(requests, SAMPLES as f64, 1e-9);
    about(read, bytes, 1e-9);
    about(readers, 1.0, 1e-9);
}

#[test]
fn a_filter_counts_ranks_among_the_samples_that_it_keeps() {
    // The first tenth of the catalog: ids are 0 … 0.1 of it, ranks among the kept samples are 0 … 1.
    let mut input = sorted_classes();
    let kept = BooleanBuffer::collect_bool(SAMPLES as usize, |sample| sample < SAMPLES as usize / 10);
    input.selection = Some(Selection::from_bools(kept, &input.block_starts));
    let plan = Plan::new(input, &Shuffle::full(7)).unwrap();
    let sampled = SampledSteps::new(&plan, 0, &shape(256, 1)).unwrap();
    about(sampled.displacement(&plan).unwrap(), 1.0 / 3.0, 0.02);
}

#[test]
fn bucketed_steps_under_a_total_are_sampled() {
    let lengths = Lengths::new("duration", (0..SAMPLES).map(|n| 1.0 + (n * 7 % 13) as f32).collect());
    let size = StepSize::Total { total: 512.0, max_rows: 4_096, ranks: 4 };
    let plan = Plan::new(sorted_classes(), &Shuffle::seeded(7)).unwrap();
    let plan = plan.bucketed(&lengths, None, size).unwrap();
    let shape = StepShape { size, rank: Rank::new(0, 4), tail: Tail::Drop };
    let sampled = SampledSteps::new(&plan, 0, &shape).unwrap();
    let real = SAMPLES as f64 / plan.steps_left(0, Position(0), &shape) as f64;
    about(sampled.rows_per_step(), real, 0.1);
    let reads = sampled.reads(&plan, &stored).unwrap();
    assert!(reads.readers > 3.0, "a bucketed order cuts batches by length, not by lane: {reads:?}");
    let reference = sampled.like(&Plan::new(sorted_classes(), &Shuffle::full(7)).unwrap());
    assert_eq!(reference.rows_per_step(), sampled.rows_per_step());
}

#[test]
fn mixes_have_figures_and_an_endless_one_has_no_epoch_to_read() {
    let mix = |stop, shuffle: &Shuffle| {
        let small = input_of(&[38; 50], 110_000);
        Plan::mixed(vec![(sorted_classes(), 3.0), (small, 1.0)], stop, shuffle).unwrap()
    };
    let plan = mix(Stop::AllExhausted, &Shuffle::seeded(7));
    let sampled = SampledSteps::new(&plan, 0, &shape(BATCH, 4)).unwrap();
    assert_eq!(sampled.displacement(&plan), None);
    let reads = sampled.reads(&plan, &stored).unwrap();
    // The small part is read again in each of its passes.
    about(reads.requests / reads.readers, plan.len() as f64 / 38.0, 0.03);
    let endless = mix(Stop::Never, &Shuffle::seeded(7));
    let sampled = SampledSteps::new(&endless, 0, &shape(BATCH, 4)).unwrap();
    assert_eq!(sampled.reads(&endless, &stored), None);
    assert_eq!(sampled.steps(), 64);
    assert!(sampled.samples(64).count() == 64 * 1_024);
    assert_eq!(sampled.like(&mix(Stop::Never, &Shuffle::full(7))).steps(), 64);
}

#[test]
fn a_step_that_is_too_large_is_an_error() {
    let plan = Plan::new(input_of(&[1 << 20; 2], 1_000), &Shuffle::seeded(7)).unwrap();
    let error = SampledSteps::new(&plan, 0, &shape(1 << 20, 1)).unwrap_err();
    assert_eq!(
        error.message(),
        "the quality of a shuffle is measured for at most 262144 rows in a global batch; got 1048576"
    );
    // A step never has more rows than the epoch.
    let plan = Plan::new(input_of(&[1_000], 1_000), &Shuffle::seeded(7)).unwrap();
    let padded = |world_size| StepShape { tail: Tail::Pad, ..shape(u64::MAX, world_size) };
    assert_eq!(SampledSteps::new(&plan, 0, &padded(8)).unwrap().steps(), 1);
    for (shape, message) in [
        (padded(u32::MAX), "for at most 262144 ranks; got 4294967295"),
        (shape(0, 1), "a step must have at least 1 row; got 0"),
        (shape(1_001, 1), "fewer than one global batch of 1001"),
        (shape(4, 5), "leaves some of the 5 ranks without rows"),
    ] {
        let error = SampledSteps::new(&plan, 0, &shape).unwrap_err();
        assert!(error.message().contains(message), "{error}");
    }
    let late = SampledSteps::new(&plan, u64::MAX, &shape(100, 1)).unwrap_err();
    assert!(late.message().contains("is past the last that can be counted"), "{late}");
}

#[test]
fn the_time_does_not_grow_with_the_number_of_steps() {
    let time = |blocks: usize| {
        let plan = Plan::new(input_of(&vec![BLOCK; blocks], 110_000), &Shuffle::seeded(7)).unwrap();
        let start = Instant::now();
        let sampled = SampledSteps::new(&plan, 0, &shape(BATCH, 8)).unwrap();
        sampled.reads(&plan, &stored).unwrap();
        assert!(sampled.displacement(&plan).is_some());
        start.elapsed()
    };
    let small = time(10_000);
    let large = time(1_000_000);
    assert!(large < 20 * small, "100 × the samples take {large:?}, not about {small:?}");
}

/// 10⁹ samples of 110 kB: `cargo test -p feedstock-plan -- --ignored billion --nocapture` prints the time.
#[test]
#[ignore = "3 GB of memory"]
fn a_billion_samples_take_seconds() {
    let plan = Plan::new(input_of(&vec![BLOCK; 26_315_790], 110_000), &Shuffle::seeded(7)).unwrap();
    let start = Instant::now();
    let sampled = SampledSteps::new(&plan, 0, &shape(BATCH, 64)).unwrap();
    let reads = sampled.reads(&plan, &stored);
    let moved = sampled.displacement(&plan);
    println!("{} samples: {:?}, {reads:?}, displacement {moved:?}", plan.len(), start.elapsed());
    assert!(start.elapsed().as_secs() < 30);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn figures_are_in_range_for_any_order(
        blocks in prop::collection::vec(0u64..60, 1..30usize), seed: u64, window in 1u64..600, lanes in 1u32..70,
        batch in 1u64..200, world_size in 1u32..9, kind in 0..3, pad: bool,
    ) {
        let samples = blocks.iter().sum::<u64>();
        prop_assume!(samples > 0 && batch >= u64::from(world_size) && (pad || samples >= batch));
        let shuffle = match kind {
            0 => Shuffle::seeded(seed).window(window),
            1 => Shuffle::full(seed),
            _ => Shuffle::none(),
        };
        let plan = Plan::new(input_of(&blocks, 1_000), &shuffle.lanes(lanes)).unwrap();
        let tail = if pad { Tail::Pad } else { Tail::Drop };
        let sampled = SampledSteps::new(&plan, 1, &StepShape { tail, ..shape(batch, world_size) }).unwrap();
        prop_assert!(sampled.steps() >= 1);
        for mix in [sampled.global_labels(64, &|s| s.0 % 7), sampled.rank_labels(64, &|s| s.0 % 7)] {
            prop_assert!((0.0..=7f64.log2() + 1e-9).contains(&mix.entropy_bits.abs()), "{mix:?}");
            prop_assert!((1.0..=7.0).contains(&mix.labels), "{mix:?}");
        }
        let pairs = sampled.same_shard_pairs(&|block| block.0);
        prop_assert!(pairs.is_none_or(|share| (0.0..=1.0).contains(&share)));
        prop_assert!((0.0..=1.0).contains(&sampled.displacement(&plan).unwrap()));
        let reads = sampled.reads(&plan, &stored).unwrap();
        prop_assert!((1.0 - 1e-9..=f64::from(world_size) + 1e-9).contains(&reads.readers));
        prop_assert!(reads.requests >= 0.0 && reads.bytes >= 0.0);
    }

    #[test]
    fn a_ranks_batches_are_the_shares_of_the_global_batches(
        seed: u64, world_size in 1u32..9, batch in 9u64..200, lanes in 1u32..40
    ) {
        let plan = Plan::new(input_of(&[30; 20], 1_000), &Shuffle::seeded(seed).window(100).lanes(lanes)).unwrap();
        let label = |sample: SampleId| sample.0 / 20;
        let sampled = SampledSteps::new(&plan, 0, &shape(batch, world_size)).unwrap();
        let steps = plan.len() / batch;
        let (mut bits, mut labels) = (0.0, 0.0);
        for rank in 0..world_size {
            let mut order = plan.epoch(0);
            let shape = StepShape { rank: Rank::new(rank, world_size), ..shape(batch, world_size) };
            for step in order.steps(Position(0), &shape) {
                let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
                step.rows.iter().for_each(|row| *counts.entry(label(row.sample)).or_default() += 1.0);
                let rows = step.rows.len() as f64;
                bits -= counts.values().map(|n| n / rows * (n / rows).log2()).sum::<f64>();
                labels += counts.len() as f64;
            }
        }
        prop_assume!(steps > 0 && steps <= 64);
        let batches = (steps * u64::from(world_size)) as f64;
        let found = sampled.rank_labels(64, &label);
        prop_assert!((found.entropy_bits - bits / batches).abs() < 1e-9);
        prop_assert!((found.labels - labels / batches).abs() < 1e-9);
    }
}
