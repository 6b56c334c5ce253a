//! Which samples, in what order: storage access, formats, catalog, plan, cursor and block fetch.
//!
//! ```text
//! storage ─▶ format ─▶ catalog ─▶ Dataset ─▶ plan (which sample stands where)
//!    └────────────────────────────────────▶ blocks (the bytes of a run of samples)
//! ```
//! This crate knows nothing of pixels, waveforms or CPU pools. Start with [`Dataset::open`].

mod blocks;
mod cache;
mod catalog;
mod dataset;
mod error;
mod filter;
mod format;
mod ids;
mod payload;
mod plan;
mod runtime;
mod storage;

pub use blocks::{Block, BlockReader};
pub use cache::{DiskCache, DiskCacheOptions, DiskCacheStats};
pub use catalog::{BlockSpec, Catalog, CatalogOptions, CatalogStore, Objects, Progress, ProgressFn};
pub use dataset::{Dataset, OpenOptions};
pub use error::{Error, ErrorKind, Result};
pub use format::Layout;
pub use ids::{BlockId, Lane, Position, Rank, SampleId};
pub use plan::{
    Cursor, Digest, EpochOrder, Fingerprint, Plan, PlanInput, PlannedRow, PlannedSample, Selection, Shuffle,
    ShuffleKind, Step, StepShape, Tail,
};
pub use runtime::IoRuntime;
pub use storage::{ObjectReader, ObjectRef, Secret, Storage, StorageOptions, StorageStats};
