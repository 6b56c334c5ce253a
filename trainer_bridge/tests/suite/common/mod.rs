//! Small sample data, and the values that tests compare: the samples that a run delivered, and a digest of their bytes.

pub(crate) mod pictures;
pub(crate) mod s3;
pub(crate) mod speech;

use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, Rank, Shuffle};
use feedstock_ops::{decode_image, horizontal_flip, random_resized_crop};
use feedstock_synth::{ImagenetOptions, Layout};
use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, Pipeline};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

/// Writes `samples` small images in Parquet to `dir`.
pub(crate) fn synth(dir: &Path, samples: u64) {
    synth_as(Layout::Parquet, dir, samples, 5);
}

/// Writes the same in any layout. Shards have up to 90 samples.
pub(crate) fn synth_as(layout: Layout, dir: &Path, samples: u64, seed: u64) {
    let options = ImagenetOptions {
        samples,
        seed,
        layout,
        width: 96,
        height: 80,
        samples_per_shard: 90,
        rows_per_group: 16,
        ..ImagenetOptions::default()
    };
    options.write(dir, &mut |_| {}).unwrap();
}

/// Opens a data set in blocks of a few samples, without the user's cache folder.
pub(crate) fn open(dir: &Path) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, block_bytes: 32 << 10, ..OpenOptions::default() };
    block_on(Dataset::open_with(dir.to_str().unwrap(), options)).unwrap()
}

/// Opens a data set in blocks of the default size.
pub(crate) fn open_whole(dir: &Path) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    block_on(Dataset::open_with(dir.to_str().unwrap(), options)).unwrap()
}

/// Opens one split of a Common Voice archive.
pub(crate) fn open_split(dir: &Path, split: &str) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, split: Some(split.to_owned()), ..OpenOptions::default() };
    block_on(Dataset::open_with(dir.to_str().unwrap(), options)).unwrap()
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}

/// Returns the usual training chain on 32×32 crops.
pub(crate) fn pipeline(dataset: Dataset, global_batch: u64) -> Pipeline {
    dataset
        .map("image", [decode_image(), random_resized_crop(32), horizontal_flip(0.5)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(global_batch))
        .threads(2)
}

/// The samples that a run delivered: by (epoch, sample), a digest of pixels and label for each delivery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered(pub BTreeMap<(u64, u64), Vec<u64>>);

impl Delivered {
    pub(crate) fn add(&mut self, batch: &Batch) {
        let labels = batch.column("label").unwrap();
        let labels = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(labels);
        for (row, sample) in batch.sample_ids().iter().enumerate().filter(|(row, _)| batch.valid()[*row]) {
            let mut hasher = DefaultHasher::new();
            hasher.write(batch["image"].row(row));
            hasher.write_i64(labels.value(row));
            self.0.entry((batch.epoch(), sample.0)).or_default().push(hasher.finish());
        }
    }

    /// Adds the rest of the rank's epoch.
    pub(crate) fn drain(&mut self, batches: impl Iterator<Item = feedstock_trainer_bridge::Result<Batch>>) {
        for batch in batches {
            self.add(&batch.unwrap());
        }
    }

    pub(crate) fn samples(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn assert_once_each(&self) {
        let doubled: Vec<_> = self.0.iter().filter(|(_, digests)| digests.len() != 1).collect();
        assert!(doubled.is_empty(), "delivered more than once: {doubled:?}");
    }
}

/// Runs whole epochs on `world_size` ranks, one thread per rank.
pub(crate) fn run_epochs(pipeline: &Pipeline, world_size: u32, epochs: u64) -> Delivered {
    let mut all = Delivered::default();
    let ranks: Vec<Delivered> = std::thread::scope(|scope| {
        let run = |rank| {
            let mut ranks = pipeline.rank(Rank::new(rank, world_size)).start().unwrap();
            let mut delivered = Delivered::default();
            for _ in 0..epochs {
                delivered.drain(&mut ranks);
                ranks.ledger().check().unwrap();
            }
            delivered
        };
        let threads: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (key, digests) in ranks.into_iter().flat_map(|rank| rank.0) {
        all.0.entry(key).or_default().extend(digests);
    }
    all
}
