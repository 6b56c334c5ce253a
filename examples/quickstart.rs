//! Streams images to two ranks, and proves that each sample is delivered exactly once.
//!
//! `cargo run --example quickstart [URI]`. Without a URI, it makes sample data in a temporary folder. Here each rank
//! is a thread; in a training job each is a process with the same code and its own `Rank`.
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use feedstock::{
    BatchSize, Dataset, Ledger, Pipeline, Rank, Shuffle, Tail, decode_image, horizontal_flip,
    random_resized_crop,
};
use feedstock_synth::ImagenetOptions;
use std::error::Error;
use std::time::Instant;

type BoxError = Box<dyn Error + Send + Sync>;

const WORLD_SIZE: u32 = 2;

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let uri = match std::env::args().nth(1) {
        Some(uri) => uri,
        None => {
            println!("making 2,000 images in {}", folder.path().display());
            ImagenetOptions { samples: 2000, ..Default::default() }.write(folder.path(), &mut |_| ())?;
            folder.path().display().to_string()
        }
    };
    let dataset = futures::executor::block_on(Dataset::open(&uri))?;
    println!(
        "{uri}: {} samples in {} blocks, {}",
        dataset.len(),
        dataset.catalog().blocks(),
        dataset.catalog().layout()
    );
    let pipeline = dataset
        .map("image", [decode_image(), random_resized_crop(224), horizontal_flip(0.5)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::per_rank(64))
        .tail(Tail::Pad) // pads and marks the last batch, so that every sample is used
        .epochs(1);

    let start = Instant::now();
    let pipeline = &pipeline;
    let ledgers = std::thread::scope(|scope| -> Result<Vec<Ledger>, BoxError> {
        let rank = |rank| scope.spawn(move || train(pipeline, Rank::new(rank, WORLD_SIZE)));
        let ranks: Vec<_> = (0..WORLD_SIZE).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    })?;
    let seconds = start.elapsed().as_secs_f64();

    let mut all = ledgers[0];
    ledgers[1..].iter().for_each(|ledger| all.merge(ledger));
    let samples = all.delivered.samples;
    println!(
        "{samples} samples in {seconds:.2} s: {:.0} samples/s over {WORLD_SIZE} ranks",
        samples as f64 / seconds
    );
    println!("all ranks: {all}");
    all.check()?;
    // A second check: the digest of all samples, computed without the order.
    let expected = pipeline.plan(Rank::new(0, 1))?.digest();
    assert_eq!(all.delivered, expected, "the ranks received other samples than the data set has");
    println!("each of {} samples was delivered exactly once: digest {expected}", expected.samples);
    Ok(())
}

/// Runs one epoch of one rank, as a trainer does.
fn train(pipeline: &Pipeline, rank: Rank) -> Result<Ledger, BoxError> {
    let mut batches = pipeline.rank(rank).start()?;
    let (start, mut rows) = (Instant::now(), 0);
    for batch in &mut batches {
        let batch = batch?;
        if rows == 0 {
            let image = &batch["image"];
            let (dtype, shape) = (image.dtype(), image.shape());
            println!("rank {rank}: first batch after {:.0?}: image {dtype:?} {shape:?}", start.elapsed());
            for field in batch.columns().schema().fields() {
                println!("rank {rank}: column {}: {}", field.name(), field.data_type());
            }
        }
        rows += batch.len();
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    let cursor = batches.state(); // the whole state of a checkpoint
    let (epoch, position) = (cursor.epoch, cursor.position);
    println!("rank {rank}: {rows} rows, {rate:.0}/s; checkpoint: epoch {epoch}, position {position}");
    Ok(batches.ledger())
}
