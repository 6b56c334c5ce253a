//! Streams images from S3 to two ranks, filtered by SQL, and proves that each sample is delivered exactly once.
//!
//! `cargo run --example imagenet_s3 [s3://bucket/prefix] [FILTER]`. Without a URI, it makes sample data and starts a
//! local S3 server. With one, credentials, region and endpoint come from the environment (`AWS_*`).
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use feedstock::storage::StorageOptions;
use feedstock::{
    BatchSize, Dataset, Ledger, OpenOptions, Pipeline, Rank, Shuffle, Tail, decode_image, horizontal_flip,
    random_resized_crop,
};
use feedstock_synth::ImagenetOptions;
use feedstock_testkit::{S3Process, S3Server};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

type BoxError = Box<dyn Error + Send + Sync>;

const WORLD_SIZE: u32 = 2;

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let (uri, sql) = (arguments.next(), arguments.next().unwrap_or_else(|| "label < 500".to_owned()));
    let folder = tempfile::tempdir()?;
    let mut storage = StorageOptions::default(); // a real bucket needs only its environment variables
    let (uri, _server) = match uri {
        Some(uri) => (uri, None),
        None => {
            let server = sample_bucket(folder.path())?;
            for (key, value) in server.config() {
                storage = storage.with(key, value); // endpoint, region, access key, secret key
            }
            ("s3://corpus/imagenet".to_owned(), Some(server))
        }
    };
    let options = OpenOptions { storage, ..OpenOptions::default() };
    let dataset = futures::executor::block_on(Dataset::open_with(&uri, options))?;
    let (all, blocks, layout) = (dataset.len(), dataset.catalog().blocks(), dataset.catalog().layout());
    let dataset = dataset.filter(&sql)?;
    println!("{uri}: {all} samples in {blocks} blocks, {layout}; `{sql}` keeps {}", dataset.len());

    let pipeline = dataset
        .map("image", [decode_image(), random_resized_crop(224), horizontal_flip(0.5)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::per_rank(32))
        .tail(Tail::Pad) // pads and marks the last batch, so that every sample is used
        .epochs(1);

    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let pipeline = &pipeline;
    let ledgers = std::thread::scope(|scope| -> Result<Vec<Ledger>, BoxError> {
        let rank = |rank| scope.spawn(move || train(pipeline, Rank::new(rank, WORLD_SIZE)));
        let ranks: Vec<_> = (0..WORLD_SIZE).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    })?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);

    let mut all = ledgers[0];
    ledgers[1..].iter().for_each(|ledger| all.merge(ledger));
    let samples = all.delivered.samples as f64;
    let stats = pipeline.dataset().storage().stats();
    println!(
        "{samples} samples in {seconds:.2} s: {:.0} samples/s over {WORLD_SIZE} ranks",
        samples / seconds
    );
    println!("{:.2} CPU seconds per 1000 images, without the server", cpu / samples * 1000.0);
    println!(
        "{} requests, {} retried, {} MB read",
        stats.requests,
        stats.retries,
        stats.read_bytes / 1_000_000
    );
    println!("all ranks: {all}");
    all.check()?;
    // A second check: the digest of all selected samples, computed without the order.
    let expected = pipeline.plan(Rank::new(0, 1))?.digest();
    assert_eq!(all.delivered, expected, "the ranks received other samples than those selected");
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
        }
        rows += batch.len();
    }
    println!("rank {rank}: {rows} rows, {:.0}/s", rows as f64 / start.elapsed().as_secs_f64());
    Ok(batches.ledger())
}

/// Starts an S3 server in a separate process, with sample data in `s3://corpus/imagenet`.
fn sample_bucket(folder: &Path) -> Result<S3Process, BoxError> {
    let (files, root) = (folder.join("files"), folder.join("buckets"));
    println!("making 1,000 images and a bucket in {}", folder.display());
    ImagenetOptions { samples: 1000, samples_per_shard: 250, ..Default::default() }
        .write(&files, &mut |_| ())?;
    std::fs::create_dir(&root)?;
    S3Server::start(&root)?.import("corpus", "imagenet", &files)?;
    Ok(S3Process::start(&root)?)
}

/// Returns user and system time of this process so far.
fn cpu_seconds() -> f64 {
    // SAFETY: `rusage` is plain numbers, for which zeros are valid; the call fills the struct.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
