//! The description of a pipeline: everything but the rank and the place to start.

use crate::policy::OnError;
use crate::rank::{RankIterator, Settings};
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Dataset, Plan, Position, Rank, Shuffle, StepShape, Tail};
use feedstock_ingest::{Engine, Map};
use feedstock_ops::ChainSpec;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// 2 ready, 1 being written, 1 with the caller.
const SLOTS: usize = 4;

/// Twice the default shuffle window: the window's blocks, those that reach over its edges, and reads ahead.
const BUDGET_BYTES: u64 = 1 << 30;

/// Longer than any retry of storage, shorter than the time-out of a collective (10 min in torch.distributed).
const DEADLINE: Duration = Duration::from_secs(300);

/// How many samples a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// For each rank: a step takes this times the world size.
    PerRank(u64),
    /// Over all ranks: shares differ by at most one row.
    Global(u64),
}

impl BatchSize {
    /// Samples a step for each rank.
    pub const fn per_rank(samples: u64) -> Self {
        Self::PerRank(samples)
    }

    /// Samples a step over all ranks.
    pub const fn global(samples: u64) -> Self {
        Self::Global(samples)
    }

    fn over(self, rank: Rank) -> Option<u64> {
        match self {
            Self::PerRank(samples) => samples.checked_mul(u64::from(rank.world_size)),
            Self::Global(samples) => Some(samples),
        }
    }
}

/// What is done to which samples, in which order and batches. Cheap to clone; clones share the CPU threads.
#[derive(Clone)]
pub struct Pipeline {
    dataset: Dataset,
    maps: Vec<(String, ChainSpec)>,
    shuffle: Shuffle,
    seed: Option<u64>,
    batch: BatchSize,
    tail: Tail,
    on_error: OnError,
    epochs: Option<u64>,
    slots: usize,
    threads: Option<usize>,
    budget_bytes: u64,
    deadline: Duration,
    engine: Arc<Mutex<Option<Engine>>>,
}

impl Pipeline {
    pub(crate) fn new(dataset: Dataset) -> Self {
        Self {
            dataset,
            maps: Vec::new(),
            shuffle: Shuffle::none(),
            seed: None,
            batch: BatchSize::per_rank(1),
            tail: Tail::Drop,
            on_error: OnError::Raise,
            epochs: None,
            slots: SLOTS,
            threads: None,
            budget_bytes: BUDGET_BYTES,
            deadline: DEADLINE,
            engine: Arc::default(),
        }
    }

    /// Runs each sample's encoded bytes in `column` through a chain of ops; the result is the batch's tensor of the
    /// same name. Columns without a map ride along as they are, encoded bytes included.
    #[must_use]
    pub fn map(mut self, column: &str, ops: impl Into<ChainSpec>) -> Self {
        self.maps.push((column.to_owned(), ops.into()));
        self
    }

    /// Sets the order. Default: the catalog's, without shuffling.
    #[must_use]
    pub fn shuffle(mut self, shuffle: Shuffle) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Seeds the ops' randomness. Default: the shuffle's seed, 0 without a shuffle.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the batch size. Default: 1 per rank.
    #[must_use]
    pub fn batch(mut self, size: BatchSize) -> Self {
        self.batch = size;
        self
    }

    /// What becomes of the epoch's last, incomplete global batch. Default: dropped.
    #[must_use]
    pub fn tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }

    /// What to do about samples that cannot be decoded. Default: raise.
    #[must_use]
    pub fn on_error(mut self, policy: OnError) -> Self {
        self.on_error = policy;
        self
    }

    /// Ends after epoch `epochs − 1`, so that nothing is prefetched beyond it. Default: goes on until dropped.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Batches in memory for each rank, at least 2. Default 4: 2 ready, 1 being written, 1 with the caller.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// CPU threads that all ranks of this process share. Default: as many as the process may use.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Encoded bytes held in memory for each rank of this process. Default 1 GiB, twice the default shuffle window;
    /// less than the window makes blocks be read twice.
    #[must_use]
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// The longest wait for a batch, after which the iterator yields an error that says what it waited for.
    /// Default 5 min.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The data set, filtered as it is.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The order.
    ///
    /// # Errors
    /// `BadConfig` where lanes or window are out of range.
    pub fn plan(&self) -> Result<Plan> {
        Ok(self.dataset.plan(&self.shuffle)?)
    }

    /// One rank's share of it.
    pub fn rank(&self, rank: Rank) -> RankBuilder {
        RankBuilder { pipeline: self.clone(), rank, from: None, epoch: 0 }
    }

    fn shape(&self, rank: Rank) -> Result<StepShape> {
        match self.batch.over(rank) {
            Some(global_batch) => Ok(StepShape { global_batch, rank, tail: self.tail }),
            None => {
                Err(Error::new(ErrorKind::BadConfig, format!("{:?} on {rank} ranks overflows", self.batch)))
            }
        }
    }

    fn compile(&self) -> Result<Vec<Map>> {
        let mut maps: Vec<Map> = Vec::new();
        for (column, spec) in &self.maps {
            if maps.iter().any(|map| map.column == *column) {
                let message = format!("column '{column}' is mapped twice; put all its ops into one map");
                return Err(Error::new(ErrorKind::BadConfig, message));
            }
            maps.push(Map { column: column.clone(), chain: Arc::new(spec.compile()?) });
        }
        Ok(maps)
    }

    /// A hash of the chains: not part of the order, kept in cursors to tell of changed ops.
    fn ops_hash(&self) -> Result<u64> {
        let text = serde_json::to_string(&self.maps)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the ops: {e}")))?;
        Ok(Cursor::hash_ops(&text))
    }

    fn engine(&self) -> Result<Engine> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner); // stored whole
        if let Some(engine) = &*engine {
            return Ok(engine.clone());
        }
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(engine.insert(Engine::new(self.threads.unwrap_or(available))?).clone())
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("dataset", &self.dataset)
            .field("maps", &self.maps)
            .field("shuffle", &self.shuffle)
            .field("batch", &self.batch)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

/// A rank's share of a pipeline, and where to begin.
#[derive(Debug, Clone)]
pub struct RankBuilder {
    pipeline: Pipeline,
    rank: Rank,
    from: Option<Cursor>,
    epoch: u64,
}

impl RankBuilder {
    /// Begins with this epoch, at its start; a cursor overrides it. Default 0.
    #[must_use]
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// Begins where `cursor` was taken, with any rank, world size or batch size. Default: position 0 of epoch 0.
    #[must_use]
    pub fn resume(mut self, cursor: Cursor) -> Self {
        self.from = Some(cursor);
        self
    }

    /// Starts prefetching and decoding.
    ///
    /// # Errors
    /// `BadConfig`, before anything runs, for: a chain that does not compile, a column without encoded bytes, a
    /// batch larger than the data set (with [`Tail::Drop`]) or smaller than the world size, a budget smaller than a
    /// batch, fewer than 2 slots, or a cursor of another order.
    pub fn start(self) -> Result<RankIterator> {
        let pipeline = &self.pipeline;
        pipeline.on_error.check()?;
        if pipeline.slots < 2 {
            let message = format!(
                "slots must be at least 2 (one is read while one is written), not {}",
                pipeline.slots
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let plan = pipeline.plan()?;
        let shape = pipeline.shape(self.rank)?;
        shape.check(plan.len())?;
        if shape.tail == Tail::Short {
            let message = "tail=short would leave some ranks without a last batch; use drop or pad";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let (mut epoch, mut position) = (self.epoch, Position(0));
        if let Some(cursor) = &self.from {
            plan.check(cursor)?;
            (epoch, position) = (cursor.epoch, cursor.position);
            if shape.steps(plan.len(), position) == 0 {
                (epoch, position) = (epoch + 1, Position(0)); // never an empty epoch
            }
        }
        if pipeline.epochs.is_some_and(|end| epoch >= end) {
            let message = format!(
                "nothing is left to do: the run ends before epoch {end}, and starts at epoch {epoch}",
                end = pipeline.epochs.unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let ops = pipeline.ops_hash()?;
        if let Some(saved) = self.from.as_ref().and_then(|cursor| cursor.ops).filter(|saved| *saved != ops) {
            tracing::warn!(
                "the ops differ from those of the saved run ({saved:016x} there, {ops:016x} here)"
            );
        }
        let job = feedstock_ingest::Job {
            dataset: pipeline.dataset.clone(),
            plan,
            maps: pipeline.compile()?,
            shape,
            seed: pipeline.seed.unwrap_or(pipeline.shuffle.seed()),
            epoch,
            position,
            end_epoch: pipeline.epochs,
            budget_bytes: pipeline.budget_bytes,
        };
        let settings =
            Settings { slots: pipeline.slots, on_error: pipeline.on_error, deadline: pipeline.deadline, ops };
        RankIterator::start(&pipeline.engine()?, job, &settings)
    }
}
