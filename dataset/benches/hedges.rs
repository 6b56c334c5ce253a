//! Latencies of reads from a store that behaves as a real one, with and without hedges:
//! `cargo bench -p feedstock-dataset --bench hedges` (add `--profile dev` to use the tests' build).
//!
//! Arguments: profile (`s3`), seed (1), passes (4). A separate S3 server draws the fate of each request from the seed: late,
//! slow, or lost. Each pass reads 5,000 objects of 16 KiB, 32 at once; 32 is also the limit on concurrent requests.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints and may fail loudly"
)]

use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
use feedstock_testkit::S3Process;
use futures::StreamExt;
use std::time::{Duration, Instant};

const OBJECTS: usize = 5_000;
const OBJECT_BYTES: usize = 16 << 10;
const AT_ONCE: usize = 32;

/// Reads all objects `passes` times, and returns the sorted times of the reads.
async fn times(storage: &Storage, passes: usize) -> Vec<Duration> {
    let objects = storage.list("s3://bucket/").await.unwrap();
    assert_eq!(objects.len(), OBJECTS);
    let reads = (0..passes).flat_map(|_| &objects).map(|object| async move {
        let began = Instant::now();
        assert_eq!(storage.read(object, 0..object.size).await.unwrap().len(), OBJECT_BYTES);
        began.elapsed()
    });
    let mut times: Vec<Duration> = futures::stream::iter(reads).buffer_unordered(AT_ONCE).collect().await;
    times.sort_unstable();
    times
}

async fn measure(folder: &std::path::Path, server: &[&str], hedge: bool, passes: usize) {
    let server = S3Process::start_with(folder, server).unwrap();
    let mut options = StorageOptions { hedge, ..StorageOptions::default() };
    options.config.extend(server.config().into_iter().map(|(key, value)| (key, value.into())));
    let storage = Storage::new(options, IoRuntime::new().unwrap()).unwrap();
    let began = Instant::now();
    let times = times(&storage, passes).await;
    let seconds = began.elapsed().as_secs_f64();
    let at = |thousandths: usize| times[(times.len() * thousandths / 1_000).min(times.len() - 1)].as_millis();
    let stats = storage.stats();
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (share, rate) = (stats.hedges as f64 / times.len() as f64, times.len() as f64 / seconds);
    println!(
        "hedge {:<5}  {} reads  {rate:>5.0} reads/s  p50 {} ms  p99 {} ms  p99.9 {} ms  longest {} ms  hedges {} ({:.2} %)  \
         retries {}  throttled {}",
        hedge,
        times.len(),
        at(500),
        at(990),
        at(999),
        at(1_000),
        stats.hedges,
        100.0 * share,
        stats.retries,
        stats.throttled
    );
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let or = |n: usize, default: &str| given.get(n).cloned().unwrap_or_else(|| default.to_owned());
    let (profile, seed, passes) = (or(0, "s3"), or(1, "1"), or(2, "4").parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    for i in 0..OBJECTS {
        let bytes = vec![u8::try_from(i % 251).unwrap(); OBJECT_BYTES];
        std::fs::write(folder.path().join(format!("bucket/{i:05}")), bytes).unwrap();
    }
    println!("profile {profile}, seed {seed}");
    for hedge in [true, false] {
        measure(folder.path(), &["--profile", &profile, "--seed", &seed], hedge, passes).await;
    }
}
