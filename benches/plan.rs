//! The order at scale, 10⁹ samples in 10⁶ blocks: `cargo bench --profile dev --bench plan`.
//!
//! Opening an epoch, seeking anywhere in it, and planning steps; the memory that it takes; then what a rank of a usual
//! job pays a step.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use feedstock::dataset::{PlanInput, StepShape};
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
        catalog_hash: 1,
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

    let shape = StepShape { global_batch: 2048, rank: Rank::new(3, 8), tail: Tail::Drop };
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
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
