//! How well an order shuffles a data set, compared with a full shuffle, and what an epoch reads.

use crate::blocks::extent_reads;
use crate::catalog::{CLASS_NAMES_KEY, project};
use crate::sql::labels::{self, Labels, are_labels};
use crate::{Dataset, Error, Extent, Plan, Result, SampleId, Shuffle, ShuffleKind, StepShape};
use feedstock_plan::{ExtentReads, LabelMix, SampledSteps};
use serde::Serialize;

/// Columns that hold the label, if the caller names none; the first that exists.
const LABEL_COLUMNS: [&str; 3] = ["label", "class", "labels"];

/// Row groups and record batches whose label column is read: in about 5 s from a bucket. For a data set of more, the labels of
/// fewer steps are read.
const MAX_LABEL_RUNS: usize = 4096;

/// Steps whose labels are read, in any case.
const MIN_LABELLED_STEPS: usize = 4;

/// What the quality of a shuffle is measured for.
#[derive(Debug, Clone, Copy)]
pub struct QualityOptions<'a> {
    /// The batch size and the world size. The rank does not matter.
    pub shape: StepShape,
    /// The epoch.
    pub epoch: u64,
    /// The column of labels: texts or integers. Default: `label`, `class`, `labels` or a column with class names, if there is
    /// one; without one, nothing is stated about labels.
    pub labels: Option<&'a str>,
}

/// How well an order shuffles, next to a full shuffle and to orders with half and twice the window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShuffleQuality {
    /// The epoch that was measured.
    pub epoch: u64,
    /// The number of ranks.
    pub world_size: u32,
    /// Steps that were sampled.
    pub sampled_steps: usize,
    /// Samples of a global batch, on average.
    pub global_batch: f64,
    /// The column of labels.
    pub label_column: Option<String>,
    /// Steps whose labels were read: `sampled_steps`, or fewer in a data set of very many row groups.
    pub labelled_steps: usize,
    /// The order as set.
    pub order: OrderQuality,
    /// A full shuffle of the same samples, in batches of the same sizes.
    pub full_shuffle: OrderQuality,
    /// Why the default permutes blocks of this data set, and what changes that; `None` if it permutes pieces or samples, or if the
    /// caller set what is permuted.
    pub why_blocks: Option<String>,
    /// The order with half the window; `None` if it has no window.
    pub half_window: Option<OrderQuality>,
    /// The order with twice the window; `None` if it has no window, or one of all samples.
    pub twice_window: Option<OrderQuality>,
}

/// The figures of one order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OrderQuality {
    /// What is permuted, and in what windows: [`Fingerprint::describe_shuffle`](crate::Fingerprint::describe_shuffle).
    pub shuffle: String,
    /// Samples of a shuffle window.
    pub window: Option<u64>,
    /// Encoded bytes of a shuffle window.
    pub window_bytes: Option<u64>,
    /// The number of lanes.
    pub lanes: u32,
    /// The labels of global batches.
    pub global_batch: Option<LabelQuality>,
    /// The labels of the ranks' batches.
    pub rank_batch: Option<LabelQuality>,
    /// The share of the pairs of samples in a global batch that come from one shard; in a folder of files, from one block.
    pub same_shard_pairs: Option<f64>,
    /// Mean |position − rank in the catalog| ÷ samples: ⅓ for a full shuffle. `None` for a mix.
    pub displacement: Option<f64>,
    /// What an epoch reads. `None` for one without end.
    pub reads: Option<ReadQuality>,
}

/// The labels of a batch, on average.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LabelQuality {
    /// Different labels.
    pub labels: f64,
    /// The entropy of the labels' shares, in bits.
    pub entropy_bits: f64,
    /// The entropy ÷ that of a full shuffle's batches of the same size. `None` if those have one label.
    pub entropy_ratio: Option<f64>,
}

/// What an epoch reads without caches, if the byte budget has room for the window: each rank reads each block, or piece, that
/// it needs once, and with a full shuffle each sample alone.
///
/// A block takes one request for each object that it spans, and one more for each 32 MiB. So does a piece, which takes one more for
/// each end of a row group or record batch that it reaches over. A gap of up to 1 MiB is read, too (of local files, 128 KiB). In
/// Parquet and Arrow IPC files, columns that are stored apart take more. A Parquet file's sample is read with its pages, so that a
/// full shuffle reads more than this.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReadQuality {
    /// Requests of a rank, on average.
    pub rank_requests: u64,
    /// Bytes of a rank, on average.
    pub rank_bytes: u64,
    /// Requests of all ranks.
    pub requests: u64,
    /// Bytes of all ranks.
    pub bytes: u64,
    /// Ranks that read a block, or a piece, on average; 1 with a full shuffle.
    pub readers: f64,
}

/// One order whose steps were sampled.
struct Sampled {
    plan: Plan,
    steps: SampledSteps,
}

impl Dataset {
    /// Measures how well `shuffle` mixes the samples, on up to 64 sampled steps of the real plan. `plan` makes the plan of a
    /// shuffle: [`Dataset::plan`], with the lengths and the buckets of the job, if it has any.
    ///
    /// Read are only the labels of sampled samples: the label column of the row groups or record batches that hold them, or
    /// the catalog's table. If these are more than 4,096, the labels of fewer steps are read, at least 4.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, QualityOptions, Rank, Shuffle, StepShape, StepSize, Tail};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, Error, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc"), ("dog/4.jpg", "d")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // two cats, two dogs
    /// let shape = StepShape { size: StepSize::Rows(4), rank: Rank::new(0, 2), tail: Tail::Drop };
    /// let options = QualityOptions { shape, epoch: 0, labels: None };
    /// let quality = dataset.shuffle_quality(&Shuffle::none(), &options, |shuffle| dataset.plan(shuffle)).await?;
    /// assert_eq!(quality.label_column.as_deref(), Some("label"));
    /// let (global, rank) = (quality.order.global_batch.unwrap(), quality.order.rank_batch.unwrap());
    /// assert_eq!((global.labels, global.entropy_bits), (2.0, 1.0)); // one batch of all samples
    /// assert_eq!(rank.labels, 1.0); // rank 0 has the cats, rank 1 the dogs
    /// assert_eq!(quality.order.reads.unwrap().requests, 8); // one block of four files, read by both ranks
    /// # Ok::<(), Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an unknown column of labels or one that holds no labels, and for a global batch of more than 262,144
    /// samples; storage's errors; those of `plan`.
    pub async fn shuffle_quality<E: From<Error>>(
        &self,
        shuffle: &Shuffle,
        options: &QualityOptions<'_>,
        plan: impl Fn(&Shuffle) -> Result<Plan, E>,
    ) -> Result<ShuffleQuality, E> {
        let column = self.label_column(options.labels)?;
        let sample = |plan: Plan| -> Result<Sampled> {
            options.shape.check(&plan, &|sample| self.catalog().describe_sample(sample))?;
            let steps = SampledSteps::new(&plan, options.epoch, &options.shape)?;
            Ok(Sampled { plan, steps })
        };
        let order = sample(plan(shuffle)?)?;
        let full = self.plan(&Shuffle::full(shuffle.seed()))?;
        let full = Sampled { steps: order.steps.like(&full), plan: full };
        let windows = other_windows(&order.plan);
        let fixed = shuffle.as_saved(order.plan.fingerprint());
        let with = |window| Ok::<_, E>(sample(plan(&fixed.clone().window(window))?)?);
        let (half, twice) = (windows.0.map(with).transpose()?, windows.1.map(with).transpose()?);
        let all: Vec<&Sampled> =
            [Some(&order), Some(&full), half.as_ref(), twice.as_ref()].into_iter().flatten().collect();
        let labels = match column {
            Some(index) => Some(self.labels_of(index, &all).await?),
            None => None,
        };
        let reference = labels.as_ref().map(|labels| labels.of(&full.steps));
        let quality = |sampled: &Sampled| self.order_quality(sampled, labels.as_ref(), reference);
        let is_filtered = self.selection().is_some();
        let is_in_blocks = shuffle.has_default_unit() && order.plan.fingerprint().permutes_blocks();
        let why_blocks = is_in_blocks.then(|| self.catalog().why_blocks(is_filtered)).flatten();
        Ok(ShuffleQuality {
            epoch: options.epoch,
            world_size: options.shape.rank.world_size,
            sampled_steps: order.steps.steps(),
            global_batch: order.steps.rows_per_step(),
            label_column: column.map(|index| self.catalog().schema().field(index).name().clone()),
            labelled_steps: labels.as_ref().map_or(0, |labels| labels.steps.min(order.steps.steps())),
            order: quality(&order),
            full_shuffle: quality(&full),
            why_blocks,
            half_window: half.as_ref().map(quality),
            twice_window: twice.as_ref().map(quality),
        })
    }

    /// Returns the index of the column of labels: the one named, else the default.
    fn label_column(&self, named: Option<&str>) -> Result<Option<usize>> {
        let (catalog, schema) = (self.catalog(), self.catalog().schema());
        let fits = |index: usize| {
            let field = schema.field(index);
            are_labels(field.data_type()) && !catalog.is_payload(field.name())
        };
        if let Some(name) = named {
            let index = project(schema, &[name])?[0];
            return match fits(index) {
                true => Ok(Some(index)),
                false => Err(Error::config(format!(
                    "column {name} is {}; labels must be a column of texts or integers",
                    schema.field(index).data_type()
                ))),
            };
        }
        let by_name = LABEL_COLUMNS.iter().filter_map(|name| schema.index_of(name).ok()).find(|&i| fits(i));
        let with_names = || {
            let fields = schema.fields().iter();
            fields
                .clone()
                .position(|field| field.metadata().contains_key(CLASS_NAMES_KEY))
                .filter(|&i| fits(i))
        };
        Ok(by_name.or_else(with_names))
    }

    /// Reads the labels of all orders' samples, of as many steps as the limit of runs allows.
    async fn labels_of(&self, column: usize, orders: &[&Sampled]) -> Result<StepLabels> {
        let mut steps = orders.iter().map(|order| order.steps.steps()).max().unwrap_or(0);
        let ids = loop {
            let samples = orders.iter().flat_map(|order| order.steps.samples(steps));
            let mut ids: Vec<u64> = samples.map(|sample| sample.0).collect();
            ids.sort_unstable();
            ids.dedup();
            if steps <= MIN_LABELLED_STEPS || labels::runs_with(self.catalog(), &ids) <= MAX_LABEL_RUNS {
                break ids;
            }
            steps = (steps / 2).max(MIN_LABELLED_STEPS);
        };
        Ok(StepLabels { steps, labels: labels::labels(&self.opened, column, ids).await? })
    }

    fn order_quality(
        &self,
        Sampled { plan, steps }: &Sampled,
        labels: Option<&StepLabels>,
        full: Option<(LabelMix, LabelMix)>,
    ) -> OrderQuality {
        let catalog = self.catalog();
        let fingerprint = plan.fingerprint();
        let window = (fingerprint.shuffle == ShuffleKind::Window).then_some(fingerprint.window);
        let mixes = labels.map(|labels| labels.of(steps));
        let (global, rank) = mixes.zip(full).map_or((None, None), |((global, rank), full)| {
            (Some(LabelQuality::new(global, full.0)), Some(LabelQuality::new(rank, full.1)))
        });
        OrderQuality {
            shuffle: fingerprint.describe_shuffle(),
            window,
            window_bytes: window.map(|window| window.saturating_mul(steps.sample_bytes())),
            lanes: fingerprint.lanes,
            global_batch: global,
            rank_batch: rank,
            same_shard_pairs: steps.same_shard_pairs(&|block| catalog.block(block).shard),
            displacement: steps.displacement(plan),
            reads: self.read_quality(plan, steps),
        }
    }

    fn read_quality(&self, plan: &Plan, steps: &SampledSteps) -> Option<ReadQuality> {
        let ranks = f64::from(steps.world_size());
        let reads = steps.reads(plan, &|extent| self.extent_reads(extent))?;
        Some(ReadQuality {
            rank_requests: rounded(reads.requests / ranks),
            rank_bytes: rounded(reads.bytes / ranks),
            requests: rounded(reads.requests),
            bytes: rounded(reads.bytes),
            readers: reads.readers,
        })
    }

    /// Returns what `epoch` of a plan of this data set reads, by up to 64 sampled steps. `None` for an epoch without end. Reads nothing.
    ///
    /// # Errors
    /// `BadConfig` for a global batch of more than 262,144 samples.
    pub fn epoch_reads(&self, plan: &Plan, epoch: u64, shape: &StepShape) -> Result<Option<ReadQuality>> {
        Ok(self.read_quality(plan, &SampledSteps::new(plan, epoch, shape)?))
    }

    /// Returns the requests and bytes that fetching an extent with the chosen columns takes, without caches, retries and hedges.
    ///
    /// This is exact for folders, tars and manifests. For columnar files it is one request for each 32 MiB, and the encoded
    /// bytes of all columns.
    pub fn extent_reads(&self, extent: Extent) -> ExtentReads {
        extent_reads(self.catalog(), &self.columns, extent)
    }
}

/// The labels of the first sampled steps.
struct StepLabels {
    steps: usize,
    labels: Labels,
}

impl StepLabels {
    /// Returns the labels of global batches and of the ranks' batches.
    fn of(&self, order: &SampledSteps) -> (LabelMix, LabelMix) {
        let code = |sample: SampleId| self.labels.code(sample);
        (order.global_labels(self.steps, &code), order.rank_labels(self.steps, &code))
    }
}

impl LabelQuality {
    fn new(mix: LabelMix, full: LabelMix) -> Self {
        let ratio = (full.entropy_bits > 0.0).then(|| mix.entropy_bits / full.entropy_bits);
        Self { labels: mix.labels, entropy_bits: mix.entropy_bits, entropy_ratio: ratio }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an estimate that is not negative; the cast saturates")]
fn rounded(estimate: f64) -> u64 {
    estimate.round() as u64
}

/// Returns half and twice the window of a plan, as far as they differ from it.
fn other_windows(plan: &Plan) -> (Option<u64>, Option<u64>) {
    let fingerprint = plan.fingerprint();
    let has_parts = fingerprint.mixing.is_some() && fingerprint.version > 1; // a mix whose parts have different pieces
    if fingerprint.shuffle != ShuffleKind::Window || has_parts {
        return (None, None);
    }
    let window = fingerprint.window;
    let twice = window.saturating_mul(2).min(u32::MAX.into()).min(plan.len());
    ((window > 1).then_some(window / 2), (twice > window).then_some(twice))
}
