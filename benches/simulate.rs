//! Dry runs compared with measured runs, in one process: `cargo bench --profile dev --bench simulate`.
//!
//! Each case is measured several times, alternating with the others, and simulated once. Printed are the simulated rate, the
//! median and the range of the measured ones, and the simulated rate ÷ the median. The time of a sample is that of the bare
//! chain on one thread, measured between the runs. The store is the test server with a profile, in a separate process.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use arrow::array::AsArray;
use feedstock::ops::{SampleSeed, Scratch};
use feedstock::simulate::{SimulateOptions, StoreProfile};
use feedstock::{BatchSize, Dataset, Pipeline, Rank, RawOptions, Shuffle};
use feedstock_testkit::{S3Process, S3Server};
use std::time::{Duration, Instant};
use support::{BATCH, chain, median, open, sample_data};

const ROUNDS: usize = 5;

/// A job, the trainer's step, and the store that it meets.
struct Case {
    name: &'static str,
    pipeline: Pipeline,
    step: Duration,
    store: StoreProfile,
    rates: Vec<f64>,
}

fn main() {
    let data = sample_data();
    let folder = tempfile::tempdir().unwrap();
    let s3_root = folder.path().join("s3");
    std::fs::create_dir_all(&s3_root).unwrap();
    let writer = S3Server::start(&s3_root).unwrap();
    writer.create_bucket("corpus").unwrap();
    writer.import("corpus", "train", &data).unwrap();
    drop(writer);
    let near = S3Process::start_with(&s3_root, &["--profile", "s3"]).unwrap();
    let far = S3Process::start_with(&s3_root, &["--profile", "far"]).unwrap();
    let local = open(data.to_str().unwrap(), folder.path(), &[]);
    let bucket = |server: &S3Process| open("s3://corpus/train", folder.path(), &server.config());
    let mut cases = cases(&local, &bucket(&near), &bucket(&far));
    let encoded = encoded(&local);
    let mut decode_s = Vec::new();
    for _ in 0..ROUNDS {
        decode_s.push(bare(&encoded));
        for case in &mut cases {
            let rate = measured(case);
            case.rates.push(rate);
        }
    }
    let decode_s = median(&mut decode_s);
    println!("a sample takes {:.2} ms", decode_s * 1e3);
    println!("{:<44}{:>10}{:>10}{:>18}{:>8}", "samples/s", "simulated", "measured", "range", "ratio");
    for case in &mut cases {
        report(case, decode_s);
    }
}

fn cases(local: &Dataset, near: &Dataset, far: &Dataset) -> Vec<Case> {
    let decoded = |dataset: &Dataset| pipeline(dataset.clone().map("image", chain()));
    let encoded =
        |dataset: &Dataset| pipeline(dataset.clone().columns(&["image"]).unwrap().shuffle(Shuffle::none()));
    let case = |name, pipeline, step, store| Case {
        name,
        pipeline,
        step: Duration::from_millis(step),
        store,
        rates: Vec::new(),
    };
    vec![
        case("local, 1 thread decodes", decoded(local).threads(1), 0, StoreProfile::LOCAL),
        case("local, 1 thread, steps of 400 ms", decoded(local).threads(1), 400, StoreProfile::LOCAL),
        case("s3, steps of 30 ms, nothing decoded", encoded(near), 30, StoreProfile::S3),
        case("s3, nothing decoded, prefetch_bytes 1", starved(&encoded(near)), 0, StoreProfile::S3),
        case("far, nothing decoded, prefetch_bytes 1", starved(&encoded(far)), 0, StoreProfile::FAR),
    ]
}

/// Reads two steps ahead only, so that the store's latency is the limit.
fn starved(pipeline: &Pipeline) -> Pipeline {
    pipeline.clone().prefetch_bytes(1).slots(2).batch(BatchSize::per_rank(16))
}

fn pipeline(pipeline: Pipeline) -> Pipeline {
    pipeline.shuffle(Shuffle::seeded(7).window(support::WINDOW)).batch(BatchSize::per_rank(BATCH)).epochs(1)
}

/// Returns the samples per second of an epoch, from the first batch on.
fn measured(case: &Case) -> f64 {
    let mut ranks = case.pipeline.rank(Rank::new(0, 1)).start().unwrap();
    drop(ranks.next().unwrap().unwrap());
    let begun = Instant::now();
    let (mut samples, mut last) = (0, begun);
    std::thread::sleep(case.step);
    for batch in &mut ranks {
        samples += batch.unwrap().len();
        last = Instant::now();
        std::thread::sleep(case.step);
    }
    samples as f64 / (last - begun).as_secs_f64()
}

fn report(case: &mut Case, decode_s: f64) {
    let decode_s = if case.name.contains("nothing decoded") { 0.0 } else { decode_s };
    let options = SimulateOptions {
        decode_s,
        step_s: case.step.as_secs_f64(),
        store: Some(case.store.clone()),
        ..SimulateOptions::default()
    };
    let forecast = case.pipeline.simulate(&options).unwrap().forecast;
    let measured = median(&mut case.rates);
    let range = format!("{:.0} to {:.0}", case.rates[0], case.rates[ROUNDS - 1]);
    println!(
        "{:<44}{:>10.0}{measured:>10.0}{range:>18}{:>8.3}  {}",
        case.name,
        forecast.samples_per_s,
        forecast.samples_per_s / measured,
        forecast.bottleneck
    );
}

/// Returns the seconds that one thread takes for a sample.
fn bare(encoded: &[Vec<u8>]) -> f64 {
    let chain = chain().compile().unwrap();
    let (mut scratch, mut out) = (Scratch::new(), vec![0; chain.output().bytes()]);
    let begun = Instant::now();
    for (index, bytes) in (0..).zip(encoded) {
        chain.apply(bytes, SampleSeed::new(7, 0, index), &mut scratch, &mut out).unwrap();
    }
    begun.elapsed().as_secs_f64() / encoded.len() as f64
}

fn encoded(dataset: &Dataset) -> Vec<Vec<u8>> {
    let mut batches = dataset.record_batches(&RawOptions::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    let images = batch.column_by_name("image").unwrap().as_binary_view();
    images.iter().map(|bytes| bytes.unwrap().to_vec()).collect()
}
