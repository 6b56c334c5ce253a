//! The order at scale, 10⁹ samples in 10⁶ blocks: `cargo bench --profile dev --bench plan`.
//!
//! Measures the time to open an epoch, to seek in it and to plan steps, the memory in use, and the cost per step for
//! a rank of a usual job. For audio clips, it measures what bucketing and totals add to a step, and the time to count
//! the steps of 10⁶ and 10⁷ samples. Mixing comes last.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use feedstock::order::{Access, DataHashes, Lengths, PlanInput, StepShape, StepSize, Stop};
use feedstock::order::{Plan, Position};
use feedstock::{Rank, Shuffle, Tail};
use std::time::Instant;
use support::{median, memory_bytes};

const BLOCKS: u64 = 1_000_000;
const BLOCK_SAMPLES: u64 = 1_000;
const SEEKS: u64 = 1_000;
const STEPS: usize = 1_000;

fn main() {
    let before = memory_bytes("VmRSS");
    let input = PlanInput {
        block_starts: (0..=BLOCKS).map(|block| block * BLOCK_SAMPLES).collect(),
        selection: None,
        data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
        filter: None,
        encoded_bytes: BLOCKS * BLOCK_SAMPLES * 110_000,
        access: Access::Blocks,
    };
    let began = Instant::now();
    let plan = Plan::new(input, &Shuffle::seeded(7).lanes(64).window(256_000)).unwrap();
    let mut order = plan.epoch(0);
    let open_ms = ms(began);
    println!("{} samples in {BLOCKS} blocks, 64 lanes, window 256,000", plan.len());
    println!("open an epoch           {open_ms:>10.1} ms, once per epoch");
    println!(
        "memory                  {:>10.1} MiB, {:.1} bytes per block",
        mib(memory_bytes("VmRSS") - before),
        (memory_bytes("VmRSS") - before) as f64 / BLOCKS as f64
    );

    let shape = StepShape { size: StepSize::Rows(2048), rank: Rank::new(3, 8), tail: Tail::Drop };
    let mut seeks: Vec<f64> = (0..SEEKS)
        .map(|seek| {
            let position = Position(seek * 7_919_317 % (plan.len() - 2048));
            let began = Instant::now();
            std::hint::black_box(order.step(position, &shape).unwrap());
            ms(began)
        })
        .collect();
    let middle = median(&mut seeks);
    println!("seek and plan a step    {middle:>10.3} ms, worst {:.3} ms of {SEEKS}", seeks.last().unwrap());

    let began = Instant::now();
    assert_eq!(order.steps(Position(0), &shape).take(STEPS).map(std::hint::black_box).count(), STEPS);
    println!("plan the next step      {:>10.3} ms, rank 3 of 8, 256 rows", ms(began) / STEPS as f64);
    drop((order, plan));
    for samples in [1_000_000, 10_000_000] {
        clips(samples);
    }
    mix();
}

/// Returns audio clips in blocks of 100, which 4 MiB of MP3 hold, and windows of 13,000, which 512 MiB hold.
fn clip_input(samples: u64) -> PlanInput {
    PlanInput {
        block_starts: (0..=samples / 100).map(|block| block * 100).collect(),
        selection: None,
        data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
        filter: None,
        encoded_bytes: samples * 40_000,
        access: Access::Blocks,
    }
}

/// Returns durations from one to twelve seconds, scattered.
fn lengths(samples: u64) -> Lengths {
    let seconds =
        |clip: u64| 1.0 + (clip.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 24) as f32 * 11.0;
    Lengths::new("duration", (0..samples).map(seconds).collect())
}

/// Measures a step of rank 3 of 8 along the whole epoch, and counting its steps.
fn clips(samples: u64) {
    println!("\n{samples} audio clips");
    let lengths = lengths(samples);
    let plain = Plan::new(clip_input(samples), &Shuffle::seeded(7).lanes(64))
        .unwrap()
        .with_lengths(&lengths)
        .unwrap();
    let (rows, total) =
        (StepSize::Rows(256), StepSize::Total { total: 256.0 * 7.0, max_rows: 1024, ranks: 1 });
    for (name, size, bucket) in [
        ("256 rows", rows, false),
        ("256 rows, bucketed", rows, true),
        ("a total of 1,792 s", total, false),
        ("that total, bucketed", total, true),
    ] {
        let plan = if bucket { plain.clone().bucketed(&lengths, None, size).unwrap() } else { plain.clone() };
        let shape = StepShape { size, rank: Rank::new(3, 8), tail: Tail::Drop };
        let began = Instant::now();
        let steps = plan.steps_left(0, Position(0), &shape);
        let count_ms = ms(began);
        let mut order = plan.epoch(0);
        let began = Instant::now();
        let walked = order.steps(Position(0), &shape).map(std::hint::black_box).count();
        assert_eq!(walked as u64, steps);
        println!(
            "{name:<24}{:>10.3} ms per step; counting {steps} steps {count_ms:.1} ms",
            ms(began) / walked as f64
        );
    }
}

/// Measures a mix of three parts, of which the smallest repeats.
fn mix() {
    let parts = [(10_000_000, 0.6), (3_000_000, 0.3), (100_000, 0.1)];
    let parts = parts.map(|(samples, weight)| (clip_input(samples), weight)).to_vec();
    let plan = Plan::mixed(parts, Stop::AllExhausted, &Shuffle::seeded(7).lanes(64)).unwrap();
    let shape = StepShape { size: StepSize::Rows(256), rank: Rank::new(3, 8), tail: Tail::Drop };
    let mut order = plan.epoch(0);
    let began = Instant::now();
    assert_eq!(order.steps(Position(0), &shape).take(STEPS).map(std::hint::black_box).count(), STEPS);
    println!(
        "\na mix of three: {} positions; {:.3} ms per step of 256 rows, rank 3 of 8",
        plan.len(),
        ms(began) / STEPS as f64
    );
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
