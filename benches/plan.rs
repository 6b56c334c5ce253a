//! The order at scale, 10⁹ samples in 10⁶ blocks: `cargo bench --profile dev --bench plan`.
//!
//! Opening an epoch, seeking anywhere in it, and planning steps; the memory that it takes; then what a rank of a usual
//! job pays a step. Then clips: what bucketing and totals add to a step, counting the steps of 10⁶ and 10⁷, and mixing.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use feedstock::dataset::{DataHashes, Lengths, PlanInput, StepShape, StepSize, Stop};
use feedstock::{Plan, Position, Rank, Shuffle, Tail};
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
    };
    let began = Instant::now();
    let plan = Plan::new(input, &Shuffle::seeded(7).lanes(64).window(256_000)).unwrap();
    let mut order = plan.epoch(0);
    let open_ms = ms(began);
    println!("{} samples in {BLOCKS} blocks, 64 lanes, window 256,000", plan.len());
    println!("open an epoch           {open_ms:>10.1} ms, once an epoch");
    println!(
        "memory                  {:>10.1} MiB, {:.1} bytes a block",
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

/// Clips in blocks of 100, as 4 MiB of MP3 hold; windows of 13,000, as 512 MiB do.
fn clip_input(samples: u64) -> PlanInput {
    PlanInput {
        block_starts: (0..=samples / 100).map(|block| block * 100).collect(),
        selection: None,
        data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
        filter: None,
        encoded_bytes: samples * 40_000,
    }
}

/// One to twelve seconds, scattered.
fn lengths(samples: u64) -> Lengths {
    let seconds =
        |clip: u64| 1.0 + (clip.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 24) as f32 * 11.0;
    Lengths::new("duration", (0..samples).map(seconds).collect())
}

/// The time of a step of rank 3 of 8 along the whole epoch, and of counting its steps.
fn clips(samples: u64) {
    println!("\n{samples} clips");
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
            "{name:<24}{:>10.3} ms a step; counting {steps} steps {count_ms:.1} ms",
            ms(began) / walked as f64
        );
    }
}

/// Three parts, the smallest of which repeats.
fn mix() {
    let parts = [(10_000_000, 0.6), (3_000_000, 0.3), (100_000, 0.1)];
    let parts = parts.map(|(samples, weight)| (clip_input(samples), weight)).to_vec();
    let plan = Plan::mixed(parts, Stop::AllExhausted, &Shuffle::seeded(7).lanes(64)).unwrap();
    let shape = StepShape { size: StepSize::Rows(256), rank: Rank::new(3, 8), tail: Tail::Drop };
    let mut order = plan.epoch(0);
    let began = Instant::now();
    assert_eq!(order.steps(Position(0), &shape).take(STEPS).map(std::hint::black_box).count(), STEPS);
    println!(
        "\na mix of three: {} positions; {:.3} ms a step of 256 rows, rank 3 of 8",
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
