//! Memory over ten epochs, and with a consumer that sleeps: `cargo bench --profile dev --bench memory`.
//!
//! Prints resident memory beyond the slots and the byte budget: codec buffers, catalog, allocator, program.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use feedstock::{Rank, RankIterator};
use std::time::Duration;
use support::{BATCH, BUDGET_BYTES, memory_bytes, open, pipeline, sample_data};

const EPOCHS: u64 = 10;
const SLOTS: u64 = 4;
const SLOT_BYTES: u64 = BATCH * 224 * 224 * 3;

fn main() {
    let data = sample_data();
    let folder = tempfile::tempdir().unwrap();
    let dataset = open(data.to_str().unwrap(), folder.path(), &[]);
    let mut ranks = pipeline(dataset).epochs(EPOCHS + 1).rank(Rank::new(0, 1)).start().unwrap();
    println!("budget {} MiB, {SLOTS} slots of {:.1} MiB", BUDGET_BYTES >> 20, mib(SLOT_BYTES));
    for epoch in 0..EPOCHS {
        assert!(ranks.by_ref().all(|batch| batch.is_ok()));
        row(&format!("after epoch {epoch}"), &ranks);
    }
    for nap in 1..=3 {
        std::thread::sleep(Duration::from_secs(2));
        row(&format!("consumer asleep, {} s", 2 * nap), &ranks);
    }
}

fn row(what: &str, ranks: &RankIterator) {
    let engine = ranks.stats().engine;
    let beyond = |bytes: u64| mib(bytes.saturating_sub(BUDGET_BYTES + SLOTS * SLOT_BYTES));
    let (now, peak) = (memory_bytes("VmRSS"), memory_bytes("VmHWM"));
    println!(
        "{what:<24} resident {:>4.0} MiB, peak {:>4.0} MiB, peak beyond budget and slots {:>4.0} MiB; blocks {:>4.0} MiB, \
         peak {:>4.0} MiB",
        mib(now),
        mib(peak),
        beyond(peak),
        mib(engine.resident_bytes),
        mib(engine.peak_resident_bytes)
    );
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
