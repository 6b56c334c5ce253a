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
//!     .shuffle(Shuffle::seeded(7))
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
//!
//! On images that the example makes:
//!
//! ```
//! use feedstock::{BatchSize, Dataset, Rank, Shuffle, decode_image, random_resized_crop};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
//! # images.write(folder.path(), &mut |_| {}).unwrap();
//! # let uri = folder.path().to_str().unwrap();
//! # use feedstock::catalog::{CatalogOptions, CatalogStore};
//! # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
//! # let options = feedstock::OpenOptions { catalog, ..feedstock::OpenOptions::default() };
//! let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images
//! let pipeline = dataset
//!     .map("image", [decode_image(), random_resized_crop(32)])
//!     .shuffle(Shuffle::seeded(7))
//!     .batch(BatchSize::global(8))
//!     .epochs(1);
//! let mut batches = pipeline.rank(Rank::new(1, 2)).start()?; // one of two ranks
//! let batch = batches.next().unwrap()?;
//! assert_eq!((batch["image"].shape(), batches.state().position.0), (vec![4, 32, 32, 3], 8));
//! # Ok::<(), feedstock::Error>(())
//! ```

pub use feedstock_dataset::{Cursor, OpenOptions, Rank, SampleId, Shuffle, Tail};
pub use feedstock_ingest::{RawBatches, RawOptions, SampleContext, default_threads};
pub use feedstock_ops::{
    add_noise, adjust_sharpness, affine, allpass_biquad, aug_mix, auto_augment, autocontrast, band_biquad,
    bandpass_biquad, bandreject_biquad, bass_biquad, center_crop, color_jitter, decode_audio, decode_image,
    equalize, equalizer_biquad, feature_major, g711, gaussian_blur, global_mvn, grayscale, highpass_biquad,
    horizontal_flip, invert, log_mel, log_mel_librosa, log_mel_torchaudio, log_mel_whisper, lowpass_biquad,
    mfcc, normalize, pad, pad_seconds, pad_to, perspective, posterize, rand_augment, random_apply,
    random_choice, random_crop, random_crop_seconds, random_erasing, random_iou_crop, random_resized_crop,
    random_zoom_out, resample, resize, reverb, rotate, scale_jitter, solarize, spec_augment, speed_perturb,
    time_shift, timm_rand_augment, to_chw, to_f32, tokenize, tokenize_chars, treble_biquad, trim_silence,
    trivial_augment, utterance_mvn, vertical_flip, volume,
};
pub use feedstock_trainer_bridge::{
    Batch, BatchSize, Dataset, DescribedColumn, DescribedMap, DescribedMemory, Description, Element, Error,
    ErrorKind, Ledger, Loader, Local, Next, NullValue, Nulls, Numbers, OnChange, OnError, Pipeline,
    RankBuilder, RankIterator, RankStats, Result, SamplePlace, SkipReport, Skipped, Tensor, Warned,
    WarningReport, Workers,
};

/// How a data set is catalogued: layouts, stored catalogs, what to do with damaged shards.
///
/// ```
/// use feedstock::catalog::{CatalogOptions, CatalogStore, Layout};
/// use feedstock::{Dataset, OpenOptions};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() }; // leaves no files
/// let options = OpenOptions { catalog, layout: Some(Layout::HfParquet), ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?;
/// assert_eq!(dataset.catalog().describe_sample(feedstock::SampleId(3)), "train-00000-of-00001.parquet row 3");
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod catalog {
    pub use feedstock_dataset::{
        AudioProbe, BadShards, Catalog, CatalogCheck, CatalogOptions, CatalogSource, CatalogStore, Durations,
        Layout, Progress, TarHeaders,
    };
    pub use feedstock_ops::sql_functions;
    pub use feedstock_trainer_bridge::audio_probe;
}

/// Where data sets are stored: credentials, endpoints, caches.
///
/// ```
/// use feedstock::OpenOptions;
/// use feedstock::storage::{DiskCacheOptions, StorageOptions};
///
/// let options = OpenOptions {
///     storage: StorageOptions::default()
///         .with("aws_endpoint", "https://minio.example:9000")
///         .with("aws_secret_access_key", "wJalrXUtnFEMI"),
///     disk_cache: Some(DiskCacheOptions::new("/nvme/feedstock", 500 << 30)),
///     ..OpenOptions::default()
/// };
/// assert!(!format!("{:?}", options.storage).contains("wJalrXUtnFEMI")); // secrets print as ***
/// ```
pub mod storage {
    pub use feedstock_dataset::{DiskCacheOptions, Secret, StorageOptions};
}

/// The order of samples, computed without reading data.
///
/// ```
/// use feedstock::order::{Access, DataHashes, Plan, PlanInput, Position};
/// use feedstock::{Cursor, Shuffle};
///
/// let data = DataHashes { identity: 0xFEED, blocks: 1, legacy: 0 };
/// let starts: Vec<u64> = (0..=100).map(|block| block * 40).collect(); // 100 blocks of 40 samples
/// let (block_starts, access) = (starts.into(), Access::Blocks);
/// let input = PlanInput { block_starts, selection: None, data, filter: None, encoded_bytes: 400 << 20, access };
/// let plan = Plan::new(input, &Shuffle::seeded(7).window(1_000))?;
/// let saved: Cursor = plan.cursor(3, Position(1_024));
/// assert_eq!((plan.len(), saved.epoch), (4_000, 3));
/// assert_eq!(plan.epoch(3).digest(0..4_000), plan.digest()); // each sample once
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod order {
    pub use feedstock_dataset::{
        Access, DataHashes, Digest, Fingerprint, LabelQuality, Lengths, OrderQuality, Plan, PlanInput,
        Position, ReadQuality, ShuffleQuality, StepShape, StepSize, Stop,
    };
}

/// Descriptions of ops, and chains of ops outside of a pipeline.
///
/// ```
/// use feedstock::ops::{Chain, RaggedRow, SampleSeed, Scratch};
///
/// let chain = Chain::parse("tokenize_chars:abc")?;
/// let mut row = RaggedRow::new();
/// chain.apply_ragged(b"cab", SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!((chain.output().shape_at(row.length()), row.bytes()[0]), (vec![3], 2));
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod ops {
    pub use feedstock_ops::image::{Annotation, BoxFormat, Boxes, Keypoints, View};
    pub use feedstock_ops::text::{TokenizeChars, Unknown};
    pub use feedstock_ops::{
        BoxCrop, Chain, ChainSpec, DType, Noise, NumberList, OPS_VERSION, Op, OpInfo, RaggedRow, Resources,
        SampleSeed, Scratch, TensorSpec, Warning, Warnings,
    };
}

/// Worker processes that decode for ranks, and the trust between them.
///
/// ```
/// use feedstock::workers::{Worker, WorkerOptions};
/// use feedstock::{BatchSize, Dataset, Rank, Workers, decode_image, resize};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # use feedstock::catalog::{CatalogOptions, CatalogStore};
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = feedstock::OpenOptions { catalog, ..feedstock::OpenOptions::default() };
/// let mut worker = WorkerOptions::new(feedstock::OpenOptions::default); // usually on another machine
/// # worker.open_with = std::sync::Arc::new(|| feedstock::OpenOptions {
/// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
/// #     ..feedstock::OpenOptions::default()
/// # });
/// worker.listen = "127.0.0.1:0".into();
/// worker.allow = vec![uri.to_owned()];
/// let worker = Worker::start(worker)?;
///
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?;
/// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(8)).epochs(1);
/// let pipeline = pipeline.workers(Workers::at(&worker.address().to_string())?);
/// let rows: usize = pipeline.rank(Rank::new(0, 1)).start()?.map(|batch| batch.map_or(0, |batch| batch.len())).sum();
/// assert_eq!((rows, worker.status().samples), (16, 16)); // the worker decoded all of them
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod workers {
    pub use feedstock_ingest::{
        ClientTls, FleetIdentity, FunctionKind, FunctionOutput, FunctionStep, FunctionsSpec, Identity,
        RESULT_PREFIX, ResultColumn, RowExecutor, RowFunctions, RowLane, RowResults, RowStep, RowTensor,
        ServerTls, Token, Worker, WorkerOptions, WorkerStatus,
    };
    pub use feedstock_trainer_bridge::columns_of_functions;
}

/// Batches in the memory of a GPU, and the ops that finish them there.
///
/// ```
/// # use feedstock::device::{DeviceOptions, Finish, FinishType, PictureFinish};
/// # use feedstock::{BatchSize, Dataset, Rank, decode_image, resize};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # use feedstock::catalog::{CatalogOptions, CatalogStore};
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = feedstock::OpenOptions { catalog, ..feedstock::OpenOptions::default() };
/// let mut finish = PictureFinish::default(); // normalised, channels first
/// finish.dtype = FinishType::F16;
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?;
/// let pipeline = dataset
///     .map("image", [decode_image(), resize([32, 32])])
///     .batch(BatchSize::per_rank(8))
///     .device(DeviceOptions::host().finish("image", Finish::Picture(finish))); // DeviceOptions::cuda(0) on a GPU
/// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
/// let image = batch.device_tensor("image").unwrap();
/// assert_eq!((image.shape(), image.element().name()), (&[8, 3, 32, 32][..], "float16"));
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod device {
    pub use feedstock_trainer_bridge::{
        DeviceOptions, DeviceTensor, FeatureFinish, FeatureNorm, Finish, FinishType, MixupCutmix,
        PictureFinish, PictureLayout, Place, StreamHandle, use_address_on,
    };
    #[cfg(feature = "cuda")]
    pub use feedstock_trainer_bridge::{TensorView, compile_kernels, offer_libraries};
}

/// Dry runs: rate, reads, memory and costs of a job, forecast without reading its data.
///
/// ```
/// use feedstock::simulate::{SimulateOptions, StoreProfile};
/// use feedstock::{BatchSize, Dataset};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = feedstock::catalog::CatalogOptions { store: feedstock::catalog::CatalogStore::Nowhere, ..Default::default() };
/// # let options = feedstock::OpenOptions { catalog, ..Default::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images
/// let on_s3 = SimulateOptions { store: Some(StoreProfile::S3), ..SimulateOptions::default() };
/// let simulation = dataset.batch(BatchSize::per_rank(4)).simulate(&on_s3)?;
/// assert!(simulation.forecast.first_batch_s > 0.005); // before any byte is read
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod simulate {
    pub use feedstock_ingest::Busy;
    pub use feedstock_trainer_bridge::{
        Alternative, Bottleneck, Forecast, Prices, SimulateOptions, SimulatedWorkers, Simulation,
        StoreProfile,
    };
}

/// Copies of a data set as well-formed shards, with the same samples.
///
/// ```
/// use feedstock::Dataset;
/// use feedstock::rewrite::{Recode, RewriteOptions, rewrite};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # use feedstock::catalog::{CatalogOptions, CatalogStore};
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = feedstock::OpenOptions { catalog, ..feedstock::OpenOptions::default() };
/// # let copy = tempfile::tempdir().unwrap();
/// # let destination = copy.path().to_str().unwrap();
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // images of about 64 × 32 pixels
/// let smaller = RewriteOptions { recode: Some(Recode { max_side: 32, quality: 90 }), ..RewriteOptions::default() };
/// let report = rewrite(dataset.as_ref(), destination, &smaller)?;
/// assert_eq!((report.samples, report.shrunk, report.verified), (16, 16, true));
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod rewrite {
    pub use feedstock_ingest::{OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteReport, rewrite};
}

/// A look at each sample before a run: what would be refused or is unusual.
///
/// ```
/// use feedstock::Dataset;
/// use feedstock::doctor::{DoctorOptions, examine};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # use feedstock::catalog::{CatalogOptions, CatalogStore};
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = feedstock::OpenOptions { catalog, ..feedstock::OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?;
/// let report = examine(dataset.as_ref(), &DoctorOptions::default())?;
/// assert_eq!((report.examined, report.refused()), (16, 0));
/// assert_eq!(report.columns[0].column, "image");
/// # Ok::<(), feedstock::Error>(())
/// ```
pub mod doctor {
    pub use feedstock_ingest::doctor::{DoctorOptions, Report, examine};
}
