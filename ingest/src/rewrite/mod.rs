//! Rewriting a data set of any layout into well-formed shards.
//!
//! ```text
//! plan ─▶ RawBatches ─▶ change (optional, CPU pool) ─▶ row groups ─▶ shard in memory ─▶ destination ─▶ state file
//!                            digests of ids and rows ┘                    one building, one on its way │
//!                                                    read back at the end, compared ◀──────────────────┘
//! ```
//! Invariants
//! - Where shards begin is arithmetic over the catalog, and a shard's bytes depend on the data set and the options
//!   alone: a run that was killed and continued writes the same bytes as an unbroken one.
//! - A shard is written whole or not at all, and counts when the state file names it.
//! - Samples come once, in plan order, on one lane: row r of the whole is position r.
//!
//! Memory: the byte budget, two shards, and seven batches of about a group each: by default 512 MiB + 2 × 512 MiB +
//! 28 MiB. Lower `shard_bytes` where that is too much. Changing pictures takes a decoded one for each thread, restart
//! markers up to 300 MB of coefficients of one.

mod cuts;
mod digest;
mod encode;
mod recode;
mod schema;
mod state;
mod verify;

use crate::threads::default_threads;
use crate::{Error, ErrorKind, RawBatches, RawOptions, Result};
use arrow::record_batch::RecordBatch;
use digest::RowDigest;
use encode::{EncodeOptions, ShardEncoder};
use feedstock_dataset::{BlockId, Dataset, Digest, Layout, Plan, Position, SampleId, Shuffle};
use feedstock_ops::image::{RestartMarkers, ShrinkImage, Unmarked};
use recode::{Change, Recoded, Recoder, Source};
use schema::{PayloadKind, Shape};
use serde::{Deserialize, Serialize};
use state::{FinishedShard, Settings, State, Target, Upload};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Samples named in the report at most; the rest are counted. 1,000 names of 200 bytes are 200 KB of state.
const NAMED_SAMPLES: usize = 1_000;
/// Rows of a batch at most: ids and views of 64 Ki rows are 1.5 MiB.
const BATCH_ROWS: u64 = 1 << 16;
/// Smaller shards than this are never meant: a block is 4 MiB.
const MIN_SHARD_BYTES: u64 = 4 << 10;

/// The files to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewriteFormat {
    /// Parquet as Hugging Face `datasets` reads it: `struct<bytes, path>`, features, offset and column index.
    #[default]
    Parquet,
    /// Arrow IPC files with the same columns and features; read without decoding, in ranges of rows.
    Ipc,
}

impl RewriteFormat {
    /// The layout that the shards form.
    pub fn layout(self) -> Layout {
        match self {
            Self::Parquet => Layout::HfParquet,
            Self::Ipc => Layout::ArrowIpc,
        }
    }

    /// What the names of shards end in.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Ipc => "arrow",
        }
    }
}

/// Shrinking of large pictures. Pictures within the limit are copied byte for byte.
///
/// Aspect ratio and EXIF orientation are kept (the pixels are not turned; the tag goes along); other metadata inside
/// the picture is dropped. PNG and WebP over the limit become JPEG; alpha is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recode {
    /// Pictures whose longer side exceeds this are shrunk to it; pixels, 1 … 32,768.
    pub max_side: u32,
    /// JPEG quality of shrunk pictures, 1 … 100.
    pub quality: u8,
}

/// What to do with a picture that cannot be read to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadPicture {
    /// Stop, naming the sample.
    #[default]
    Raise,
    /// Keep its bytes as they are, and name it in the report.
    Copy,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewriteStage {
    /// Reading the source and writing shards.
    Writing,
    /// Reading the shards back.
    Verifying,
}

/// How far a rewrite is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RewriteProgress {
    /// What is being done.
    pub stage: RewriteStage,
    /// Samples done in this stage, those of earlier runs included.
    pub done: u64,
    /// Samples in all.
    pub total: u64,
    /// Shards that are safely written.
    pub shards: u64,
}

/// Told of [`RewriteProgress`] about once a batch, on the caller's thread.
pub type RewriteProgressFn = Arc<dyn Fn(RewriteProgress) + Send + Sync>;

/// How to rewrite. Start from `RewriteOptions::default()`.
#[derive(Clone)]
pub struct RewriteOptions {
    /// Default Parquet.
    pub format: RewriteFormat,
    /// What shard names begin with, best the split's name; default `train`, as in `train-00000-of-00012.parquet`.
    pub name: String,
    /// Encoded bytes of the source in a shard, about; default 512 MiB. With shrinking, shards come out smaller.
    pub shard_bytes: u64,
    /// Encoded bytes in a row group or record batch at most (one sample at least); default 4 MiB, a block.
    pub group_bytes: u64,
    /// The order of the samples; default [`Shuffle::none`], the catalog's. [`Shuffle::full`] shuffles globally and
    /// reads each sample on its own. Lanes are set to one.
    pub shuffle: Shuffle,
    /// `None`, the default: pictures keep their size.
    pub recode: Option<Recode>,
    /// JPEGs get a restart marker every so many MCUs (blocks that are coded together, 16×16 px in a 4:2:0 picture),
    /// without loss: the pixels stay, which is checked for each, and crops skip what they do not show. With 4,
    /// `random_resized_crop` costs about a quarter less CPU. Huffman tables become each picture's own, so that
    /// most get smaller; progressive pictures become baseline, about 6 % larger. Default `None`.
    pub restart_interval: Option<u16>,
    /// Default: raise.
    pub on_error: OnBadPicture,
    /// Read everything back at the end and compare; default true. Costs one more read of the shards.
    pub verify: bool,
    /// CPU threads for changing images; default: [`default_threads`], the rank's share of the machine.
    pub threads: usize,
    /// Bytes of blocks read ahead at most, decompressed; default 512 MiB, which holds the default window of a windowed shuffle.
    pub budget_bytes: u64,
    /// The longest wait for a batch; default 5 min.
    pub deadline: Duration,
    /// Told how it goes; default nobody.
    pub progress: Option<RewriteProgressFn>,
}

impl Default for RewriteOptions {
    fn default() -> Self {
        Self {
            format: RewriteFormat::Parquet,
            name: "train".to_owned(),
            shard_bytes: 512 << 20,
            group_bytes: 4 << 20,
            shuffle: Shuffle::none(),
            recode: None,
            restart_interval: None,
            on_error: OnBadPicture::Raise,
            verify: true,
            threads: default_threads(),
            budget_bytes: 512 << 20,
            deadline: Duration::from_secs(300),
            progress: None,
        }
    }
}

impl RewriteOptions {
    fn check(&self) -> Result<()> {
        let bad = |message: String| Err(Error::new(ErrorKind::BadConfig, message));
        if self.shard_bytes < MIN_SHARD_BYTES || self.group_bytes == 0 {
            return bad(format!(
                "shard_bytes {} must be at least {MIN_SHARD_BYTES}, group_bytes {} at least 1",
                self.shard_bytes, self.group_bytes
            ));
        }
        if self.group_bytes > 1 << 30 {
            return bad(format!("group_bytes {} is over 1 GiB; a few MiB read best", self.group_bytes));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(plain) {
            return bad(format!(
                "the name {:?} must consist of letters, digits, '_', '-' and '.'",
                self.name
            ));
        }
        if let Some(recode) = self.recode {
            ShrinkImage { max_side: recode.max_side, quality: recode.quality }.check()?;
        }
        if let Some(interval) = self.restart_interval {
            RestartMarkers::new(interval)?;
        }
        Ok(())
    }

    fn tell(&self, stage: RewriteStage, done: u64, total: u64, shards: u64) {
        if let Some(progress) = &self.progress {
            progress(RewriteProgress { stage, done, total, shards });
        }
    }
}

/// A picture that could not be read and was copied as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSample {
    /// Its id in the source.
    pub sample: SampleId,
    /// Its object and row.
    pub name: String,
    /// Why it could not be read.
    pub reason: String,
}

/// What a rewrite did, earlier runs of the same rewrite included.
#[derive(Debug, Clone, PartialEq)]
pub struct RewriteReport {
    /// Samples written.
    pub samples: u64,
    /// Shards written.
    pub shards: u64,
    /// Of these, shards that an earlier run had written.
    pub resumed_shards: u64,
    /// Bytes of the shards.
    pub file_bytes: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Samples whose picture was shrunk.
    pub shrunk: u64,
    /// Samples whose picture got restart markers.
    pub restarted: u64,
    /// Samples whose picture should have got them and has none of ours, by why.
    pub unmarked: BTreeMap<Unmarked, u64>,
    /// Samples whose picture should have been changed but could not be read.
    pub kept_samples: u64,
    /// The first 1,000 of them.
    pub kept: Vec<KeptSample>,
    /// The digest of the source's sample ids: equal to the plan's.
    pub ids: Digest,
    /// Everything was read back and is what was written.
    pub verified: bool,
}

/// Rewrites the selected samples and columns of `dataset` into shards below `destination`, a local folder or any URI
/// that [`feedstock_dataset::Storage`] writes (with the data set's own storage options). Blocks until done.
///
/// A destination with an unfinished rewrite of the same data set and options is continued at the first shard that is
/// missing; a finished one is only verified again. Of several runs that begin in one empty destination at the same time, one
/// writes and the others fail. Once a run has begun, another one with the same options continues it, even while the first
/// still runs: both then write the same bytes.
///
/// # Errors
/// `BadConfig` for options out of range, a destination that holds anything else, or one in which another run began;
/// `BadSample` for a picture that cannot be decoded under [`OnBadPicture::Raise`]; `Gone` where the shards read back
/// differ from what was written; storage's own errors. What was written until then stays and counts.
pub fn rewrite(dataset: &Dataset, destination: &str, options: &RewriteOptions) -> Result<RewriteReport> {
    options.check()?;
    let shuffle = options.shuffle.clone().lanes(1);
    let plan = dataset.plan(&shuffle)?;
    if plan.is_mix() {
        let message =
            "a mix is made anew each epoch and has no shards of its own; rewrite its parts, one by one";
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    let starts = cuts::shard_starts(dataset, &plan, shuffle.kind(), options.shard_bytes);
    let shards = (starts.len() - 1) as u64;
    let settings = settings(dataset, &plan, options);
    let target = Target::new(dataset.storage(), destination);
    let found = target.open(&plan, &settings, shards)?;
    let resumed_shards = found.as_ref().map_or(0, |state| state.finished.len() as u64);
    let run = Run { dataset, plan: &plan, shuffle, starts: &starts, target: &target, options };
    let mut state = match found {
        Some(state) if resumed_shards == shards => state,
        Some(state) => {
            let rest = run.read(starts[state.finished.len()])?;
            run.write(state, None, rest)?
        }
        None => {
            let mut rest = run.read(0)?;
            let first = rest.next().transpose()?;
            let payload = first.as_ref().map_or_else(BTreeMap::new, |b| schema::payload_kinds(dataset, b));
            let state = State::new(settings, shards, payload);
            if !target.begin(&state)? {
                target.open(&plan, &state.settings, shards)?; // names what differs
                return Err(target.taken());
            }
            run.write(state, first, rest)?
        }
    };
    verify::check_ids(&state, &plan)?;
    if options.verify {
        verify::read_back(dataset, &target, &state, options)?;
        state.verified = true;
        target.save(&state)?;
    }
    Ok(report(&state, resumed_shards, options.verify))
}

fn settings(dataset: &Dataset, plan: &Plan, options: &RewriteOptions) -> Settings {
    Settings {
        version: Settings::version(),
        plan: plan.fingerprint().clone(),
        format: options.format,
        name: options.name.clone(),
        shard_bytes: options.shard_bytes,
        group_bytes: options.group_bytes,
        columns: dataset.block_reader().schema().fields().iter().map(|field| field.name().clone()).collect(),
        recode: options.recode,
        restart_interval: options.restart_interval,
    }
}

fn report(state: &State, resumed_shards: u64, verified: bool) -> RewriteReport {
    let sum = |of: fn(&FinishedShard) -> u64| state.finished.iter().map(of).sum();
    let mut ids = Digest::default();
    state.finished.iter().for_each(|shard| ids.merge(&shard.ids));
    let mut unmarked = BTreeMap::new();
    for (why, samples) in state.finished.iter().flat_map(|shard| &shard.unmarked) {
        *unmarked.entry(*why).or_default() += samples;
    }
    RewriteReport {
        samples: sum(|shard| shard.samples),
        shards: state.finished.len() as u64,
        resumed_shards,
        file_bytes: sum(|shard| shard.file_bytes),
        payload_bytes: sum(|shard| shard.payload_bytes),
        shrunk: sum(|shard| shard.shrunk),
        restarted: sum(|shard| shard.restarted),
        unmarked,
        kept_samples: sum(|shard| shard.kept_samples),
        kept: state
            .finished
            .iter()
            .flat_map(|shard| shard.kept.iter().cloned())
            .take(NAMED_SAMPLES)
            .collect(),
        ids,
        verified,
    }
}

/// Rows of a batch of about `bytes`, from the catalog's mean.
fn mean_batch_rows(dataset: &Dataset, bytes: u64) -> u64 {
    (bytes / mean_sample_bytes(dataset)).clamp(1, BATCH_ROWS)
}

fn mean_sample_bytes(dataset: &Dataset) -> u64 {
    let catalog = dataset.catalog();
    let blocks = u32::try_from(catalog.blocks()).unwrap_or(u32::MAX); // block ids are u32
    let total: u64 = (0..blocks).map(|block| catalog.block(BlockId(block)).bytes).sum();
    (total / catalog.samples().max(1)).max(1)
}

/// One run of a rewrite.
struct Run<'a> {
    dataset: &'a Dataset,
    plan: &'a Plan,
    shuffle: Shuffle,
    starts: &'a [u64],
    target: &'a Target,
    options: &'a RewriteOptions,
}

impl Run<'_> {
    /// The samples from `position` on.
    fn read(&self, position: u64) -> Result<RawBatches> {
        let raw = RawOptions {
            shuffle: self.shuffle.clone(),
            batch_rows: mean_batch_rows(self.dataset, self.options.group_bytes),
            position: Position(position),
            budget_bytes: self.options.budget_bytes,
            deadline: self.options.deadline,
            ..RawOptions::default()
        };
        RawBatches::start(self.dataset, &raw)
    }

    fn recoder(&self, kinds: &BTreeMap<String, PayloadKind>) -> Result<Option<Recoder>> {
        let RewriteOptions { recode, restart_interval, .. } = *self.options;
        if recode.is_none() && restart_interval.is_none() {
            return Ok(None);
        }
        let pictures = kinds.iter().filter(|(_, kind)| **kind == PayloadKind::Image);
        let columns: Vec<String> = pictures.map(|(name, _)| name.clone()).collect();
        if columns.is_empty() {
            let message = "max_side and restart_interval change pictures, but the first samples hold none (no JPEG, PNG \
                           or WebP)";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let shrink = recode.map(|recode| ShrinkImage { max_side: recode.max_side, quality: recode.quality });
        let change = Change { shrink, restart_interval };
        let catalog = self.dataset.catalog().clone();
        Ok(Some(Recoder { columns, change, on_error: self.options.on_error, catalog }))
    }

    /// Writes all shards that the state lacks.
    fn write(&self, mut state: State, first: Option<RecordBatch>, rest: RawBatches) -> Result<State> {
        let recoder = self.recoder(&state.payload)?;
        let mut feed = Feed { source: Source::new(first, rest, recoder, self.options.threads)?, left: None };
        let shape = Shape::new(self.dataset, &state.payload);
        let encode = EncodeOptions {
            format: self.options.format,
            group_bytes: self.options.group_bytes,
            sample_bytes: mean_sample_bytes(self.dataset),
        };
        let mut under_way: Option<(FinishedShard, Upload)> = None;
        for index in state.finished.len()..self.starts.len() - 1 {
            let encoder = ShardEncoder::new(&shape, &state.payload, &encode)?;
            let written = state.finished.len() as u64;
            let file = state.settings.shard_name(index as u64, state.shards);
            let built = self.build(&state.settings.columns, index, file, encoder, &mut feed, written);
            // What is on its way counts even if the shard after it fails.
            self.settle(&mut state, under_way.take())?;
            let (shard, bytes) = built?;
            let upload = self.target.upload(&shard.file, bytes);
            under_way = Some((shard, upload));
        }
        self.settle(&mut state, under_way)?;
        self.options.tell(RewriteStage::Writing, self.plan.len(), self.plan.len(), state.shards);
        Ok(state)
    }

    fn settle(&self, state: &mut State, under_way: Option<(FinishedShard, Upload)>) -> Result<()> {
        let Some((shard, upload)) = under_way else { return Ok(()) };
        upload.wait()?;
        state.finished.push(shard);
        self.target.save(state)
    }

    fn build(
        &self,
        columns: &[String],
        index: usize,
        file: String,
        mut encoder: ShardEncoder,
        feed: &mut Feed,
        written: u64,
    ) -> Result<(FinishedShard, bytes::Bytes)> {
        let (start, end) = (self.starts[index], self.starts[index + 1]);
        let mut rows = RowDigest::new(columns);
        let mut shard = FinishedShard { file, samples: end - start, ..FinishedShard::default() };
        while start + rows.rows < end {
            let part = feed.take(end - start - rows.rows)?;
            rows.add(&part.batch)?;
            recode::sample_ids(&part.batch)?.values().iter().for_each(|&id| shard.ids.add(SampleId(id)));
            encoder.add(&part.batch)?;
            part.fates.into_iter().for_each(|(_, fate)| shard.count(fate));
            self.options.tell(RewriteStage::Writing, start + rows.rows, self.plan.len(), written);
        }
        let bytes = encoder.finish()?;
        (shard.file_bytes, shard.payload_bytes) = (bytes.len() as u64, rows.payload_bytes);
        shard.rows = rows.text();
        Ok((shard, bytes))
    }
}

/// Cuts batches where shards end.
struct Feed {
    source: Source,
    left: Option<Recoded>,
}

impl Feed {
    /// The next rows, at most `most`.
    fn take(&mut self, most: u64) -> Result<Recoded> {
        let next = match self.left.take() {
            Some(left) => Some(left),
            None => self.source.next()?,
        };
        let Some(next) = next.filter(|next| next.batch.num_rows() > 0) else {
            return Err(Error::new(
                ErrorKind::Bug,
                format!("the order ended {most} samples before the last shard"),
            ));
        };
        let rows = next.batch.num_rows();
        let cut = usize::try_from(most).unwrap_or(usize::MAX).min(rows);
        if cut == rows {
            return Ok(next);
        }
        let (head, tail) = (next.batch.slice(0, cut), next.batch.slice(cut, rows - cut));
        let mut fates = next.fates;
        let left = fates.split_off(fates.partition_point(|(row, _)| *row < cut));
        let left = left.into_iter().map(|(row, fate)| (row - cut, fate)).collect();
        self.left = Some(Recoded { batch: tail, fates: left });
        Ok(Recoded { batch: head, fates })
    }
}
