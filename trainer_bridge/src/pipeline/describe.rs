//! What a pipeline is: its data, its columns, its order, its memory and what it reads.

use super::Pipeline;
use crate::Result;
use arrow::datatypes::Field;
use feedstock_dataset::{MAX_MEASURED_ROWS, Position, Rank, ReadQuality, StepSize, Tail};
use feedstock_ingest::default_threads;
use feedstock_ops::{ChainSpec, DType, Layout};
use serde::Serialize;

/// The most bytes that a process takes for code, stacks and buffers, in addition to what options set.
const OTHER_BYTES: u64 = 200_000_000;

/// A pipeline as one of its ranks runs it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// Where the data set is, without credentials.
    pub uri: String,
    /// How it is stored.
    pub layout: &'static str,
    /// Samples of the catalog.
    pub catalog_samples: u64,
    /// Selected samples.
    pub samples: u64,
    /// The selection as one SQL expression: see [`feedstock_dataset::Dataset::filter_sql`].
    pub filter: Option<String>,
    /// What chains make, in the order of the maps.
    pub maps: Vec<DescribedMap>,
    /// Columns without a map.
    pub columns: Vec<DescribedColumn>,
    /// What is permuted, and in what windows.
    pub order: String,
    /// The seed of the order.
    pub order_seed: u64,
    /// The seed of the ops.
    pub seed: u64,
    /// The column of lengths by which batches are bucketed.
    pub bucketed_by: Option<String>,
    /// Rows of a step over all ranks; `None` if a total bounds them.
    pub global_batch_size: Option<u64>,
    /// Rows of this rank's batches, or the most of them.
    pub batch_size: u64,
    /// Whether an incomplete last step is padded.
    pub is_padded: bool,
    /// Steps of an epoch; `None` if it does not end.
    pub steps: Option<u64>,
    /// The number of ranks.
    pub world_size: u32,
    /// CPU threads of this process.
    pub threads: usize,
    /// The bounds of a loader's memory.
    pub memory: DescribedMemory,
    /// What an epoch reads; `None` if it does not end, or if a global batch may have more than 262,144 samples.
    pub reads: Option<ReadQuality>,
}

/// One map.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedMap {
    /// The column that is read.
    pub column: String,
    /// Its Arrow type.
    pub column_type: String,
    /// The chain.
    pub ops: ChainSpec,
    /// The name of the result.
    pub output: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape for one sample; `None` for a length that differs between samples.
    pub shape: Vec<Option<usize>>,
    /// The meaning of its axes.
    pub layout: Layout,
}

/// A column that no chain transforms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedColumn {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub column_type: String,
    /// Whether batches have it as a tensor, not as a list.
    pub is_tensor: bool,
}

/// The bounds of a loader's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DescribedMemory {
    /// Batches in memory.
    pub slots: usize,
    /// Bytes of a batch's mapped columns, without those of variable length.
    pub slot_bytes: u64,
    /// Whether there are columns of variable length in addition.
    pub has_variable_length: bool,
    /// See [`Pipeline::budget_bytes`].
    pub budget_bytes: u64,
    /// See [`Pipeline::prefetch_bytes`].
    pub prefetch_bytes: u64,
    /// See [`Pipeline::decoder_memory`].
    pub decoder_memory: u64,
    /// See [`Pipeline::held_bytes`].
    pub held_bytes: u64,
    /// The sum: budget, slots, decoders of all threads, and 200 MB for everything else.
    pub most_bytes: u64,
}

impl Pipeline {
    /// Describes what one rank of `world_size` does. Reads nothing, except the resources that ops name (tokenizers, noise) and the
    /// column of lengths, if there is one.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
    /// use feedstock_ops::{decode_image, resize};
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
    /// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
    /// let described = pipeline.describe(Rank::new(0, 2))?;
    /// assert_eq!(described.maps[0].shape, [Some(32), Some(32), Some(3)]);
    /// assert_eq!((described.global_batch_size, described.steps), (Some(8), Some(2)));
    /// assert!(described.columns.iter().any(|column| column.name == "label" && column.is_tensor));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`RankBuilder::start`](crate::RankBuilder::start).
    pub fn describe(&self, rank: Rank) -> Result<Description> {
        let dataset = &self.recipe.dataset;
        let catalog = dataset.catalog();
        let (maps, made) = self.compile()?;
        let (plan, shape) = (self.plan(rank)?, self.shape(rank)?);
        shape.check(&plan, &|sample| catalog.describe_sample(sample))?;
        let rules = self.null_rules(&maps, &made)?;
        let along = self.recipe.unmapped(&maps)?;
        let type_of = |name: &str| {
            let field = catalog.schema().field_with_name(name);
            field.map_or_else(|_| String::new(), |field| field.data_type().to_string())
        };
        let column = |field: &Field| DescribedColumn {
            name: field.name().clone(),
            column_type: field.data_type().to_string(),
            is_tensor: rules.iter().any(|rule| rule.column == *field.name() && !rule.is_list()),
        };
        let described = maps.iter().zip(&self.recipe.maps).map(|(map, spec)| {
            let output = map.chain.output();
            let length =
                |(axis, length): (usize, &usize)| (output.ragged_axis != Some(axis)).then_some(*length);
            DescribedMap {
                column: map.column.clone(),
                column_type: type_of(&map.column),
                ops: spec.ops.clone(),
                output: map.output.clone(),
                dtype: output.dtype,
                shape: output.shape.iter().enumerate().map(length).collect(),
                layout: output.layout,
            }
        });
        let threads = self.threads.unwrap_or_else(default_threads);
        let is_endless = plan.is_endless();
        Ok(Description {
            uri: dataset.uri().to_owned(),
            layout: catalog.layout().name(),
            catalog_samples: catalog.samples(),
            samples: dataset.len(),
            filter: dataset.filter_sql(),
            maps: described.collect(),
            columns: along.fields().iter().map(|field| column(field)).collect(),
            order: plan.fingerprint().describe_shuffle(),
            order_seed: self.recipe.shuffle.seed(),
            seed: self.recipe.seed(),
            bucketed_by: plan.fingerprint().bucketing.as_ref().map(|bucketing| bucketing.column.clone()),
            global_batch_size: match shape.size {
                StepSize::Rows(rows) => Some(rows),
                StepSize::Total { .. } => None,
            },
            batch_size: shape.rows(),
            is_padded: shape.tail == Tail::Pad,
            steps: (!is_endless).then(|| plan.steps_left(0, Position(0), &shape)),
            world_size: rank.world_size,
            threads,
            memory: self.described_memory(threads, shape.rows())?,
            reads: match shape.size.max_rows() > MAX_MEASURED_ROWS {
                true => None,
                false => dataset.epoch_reads(&plan, 0, &shape)?,
            },
        })
    }

    fn described_memory(&self, threads: usize, rows: u64) -> Result<DescribedMemory> {
        let (maps, _) = self.compile()?;
        let outputs = || maps.iter().map(|map| map.chain.output());
        let row_bytes: u64 = outputs().map(|output| output.bytes() as u64).sum();
        let slot_bytes = row_bytes.saturating_mul(rows);
        let decoders = self.decoder_memory.saturating_mul(threads as u64);
        Ok(DescribedMemory {
            slots: self.slots,
            slot_bytes,
            has_variable_length: outputs().any(|output| output.is_ragged()),
            budget_bytes: self.budget_bytes,
            prefetch_bytes: self.bytes_ahead(),
            decoder_memory: self.decoder_memory,
            held_bytes: self.held_bytes,
            most_bytes: self
                .budget_bytes
                .saturating_add(slot_bytes.saturating_mul(self.slots as u64))
                .saturating_add(decoders)
                .saturating_add(OTHER_BYTES),
        })
    }
}
