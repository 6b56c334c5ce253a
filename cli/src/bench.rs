//! `feedstock bench`: measures a pipeline's throughput on this machine and finds its bottleneck.

use super::bucket::BucketArgs;
use super::common::Common;
use super::failure::{Failure, Outcome};
use super::medium::Medium;
use super::memory::MemoryArgs;
use super::output::{Output, bytes, count, hours};
use super::plan::StepArgs;
use super::preview::{encoded, payload_column};
use super::progress::Reporter;
use super::source::{ShuffleArgs, SourceArgs};
use super::usage::Usage;
use super::verdict::{Bottleneck, Shares, WorkersShare};
use super::workers::{FirstWait, FleetLoad, WorkersArgs};
use arrow::array::{Array, AsArray};
use arrow::datatypes::Float64Type;
use clap::Args;
use feedstock_dataset::{BlockId, Dataset, Position, Rank};
use feedstock_ops::{Chain, ChainSpec, RaggedRow, SampleSeed, Scratch};
use feedstock_trainer_bridge as bridge;
use feedstock_trainer_bridge::{Batch, Ledger, OnError, Pipeline, RankIterator, RankStats, Workers};
use serde_json::json;
use std::cell::OnceCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Encoded bytes in memory for measuring the bare chain: far larger than any CPU cache.
const CEILING_BYTES: usize = 128 << 20;
/// The bare chain runs for at least this long.
const CEILING_TIME: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  feedstock bench /data/imagenet --ops 'decode_image,random_resized_crop:224,horizontal_flip' --batch-size 64
  feedstock bench s3://bucket/train --world-size 8 --rank 0 --samples 20000 --json
  feedstock bench /data/cv-corpus/de --split train --ops 'decode_audio,resample:16000,log_mel:80' --bucket duration
  feedstock bench /data/imagenet --step-ms 120          # with a trainer that takes 120 ms per step

samples_per_s is measured from the first batch on, first_batch_s from the moment the data set is opened. CPU time and
memory are those of the whole process, without the bare chain. chain_ceiling_samples_per_s is the rate of the bare
chain: the same ops and threads, without a pipeline, from samples in memory to one buffer. bottleneck is one of:
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
    /// The ops, in the syntax that `feedstock ops` describes [default:
    /// decode_image,random_resized_crop:224,horizontal_flip; for audio: decode_audio,resample:16000,log_mel:80].
    #[arg(long)]
    ops: Option<String>,
    /// The column of encoded samples [default: the data set's only payload column].
    #[arg(long)]
    column: Option<String>,
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
    /// Replace samples that cannot be decoded, up to 1 % of all samples, instead of stopping.
    #[arg(long)]
    skip_bad: bool,
    #[command(flatten)]
    workers: WorkersArgs,
    /// Do not measure the bare chain.
    #[arg(long)]
    no_ceiling: bool,
}

/// The results of a run.
struct Measured {
    opened: Duration,
    first_batch: Duration,
    wall: Duration,
    samples: u64,
    samples_after_first: u64,
    ops_after_first: f64,
    waited_after_first: f64,
    batches: u64,
    usage: Usage,
    /// How busy the fleet was after the first batch, if there is one.
    workers: Option<WorkersShare>,
    stats: Vec<RankStats>,
    ledgers: Vec<Ledger>,
    slot_bytes: u64,
    /// Seconds of audio from the first batch on, if the catalog has all durations.
    audio_s_after_first: Option<f64>,
    /// Share of the cells of padded tensors that is padding.
    padding_share: Option<f64>,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let given = self.ops.as_deref().map(str::parse::<ChainSpec>).transpose()?;
        let start = Instant::now();
        let dataset = self.source.open(common)?;
        let column = payload_column(&dataset, self.column.as_deref())?;
        let spec = given.map_or_else(|| Medium::of(&column).default_ops().parse(), Ok)?;
        let mut pipeline = bridge::Dataset::from(dataset.clone())
            .map(&column, spec)
            .shuffle(self.order.shuffle()?)
            .tail(self.cut.tail())
            .epochs(self.cut.epoch.saturating_add(self.epochs))
            .threads(common.threads());
        pipeline = self.lengths.apply(pipeline, self.cut.global_batch())?;
        pipeline = self.memory.apply(pipeline);
        if self.skip_bad {
            pipeline = pipeline.on_error(OnError::skip());
        }
        let workers = self.workers.workers()?;
        if let Some(workers) = &workers {
            pipeline = pipeline.workers(workers.clone());
        }
        let chain = pipeline.chain(&column)?;
        let measured = self.measure(common, &pipeline, workers.as_ref(), start)?;
        let ceiling = match self.no_ceiling {
            true => None,
            false => Some(self.ceiling(common, &dataset, &chain, &column)?),
        };
        self.print(common, &measured, ceiling)
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
                let batch = first_wait.next(rank)?;
                let batch = batch.ok_or_else(|| Failure::bug("an epoch ended before its last step"))?;
                run.add(&batch, start.elapsed(), rank);
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

    /// Returns the bare chain's rate on the same number of threads, in samples per second.
    fn ceiling(&self, common: &Common, dataset: &Dataset, chain: &Chain, column: &str) -> Outcome<f64> {
        let samples = load(dataset, column)?;
        let threads = common.threads();
        let next = AtomicUsize::new(0);
        let (ready, seed) = (Barrier::new(threads), self.order.seed);
        let work = |_| {
            let mut scratch = Scratch::default();
            let (mut out, mut row) = (vec![0; chain.output().bytes()], RaggedRow::new());
            let mut done = 0_u64;
            let mut run = |at: usize| {
                let (id, encoded) = &samples[at % samples.len()];
                // A sample that cannot be decoded takes its time, too; the pipeline has already reported it.
                let seed = SampleSeed::new(seed, 0, *id);
                let _unusable = match chain.output().is_ragged() {
                    true => chain.apply_ragged(encoded, seed, &mut scratch, &mut row),
                    false => chain.apply(encoded, seed, &mut scratch, &mut out),
                };
            };
            (0..16).for_each(&mut run); // lets the buffers grow
            ready.wait();
            let start = Instant::now();
            while start.elapsed() < CEILING_TIME {
                run(next.fetch_add(1, Ordering::Relaxed));
                done += 1;
            }
            done as f64 / start.elapsed().as_secs_f64()
        };
        let rates: Result<Vec<f64>, _> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        Ok(rates.map_err(|_| Failure::bug("a thread of the bare chain ended early"))?.iter().sum())
    }

    fn print(&self, common: &Common, run: &Measured, ceiling: Option<f64>) -> Outcome {
        let wall = run.wall.as_secs_f64();
        let rate = if wall > 0.0 { run.samples_after_first as f64 / wall } else { 0.0 };
        let real_times = run.audio_s_after_first.filter(|_| wall > 0.0).map(|seconds| seconds / wall);
        let cpu = 1000.0 * run.usage.cpu.as_secs_f64() / run.samples.max(1) as f64;
        let sum = |time: fn(&RankStats) -> f64| run.stats.iter().map(time).sum::<f64>();
        let ops = sum(|stats| stats.engine.ops_time.as_secs_f64());
        let waited = sum(|stats| stats.waited.as_secs_f64());
        let fetch = sum(|stats| stats.engine.fetch_time.as_secs_f64());
        let number = |value: fn(&RankStats) -> u64| run.stats.iter().map(value).sum::<u64>();
        let fetched_bytes = number(|stats| stats.engine.fetched_bytes);
        let (fetched, refetched) =
            (number(|stats| stats.engine.fetched), number(|stats| stats.engine.refetched));
        let bad = number(|stats| stats.engine.bad_samples);
        // Measured from the first batch on: before it, the shuffle window fills.
        let busy = if wall > 0.0 { run.ops_after_first / (wall * common.threads() as f64) } else { 0.0 };
        let waited_share = if wall > 0.0 { run.waited_after_first / wall } else { 0.0 };
        let bottleneck = Bottleneck::of(&Shares { ops: busy, waited: waited_share, workers: run.workers });
        let workers_busy = match run.workers {
            Some(WorkersShare::Busy(share)) => Some(share),
            Some(WorkersShare::Unknown) | None => None,
        };
        let exact = run.ledgers.iter().all(Ledger::is_exact);
        let mut output = Output::new();
        if common.json {
            output.json(&json!({
                "samples_per_s": rate,
                "chain_ceiling_samples_per_s": ceiling,
                "audio_s_per_s": real_times,
                "padding_share": run.padding_share,
                "first_batch_s": run.first_batch.as_secs_f64(),
                "cpu_s_per_1000_samples": cpu,
                "peak_rss_bytes": run.usage.peak_rss_bytes,
                "bottleneck": bottleneck.to_string(),
                "workers_busy": workers_busy,
                "samples": run.samples,
                "batches": run.batches,
                "bad_samples": bad,
                "opened_s": run.opened.as_secs_f64(),
                "wall_s": wall,
                "ops_s": ops,
                "ops_busy": busy,
                "fetch_s": fetch,
                "waited_s": waited,
                "fetched_bytes": fetched_bytes,
                "blocks_fetched": fetched,
                "blocks_fetched_again": refetched,
                "peak_resident_bytes": run.stats.iter().map(|s| s.engine.peak_resident_bytes).sum::<u64>(),
                "slot_bytes": run.slot_bytes,
                "threads": common.threads(),
                "epochs_exactly_once": if exact { run.ledgers.len() } else { 0 },
            }))?;
        } else {
            let share = ceiling.map_or(String::new(), |ceiling| {
                format!(", {:.0} % of the bare chain's {}", 100.0 * rate / ceiling, shown(ceiling))
            });
            output.fact("rate", format!("{} samples/s{share}", shown(rate)))?;
            if let (Some(seconds), Some(real_times)) = (run.audio_s_after_first, real_times) {
                output.fact("audio", format!("{real_times:.0} × real time, {} in total", hours(seconds)))?;
            }
            if let Some(share) = run.padding_share {
                output.fact("padding", format!("{:.1} % of the cells in batches", 100.0 * share))?;
            }
            let ops = format!("ops use {:.0} % of {} CPU threads", 100.0 * busy, common.threads());
            let fleet = workers_busy.map_or(String::new(), |share| {
                format!(", and {:.0} % of the workers' CPU threads", 100.0 * share)
            });
            output.fact("bottleneck", format!("{bottleneck}; {ops}{fleet}"))?;
            let (first, opened) = (1000.0 * run.first_batch.as_secs_f64(), 1000.0 * run.opened.as_secs_f64());
            let text = format!("{first:.0} ms, including {opened:.0} ms to open the data set");
            output.fact("first batch", text)?;
            output.fact(
                "samples",
                format!("{} in {} batches, {bad} unusable", count(run.samples), count(run.batches)),
            )?;
            output.fact("CPU", format!("{cpu:.2} s per 1,000 samples"))?;
            output.fact(
                "memory",
                format!(
                    "peak {}, including {} of slots",
                    bytes(run.usage.peak_rss_bytes),
                    bytes(run.slot_bytes)
                ),
            )?;
            output.fact(
                "storage",
                format!("{} in {} reads, {refetched} of them repeated", bytes(fetched_bytes), count(fetched)),
            )?;
            let text = format!("{:.2} s of {wall:.2} s after the first batch", run.waited_after_first);
            output.fact("waiting", text)?;
            for ledger in &run.ledgers {
                output.fact("ledger", ledger.to_string())?;
            }
        }
        output.end()?;
        if exact {
            Ok(())
        } else {
            Err(Failure::bug("an epoch was not delivered exactly once; see the ledger"))
        }
    }
}

/// Counts so far.
#[derive(Default)]
struct Counts {
    samples: u64,
    batches: u64,
    first: Option<Duration>,
    first_samples: u64,
    last: Duration,
    /// Time spent on the ops and on waiting until the first batch came.
    first_ops: Duration,
    first_waited: Duration,
    /// Seconds of audio in all batches and in the first one; `None` once an audio clip of unknown duration came.
    audio_s: Option<f64>,
    first_audio_s: f64,
    /// Bytes of the largest batch's tensors.
    batch_bytes: u64,
    /// Cells of padded tensors, and the number of them that hold data.
    cells: u64,
    filled: u64,
}

impl Counts {
    fn add(&mut self, batch: &Batch, now: Duration, rank: &RankIterator) {
        let samples = batch.len() as u64;
        let audio_s = audio_s(batch);
        if self.first.is_none() {
            self.first = Some(now);
            self.first_samples = samples;
            self.audio_s = Some(0.0);
            self.first_audio_s = audio_s.unwrap_or_default();
            self.first_ops = rank.stats().engine.ops_time;
            self.first_waited = rank.stats().waited;
        }
        self.samples += samples;
        self.batches += 1;
        self.last = now;
        self.audio_s = self.audio_s.zip(audio_s).map(|(sum, more)| sum + more);
        self.batch_bytes = self.batch_bytes.max(batch.tensors().iter().map(|t| t.bytes().len() as u64).sum());
        for tensor in batch.tensors() {
            let (Some(lengths), Some(axis)) = (tensor.lengths(), tensor.padded_axis()) else { continue };
            self.cells += (tensor.shape()[axis] * lengths.len()) as u64;
            self.filled += lengths.iter().sum::<usize>() as u64;
        }
    }

    fn audio_s_after_first(&self) -> Option<f64> {
        self.audio_s.map(|seconds| seconds - self.first_audio_s)
    }

    fn padding_share(&self) -> Option<f64> {
        (self.cells > 0).then(|| 1.0 - self.filled as f64 / self.cells as f64)
    }
}

/// Returns the seconds of audio in a batch; `None` if the catalog lacks a duration.
fn audio_s(batch: &Batch) -> Option<f64> {
    let seconds = batch.column("duration")?.as_primitive_opt::<Float64Type>()?;
    (seconds.null_count() == 0).then(|| seconds.values().iter().sum())
}

fn shown(rate: f64) -> String {
    format!("{rate:.0}")
}

/// Returns encoded samples with their ids, up to `CEILING_BYTES`.
fn load(dataset: &Dataset, column: &str) -> Outcome<Vec<(u64, Vec<u8>)>> {
    let catalog = dataset.catalog();
    let reader = dataset.block_reader();
    let mut samples: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut size = 0;
    let blocks = u32::try_from(catalog.blocks()).map_err(|_| Failure::bug("more than 2^32 blocks"))?;
    for id in (0..blocks).map(BlockId) {
        let block = futures::executor::block_on(reader.fetch(id, u64::MAX))?;
        for row in 0..block.rows.num_rows() {
            if let Some(encoded) = encoded(&block.rows, column, row)? {
                size += encoded.len();
                samples.push((block.first_sample + row as u64, encoded.to_vec()));
            }
        }
        if size >= CEILING_BYTES {
            break;
        }
    }
    if samples.is_empty() {
        let text = format!("{}: the column {column} holds no encoded bytes; set --column", dataset.uri());
        return Err(Failure::config(text));
    }
    Ok(samples)
}
