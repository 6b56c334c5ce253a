//! Cost of reading a gigabyte through `Storage`: `cargo bench -p feedstock-dataset --bench storage`
//! (add `--profile dev` to use the tests' build).
//!
//! Prints one line a case: the rate by the wall clock, and this process's own CPU time. The S3 server is a separate process,
//! so its CPU time is not in the figures, though it takes its share of the machine.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints and may fail loudly"
)]

use bytes::Bytes;
use feedstock_dataset::{IoRuntime, ObjectRef, Storage, StorageOptions};
use feedstock_testkit::S3Process;
use futures::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::future::Future;
use std::ops::Range;
use std::time::Instant;

const OBJECT_BYTES: u64 = 256 << 20;
const PASSES: u64 = 4;
const AT_ONCE: usize = 16;

/// Returns this process's user and system time in seconds (clock ticks of 10 ms).
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn ranges(size: u64) -> Vec<Range<u64>> {
    (0..PASSES).flat_map(|_| (0..OBJECT_BYTES / size).map(|i| i * size..(i + 1) * size)).collect()
}

async fn measure<F, Fut>(name: &str, size: u64, read: F)
where
    F: Fn(Range<u64>) -> Fut,
    Fut: Future<Output = Bytes>,
{
    let (began, cpu) = (Instant::now(), cpu_s());
    let read: u64 = futures::stream::iter(ranges(size))
        .map(|range| {
            let bytes = read(range);
            async move { bytes.await.len() as u64 }
        })
        .buffer_unordered(AT_ONCE)
        .fold(0, |sum, n| async move { sum + n })
        .await;
    #[expect(clippy::cast_precision_loss, reason = "gigabytes for people")]
    let gigabytes = read as f64 / 1e9;
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    println!(
        "{name:<28} {:>5} KiB ranges  {:>6.2} GB/s  {:>6.3} CPU-s/GB",
        size >> 10,
        gigabytes / wall,
        cpu / gigabytes
    );
}

async fn through(name: &str, storage: &Storage, object: &ObjectRef) {
    for size in [8 << 20, 1 << 20, 128 << 10] {
        measure(name, size, |range| async { storage.read(object, range).await.unwrap() }).await;
    }
}

async fn bare(name: &str, store: &impl ObjectStore, at: &Path) {
    for size in [8 << 20, 1 << 20, 128 << 10] {
        measure(name, size, |range| async { store.get_range(at, range).await.unwrap() }).await;
    }
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    let server = S3Process::start(folder.path()).unwrap();
    let mut options = StorageOptions::default();
    options.config.extend(server.config().into_iter().map(|(key, value)| (key, value.into())));
    let storage = Storage::new(options, IoRuntime::new().unwrap()).unwrap();
    let bytes: Vec<u8> = (0..OBJECT_BYTES).map(|i| u8::try_from(i % 251).unwrap()).collect();
    // through the server, so that it knows the object's ETag and does not hash it at each request
    storage.write("s3://bucket/x", bytes.into()).await.unwrap();

    let file = folder.path().join("bucket/x");
    let path = file.to_str().unwrap().to_owned();
    let object = storage.head(&path).await.unwrap();
    through("files", &storage, &object).await;

    let at = Path::from_absolute_path(&file).unwrap();
    bare("files, bare object_store", &LocalFileSystem::new(), &at).await;

    let object = storage.head("s3://bucket/x").await.unwrap();
    through("S3 server", &storage, &object).await;
    let mut builder = AmazonS3Builder::new().with_bucket_name("bucket").with_allow_http(true);
    for (key, value) in server.config() {
        builder = builder.with_config(key.parse().unwrap(), value);
    }
    bare("S3 server, bare object_store", &builder.build().unwrap(), &"x".into()).await;
}
