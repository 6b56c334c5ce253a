//! Cost of opening 10 TB of tars: `cargo bench -p feedstock-dataset --bench tars`
//! (add `--profile dev` to use the tests' build).
//!
//! The store is simulated: each request takes 30 ms, 64 run at once, and bytes are generated when they are read, so neither a
//! disk nor a network is the limit. Tars of 4 GB hold payloads of 10 MB (videos, volumes, scans). Cases that cost one request
//! a sample use only [`PART`] of the tars, since their time and requests grow with the number of tars.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints and may fail loudly"
)]

use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions, StorageOptions, TarHeaders};
use feedstock_testkit::{S3Server, SimulatedObject, SimulatedStore, SparseTar};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

const LATENCY: Duration = Duration::from_millis(30);
const REQUESTS_AT_ONCE: usize = 64;
const TARS: u64 = 2_500;
const SAMPLES: u64 = 400;
const PAYLOAD_BYTES: u64 = 10_000_000;
/// The number of tars in the cases where each sample costs a request.
const PART: u64 = 50;

#[derive(Clone, Copy)]
enum Index {
    Nothing,
    Dali,
    Energon,
}

fn store(tars: u64, members: &[(&str, u64)], index: Index) -> SimulatedStore {
    let mut objects: BTreeMap<String, SimulatedObject> = BTreeMap::new();
    for i in 0..tars {
        let tar = SparseTar::new(SAMPLES, members, i * SAMPLES);
        match index {
            Index::Nothing => None,
            Index::Dali => objects.insert(format!("data/{i:05}.idx"), tar.dali_index().into()),
            Index::Energon => objects.insert(format!("data/{i:05}.tar.idx"), tar.energon_index().into()),
        };
        let object = SimulatedObject::new(tar.size(), move |range| tar.read(range));
        objects.insert(format!("data/{i:05}.tar"), object);
    }
    SimulatedStore::start(objects, LATENCY).unwrap()
}

/// Opens the data set and prints the cost.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn measure(name: &str, store: &SimulatedStore, tar_headers: TarHeaders) {
    let storage =
        StorageOptions { max_concurrency: NonZeroUsize::new(REQUESTS_AT_ONCE), ..StorageOptions::default() };
    let config = S3Server::config_at(&store.endpoint()).into_iter();
    let storage = config.fold(storage, |storage, (key, value)| storage.with(key, value));
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { storage, catalog, tar_headers, ..OpenOptions::default() };
    let began = Instant::now();
    let dataset = Dataset::open_with("s3://bucket/data/", options).await.unwrap();
    let (seconds, stats) = (began.elapsed().as_secs_f64(), dataset.storage().stats());
    println!(
        "{name:<44} {:>6.2} TB {:>8} samples  {seconds:>6.1} s  {:>6} requests, {:>2} at once  {:>6.1} MB read, {:.4} %",
        store.total_bytes() as f64 / 1e12,
        dataset.len(),
        stats.requests,
        store.peak(),
        stats.read_bytes as f64 / 1e6,
        stats.read_bytes as f64 * 100.0 / store.total_bytes() as f64,
    );
    for note in dataset.catalog().notes() {
        println!("    {note}");
    }
}

#[tokio::main]
async fn main() {
    let (alone, with_text) = ([("bin", PAYLOAD_BYTES)], [("bin", PAYLOAD_BYTES), ("json", 1_000)]);
    let open = TarHeaders::Open;
    measure("indexes (DALI), payloads alone", &store(TARS, &alone, Index::Dali), open).await;
    measure("offsets (Energon), headers when read", &store(TARS, &alone, Index::Energon), TarHeaders::Read)
        .await;
    let part = store(PART, &alone, Index::Energon);
    measure("offsets (Energon), headers when read", &part, TarHeaders::Read).await;
    measure("offsets (Energon), all headers", &part, open).await;
    measure("indexes (DALI), a .json for each payload", &store(PART, &with_text, Index::Dali), open).await;
    measure("no indexes, payloads alone", &store(PART, &alone, Index::Nothing), open).await;
    measure("no indexes, a .json for each payload", &store(PART, &with_text, Index::Nothing), open).await;
    let tar = SparseTar::new(20_000, &[("bin", PAYLOAD_BYTES)], 0);
    let index = tar.energon_index().into();
    let object = SimulatedObject::new(tar.size(), move |range| tar.read(range));
    let objects = [("data/0.tar".to_owned(), object), ("data/0.tar.idx".to_owned(), index)];
    let store = SimulatedStore::start(objects.into(), LATENCY).unwrap();
    measure("offsets (Energon), one tar, all headers", &store, open).await;
}
