//! Hands batches to a rank: slots, batch assembly, rank iterators and their state.
//!
//! ```text
//! Pipeline ──start──▶ RankIterator ──next──▶ Batch ──drop──▶ slot free ──▶ the engine decodes into it again
//!                          └─ state(): a Cursor, the samples delivered so far
//! ```
//! Start with [`Dataset::open`]. Memory is bounded by `slots` batches and the byte budget; a batch that is held
//! holds its slot, and with it, in the end, the storage reads.

mod batch;
mod dataset;
mod ledger;
mod pipeline;
mod policy;
mod rank;
mod sink;
mod slots;

pub use batch::{Batch, Tensor};
pub use dataset::Dataset;
pub use feedstock_ingest::{Error, ErrorKind, Result};
pub use ledger::Ledger;
pub use pipeline::{BatchSize, Pipeline, RankBuilder};
pub use policy::{OnError, SkipReport, Skipped};
pub use rank::{RankIterator, RankStats};
