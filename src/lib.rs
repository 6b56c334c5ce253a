//! feedstock streams training data from object storage, decodes and augments it on CPUs, and gives each data-parallel rank its
//! batches, in an order that is a pure function of (data set, seed, epoch).
//!
//! ```text
//! object storage ─▶ Dataset: catalog, order ─▶ Pipeline: decode, augment, batch ─▶ RankIterator or Loader ─▶ trainer
//! ```
//! Each process computes the order, so no process coordinates the others. A job that resumes, loses a process or changes its
//! world size never loses or repeats a sample.
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
//! The root has what a training job needs. Modules have the rest: [`catalog`] and [`storage`] (how a data set is stored and
//! read), [`order`] (the plan itself), [`ops`] (chains of ops outside of a pipeline), [`workers`] (decoding on other machines),
//! [`device`] (batches on a GPU), [`rewrite`] (well-formed copies of a data set) and [`doctor`] (what a run would refuse). The
//! program `feedstock` is the package `feedstock-cli`.

pub use feedstock_dataset::{Cursor, OpenOptions, Rank, SampleId, Shuffle, Tail};
pub use feedstock_ingest::{RawBatches, RawOptions, SampleContext, default_threads};
pub use feedstock_ops::{
    add_noise, center_crop, color_jitter, decode_audio, decode_image, feature_major, global_mvn,
    horizontal_flip, log_mel, log_mel_librosa, log_mel_torchaudio, log_mel_whisper, mfcc, normalize,
    pad_seconds, rand_augment, random_crop, random_crop_seconds, random_erasing, random_resized_crop,
    resample, resize, spec_augment, speed_perturb, to_chw, to_f32, tokenize, tokenize_chars, trim_silence,
    trivial_augment, utterance_mvn, volume,
};
pub use feedstock_trainer_bridge::{
    Batch, BatchSize, Dataset, Element, Error, ErrorKind, Ledger, Loader, Local, Next, NullValue, Nulls,
    Numbers, OnChange, OnError, Pipeline, RankBuilder, RankIterator, RankStats, Result, SkipReport, Skipped,
    Tensor, Warned, WarningReport, Workers,
};

/// How a data set is catalogued: layouts, stored catalogs, what to do with damaged shards.
pub mod catalog {
    pub use feedstock_dataset::{
        AudioProbe, BadShards, Catalog, CatalogCheck, CatalogOptions, CatalogStore, Durations, Layout,
        Progress,
    };
    pub use feedstock_ops::sql_functions;
    pub use feedstock_trainer_bridge::audio_probe;
}

/// Where data sets are stored: credentials, endpoints, caches.
pub mod storage {
    pub use feedstock_dataset::{DiskCacheOptions, Secret, StorageOptions};
}

/// The order of samples, computed without reading data.
pub mod order {
    pub use feedstock_dataset::{
        DataHashes, Digest, Fingerprint, Lengths, Plan, PlanInput, Position, StepShape, StepSize, Stop,
    };
}

/// Descriptions of ops, and chains of ops outside of a pipeline.
pub mod ops {
    pub use feedstock_ops::text::{TokenizeChars, Unknown};
    pub use feedstock_ops::{
        Chain, ChainSpec, DType, Noise, OPS_VERSION, Op, OpInfo, RaggedRow, Resources, SampleSeed, Scratch,
        TensorSpec, Warning, Warnings,
    };
}

/// Worker processes that decode for ranks, and the trust between them.
pub mod workers {
    pub use feedstock_ingest::{
        ClientTls, FleetIdentity, Identity, ServerTls, Token, Worker, WorkerOptions, WorkerStatus,
    };
}

/// Batches in the memory of a GPU, and the ops that finish them there.
pub mod device {
    pub use feedstock_trainer_bridge::{
        DeviceOptions, DeviceTensor, FeatureFinish, FeatureNorm, Finish, FinishType, MixupCutmix,
        PictureFinish, PictureLayout, Place, StreamHandle, use_address_on,
    };
    #[cfg(feature = "cuda")]
    pub use feedstock_trainer_bridge::{TensorView, compile_kernels, offer_libraries};
}

/// Copies of a data set as well-formed shards, with the same samples.
pub mod rewrite {
    pub use feedstock_ingest::{OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteReport, rewrite};
}

/// A look at each sample before a run: what would be refused or is unusual.
pub mod doctor {
    pub use feedstock_ingest::doctor::{DoctorOptions, Report, examine};
}
