//! Data sets: storage access, formats, catalog, plan, cursor and block reading.
//!
//! ```text
//! storage ─▶ format ─▶ catalog ─▶ Dataset ─▶ plan (which sample is at which position)
//!    └────────────────────────────────────▶ blocks (the bytes of a run of samples)
//! ```
//! This crate knows nothing of pixels, waveforms or CPU pools. Start with [`Dataset::open`].

mod as_of;
mod blocks;
mod cache;
mod catalog;
mod dataset;
mod described;
mod format;
mod held;
mod home;
mod lengths;
mod mix;
mod open;
mod payload;
mod planning;
mod process;
mod recycled;
mod runtime;
mod sql;
mod storage;
mod stored;

pub use blocks::{Block, BlockReader};
pub use cache::{DiskCache, DiskCacheOptions, DiskCacheStats};
pub use catalog::{
    BlockSpec, Catalog, CatalogCheck, CatalogOptions, CatalogStore, Layout, Objects, Progress, ProgressFn,
    UnsupportedAudio,
};
pub use dataset::Dataset;
pub use feedstock_base::{BlockId, Error, ErrorKind, Lane, Position, Rank, Result, SampleContext, SampleId};
pub use feedstock_plan::{
    Bucketing, Carried, Cursor, DataHashes, Digest, EpochOrder, Fingerprint, Left, Lengths, Mixing, Plan,
    PlanInput, PlannedRow, PlannedSample, Rest, Selection, Shuffle, ShuffleKind, Step, StepShape, StepSize,
    Stop, StrandSet, Strands, Tail,
};
pub use format::BadShards;
pub use held::declared_array;
pub use home::{cache_folder, make_private};
pub use open::{AudioProbe, DatasetSpec, Durations, OpenOptions, SourceSpec};
pub use process::PerProcess;
pub use runtime::IoRuntime;
pub use storage::{Allow, ObjectReader, ObjectRef, Secret, Storage, StorageOptions, StorageStats, hide_urls};
pub use stored::SameSamples;
