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

pub mod doctor;
mod fleet;
mod memory;
mod pool;
mod raw;
mod recipe;
mod resources;
mod rewrite;
mod run;
mod threads;
mod value;
mod wire;
mod worker;

pub use feedstock_base::{Error, ErrorKind, Result, SampleContext};
pub use fleet::{Local, Workers};
pub use memory::pages::Pages;
pub use memory::row::{RowBuffers, RowMemory, RowPlace};
pub use memory::slab::{RowSlab, SlabMemory};
pub use raw::{RawBatches, RawOptions};
pub use recipe::{ByLength, MapSpec, Recipe, RecipeSpec};
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
pub use threads::{available_threads, default_threads};
pub use wire::{ClientTls, FleetIdentity, Identity, ServerTls, Token, WorkerStatus};
pub use worker::{Worker, WorkerOptions};
