//! feedstock streams training data out of object storage, decodes and augments it on CPUs, and hands every
//! data-parallel rank its batches, in an order that is a pure function of (data set, seed, epoch).
//!
//! ```text
//! object storage ─▶ dataset: catalog, plan, blocks ─▶ ops: bytes to tensors ─▶ ingest ─▶ slots ─▶ rank
//! ```
//! Because every process can compute which sample stands at which position, nobody has to coordinate: a resumed
//! job, a lost process or a changed world size never loses or repeats a sample.
//!
//! ```no_run
//! use feedstock::{BatchSize, Dataset, Rank, Shuffle, decode_image, horizontal_flip, random_resized_crop};
//!
//! # async fn stream() -> feedstock::Result<()> {
//! let pipeline = Dataset::open("s3://corpus/imagenet/train").await?
//!     .filter("label < 100")?
//!     .map("image", [decode_image(), random_resized_crop(224), horizontal_flip(0.5)])
//!     .shuffle(Shuffle::seeded(7).window(16_384))
//!     .batch(BatchSize::per_rank(256));
//! let mut batches = pipeline.rank(Rank::new(0, 8)).start()?;
//! for batch in &mut batches {
//!     let batch = batch?;
//!     assert_eq!(batch["image"].shape(), [256, 224, 224, 3]);
//! }
//! let cursor = batches.state();
//! # Ok(())
//! # }
//! ```
//!
//! The crates behind it: [`dataset`] (which samples, in what order), [`ops`] (bytes to tensors), [`ingest`] (runs
//! a plan), [`trainer_bridge`] (hands batches to a rank).

pub use feedstock_dataset as dataset;
pub use feedstock_ingest as ingest;
pub use feedstock_ops as ops;
pub use feedstock_trainer_bridge as trainer_bridge;

pub use feedstock_dataset::{
    BadShards, Catalog, CatalogCheck, CatalogOptions, CatalogStore, Cursor, Digest, DiskCacheOptions,
    Fingerprint, Layout, Lengths, OpenOptions, Plan, Position, Rank, SampleId, Secret, Shuffle, StepSize,
    Stop, StorageOptions, Tail,
};
pub use feedstock_ingest::doctor;
pub use feedstock_ingest::{
    ClientTls, FleetIdentity, Identity, OnBadPicture, RawBatches, RawOptions, Recode, RewriteFormat,
    RewriteOptions, RewriteReport, ServerTls, Token, Worker, WorkerOptions, WorkerStatus, rewrite,
};
pub use feedstock_ops::{
    Chain, ChainSpec, DType, Noise, Op, RaggedRow, Resources, TensorSpec, Warning, Warnings, add_noise,
    center_crop, color_jitter, decode_audio, decode_image, feature_major, global_mvn, horizontal_flip,
    log_mel, log_mel_librosa, log_mel_torchaudio, log_mel_whisper, mfcc, normalize, pad_seconds,
    rand_augment, random_crop, random_crop_seconds, random_erasing, random_resized_crop, resample, resize,
    spec_augment, speed_perturb, to_chw, to_f32, tokenize, tokenize_chars, trim_silence, trivial_augment,
    utterance_mvn, volume,
};
pub use feedstock_trainer_bridge::{
    Batch, BatchSize, Dataset, DeviceOptions, DeviceTensor, Element, Error, ErrorKind, FeatureFinish,
    FeatureNorm, Finish, FinishType, Ledger, Loader, Local, MixupCutmix, Next, NullValue, Nulls, Numbers,
    OnChange, OnError, PictureFinish, PictureLayout, Pipeline, Place, RankBuilder, RankIterator, RankStats,
    Result, SkipReport, Skipped, StreamHandle, Tensor, Warned, WarningReport, Workers, use_address_on,
};
/// The former name of [`MixupCutmix`].
#[deprecated(since = "0.2.0", note = "renamed to MixupCutmix")]
pub type Mix = MixupCutmix;
#[cfg(feature = "cuda")]
pub use feedstock_trainer_bridge::{TensorView, compile_kernels, offer_libraries};
