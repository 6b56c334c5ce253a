//! Data sets: storage access, formats, catalog, plan, cursor and block reading.
//!
//! ```text
//! storage ─▶ format ─▶ catalog ─▶ Dataset ─▶ plan (which sample is at which position)
//!    └────────────────────────────────────▶ blocks (the bytes of a run of samples)
//! ```
//! This crate knows nothing of pixels, waveforms or CPU pools. Start with [`Dataset::open`].
//!
//! ```
//! use arrow::array::AsArray;
//! use feedstock_dataset::{Dataset, Position, Shuffle};
//!
//! # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
//! # let folder = tempfile::tempdir().unwrap();
//! # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
//! #     let path = folder.path().join(name);
//! #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
//! #     std::fs::write(path, bytes).unwrap();
//! # }
//! # let uri = folder.path().to_str().unwrap();
//! # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
//! # let options = OpenOptions { catalog, ..OpenOptions::default() };
//! # futures::executor::block_on(async {
//! let dataset = Dataset::open_with(uri, options).await?; // cat/1.jpg, cat/2.jpg, dog/3.jpg
//! let plan = dataset.plan(&Shuffle::seeded(7))?;
//! let planned = plan.epoch(0).sample_at(Position(0)); // the first sample of epoch 0
//! let block = dataset.block_reader().fetch(planned.block, u64::MAX).await?;
//! let image = block.rows.column_by_name("image").unwrap().as_binary_view().value(planned.row as usize);
//! let path = folder.path().join(dataset.catalog().describe_sample(planned.sample));
//! assert_eq!(image, std::fs::read(path).unwrap());
//! # Ok::<(), feedstock_dataset::Error>(())
//! # }).unwrap();
//! ```

mod as_of;
mod blocks;
mod cache;
mod catalog;
mod dataset;
mod deriving;
mod described;
mod format;
mod held;
mod home;
mod inbox;
mod joining;
mod lengths;
mod mix;
mod open;
mod payload;
mod planning;
mod process;
mod quality;
mod recycled;
mod rows;
mod runtime;
mod selecting;
mod splitting;
mod sql;
mod steps;
mod storage;
mod stored;
mod travelling;
mod weighting;

pub use blocks::{Block, BlockReader};
pub use cache::{DiskCache, DiskCacheOptions, DiskCacheStats};
pub use catalog::{
    BlockSpec, Catalog, CatalogCheck, CatalogOptions, CatalogSource, CatalogStore, Layout, MAX_PAGE_BYTES,
    Objects, Progress, ProgressFn, UnsupportedAudio,
};
pub use dataset::Dataset;
pub use feedstock_base::{BlockId, Error, ErrorKind, Lane, Position, Rank, Result, SampleContext, SampleId};
pub use feedstock_plan::{
    Access, Bucketing, Carried, Cursor, DataHashes, Digest, EpochOrder, Extent, ExtentReads, Fingerprint,
    Left, Lengths, MAX_MEASURED_ROWS, Mixing, PackedSet, Plan, PlanInput, PlannedRow, PlannedSample, Rest,
    SampleSet, Selection, Shuffle, ShuffleKind, Step, StepShape, StepSize, Stop, StrandSet, Strands, Tail,
};
pub use format::{BadShards, TarHeaders};
pub use held::declared_array;
pub use home::{cache_folder, make_private};
pub use inbox::{CatalogInbox, IncomingCatalog};
pub use open::{AudioProbe, DatasetSpec, Durations, OpenOptions, SourceSpec};
pub use process::PerProcess;
pub use quality::{LabelQuality, OrderQuality, QualityOptions, ReadQuality, ShuffleQuality};
pub use runtime::IoRuntime;
pub use steps::SelectionStep;
pub use storage::{Allow, ObjectReader, ObjectRef, Secret, Storage, StorageOptions, StorageStats, hide_urls};
pub use stored::SameSamples;
pub use travelling::StoredCatalog;
