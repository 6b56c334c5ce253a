//! Running a plan: prefetch, memory budget, CPU pool.
//!
//! ```text
//!             offer(place) ◀──────────────────────────── a freed slot is the only credit
//!                  │
//! plan ─▶ driver ──┼─▶ residency ─▶ fetch ─▶ blocks ─▶ pool: one task a sample ─▶ Sink::finished
//!         (one a   └─ walks ahead in plan order, within the byte budget
//!          rank)
//! ```
//! [`Engine`] owns the CPU threads; [`Engine::run`] drives one rank's steps through them. Nothing here knows what
//! memory a row lands in: the caller offers a [`Destination`] a step and gets it back finished.
//!
//! Invariants: blocks are admitted in plan order, so a full budget waits for steps that can finish without more;
//! results depend on (seed, epoch, sample) alone, never on threads or arrival.
//!
//! ```
//! use feedstock_dataset::Shuffle;
//! use feedstock_ingest::{RawBatches, RawOptions};
//!
//! # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
//! # let folder = tempfile::tempdir().unwrap();
//! # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
//! # images.write(folder.path(), &mut |_| {}).unwrap();
//! # let uri = folder.path().to_str().unwrap();
//! # let own = || OpenOptions {
//! #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
//! #     ..OpenOptions::default()
//! # };
//! let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
//! let options = RawOptions { shuffle: Shuffle::seeded(7), batch_rows: 6, ..RawOptions::default() };
//! let mut rows = Vec::new();
//! for batch in RawBatches::start(&dataset, &options)? { // record batches in plan order, undecoded
//!     rows.push(batch?.num_rows());
//! }
//! assert_eq!(rows, [6, 6, 4]);
//! # Ok::<(), feedstock_ingest::Error>(())
//! ```

pub mod doctor;
mod fleet;
mod functions;
pub mod images;
mod lists;
mod memory;
mod pool;
mod raw;
mod recipe;
mod resources;
mod rewrite;
mod run;
mod simulate;
mod threads;
mod value;
mod wire;
mod worker;

pub use feedstock_base::{Error, ErrorKind, Result, SampleContext};
pub use fleet::{Local, Workers};
pub use functions::{
    FunctionKind, FunctionOutput, FunctionStep, FunctionsSpec, RESULT_PREFIX, ResultColumn, RowExecutor,
    RowFunctions, RowLane, RowResults, RowStep, RowTensor,
};
pub use memory::pages::Pages;
pub use memory::row::{RowBuffers, RowMemory, RowPlace};
pub use memory::slab::{RowSlab, SlabMemory};
pub use raw::{RawBatches, RawOptions};
pub use recipe::{ByLength, MapSpec, Recipe, RecipeSpec, ViewSpec};
pub use rewrite::{
    KeptSample, OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteProgress, RewriteProgressFn,
    RewriteReport, RewriteStage, rewrite,
};
pub use run::engine::Engine;
pub use run::handle::{Offers, Run};
pub use run::job::{Destination, Finished, Job, Map, Sink, sample_bytes};
pub use run::ready::{Popped, Ready};
pub use run::running::row_seed;
pub use run::stats::{Stage, Stats, Waiting};
pub use run::views::MapViews;
pub use simulate::{Busy, Simulated, SimulatedRank, SimulatedSteps, StoreModel, simulate};
pub use threads::{available_threads, default_threads};
pub use wire::{ClientTls, FleetIdentity, Identity, ServerTls, Token, WorkerStatus};
pub use worker::{Worker, WorkerOptions};
