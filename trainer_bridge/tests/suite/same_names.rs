//! One worker serves two stores whose objects have the same names and sizes and no ETags, but different bytes.

use crate::common::block_on;
use crate::common::speech::{RATE, samples_of, wav, write_parquet};
use crate::fleet::{at, batches, options, side_by_side};
use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, Shuffle};
use feedstock_ingest::Worker;
use feedstock_ops::{decode_audio, log_mel, resample};
use feedstock_testkit::StaticServer;
use feedstock_trainer_bridge::{BatchSize, Dataset, Pipeline};
use std::path::Path;

const CLIPS: usize = 120;

/// Serves audio clips of equal length, at pitches from `pitch` on.
fn store(dir: &Path, pitch: u32) -> StaticServer {
    std::fs::create_dir(dir).unwrap();
    let clips: Vec<_> = (0..CLIPS).map(|i| Some(wav(samples_of(i), pitch + i as u32))).collect();
    write_parquet(dir, &clips);
    StaticServer::start_without_etags(dir).unwrap()
}

fn open(server: &StaticServer) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions {
        catalog,
        audio_probe: Some(feedstock_trainer_bridge::audio_probe()),
        ..OpenOptions::default()
    };
    block_on(Dataset::open_with(&format!("{}/train.parquet", server.endpoint()), options)).unwrap()
}

fn features(dataset: Dataset) -> Pipeline {
    dataset
        .map("audio", [decode_audio(), resample(RATE), log_mel(20)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(8))
        .epochs(3)
        .threads(1)
}

#[test]
fn a_worker_keeps_stores_with_equal_names_and_sizes_apart() {
    let dir = tempfile::tempdir().unwrap();
    let servers = [("low", 0), ("high", 500)].map(|(name, pitch)| store(&dir.path().join(name), pitch));
    let datasets = [open(&servers[0]), open(&servers[1])];
    let [low, high] = [datasets[0].catalog().content_hash(), datasets[1].catalog().content_hash()];
    assert_eq!(low, high, "names and sizes agree, and no ETag differs");

    let jobs = datasets.map(features);
    let alone = [batches(&jobs[0], 1), batches(&jobs[1], 1)];
    assert_ne!(alone[0], alone[1]);
    let mut options = options(dir.path());
    options.allow = servers.iter().map(StaticServer::endpoint).collect();
    let worker = Worker::start(options).unwrap();
    let with_worker = jobs.map(|job| job.workers(at([&worker])));
    // At the same time, since only data that several jobs hold is shared.
    assert!(side_by_side([&with_worker[0], &with_worker[1]]) == alone, "side by side");
    for (job, alone) in with_worker.iter().zip(&alone) {
        assert!(batches(job, 1) == *alone, "one after the other");
    }
    assert_eq!(worker.status().shared_samples, 0);
}
