//! Dry runs, compared with real runs: requests, bytes and what stays in memory; and what cannot be simulated.

use crate::common::s3::{S3, storage};
use crate::common::{open_whole, pipeline, synth_as};
use arrow::array::{ArrayRef, BinaryArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{OpenOptions, Rank, Shuffle, StorageOptions};
use feedstock_ingest::Stats;
use feedstock_synth::Layout;
use feedstock_trainer_bridge::{
    BatchSize, Bottleneck, Dataset, ErrorKind, Forecast, Pipeline, SimulateOptions, SimulatedWorkers,
    StoreProfile,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const SAMPLES: u64 = 403;
const RANKS: u32 = 2;

/// Without hedges, which are a matter of chance.
fn unhedged() -> StorageOptions {
    StorageOptions { hedge: false, ..storage() }
}

/// Runs an epoch on all ranks, one after the other, and returns its requests, its bytes and the ranks' statistics.
fn measured(pipeline: &Pipeline) -> (u64, u64, Vec<Stats>) {
    let storage = pipeline.dataset().storage();
    let before = storage.stats();
    let run = |rank| {
        let mut rank = pipeline.clone().epochs(1).rank(Rank::new(rank, RANKS)).start().unwrap();
        rank.by_ref().for_each(|batch| drop(batch.unwrap()));
        rank.stats().engine
    };
    let stats = (0..RANKS).map(run).collect();
    let after = storage.stats();
    assert_eq!(after.retries, before.retries);
    (after.requests - before.requests, after.read_bytes - before.read_bytes, stats)
}

fn forecast(pipeline: &Pipeline) -> Forecast {
    let options = SimulateOptions { world_size: RANKS, ..SimulateOptions::default() };
    let simulation = pipeline.simulate(&options).unwrap();
    assert_eq!(simulation.simulated_steps, simulation.steps, "the whole epoch");
    simulation.forecast
}

fn about(found: u64, expected: u64, what: &str) {
    let ratio = found as f64 / expected as f64;
    assert!((0.99..=1.01).contains(&ratio), "{what}: {found} simulated, {expected} in a run");
}

fn on_s3(layout: Layout, block_bytes: u64) -> (S3, Dataset) {
    let dir = tempfile::tempdir().unwrap();
    synth_as(layout, dir.path(), SAMPLES, 5);
    let s3 = S3::holding(dir.path());
    let dataset = s3.try_open(OpenOptions { block_bytes, ..s3.options(unhedged()) }).unwrap();
    (s3, dataset)
}

#[test]
fn requests_and_bytes_are_those_of_a_run() {
    let shuffles = [
        Shuffle::seeded(7),
        Shuffle::seeded(7).piece(4).shuffle_bytes(64 << 10),
        Shuffle::seeded(7).window(60),
        Shuffle::none(),
    ];
    for layout in [Layout::Folder, Layout::WebDataset] {
        let (_s3, dataset) = on_s3(layout, 32 << 10);
        for shuffle in &shuffles {
            let pipeline = pipeline(dataset.clone(), 24).shuffle(shuffle.clone());
            let (requests, bytes, _) = measured(&pipeline);
            let forecast = forecast(&pipeline);
            about(forecast.requests, requests, &format!("requests, {layout:?}, {shuffle:?}"));
            about(forecast.bytes, bytes, &format!("bytes, {layout:?}, {shuffle:?}"));
        }
    }
}

/// Blocks of Parquet files: one read each, with the bytes of all columns. A run reads the chosen ones, here 7 % less.
#[test]
fn blocks_of_parquet_are_counted() {
    let (_s3, dataset) = on_s3(Layout::Parquet, 32 << 10);
    let pipeline = pipeline(dataset, 24);
    let (requests, bytes, _) = measured(&pipeline);
    let forecast = forecast(&pipeline);
    about(forecast.requests, requests, "requests");
    let ratio = forecast.bytes as f64 / bytes as f64;
    assert!((1.0..1.1).contains(&ratio), "bytes: {} simulated, {bytes} in a run", forecast.bytes);
}

/// The budget is smaller than the window, so blocks are read again. How often depends on when steps finish.
#[test]
fn a_small_budget_reads_again_and_is_never_exceeded() {
    let (_s3, dataset) = on_s3(Layout::WebDataset, 32 << 10);
    let blocks = Shuffle::seeded(7).blocks().window(SAMPLES);
    let roomy = pipeline(dataset, 8).shuffle(blocks);
    let small = roomy.clone().budget_bytes(512 << 10);
    let (whole, again) = (forecast(&roomy), forecast(&small));
    assert!(again.requests > whole.requests * 3 / 2, "{} and {}", again.requests, whole.requests);
    assert!(again.resident_peak_bytes <= 512 << 10);
    let (requests, _, _) = measured(&small);
    let ratio = again.requests as f64 / requests as f64;
    assert!((0.8..1.25).contains(&ratio), "{} simulated, {requests} in a run", again.requests);
}

#[test]
fn the_peak_in_memory_is_that_of_a_run() {
    let (_s3, dataset) = on_s3(Layout::WebDataset, 32 << 10);
    let pipeline = pipeline(dataset, 24);
    let (_, _, stats) = measured(&pipeline);
    let peak = stats.iter().map(|stats| stats.peak_resident_bytes).max().unwrap();
    about(forecast(&pipeline).resident_peak_bytes, peak, "resident bytes");
}

fn local() -> (tempfile::TempDir, Pipeline) {
    let dir = tempfile::tempdir().unwrap();
    synth_as(Layout::Folder, dir.path(), SAMPLES, 5);
    let dataset = open_whole(dir.path());
    (dir, dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::per_rank(8)).threads(2))
}

#[test]
fn each_resource_can_be_the_limit() {
    let (_dir, pipeline) = local();
    let of = |options: SimulateOptions| pipeline.simulate(&options).unwrap().forecast;
    let quick = SimulateOptions { decode_s: 1e-4, ..SimulateOptions::default() };

    let cpu = of(SimulateOptions { decode_s: 0.01, step_s: 0.01, ..quick.clone() });
    assert_eq!(cpu.bottleneck, Bottleneck::Cpu);
    assert!((190.0..=205.0).contains(&cpu.samples_per_s), "{cpu:?}"); // 2 threads, 10 ms each

    let trainer = of(SimulateOptions { step_s: 0.1, ..quick.clone() });
    assert_eq!(trainer.bottleneck, Bottleneck::Trainer);
    assert!((79.0..=80.1).contains(&trainer.samples_per_s) && trainer.waiting_share < 0.01, "{trainer:?}");

    let few = StoreProfile { requests_per_s: 100.0, ..StoreProfile::LOCAL };
    let requests = of(SimulateOptions { store: Some(few), concurrency: 8, ..quick.clone() });
    assert_eq!(requests.bottleneck, Bottleneck::Requests);
    assert!((95.0..=105.0).contains(&requests.samples_per_s), "{requests:?}"); // a file is a sample

    let far = SimulateOptions { store: Some(StoreProfile::FAR), concurrency: 4, ..quick.clone() };
    assert_eq!(of(far).bottleneck, Bottleneck::Latency);

    let network = SimulateOptions { network_bytes_per_s: Some(1e5), ..quick };
    assert_eq!(of(network).bottleneck, Bottleneck::Bandwidth);
}

#[test]
fn alternatives_show_which_setting_helps() {
    let (_dir, pipeline) = local();
    let slow = SimulateOptions { decode_s: 0.01, ..SimulateOptions::default() };
    let simulation = pipeline.simulate(&slow).unwrap();
    let rates: BTreeMap<&str, f64> = simulation
        .alternatives
        .iter()
        .filter_map(|of| {
            Some((of.change.as_str(), of.forecast?.samples_per_s / simulation.forecast.samples_per_s))
        })
        .collect();
    assert!((1.9..2.1).contains(&rates["threads × 2"]), "{rates:?}");
    assert!((0.99..1.01).contains(&rates["budget_bytes × 2"]), "{rates:?}");
    assert!(!rates.contains_key("shuffle_bytes × 2"), "a full shuffle has no window");
    let workers = SimulatedWorkers { workers: 4, threads: 4 };
    let fleet = pipeline.simulate(&SimulateOptions { workers: Some(workers), ..slow }).unwrap();
    assert!((7.5..8.5).contains(&(fleet.forecast.samples_per_s / simulation.forecast.samples_per_s)));
    assert_eq!(fleet.alternatives[0].change, "workers × 2");
}

#[test]
fn a_forecast_depends_on_its_options_alone() {
    let (_dir, pipeline) = local();
    let s3 = SimulateOptions { store: Some(StoreProfile::S3), step_s: 0.01, ..SimulateOptions::default() };
    assert_eq!(pipeline.simulate(&s3).unwrap(), pipeline.simulate(&s3).unwrap());
    let other = pipeline.simulate(&SimulateOptions { seed: 1, ..s3.clone() }).unwrap();
    assert_ne!(pipeline.simulate(&s3).unwrap().forecast, other.forecast);
}

#[test]
fn what_cannot_be_simulated_is_an_error() {
    let (_dir, pipeline) = local();
    let error = |pipeline: &Pipeline, options: SimulateOptions| {
        let error = pipeline.simulate(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        error.message().to_owned()
    };
    let default = SimulateOptions::default;
    let cases = [
        (SimulateOptions { world_size: 0, ..default() }, "world_size must be at least 1; got 0"),
        (SimulateOptions { threads: Some(0), ..default() }, "threads must be at least 1; got 0"),
        (SimulateOptions { concurrency: 0, ..default() }, "concurrent requests must be at least 1; got 0"),
        (SimulateOptions { decode_s: f64::NAN, ..default() }, "the decode time must be finite"),
        (
            SimulateOptions { step_s: -1.0, ..default() },
            "the step time must be finite and at least 0; got -1 s",
        ),
        (SimulateOptions { network_bytes_per_s: Some(0.0), ..default() }, "network must be above 0; got 0"),
        (SimulateOptions { world_size: 1_000, ..default() }, "fewer than one global batch"),
        (SimulateOptions { epoch: u64::MAX, ..default() }, "epoch"),
    ];
    for (options, expected) in cases {
        let message = error(&pipeline, options);
        assert!(message.contains(expected), "{message}");
    }
    let message = error(&pipeline.clone().budget_bytes(1_000), default());
    assert!(
        message.contains("smaller than one batch") && message.contains("raise budget_bytes"),
        "{message}"
    );
    assert!(error(&pipeline.slots(1), default()).contains("slots must be at least 2; got 1"));
}

/// 10⁹ samples in 10⁶ blocks, 10⁴ ranks, 10³ workers, and the window of images of 110 kB:
/// `cargo test … simulate::a_billion -- --ignored --nocapture` prints the time.
#[test]
#[ignore = "reads 1,000 footers of 1,000 row groups, and takes 1 GB"]
fn a_billion_samples_and_ten_thousand_ranks_take_less_than_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("train-0000.parquet");
    million_rows(&first);
    for link in 1..1_000 {
        std::fs::hard_link(&first, dir.path().join(format!("train-{link:04}.parquet"))).unwrap();
    }
    let begun = Instant::now();
    let pipeline =
        open_whole(dir.path()).shuffle(Shuffle::seeded(7).window(4_880)).batch(BatchSize::per_rank(64));
    println!("opened in {:?}", begun.elapsed());
    let begun = Instant::now();
    let options = SimulateOptions {
        world_size: 10_000,
        workers: Some(SimulatedWorkers { workers: 1_000, threads: 64 }),
        step_s: 0.1,
        store: Some(StoreProfile::S3),
        ..SimulateOptions::default()
    };
    let simulation = pipeline.simulate(&options).unwrap();
    println!("simulated in {:?}: {simulation:?}", begun.elapsed());
    assert_eq!(simulation.samples, 1_000_000_000);
    assert!(begun.elapsed().as_secs() < 60);
}

/// Writes 10⁶ rows with empty images, in row groups of 1,000 rows.
fn million_rows(path: &Path) {
    let schema = Arc::new(Schema::new(vec![Field::new("image", DataType::Binary, true)]));
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1_000)).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).unwrap();
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..1_000_000).map(|_| b"x")));
    writer.write(&RecordBatch::try_new(schema, vec![images]).unwrap()).unwrap();
    writer.close().unwrap();
}
