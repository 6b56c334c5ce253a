//! Delivers batches to a rank: slots, batch assembly, rank iterators and their state.
//!
//! ```text
//! Pipeline ──start──▶ RankIterator ──next──▶ Batch ──drop──▶ slot free ──▶ the engine decodes into it again
//!                          └─ state(): a Cursor, the samples delivered so far
//! ```
//! Start with [`Dataset::open`]. Memory is bounded by `slots` batches and the byte budget. A held batch keeps its slot, so
//! holding all slots eventually stops the storage reads. With a device, batches are copied and finished there ahead of the
//! caller (`staging/`).

mod batch;
mod batch_size;
mod codecs;
mod dataset;
mod ledger;
mod loader;
mod memory;
mod next;
mod nulls;
mod numbers;
mod padding;
mod pipeline;
mod policy;
mod rank;
mod rank_builder;
mod sink;
mod slots;
mod staging;
mod warnings;

pub use batch::{Batch, Tensor};
pub use batch_size::BatchSize;
pub use dataset::{Dataset, audio_probe};
pub use feedstock_device::finish::{
    FeatureFinish, FeatureNorm, Finish, FinishType, MixupCutmix, PictureFinish, PictureLayout,
};
#[cfg(feature = "cuda")]
pub use feedstock_device::offer_libraries;
#[cfg(feature = "cuda")]
pub use feedstock_device::tensor::TensorView;
pub use feedstock_device::tensor::{DeviceTensor, StreamHandle, use_address_on};
pub use feedstock_device::{Element, Place};
pub use feedstock_ingest::{Error, ErrorKind, Local, Result, SampleContext, Workers};
pub use ledger::Ledger;
pub use loader::{Loader, OnChange};
pub use next::Next;
pub use nulls::{NullValue, Nulls};
pub use numbers::Numbers;
pub use pipeline::Pipeline;
pub use policy::{OnError, SkipReport, Skipped};
pub use rank::{RankIterator, RankStats};
pub use rank_builder::RankBuilder;
pub use staging::DeviceOptions;
#[cfg(feature = "cuda")]
pub use staging::compile_kernels;
pub use warnings::{Warned, WarningReport};
