//! A data set for training.

use crate::pipeline::Pipeline;
use crate::{BatchSize, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{AudioProbe, Catalog, OpenOptions, Plan, SampleId, Shuffle, Stop};
use feedstock_ingest::{RawBatches, RawOptions};
use feedstock_ops::audio::{AUDIO_HEADER_VERSION, read_audio_header, unsupported_codec};
use feedstock_ops::image::View;
use feedstock_ops::{ChainSpec, Op};
use std::ops::Range;
use std::sync::Arc;

/// Reads the duration of an audio clip, and the codec if it is not decoded, from its header. [`Dataset::open`] uses it for data
/// sets without durations.
///
/// ```
/// use feedstock_trainer_bridge::Dataset;
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
/// assert_eq!(dataset.filter("duration > 0.5")?.len(), 2); // `open_with` reads durations from the headers
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
pub fn audio_probe() -> AudioProbe {
    let seconds = |head: &[u8], total_bytes| read_audio_header(head, total_bytes).ok()?.seconds();
    AudioProbe::new(AUDIO_HEADER_VERSION, seconds).unsupported(unsupported_codec)
}

/// An opened data set, the start of a pipeline.
///
/// It has what a training job needs. The data set as the crate `feedstock-dataset` knows it, with its storage, caches and plan,
/// is [`AsRef`].
#[derive(Debug, Clone)]
pub struct Dataset(feedstock_dataset::Dataset);

impl Dataset {
    /// Opens `uri` (`s3://…`, `gs://…`, `az://…`, `http(s)://…`, `file://…`, a path) and detects the layout.
    ///
    /// # Errors
    /// See [`feedstock_dataset::Dataset::open`].
    pub async fn open(uri: &str) -> Result<Self> {
        Self::open_with(uri, OpenOptions::default()).await
    }

    /// Opens `uri` with options, such as credentials, the layout by name and the catalog's folder. [`audio_probe`] reads
    /// durations from the headers of audio clips, unless the options have another probe or [`Durations::Never`].
    ///
    /// [`Durations::Never`]: feedstock_dataset::Durations::Never
    ///
    /// # Errors
    /// See [`feedstock_dataset::Dataset::open`].
    pub async fn open_with(uri: &str, mut options: OpenOptions) -> Result<Self> {
        options.audio_probe.get_or_insert_with(audio_probe);
        Ok(Self(feedstock_dataset::Dataset::open_with(uri, options).await?))
    }

    /// Mixes data sets by weight. `stop` sets when an epoch ends. See [`feedstock_dataset::Dataset::mix`].
    ///
    /// # Errors
    /// `BadConfig` for weights that are not finite numbers above zero, and for incompatible columns.
    pub fn mix(parts: Vec<(Self, f64)>, stop: Stop) -> Result<Self> {
        let parts = parts.into_iter().map(|(part, weight)| (part.0, weight)).collect();
        Ok(Self(feedstock_dataset::Dataset::mix(parts, stop)?))
    }

    /// Joins data sets end to end: every sample of every part is in each epoch exactly once. See
    /// [`feedstock_dataset::Dataset::concat`].
    ///
    /// # Errors
    /// `BadConfig` for no parts, a part that is a mix, parts of the same name, and incompatible columns.
    pub fn concat(parts: Vec<Self>) -> Result<Self> {
        let parts = parts.into_iter().map(|part| part.0).collect();
        Ok(Self(feedstock_dataset::Dataset::concat(parts)?))
    }

    /// Sets the name of this data set in the column `dataset` of a mix or a concatenation. Default: its URI.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self(self.0.named(name))
    }

    /// Keeps the samples for which the SQL expression over the catalog's columns is true. Blocks while it reads
    /// the columns that the expression names.
    ///
    /// ```
    /// use feedstock_trainer_bridge::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// assert_eq!(dataset.clone().filter("sample_id < 4")?.len(), 4);
    /// let error = dataset.filter("colour = 'red'").unwrap_err();
    /// assert!(error.message().contains("the columns are: "));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an expression that does not parse, an unknown column (the message lists them all), or one
    /// that keeps no sample.
    pub fn filter(self, sql: &str) -> Result<Self> {
        let (io, sql) = (self.0.io().clone(), sql.to_owned());
        Ok(Self(io.block_on(async move { self.0.filter(&sql).await })?))
    }

    /// Keeps the first `n` of the selected samples, in catalog order, or all of them if there are fewer. Filters and other
    /// steps apply in the sequence of their calls. See [`feedstock_dataset::Dataset::take`].
    ///
    /// ```
    /// use feedstock_trainer_bridge::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// assert_eq!(dataset.clone().filter("sample_id >= 4")?.take(8)?.len(), 8);
    /// assert_eq!(dataset.take(8)?.filter("sample_id >= 4")?.len(), 4);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for 0, and for a mix.
    pub fn take(self, n: u64) -> Result<Self> {
        Ok(Self(self.0.take(n)?))
    }

    /// Leaves out the first `n` of the selected samples, in catalog order. 0 changes nothing. See
    /// [`feedstock_dataset::Dataset::skip`].
    ///
    /// # Errors
    /// `BadConfig` if no sample is left, and for a mix.
    pub fn skip(self, n: u64) -> Result<Self> {
        Ok(Self(self.0.skip(n)?))
    }

    /// Keeps the samples with these ids, as batches and skip reports state them. See [`feedstock_dataset::Dataset::select`].
    ///
    /// # Errors
    /// `BadConfig` for no ids, an id that is listed twice, is not in the catalog or is left out by an earlier step.
    pub fn select(self, ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        Ok(Self(self.0.select(ids)?))
    }

    /// Splits the selected samples by a key: samples with equal keys are in the same part. `shares` are the names of the parts
    /// and their shares of the keys. Blocks while it reads the columns of the key. See
    /// [`feedstock_dataset::Dataset::split_by`].
    ///
    /// # Errors
    /// `BadConfig` for a key that is not valid, shares that do not sum to 1, and a part without samples.
    pub fn split_by(&self, key: &str, shares: &[(&str, f64)], seed: u64) -> Result<Vec<(String, Self)>> {
        let parts = futures::executor::block_on(self.0.split_by(key, shares, seed))?;
        Ok(parts.into_iter().map(|(name, part)| (name, Self(part))).collect())
    }

    /// Draws samples by weight: each ⌊M · w / W⌋ times an epoch or once more, where M is `samples`, by default the number of selected
    /// samples. `weight` is a numeric column or an SQL expression. Blocks while it reads the weights. See
    /// [`feedstock_dataset::Dataset::weights`].
    ///
    /// # Errors
    /// `BadConfig` for weights that are null, NaN, infinite or negative, or all 0, and for a mix.
    pub fn weights(self, weight: &str, samples: Option<u64>) -> Result<Self> {
        Ok(Self(futures::executor::block_on(self.0.weights(weight, samples))?))
    }

    /// Draws samples so that each class is drawn as often as the largest class has samples. `class` is a column or an SQL
    /// expression. Blocks while it reads the classes. See [`feedstock_dataset::Dataset::balanced`].
    ///
    /// # Errors
    /// `BadConfig` for classes that are null or of a type that no class has, and for a mix.
    pub fn balanced(self, class: &str) -> Result<Self> {
        Ok(Self(futures::executor::block_on(self.0.balanced(class))?))
    }

    /// Adds a column of the values of an SQL expression, which later filters and batches have. Blocks while it evaluates the
    /// expression for all samples. See [`feedstock_dataset::Dataset::with_column`].
    ///
    /// # Errors
    /// `BadConfig` for a name that is taken, and for an expression that is not valid, depends on chance or the clock, or is
    /// computed from many samples.
    pub fn with_column(self, name: &str, sql: &str) -> Result<Self> {
        Ok(Self(futures::executor::block_on(self.0.with_column(name, sql))?))
    }

    /// Gives columns other names: pairs of an old and a new one. See [`feedstock_dataset::Dataset::rename`].
    ///
    /// # Errors
    /// `BadConfig` for a column that is unknown, and for a new name that another column has.
    pub fn rename(self, names: &[(&str, &str)]) -> Result<Self> {
        Ok(Self(self.0.rename(names)?))
    }

    /// Adds the metadata columns of `other` where its keys are equal to keys of this data set; null elsewhere. `on` are pairs of a
    /// column here and one there. Blocks while it reads keys and columns. See [`feedstock_dataset::Dataset::join`].
    ///
    /// # Errors
    /// `BadConfig` for a key that occurs twice in `other`, for keys of types that do not fit, and for a column that both have.
    pub fn join(self, other: &Self, on: &[(&str, &str)]) -> Result<Self> {
        Ok(Self(futures::executor::block_on(self.0.join(&other.0, on))?))
    }

    /// Keeps only these columns in batches.
    ///
    /// # Errors
    /// `BadConfig` for an unknown column.
    pub fn columns(self, names: &[&str]) -> Result<Self> {
        Ok(Self(self.0.columns(names)?))
    }

    /// Returns the number of samples in an epoch, at least 1: the selected ones, or the draws by weight.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a data set is never empty: opening or filtering it would fail"
    )]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the URI that it was opened by, without user name, password and signature.
    pub fn uri(&self) -> &str {
        self.0.uri()
    }

    /// Returns the catalog of all samples and blocks, filtered or not.
    pub fn catalog(&self) -> &Arc<Catalog> {
        self.0.catalog()
    }

    /// Runs a query over the table `catalog` of all samples, such as `select label, count(*) from catalog group by label`. See
    /// [`feedstock_dataset::Dataset::sql`].
    ///
    /// # Errors
    /// `BadConfig` for an invalid query, with DataFusion's message and the columns; storage's errors.
    pub async fn sql(&self, query: &str) -> Result<Vec<RecordBatch>> {
        self.0.sql(query).await
    }

    /// Reads the selected samples with these numbers, undecoded, in catalog order. Blocks. See
    /// [`feedstock_dataset::Dataset::rows`].
    ///
    /// # Errors
    /// Storage's errors.
    pub fn rows(&self, numbers: Range<u64>) -> Result<RecordBatch> {
        futures::executor::block_on(self.0.rows(numbers))
    }

    /// Computes the order of all epochs. See [`feedstock_dataset::Dataset::plan`].
    ///
    /// # Errors
    /// `BadConfig` if lanes or window are out of range.
    pub fn plan(&self, shuffle: &Shuffle) -> Result<Plan> {
        self.0.plan(shuffle)
    }

    /// Copies the stored catalog to a folder or bucket for other machines. See
    /// [`feedstock_dataset::Dataset::publish_catalog`].
    ///
    /// # Errors
    /// `BadConfig` if the catalog is not stored or depends on files of this machine; storage's errors.
    pub async fn publish_catalog(&self, folder: &str) -> Result<()> {
        self.0.publish_catalog(folder).await
    }

    /// Runs each sample's `column` through a chain of ops; see [`Pipeline::map`].
    pub fn map(self, column: &str, ops: impl Into<ChainSpec>) -> Pipeline {
        Pipeline::new(self.0).map(column, ops)
    }

    /// Runs each sample's `column` through a chain of ops into the tensor `output`; see [`Pipeline::map_as`].
    pub fn map_as(self, column: &str, output: &str, ops: impl Into<ChainSpec>) -> Pipeline {
        Pipeline::new(self.0).map_as(column, output, ops)
    }

    /// Makes several views of each image in `column`, which is decoded once; see [`Pipeline::views`].
    pub fn views(
        self,
        column: &str,
        decode: impl Into<Op>,
        views: impl IntoIterator<Item = View>,
    ) -> Pipeline {
        Pipeline::new(self.0).views(column, decode, views)
    }

    /// Sets the order; see [`Pipeline::shuffle`].
    pub fn shuffle(self, shuffle: Shuffle) -> Pipeline {
        Pipeline::new(self.0).shuffle(shuffle)
    }

    /// Sets the batch size; see [`Pipeline::batch`].
    pub fn batch(self, size: BatchSize) -> Pipeline {
        Pipeline::new(self.0).batch(size)
    }

    /// Returns a rank's share, or everything, as Arrow record batches in plan order, without decoding.
    ///
    /// ```
    /// use feedstock_ingest::RawOptions;
    /// use feedstock_trainer_bridge::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let mut batches = dataset.record_batches(&RawOptions { batch_rows: 10, ..RawOptions::default() })?;
    /// assert_eq!(batches.next().unwrap()?.num_rows(), 10);
    /// assert_eq!(batches.next().unwrap()?.num_rows(), 6);
    /// assert!(batches.next().is_none());
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if the plan or the budget does not fit.
    pub fn record_batches(&self, options: &RawOptions) -> Result<RawBatches> {
        RawBatches::start(&self.0, options)
    }
}

impl AsRef<feedstock_dataset::Dataset> for Dataset {
    fn as_ref(&self) -> &feedstock_dataset::Dataset {
        &self.0
    }
}

impl From<feedstock_dataset::Dataset> for Dataset {
    fn from(dataset: feedstock_dataset::Dataset) -> Self {
        Self(dataset)
    }
}
