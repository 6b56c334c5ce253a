//! Streams speech from S3 to two ranks: filtered by SQL, bucketed by length, as padded log-mel features and character
//! ids. It proves that each audio clip is delivered exactly once.
//!
//! `cargo run --example common_voice_s3 [s3://bucket/prefix] [SPLIT] [FILTER]`. Without a URI, it makes sample data
//! and starts a local S3 server. With one, credentials, region and endpoint come from the environment (`AWS_*`).
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use feedstock::ops::{TokenizeChars, Unknown};
use feedstock::storage::StorageOptions;
use feedstock::{
    Batch, BatchSize, Dataset, Ledger, OpenOptions, Pipeline, Rank, Shuffle, Tail, decode_audio, log_mel,
    resample,
};
use feedstock_synth::CommonVoiceOptions;
use feedstock_testkit::{S3Process, S3Server};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

type BoxError = Box<dyn Error + Send + Sync>;

const WORLD_SIZE: u32 = 2;
const BATCH: u64 = 16;
/// The characters that the model may write; any other becomes `?`.
const CHARACTERS: &str = "? abcdefghijklmnopqrstuvwxyz'";

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next();
    let split = arguments.next().unwrap_or_else(|| "validated".to_owned());
    let sql = arguments.next().unwrap_or_else(|| "duration < 10 and up_votes >= 2".to_owned());
    let folder = tempfile::tempdir()?;
    let mut storage = StorageOptions::default(); // a real bucket needs only its environment variables
    let (uri, _server) = match uri {
        Some(uri) => (uri, None),
        None => {
            let server = sample_bucket(folder.path())?;
            for (key, value) in server.config() {
                storage = storage.with(key, value); // endpoint, region, access key, secret key
            }
            ("s3://corpus/common-voice".to_owned(), Some(server))
        }
    };
    let options = OpenOptions { storage, split: Some(split.clone()), ..OpenOptions::default() };
    let dataset = futures::executor::block_on(Dataset::open_with(&uri, options))?;
    let (all, layout) = (dataset.len(), dataset.catalog().layout());
    let dataset = dataset.filter(&sql)?;
    println!("{uri}: {all} audio clips in {split}, {layout}; `{sql}` keeps {}", dataset.len());

    let mut characters = TokenizeChars::new(CHARACTERS);
    characters.unknown = Unknown::Id(0);
    characters.lowercase = true;
    let pipeline = dataset
        .map("audio", [decode_audio(), resample(16_000), log_mel(80)]) // f32 [frames, 80], 100 frames per second
        .map_as("sentence", "tokens", [characters.into()]) // i64 [characters]
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::per_rank(BATCH))
        .tail(Tail::Pad) // pads and marks the last batch, so that every audio clip is used
        .epochs(1);
    let bucketed = pipeline.clone().bucket_by("duration");

    let random = run(&pipeline)?;
    println!("random batches: {:.1} % of the frames are padding", 100.0 * random.padding_share());
    let epoch = run(&bucketed)?;
    println!("bucketed by length: {:.1} % of the frames are padding", 100.0 * epoch.padding_share());
    println!(
        "{} audio clips, {:.1} min, in {:.2} s: {:.0} × real time over {WORLD_SIZE} ranks",
        epoch.ledger.delivered.samples,
        epoch.seconds() / 60.0,
        epoch.wall_s,
        epoch.seconds() / epoch.wall_s
    );
    let stats = bucketed.dataset().storage().stats();
    println!(
        "{} requests, {} retried, {} MB read",
        stats.requests,
        stats.retries,
        stats.read_bytes / 1_000_000
    );
    println!("all ranks: {}", epoch.ledger);
    epoch.ledger.check()?;
    // A second check: the digest of all selected audio clips, computed without the order.
    let expected = bucketed.plan(Rank::new(0, WORLD_SIZE))?.digest();
    assert_eq!(epoch.ledger.delivered, expected, "the ranks received other audio clips than those selected");
    println!("each of {} audio clips was delivered exactly once: digest {expected}", expected.samples);
    Ok(())
}

/// Totals of one epoch over all ranks.
struct Epoch {
    ledger: Ledger,
    /// Frames of padded batches, and those that hold data.
    frames: usize,
    filled: usize,
    wall_s: f64,
}

impl Epoch {
    fn padding_share(&self) -> f64 {
        1.0 - self.filled as f64 / self.frames as f64
    }

    /// Returns the duration of the audio: a frame is 10 ms.
    fn seconds(&self) -> f64 {
        self.filled as f64 / 100.0
    }
}

/// Runs one epoch, with a thread per rank.
fn run(pipeline: &Pipeline) -> Result<Epoch, BoxError> {
    let start = Instant::now();
    let ranks = std::thread::scope(|scope| -> Result<Vec<Epoch>, BoxError> {
        let rank = |rank| scope.spawn(move || train(pipeline, Rank::new(rank, WORLD_SIZE)));
        let ranks: Vec<_> = (0..WORLD_SIZE).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    })?;
    let merged = ranks.into_iter().reduce(|mut all, one| {
        all.ledger.merge(&one.ledger);
        all.frames += one.frames;
        all.filled += one.filled;
        all
    });
    let merged = merged.ok_or("there are no ranks")?;
    Ok(Epoch { wall_s: start.elapsed().as_secs_f64(), ..merged })
}

/// Runs one epoch of one rank, as a trainer does.
fn train(pipeline: &Pipeline, rank: Rank) -> Result<Epoch, BoxError> {
    let mut batches = pipeline.rank(rank).start()?;
    let (mut frames, mut filled, mut steps) = (0, 0, 0);
    for batch in &mut batches {
        let batch = batch?;
        if steps < 2 {
            describe(rank, &batch);
        }
        let lengths = batch["audio"].lengths().ok_or("features must have lengths")?;
        frames += batch["audio"].shape()[1] * lengths.len();
        filled += lengths.iter().sum::<usize>();
        steps += 1;
    }
    Ok(Epoch { ledger: batches.ledger(), frames, filled, wall_s: 0.0 })
}

fn describe(rank: Rank, batch: &Batch) {
    let (audio, tokens) = (&batch["audio"], &batch["tokens"]);
    let lengths = audio.lengths().unwrap_or_default();
    let (least, most) = (lengths.iter().min().unwrap_or(&0), lengths.iter().max().unwrap_or(&0));
    println!(
        "rank {rank}: audio {:?} {:?}, {least} to {most} frames; tokens {:?} {:?}",
        audio.dtype(),
        audio.shape(),
        tokens.dtype(),
        tokens.shape()
    );
}

/// Starts an S3 server in a separate process, with sample data in `s3://corpus/common-voice`.
fn sample_bucket(folder: &Path) -> Result<S3Process, BoxError> {
    let (files, root) = (folder.join("files"), folder.join("buckets"));
    println!("making 600 audio clips and a bucket in {}", folder.display());
    let made = CommonVoiceOptions { samples: 600, ..Default::default() }.write(&files, &mut |_| ())?;
    println!("{:.0} min of {} speakers by {}", made.seconds / 60.0, made.speakers, made.voice);
    std::fs::create_dir(&root)?;
    S3Server::start(&root)?.import("corpus", "common-voice", &files)?;
    Ok(S3Process::start(&root)?)
}
