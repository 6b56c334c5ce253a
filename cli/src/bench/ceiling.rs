//! The bare chain: ops from samples in memory to one buffer, without a pipeline.

use crate::chains::{Chains, Stored};
use crate::failure::{Failure, Outcome};
use feedstock_dataset::{Block, BlockId, Dataset};
use feedstock_ops::SampleSeed;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Encoded bytes in memory for measuring the bare chain: far larger than any CPU cache.
const CEILING_BYTES: usize = 128 << 20;
/// The bare chain runs for at least this long.
const CEILING_TIME: Duration = Duration::from_secs(2);

/// Returns the bare chain's rate on `threads` threads, in samples per second.
pub(super) fn samples_per_s(dataset: &Dataset, bare: &Chains, seed: u64, threads: usize) -> Outcome<f64> {
    let blocks = load(dataset, bare)?;
    let mut samples = Vec::new();
    for block in &blocks {
        samples.extend(stored(block, bare)?);
    }
    if samples.is_empty() {
        let (uri, column) = (dataset.uri(), bare.column());
        let text = format!("{uri}: the column {column} holds no encoded bytes; set --column");
        return Err(Failure::config(text));
    }
    let (samples, next, ready) = (&samples, &AtomicUsize::new(0), &Barrier::new(threads));
    let work = move || {
        let mut memory = bare.memory();
        let mut run = |at: usize| {
            let (id, stored) = &samples[at % samples.len()];
            // A sample that cannot be decoded takes its time, too; the pipeline has already reported it.
            let _unusable = bare.run(stored, SampleSeed::new(seed, 0, *id), &mut memory);
        };
        (0..16).for_each(&mut run); // lets the buffers grow
        ready.wait();
        let (start, mut done) = (Instant::now(), 0_u64);
        while start.elapsed() < CEILING_TIME {
            run(next.fetch_add(1, Ordering::Relaxed));
            done += 1;
        }
        done as f64 / start.elapsed().as_secs_f64()
    };
    let rates: Result<Vec<f64>, _> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    Ok(rates.map_err(|_| Failure::bug("a thread of the bare chain ended early"))?.iter().sum())
}

/// Returns blocks of the chain's column, with `CEILING_BYTES` of encoded bytes or more if there are that many.
fn load(dataset: &Dataset, bare: &Chains) -> Outcome<Vec<Block>> {
    let reader = dataset.clone().columns(&[bare.column()])?.block_reader();
    let count = dataset.catalog().blocks();
    let count = u32::try_from(count).map_err(|_| Failure::bug("more than 2^32 blocks"))?;
    let (mut blocks, mut size) = (Vec::new(), 0);
    for id in (0..count).map(BlockId) {
        let block = futures::executor::block_on(reader.fetch(id, u64::MAX))?;
        size += stored(&block, bare)?.iter().map(|(_, stored)| bytes(stored)).sum::<usize>();
        blocks.push(block);
        if size >= CEILING_BYTES {
            break;
        }
    }
    Ok(blocks)
}

/// Returns the samples of a block with their ids, without those that are null.
fn stored<'a>(block: &'a Block, bare: &Chains) -> Outcome<Vec<(u64, Stored<'a>)>> {
    let read = |row| -> Outcome<Option<_>> {
        Ok(bare.stored(&block.rows, row)?.map(|stored| (block.sample(row).0, stored)))
    };
    (0..block.rows.num_rows()).filter_map(|row| read(row).transpose()).collect()
}

fn bytes(stored: &Stored<'_>) -> usize {
    stored.files().iter().map(|file| file.len()).sum()
}
