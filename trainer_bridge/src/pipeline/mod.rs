//! The description of a pipeline: everything except the rank and the position to start from.

mod compiled;
pub(crate) mod describe;
pub(crate) mod functions;
mod joint;
mod lengths;
mod limits;
mod quality;
pub(crate) mod simulate;
mod views;

use crate::batch_size::BatchSize;
use crate::nulls::{NullSettings, Nulls};
use crate::policy::OnError;
use crate::staging::DeviceOptions;
use feedstock_dataset::{Dataset, Shuffle, Tail};
use feedstock_ingest::{Engine, MapSpec, Recipe, Workers};
use feedstock_ops::{ChainSpec, DECODER_MEMORY, Resources};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// 2 ready, 1 being written, 1 with the caller.
const SLOTS: usize = 4;

/// Batches of an evaluation that a program collects: 1,700 batches of 64 × 10,000 scores as f32.
const HELD_BYTES: u64 = 1 << 30;

/// Twice the default shuffle window: the window's blocks, those that cross its edges, and reads ahead.
const BUDGET_BYTES: u64 = 1 << 30;

/// Longer than any retry of storage, shorter than the timeout of a collective (10 min in torch.distributed).
const DEADLINE: Duration = Duration::from_secs(300);

/// Describes which samples are processed, how, and in which order and batches. Cheap to clone. Clones use one share of the
/// process's CPU threads.
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) recipe: Recipe,
    batch: BatchSize,
    tail: Tail,
    pub(crate) on_error: OnError,
    nulls: NullSettings,
    pub(crate) epochs: Option<u64>,
    pub(crate) slots: usize,
    pub(crate) held_bytes: u64,
    pub(crate) threads: Option<usize>,
    pub(crate) budget_bytes: u64,
    pub(crate) prefetch_bytes: Option<u64>,
    pub(crate) decoder_memory: u64,
    pub(crate) row_index_bytes: Option<u64>,
    pub(crate) deadline: Duration,
    pub(crate) workers: Option<Workers>,
    pub(crate) device: Option<DeviceOptions>,
    engine: Arc<Mutex<Option<Engine>>>,
}

impl Pipeline {
    pub(crate) fn new(dataset: Dataset) -> Self {
        Self {
            recipe: Recipe::new(dataset),
            batch: BatchSize::per_rank(1),
            tail: Tail::Drop,
            on_error: OnError::Raise,
            nulls: NullSettings::default(),
            epochs: None,
            slots: SLOTS,
            held_bytes: HELD_BYTES,
            threads: None,
            budget_bytes: BUDGET_BYTES,
            prefetch_bytes: None,
            decoder_memory: DECODER_MEMORY,
            row_index_bytes: None,
            deadline: DEADLINE,
            workers: None,
            device: None,
            engine: Arc::default(),
        }
    }

    /// Runs each sample's encoded bytes or text in `column` through a chain of ops. The result is the batch's tensor of the
    /// same name. Columns without a map stay unchanged, encoded bytes included.
    ///
    /// If the column has a list of encoded images for each sample, the chain runs on every image, with independent random draws.
    /// The tensor then has the images of all rows one after another, and [`Tensor::lengths`](crate::Tensor::lengths) their number
    /// in each row.
    #[must_use]
    pub fn map(self, column: &str, ops: impl Into<ChainSpec>) -> Self {
        self.map_as(column, column, ops)
    }

    /// As [`map`](Self::map), with a name for the result, so that one column can become several tensors: a waveform
    /// and its features.
    ///
    /// The first map of a column draws its randomness as if it were the only one. Every further map of the same column
    /// draws by the name of its output, so two random crops of one image differ, as contrastive learning needs.
    /// [`key`](Self::key) overrides both.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_image, random_resized_crop};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let crop = || [decode_image(), random_resized_crop(32)];
    /// let pipeline = dataset.map_as("image", "a", crop()).map_as("image", "b", crop()).batch(BatchSize::per_rank(4));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// assert_ne!(batch["a"].bytes(), batch["b"].bytes()); // two views of each image
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn map_as(mut self, column: &str, output: &str, ops: impl Into<ChainSpec>) -> Self {
        self.recipe.maps.push(MapSpec::new(column, output, ops.into()));
        self
    }

    /// Sets the value that short rows are padded with in the tensor `output` of an earlier map. Default 0.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::decode_audio;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    /// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    /// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
    /// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
    /// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
    /// # }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, samples) in [("1.wav", 4_000), ("2.wav", 16_000), ("3.wav", 4_000), ("4.wav", 16_000)] {
    /// #     std::fs::write(folder.path().join(name), wav(16_000, &vec![0; samples])).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // WAVs of 0.25, 1, 0.25 and 1 s
    /// let pipeline = dataset.map("audio", [decode_audio()]).pad_value("audio", -1.0).batch(BatchSize::per_rank(2));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// let audio = &batch["audio"];
    /// assert_eq!((audio.shape(), audio.lengths().unwrap()), (vec![2, 16_000], &[4_000, 16_000][..]));
    /// assert_eq!((audio.as_f32().unwrap()[3_999], audio.as_f32().unwrap()[4_000]), (0.0, -1.0));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Panics
    /// If no map has that output.
    #[must_use]
    pub fn pad_value(mut self, output: &str, value: f64) -> Self {
        self.map_of(output, "pad_value").pad_value = value;
        self
    }

    /// Names the random draws of the tensor `output` of an earlier map. Maps with equal keys draw the same for a sample, even
    /// if they read different columns: the same crop of an image and of its mask. Another key draws other values. Default:
    /// see [`map_as`](Self::map_as). An empty key is an error when a rank starts.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_image, random_resized_crop};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let crop = || [decode_image(), random_resized_crop(32)];
    /// let pipeline = dataset.map_as("image", "input", crop()).map_as("image", "target", crop());
    /// let pipeline = pipeline.key("input", "pair").key("target", "pair").batch(BatchSize::per_rank(4));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// assert_eq!(batch["input"].bytes(), batch["target"].bytes()); // the same crops
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Panics
    /// If no map has that output.
    #[must_use]
    pub fn key(mut self, output: &str, key: &str) -> Self {
        self.map_of(output, "key").key = Some(key.to_owned());
        self
    }

    /// Sets the most images of a sample for the tensor `output` of an earlier map of lists of images. A sample with more is bad.
    /// Default: [`Chain::MAX_IMAGES`](feedstock_ops::Chain::MAX_IMAGES), 256.
    ///
    /// # Panics
    /// If no map has that output.
    #[must_use]
    pub fn max_images(mut self, output: &str, images: u32) -> Self {
        self.map_of(output, "max_images").max_images = Some(images);
        self
    }

    #[expect(clippy::panic, reason = "an error in the caller's chain of calls, found at its first run")]
    fn map_of(&mut self, output: &str, setting: &str) -> &mut MapSpec {
        match self.recipe.maps.iter_mut().find(|map| map.output == output) {
            Some(map) => map,
            None => panic!("{setting}: no map has the output '{output}'; put {setting} after its map"),
        }
    }

    /// Sets loaded resources that the ops refer to by URI (tokenizers, noise). All others are read from storage when a rank
    /// starts. Default: none.
    #[must_use]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.recipe.give(resources);
        self
    }

    /// Sets the order. Default: the catalog's, without shuffling.
    #[must_use]
    pub fn shuffle(mut self, shuffle: Shuffle) -> Self {
        self.recipe.shuffle = shuffle;
        self
    }

    /// Seeds the ops' randomness. Default: the shuffle's seed, 0 without a shuffle.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
    /// use feedstock_ops::{decode_image, random_resized_crop};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.map("image", [decode_image(), random_resized_crop(32)]);
    /// let pipeline = pipeline.shuffle(Shuffle::seeded(7)).batch(BatchSize::per_rank(4));
    /// let first = |seed| pipeline.clone().seed(seed).rank(Rank::new(0, 1)).start()?.next().unwrap();
    /// let (a, b) = (first(1)?, first(2)?);
    /// assert_eq!(a.sample_ids(), b.sample_ids()); // the same samples,
    /// assert_ne!(a["image"].bytes(), b["image"].bytes()); // cropped at other places
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.recipe.seed = Some(seed);
        self
    }

    /// Sets the batch size. Default: 1 per rank.
    #[must_use]
    pub fn batch(mut self, size: BatchSize) -> Self {
        self.batch = size;
        self
    }

    /// Sets what happens to the epoch's last, incomplete global batch. Default: it is dropped.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Tail};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(10)).tail(Tail::Pad).epochs(1);
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// let valid = batches.by_ref().map(|batch| Ok(batch?.valid().iter().filter(|valid| **valid).count()));
    /// assert_eq!(valid.collect::<feedstock_trainer_bridge::Result<Vec<_>>>()?, [10, 6]); // of 10 rows each
    /// assert_eq!(batches.ledger().padded, 4);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }

    /// Sets what happens to samples that cannot be decoded. Default: raise.
    #[must_use]
    pub fn on_error(mut self, policy: OnError) -> Self {
        self.on_error = policy;
        self
    }

    /// Sets how missing values are represented in all unmapped columns of numbers or flags without a separate setting
    /// ([`nulls_of`](Self::nulls_of)).
    ///
    /// Default: a column is a list in every batch if statistics prove nulls among the selected samples
    /// ([`feedstock_dataset::Dataset::proves_nulls`]). Any other is a tensor in every batch, and a sample with a null in it
    /// is a bad sample ([`on_error`](Self::on_error)). [`Nulls::Mask`] for all columns makes flags for those whose schema
    /// allows nulls.
    #[must_use]
    pub fn nulls(mut self, nulls: Nulls) -> Self {
        self.nulls.all = Some(nulls);
        self
    }

    /// Sets how missing values are represented in `column`. A column without numbers or flags, or a value that its type cannot
    /// represent, is an error when a rank starts.
    #[must_use]
    pub fn nulls_of(mut self, column: &str, nulls: Nulls) -> Self {
        self.nulls.columns.insert(column.to_owned(), nulls);
        self
    }

    /// Ends after epoch `epochs − 1`, so that nothing is prefetched beyond it. Default: no end.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Moves the work to other machines. Workers (`feedstock worker`) make the rows, and this process only assembles batches.
    /// The batches stay byte-identical. Default: this machine does all work.
    #[must_use]
    pub fn workers(mut self, workers: Workers) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Delivers batches in a GPU's memory. Slots are page-locked, and batches are copied on a separate stream while the caller
    /// computes, and finished there. Batches that were only copied ahead do not count as delivered. Without CUDA, batches are
    /// finished in host memory, and a warning is logged once. Default: batches stay in host memory.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_image, resize};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset, DeviceOptions, Element, Finish, PictureFinish};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let device = DeviceOptions::host().finish("image", Finish::Picture(PictureFinish::default()));
    /// let pipeline = dataset.map("image", [decode_image(), resize([32, 48])]).batch(BatchSize::per_rank(8)).device(device);
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// let image = batch.device_tensor("image").unwrap(); // normalised, channels first
    /// assert_eq!((image.shape(), image.element()), (&[8, 3, 32, 48][..], Element::F32));
    /// assert_eq!(image.place().to_string(), "cpu");
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn device(mut self, options: DeviceOptions) -> Self {
        self.device = Some(options);
        self
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("dataset", &self.recipe.dataset)
            .field("maps", &self.recipe.maps)
            .field("shuffle", &self.recipe.shuffle)
            .field("batch", &self.batch)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
