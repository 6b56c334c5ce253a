//! The bare chain: ops from samples in memory to one buffer, without a pipeline.

use crate::failure::{Failure, Outcome};
use crate::preview::encoded;
use feedstock_dataset::{BlockId, Dataset};
use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Encoded bytes in memory for measuring the bare chain: far larger than any CPU cache.
const CEILING_BYTES: usize = 128 << 20;
/// The bare chain runs for at least this long.
const CEILING_TIME: Duration = Duration::from_secs(2);

/// Returns the bare chain's rate on `threads` threads, in samples per second.
pub(super) fn samples_per_s(
    dataset: &Dataset,
    column: &str,
    chain: &Chain,
    seed: u64,
    threads: usize,
) -> Outcome<f64> {
    let samples = load(dataset, column)?;
    let next = AtomicUsize::new(0);
    let ready = Barrier::new(threads);
    let work = |_| {
        let mut scratch = Scratch::default();
        let (mut out, mut row) = (vec![0; chain.output().bytes()], RaggedRow::new());
        let mut done = 0_u64;
        let mut run = |at: usize| {
            let (id, encoded) = &samples[at % samples.len()];
            // A sample that cannot be decoded takes its time, too; the pipeline has already reported it.
            let seed = SampleSeed::new(seed, 0, *id);
            let _unusable = match chain.output().is_ragged() {
                true => chain.apply_ragged(encoded, seed, &mut scratch, &mut row),
                false => chain.apply(encoded, seed, &mut scratch, &mut out),
            };
        };
        (0..16).for_each(&mut run); // lets the buffers grow
        ready.wait();
        let start = Instant::now();
        while start.elapsed() < CEILING_TIME {
            run(next.fetch_add(1, Ordering::Relaxed));
            done += 1;
        }
        done as f64 / start.elapsed().as_secs_f64()
    };
    let rates: Result<Vec<f64>, _> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    Ok(rates.map_err(|_| Failure::bug("a thread of the bare chain ended early"))?.iter().sum())
}

/// Returns encoded samples with their ids, up to `CEILING_BYTES`.
fn load(dataset: &Dataset, column: &str) -> Outcome<Vec<(u64, Vec<u8>)>> {
    let catalog = dataset.catalog();
    let reader = dataset.block_reader();
    let mut samples: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut size = 0;
    let blocks = u32::try_from(catalog.blocks()).map_err(|_| Failure::bug("more than 2^32 blocks"))?;
    for id in (0..blocks).map(BlockId) {
        let block = futures::executor::block_on(reader.fetch(id, u64::MAX))?;
        for row in 0..block.rows.num_rows() {
            if let Some(encoded) = encoded(&block.rows, column, row)? {
                size += encoded.len();
                samples.push((block.first_sample + row as u64, encoded.to_vec()));
            }
        }
        if size >= CEILING_BYTES {
            break;
        }
    }
    if samples.is_empty() {
        let text = format!("{}: the column {column} holds no encoded bytes; set --column", dataset.uri());
        return Err(Failure::config(text));
    }
    Ok(samples)
}
