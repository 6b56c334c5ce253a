//! Checks and starts one rank's share of a pipeline.

use crate::pipeline::Pipeline;
use crate::rank::{RankIterator, Settings, next_step};
use crate::slots::Column;
use crate::staging::{BatchRoute, DevicePlan};
use crate::{Error, Result};
use feedstock_dataset::{Cursor, Position, Rank, Tail};
use feedstock_device::open::OpenedDevice;
use feedstock_ingest::{Job, sample_bytes};
use feedstock_ops::OPS_VERSION;

impl Pipeline {
    /// Returns a builder of one rank's share.
    pub fn rank(&self, rank: Rank) -> RankBuilder {
        RankBuilder { pipeline: self.clone(), rank, from: None, epoch: 0 }
    }
}

/// The checked parts from which a rank's run is started.
pub(crate) struct PreparedRank {
    pub(crate) job: Job,
    pub(crate) columns: Vec<Column>,
    pub(crate) settings: Settings,
    pub(crate) device: Option<DevicePlan>,
}

/// A rank's share of a pipeline, and the position to begin at.
#[derive(Debug, Clone)]
pub struct RankBuilder {
    pipeline: Pipeline,
    rank: Rank,
    from: Option<Cursor>,
    epoch: u64,
}

impl RankBuilder {
    /// Begins at the start of this epoch. A cursor overrides it. Default 0.
    #[must_use]
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// Begins where `cursor` was taken, with any rank, world size or batch size. Default: position 0 of epoch 0.
    ///
    /// ```
    /// use feedstock_dataset::{Cursor, Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// batches.next().unwrap()?;
    /// let saved = serde_json::to_string(&batches.state()).unwrap(); // a checkpoint
    /// let next = batches.next().unwrap()?.sample_ids().to_vec();
    ///
    /// let cursor: Cursor = serde_json::from_str(&saved).unwrap();
    /// let mut resumed = pipeline.rank(Rank::new(1, 2)).resume(cursor).start()?; // on two ranks now
    /// assert_eq!(resumed.next().unwrap()?.sample_ids(), &next[2..]);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn resume(mut self, cursor: Cursor) -> Self {
        self.pipeline = self.pipeline.as_saved(&cursor);
        self.from = Some(cursor);
        self
    }

    /// Starts prefetching and decoding.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::decode_image;
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
    /// let pipeline = dataset.map("label", [decode_image()]).batch(BatchSize::per_rank(4));
    /// let error = pipeline.rank(Rank::new(0, 1)).start().err().unwrap();
    /// assert_eq!(error.kind(), feedstock_trainer_bridge::ErrorKind::BadConfig); // labels are not encoded images
    /// assert!(error.message().contains("label"));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig`, before anything runs, for: functions without workers, a chain that does not compile, a column without encoded bytes, audio clips
    /// whose headers state a codec that is not decoded (with [`OnError::Raise`](crate::OnError::Raise)), a
    /// batch larger than the data set (with [`Tail::Drop`]) or smaller than the world size, a budget smaller than a
    /// batch, fewer than 2 slots, or a cursor of another order.
    pub fn start(self) -> Result<RankIterator> {
        let prepared = self.prepare()?;
        if let Some(end) = self.pipeline.epochs.filter(|end| prepared.job.epoch >= *end) {
            let message = format!(
                "nothing is left to do: the run ends before epoch {end}, and starts at epoch {epoch}",
                epoch = prepared.job.epoch
            );
            return Err(Error::config(message));
        }
        let opened = prepared.device.as_ref().map(DevicePlan::open).transpose()?;
        self.run(prepared, opened)
    }

    /// Starts the run. `opened` is the device, if there is one.
    pub(crate) fn run(&self, prepared: PreparedRank, opened: Option<OpenedDevice>) -> Result<RankIterator> {
        let PreparedRank { mut job, mut columns, settings, device } = prepared;
        let (pipeline, settings) = (&self.pipeline, &settings);
        let recipe = pipeline.recipe_with(&settings.nulls)?;
        let route = match device.zip(opened) {
            None => BatchRoute::default(),
            Some((device, opened)) => {
                let catalog = job.dataset.catalog().clone();
                let mut both: Vec<_> = job.maps.iter_mut().zip(&mut columns).collect();
                device.into_route(opened, &mut both, catalog, job.sample_bytes)
            }
        };
        RankIterator::start(job, columns, settings, route, |job, sink| match &pipeline.workers {
            None => pipeline.engine()?.run(job, sink),
            Some(workers) => workers.run(&recipe, job, || pipeline.engine(), sink),
        })
    }

    /// Checks everything that can be wrong.
    pub(crate) fn prepare(&self) -> Result<PreparedRank> {
        let pipeline = &self.pipeline;
        pipeline.on_error.check()?;
        pipeline.check_codecs()?;
        if pipeline.threads == Some(0) {
            return Err(Error::config("threads must be at least 1; got 0"));
        }
        if pipeline.recipe.functions.is_some() && pipeline.workers.is_none() {
            return Err(Error::config("Pipeline::functions needs Pipeline::workers, which run them"));
        }
        if pipeline.slots < 2 {
            let message = format!(
                "slots must be at least 2 (one is read while one is written); got {}",
                pipeline.slots
            );
            return Err(Error::config(message));
        }
        let mut plan = pipeline.plan(self.rank)?;
        let shape = pipeline.shape(self.rank)?;
        shape.check(&plan, &|sample| pipeline.recipe.dataset.catalog().describe_sample(sample))?;
        if shape.tail == Tail::Short {
            let message = "tail=short would leave some ranks without a last batch; use drop or pad";
            return Err(Error::config(message));
        }
        let (mut epoch, mut position) = (self.epoch, Position(0));
        if let Some(cursor) = &self.from {
            plan = plan.regrouped_as(cursor)?;
            (epoch, position) = next_step(&plan, &shape, cursor.epoch, cursor.position);
        }
        let ops = pipeline.ops_hash()?;
        if let Some(saved) = self.from.as_ref().and_then(|cursor| cursor.ops).filter(|saved| *saved != ops) {
            tracing::warn!(
                "the ops differ from those of the saved run ({saved:016x} there, {ops:016x} here): a chain or its keys \
                 changed, or it was saved by a release whose ops do not have version {OPS_VERSION}"
            );
        }
        let (maps, columns) = pipeline.compile()?;
        let nulls = pipeline.null_rules(&maps, &columns)?;
        pipeline.recipe_with(&nulls)?; // fails here, before anything runs
        let device = pipeline
            .device
            .as_ref()
            .map(|options| pipeline.prepare_device(options, &maps, &columns, &nulls))
            .transpose()?;
        let stream_budget_bytes = match &pipeline.workers {
            None => pipeline.budget_bytes,
            Some(workers) => workers.stream_budget_bytes(pipeline.budget_bytes),
        };
        let job = Job {
            dataset: pipeline.recipe.dataset.clone(),
            plan,
            maps,
            shape,
            strands: None,
            seed: pipeline.recipe.seed(),
            epoch,
            position,
            end_epoch: pipeline.epochs,
            budget_bytes: pipeline.budget_bytes,
            prefetch_bytes: pipeline.bytes_ahead(),
            sample_bytes: sample_bytes(pipeline.decoder_memory, stream_budget_bytes),
        };
        let settings = Settings {
            slots: pipeline.slots,
            held_bytes: pipeline.held_bytes,
            on_error: pipeline.on_error,
            deadline: pipeline.deadline,
            ops,
            nulls: nulls.into(),
            skipped: (0, 0),
        };
        Ok(PreparedRank { job, columns, settings, device })
    }
}
