//! The data of every test: small images, a pipeline over them, and batches in a form that can be compared and
//! printed.

use feedstock::OpenOptions;
use feedstock::catalog::{CatalogOptions, CatalogStore};
use feedstock::{
    Batch, BatchSize, Dataset, Pipeline, Shuffle, Tail, decode_image, horizontal_flip, random_resized_crop,
};
use feedstock_synth::{ImagenetOptions, Layout};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An epoch has ten steps of 24 samples; the last one is padded.
const SAMPLES: u64 = 233;
const GLOBAL_BATCH: u64 = 24;

/// A folder of images, and a way to read it.
#[derive(Clone)]
pub struct Data {
    dir: Arc<tempfile::TempDir>,
    epochs: u64,
    crop: u32,
}

impl Data {
    /// 64×64 crops: a step has 288 KiB, so socket buffers hold only a few steps and faults take effect soon.
    pub fn pictures(epochs: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = ImagenetOptions {
            samples: SAMPLES,
            seed: 5,
            layout: Layout::Parquet,
            width: 96,
            height: 80,
            samples_per_shard: 90,
            rows_per_group: 16,
            ..ImagenetOptions::default()
        };
        options.write(dir.path().join("images"), &mut |_| {}).unwrap();
        Self { dir: Arc::new(dir), epochs, crop: 64 }
    }

    /// Sets another crop size.
    pub fn crop(self, crop: u32) -> Self {
        Self { crop, ..self }
    }

    /// Sets the number of epochs.
    pub fn epochs(&self, epochs: u64) -> Self {
        Self { epochs, ..self.clone() }
    }

    /// Returns the URI of the images.
    pub fn uri(&self) -> String {
        self.dir.path().join("images").to_str().unwrap().to_owned()
    }

    /// Returns a folder for this test only.
    pub fn folder(&self, name: &str) -> std::path::PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Returns the usual training pipeline. The data set's I/O threads start here, so they belong to the caller's
    /// host.
    pub fn pipeline(&self) -> Pipeline {
        pipeline(Path::new(&self.uri()), self.epochs, self.crop)
    }

    /// Returns the number of batches per rank over all epochs.
    pub fn steps(&self) -> usize {
        (self.epochs * SAMPLES.div_ceil(GLOBAL_BATCH)) as usize
    }

    /// Returns a description from which another process can make the same pipeline.
    pub fn described(&self) -> String {
        format!("{}\n{}\n{}", self.uri(), self.epochs, self.crop)
    }
}

/// Returns the pipeline of [`Data::described`].
pub fn pipeline_of(description: &str) -> Pipeline {
    let [uri, epochs, crop] = description.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{description}")
    };
    pipeline(Path::new(uri), epochs.parse().unwrap(), crop.parse().unwrap())
}

fn pipeline(folder: &Path, epochs: u64, crop: u32) -> Pipeline {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, block_bytes: 32 << 10, ..OpenOptions::default() };
    futures::executor::block_on(Dataset::open_with(folder.to_str().unwrap(), options))
        .unwrap()
        .map("image", [decode_image(), random_resized_crop(crop), horizontal_flip(0.5)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(GLOBAL_BATCH))
        .tail(Tail::Pad)
        .epochs(epochs)
        .threads(2)
        .budget_bytes(32 << 20)
        .deadline(Duration::from_secs(60))
}

/// A whole batch, with a hash of the bytes in place of each tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Whole {
    place: (u64, u64),
    samples: Vec<u64>,
    valid: Vec<bool>,
    tensors: Vec<WholeTensor>,
    columns: String,
}

/// Name, shape, row lengths, and a hash of the bytes.
type WholeTensor = (String, Vec<usize>, Option<Vec<usize>>, u64);

impl Whole {
    pub fn of(batch: &Batch) -> Self {
        let tensors = batch.tensors().iter();
        let mut columns = Vec::new();
        arrow::csv::Writer::new(&mut columns).write(batch.columns()).unwrap();
        Self {
            place: (batch.epoch(), batch.position().0),
            samples: batch.sample_ids().iter().map(|sample| sample.0).collect(),
            valid: batch.valid().to_vec(),
            tensors: tensors
                .map(|t| {
                    (t.name().to_owned(), t.shape(), t.lengths().map(<[usize]>::to_vec), hash(t.bytes()))
                })
                .collect(),
            columns: String::from_utf8(columns).unwrap(),
        }
    }

    /// Returns a digest that is the same in every process of this program.
    pub fn digest(&self) -> u64 {
        hash(self)
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new(); // its keys are constants
    value.hash(&mut hasher);
    hasher.finish()
}
