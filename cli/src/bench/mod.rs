//! `feedstock bench`: measures a pipeline's throughput on this machine and finds its bottleneck.

mod ceiling;
mod counts;
mod report;
mod waits;

use crate::bucket::BucketArgs;
use crate::chains::ChainArgs;
use crate::common::Common;
use crate::failure::{Failure, Outcome};
use crate::memory::MemoryArgs;
use crate::plan::StepArgs;
use crate::progress::Reporter;
use crate::source::{ShuffleArgs, SourceArgs};
use crate::usage::Usage;
use crate::workers::{FirstWait, FleetLoad, WorkersArgs};
use clap::Args;
use counts::Counts;
use feedstock_dataset::{Dataset, Position, Rank};
use feedstock_trainer_bridge::{Ledger, OnError, Pipeline, RankIterator, RankStats, Workers};
use report::Measured;
use std::cell::OnceCell;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  feedstock bench /data/imagenet --ops 'decode_image,random_resized_crop:224,horizontal_flip' --batch-size 64
  feedstock bench s3://bucket/train --world-size 8 --rank 0 --samples 20000 --json
  feedstock bench /data/cv-corpus/de --split train --ops 'decode_audio,resample:16000,log_mel:80' --bucket duration
  feedstock bench /data/imagenet --step-ms 120          # with a trainer that takes 120 ms per step
  feedstock bench /data/imagenet --view global=random_resized_crop:224 --view 'local*8=random_resized_crop:96'
  feedstock bench /data/documents --column images --ops decode_image,resize:224x224  # lists of images

--view decodes each image once and makes a tensor of each view, as fs.views in Python; --ops then has only the decoder.
On a column of lists of images, the ops run on every image of a sample's list.

samples_per_s is measured from the first batch on, first_batch_s from the moment the data set is opened. CPU time and
memory are those of the whole process, without the bare chain. chain_ceiling_samples_per_s is the rate of the bare
chain: the same ops, views and threads, without a pipeline, from samples in memory to one buffer. bottleneck is one of:
  ops              the CPU threads of this process are busy
  workers          the CPU threads of the workers are busy (workers_busy is their busy share)
  storage          reading is the limit, on this machine or on the workers
  consumer         batches are ready before the trainer takes them
  workers_unknown  the workers are the limit, but do not report their load (dns: addresses, older releases)
For speech, audio_s_per_s is the multiple of real time, and padding_share the share of padding in batches.";

/// Measure a pipeline: throughput, time to the first batch, CPU time, memory, bottleneck.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    order: ShuffleArgs,
    #[command(flatten)]
    cut: StepArgs,
    #[command(flatten)]
    lengths: BucketArgs,
    #[command(flatten)]
    chains: ChainArgs,
    /// Run only this rank [default: all ranks in turn, in this process].
    #[arg(long, value_name = "R")]
    rank: Option<u32>,
    /// Number of epochs.
    #[arg(long, default_value_t = 1, value_name = "N")]
    epochs: u64,
    /// Stop after this number of samples [default: at the end of the last epoch].
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Milliseconds to sleep after each step, to simulate a trainer's computation.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    step_ms: u64,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Bytes that the process keeps to decode crops of JPEGs faster from the second epoch on; 0 keeps nothing
    /// [default: 64 MiB].
    #[arg(long, value_name = "BYTES")]
    row_index_bytes: Option<u64>,
    /// Replace samples that cannot be decoded, up to 1 % of all samples, instead of stopping.
    #[arg(long)]
    skip_bad: bool,
    #[command(flatten)]
    workers: WorkersArgs,
    /// Do not measure the bare chain.
    #[arg(long)]
    no_ceiling: bool,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let given = self.chains.parse()?;
        let start = Instant::now();
        let dataset = self.source.open(common)?;
        let ops = self.chains.on(given, &dataset)?;
        let mut pipeline = ops
            .pipeline(&dataset)
            .shuffle(self.order.shuffle()?)
            .tail(self.cut.tail())
            .epochs(self.cut.epoch.saturating_add(self.epochs))
            .threads(common.threads());
        pipeline = self.lengths.apply(pipeline, self.cut.global_batch())?;
        pipeline = self.memory.apply(pipeline);
        if let Some(bytes) = self.row_index_bytes {
            pipeline = pipeline.row_index_bytes(bytes);
        }
        if self.skip_bad {
            pipeline = pipeline.on_error(OnError::skip());
        }
        let workers = self.workers.workers()?;
        if let Some(workers) = &workers {
            pipeline = pipeline.workers(workers.clone());
        }
        let compiled = ops.compile(&pipeline)?;
        let mut measured = self.measure(common, &dataset, &pipeline, workers.as_ref(), start)?;
        if !self.no_ceiling {
            let (seed, threads) = (self.order.seed, common.threads());
            measured.ceiling = Some(ceiling::samples_per_s(&dataset, &compiled, seed, threads)?);
        }
        measured.print(common.json)
    }

    fn ranks(&self) -> Outcome<Vec<Rank>> {
        let world_size = self.cut.world_size;
        let ranks = match self.rank {
            Some(rank) if rank < world_size => rank..rank + 1,
            Some(rank) => {
                let text = format!("--rank must be less than --world-size ({world_size}); got {rank}");
                return Err(Failure::config(text));
            }
            None => 0..world_size,
        };
        Ok(ranks.map(|rank| Rank { rank, world_size }).collect())
    }

    /// Runs the pipeline as trainers would, with all ranks in step.
    fn measure(
        &self,
        common: &Common,
        dataset: &Dataset,
        pipeline: &Pipeline,
        workers: Option<&Workers>,
        start: Instant,
    ) -> Outcome<Measured> {
        let opened = start.elapsed();
        let before = Usage::now();
        let cursor = pipeline
            .plan(Rank { rank: 0, world_size: self.cut.world_size })?
            .cursor(self.cut.epoch, Position(self.cut.from));
        let ranks = self.ranks()?;
        let mut iterators: Vec<RankIterator> = Vec::with_capacity(ranks.len());
        for rank in &ranks {
            iterators.push(pipeline.rank(*rank).resume(cursor.clone()).start()?);
        }
        let steps: u64 = iterators.iter().map(RankIterator::steps_per_epoch).max().unwrap_or(0) * self.epochs;
        let reporter = Reporter::new(common, "streaming");
        let mut run = Counts::default();
        let load_at_first_batch = OnceCell::new();
        let mut first_wait = self.workers.first_wait(workers, common.quiet);
        let mut ledgers = Vec::new();
        for _ in 0..self.epochs {
            let ledger = self.epoch(&mut iterators, &mut first_wait, &mut run, start, |batches| {
                if let Some(workers) = workers {
                    load_at_first_batch.get_or_init(|| FleetLoad::now(workers));
                }
                reporter.tell("streaming", batches, Some(steps * ranks.len() as u64), None);
            })?;
            let Some(ledger) = ledger else { break };
            ledgers.push(ledger);
        }
        reporter.end();
        let after = Usage::now();
        let workers = workers
            .zip(load_at_first_batch.get())
            .map(|(workers, before)| FleetLoad::now(workers).since(before));
        let stats: Vec<RankStats> = iterators.iter().map(RankIterator::stats).collect();
        let ops: Duration = stats.iter().map(|stats| stats.engine.ops_time).sum();
        let waited: Duration = stats.iter().map(|stats| stats.waited).sum();
        Ok(Measured {
            opened,
            first_batch: run.first.unwrap_or_default(),
            wall: run.last.saturating_sub(run.first.unwrap_or_default()),
            samples: run.samples,
            samples_after_first: run.samples - run.first_samples,
            ops_after_first: ops.saturating_sub(run.first_ops).as_secs_f64(),
            waited_after_first: waited.saturating_sub(run.first_waited).as_secs_f64(),
            batches: run.batches,
            waits: run.waits.quantiles(),
            storage: dataset.storage().stats(),
            threads: common.threads(),
            ceiling: None,
            usage: Usage { cpu: after.cpu - before.cpu, peak_rss_bytes: after.peak_rss_bytes },
            workers,
            stats,
            ledgers,
            slot_bytes: run.batch_bytes * (self.memory.slots * ranks.len()) as u64,
            audio_s_after_first: run.audio_s_after_first(),
            padding_share: run.padding_share(),
        })
    }

    /// Runs one epoch and returns the ledger of all its ranks, or `None` if `--samples` ended it early.
    fn epoch(
        &self,
        iterators: &mut [RankIterator],
        first_wait: &mut FirstWait<'_>,
        run: &mut Counts,
        start: Instant,
        tell: impl Fn(u64),
    ) -> Outcome<Option<Ledger>> {
        loop {
            for rank in &mut *iterators {
                let asked = Instant::now();
                let batch = first_wait.next(rank)?;
                let batch = batch.ok_or_else(|| Failure::bug("an epoch ended before its last step"))?;
                run.add(&batch, start.elapsed(), asked.elapsed(), rank);
                tell(run.batches);
            }
            if iterators.iter().all(|rank| rank.steps_left() == 0) {
                break;
            }
            if self.samples.is_some_and(|most| run.samples >= most) {
                return Ok(None);
            }
            if self.step_ms > 0 {
                std::thread::sleep(Duration::from_millis(self.step_ms));
            }
        }
        let ledger = iterators.iter().map(RankIterator::ledger).reduce(|mut all, one| {
            all.merge(&one);
            all
        });
        for rank in iterators {
            if rank.next().is_some() {
                return Err(Failure::bug("a rank has more steps than its epoch"));
            }
        }
        Ok(ledger)
    }
}
