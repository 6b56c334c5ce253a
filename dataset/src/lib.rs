//! Which samples, in what order: storage access, formats, catalog, plan, cursor and block fetch.
//!
//! ```text
//! storage ─▶ format ─▶ catalog ─▶ Dataset ─▶ plan (which sample stands where)
//!    └────────────────────────────────────▶ blocks (the bytes of a run of samples)
//! ```
//! This crate knows nothing of pixels, waveforms or CPU pools. Start with [`Dataset::open`].

mod as_of;
mod blocks;
mod cache;
mod catalog;
mod composition;
mod concat;
mod dataset;
mod error;
mod filter;
mod format;
mod held;
mod home;
mod ids;
mod lengths;
mod mix;
mod payload;
mod plan;
mod process;
mod recycled;
mod runtime;
mod spec;
mod storage;

pub use blocks::{Block, BlockReader};
pub use cache::{DiskCache, DiskCacheOptions, DiskCacheStats};
pub use catalog::{
    BlockSpec, Catalog, CatalogCheck, CatalogOptions, CatalogStore, Objects, Progress, ProgressFn,
    SameSamples,
};
pub use dataset::{Dataset, OpenOptions};
pub use error::{Error, ErrorKind, Result};
pub use format::{AudioProbe, BadShards, Durations, Layout};
pub use held::declared_array;
pub use home::{cache_folder, make_private};
pub use ids::{BlockId, Lane, Position, Rank, SampleId};
pub use lengths::Lengths;
pub use plan::{
    Bucketing, Carried, Cursor, DataHashes, Digest, EpochOrder, Fingerprint, Left, Mixing, Plan, PlanInput,
    PlannedRow, PlannedSample, Rest, Selection, Shuffle, ShuffleKind, Step, StepShape, StepSize, Stop,
    StrandSet, Strands, Tail,
};
pub use process::PerProcess;
pub use runtime::IoRuntime;
pub use spec::{DatasetSpec, SourceSpec};
pub use storage::{Allow, ObjectReader, ObjectRef, Secret, Storage, StorageOptions, StorageStats, hide_urls};
