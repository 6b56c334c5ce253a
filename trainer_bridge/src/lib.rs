//! Delivers batches to a rank: slots, batch assembly, rank iterators and their state.
//!
//! ```text
//! Pipeline ──start──▶ RankIterator ──next──▶ Batch ──drop──▶ slot free ──▶ the engine decodes into it again
//!                          └─ state(): a Cursor, the samples delivered so far
//! ```
//! Start with [`Dataset::open`]. Memory is bounded by `slots` batches and the byte budget. A held batch keeps its slot, so
//! holding all slots eventually stops the storage reads. With a device, batches are copied and finished there ahead of the
//! caller (`staging/`).
//!
//! ```
//! use feedstock_dataset::{Rank, Shuffle};
//! use feedstock_ops::{decode_image, random_resized_crop};
//! use feedstock_trainer_bridge::{BatchSize, Dataset};
//!
//! # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
//! # let folder = tempfile::tempdir().unwrap();
//! # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
//! # images.write(folder.path(), &mut |_| {}).unwrap();
//! # let uri = folder.path().to_str().unwrap();
//! # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
//! # let options = OpenOptions { catalog, ..OpenOptions::default() };
//! let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
//! let pipeline = dataset
//!     .map("image", [decode_image(), random_resized_crop(32)])
//!     .shuffle(Shuffle::seeded(7))
//!     .batch(BatchSize::per_rank(8))
//!     .epochs(1);
//! let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
//! for batch in &mut batches {
//!     assert_eq!(batch?["image"].shape(), [8, 32, 32, 3]);
//! }
//! batches.ledger().check()?; // every sample was delivered exactly once
//! # Ok::<(), feedstock_trainer_bridge::Error>(())
//! ```

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
pub use feedstock_base::StoreProfile;
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
pub use loader::{Loader, OnChange, SamplePlace};
pub use next::Next;
pub use nulls::{NullValue, Nulls};
pub use numbers::Numbers;
pub use pipeline::Pipeline;
pub use pipeline::describe::{DescribedColumn, DescribedMap, DescribedMemory, Description};
pub use pipeline::functions::columns_of_functions;
pub use pipeline::simulate::{
    Alternative, Bottleneck, Forecast, Prices, SimulateOptions, SimulatedWorkers, Simulation,
};
pub use policy::{OnError, SkipReport, Skipped};
pub use rank::{RankIterator, RankStats};
pub use rank_builder::RankBuilder;
pub use staging::DeviceOptions;
#[cfg(feature = "cuda")]
pub use staging::compile_kernels;
pub use warnings::{Warned, WarningReport};
