//! `feedstock plan`: prints the samples of every step and rank.

use super::common::Common;
use super::failure::{Failure, Outcome, local_path};
use super::output::{Output, count};
use super::quality;
use super::source::{ShuffleArgs, SourceArgs};
use clap::{Args, ValueEnum};
use feedstock_dataset::{
    Dataset, Lengths, MAX_MEASURED_ROWS, Plan, Position, QualityOptions, Rank, Shuffle, ShuffleQuality, Step,
    StepShape, StepSize, Tail,
};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  feedstock plan /data/imagenet --seed 7 --epoch 0 --global-batch 256 --world-size 8 --json
  feedstock plan /data/imagenet --seed 7 --global-batch 256 --world-size 8 --rank 3 --steps 10
  feedstock plan /data/imagenet --seed 7 --global-batch 512 --world-size 16 --from 25600   # resume with twice the ranks
  feedstock plan /data/imagenet --seed 7 --global-batch 1024 --world-size 8 --summary       # how well it shuffles
  feedstock plan /data/speech --seed 7 --bucket duration --global-batch 256 --world-size 8 --summary
  feedstock plan /data/speech --seed 7 --bucket duration --batch-total 1280 --world-size 8 --json

One line per step and rank: {\"epoch\":0,\"step\":0,\"rank\":0,\"position\":0,\"samples\":[…]}. `position` is the step's
first position in the order; a checkpoint holds the next one. `samples` are catalog ids. With --tail pad, a line whose
batch holds repeated samples has \"valid\":[…]. Without --json, and with --summary, the share of padding is printed if the
lengths are known.

--summary prints how well the order shuffles, from up to 64 sampled steps, next to a full shuffle: labels in a batch and their
entropy, pairs of samples from one shard, the distance from the catalog's order (a full shuffle has 1/3), and what an epoch
reads. Only labels of sampled samples are read.";

/// Print the order: the samples of every step and rank.
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
    lengths: LengthArgs,
    /// Print only the number of steps of the epoch, the share of padding in its batches, and how well the order shuffles.
    #[arg(long, conflicts_with_all = ["cursor", "rank", "steps"])]
    summary: bool,
    /// The column of labels for --summary: texts or integers [default: label or class, if there is one].
    #[arg(long, value_name = "COLUMN", requires = "summary")]
    labels: Option<String>,
    /// Print only this rank's lines.
    #[arg(long, value_name = "R")]
    rank: Option<u32>,
    /// Stop after this number of steps [default: at the end of the epoch].
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Write a loader's state for the position --from to this file, as JSON, and print nothing.
    #[arg(long, value_name = "FILE", value_parser = local_path)]
    cursor: Option<PathBuf>,
}

/// How an epoch is divided into steps.
#[derive(Args, Debug, Clone)]
pub(crate) struct StepArgs {
    /// The number of the epoch, from 0.
    #[arg(long, default_value_t = 0)]
    pub(crate) epoch: u64,
    /// Number of samples per step over all ranks.
    #[arg(long, value_name = "G", conflicts_with = "batch_size")]
    global_batch: Option<u64>,
    /// Number of samples per step and rank [default: 64].
    #[arg(long, value_name = "B")]
    batch_size: Option<u64>,
    /// Number of ranks.
    #[arg(long, default_value_t = 1, value_name = "D")]
    pub(crate) world_size: u32,
    /// Start at this position of the order, in samples.
    #[arg(long, default_value_t = 0, value_name = "POSITION")]
    pub(crate) from: u64,
    /// How the epoch ends if its samples do not fill the last step: drop leaves them out; pad repeats the first
    /// samples and marks them.
    #[arg(long, default_value = "drop")]
    pub(crate) tail: TailArg,
}

/// Options for lengths: bucketing, and batches bounded by total length.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Lengths")]
pub(crate) struct LengthArgs {
    /// Bucket by this numeric column (for example duration): batches hold samples of similar length.
    #[arg(long, value_name = "COLUMN")]
    bucket: Option<String>,
    /// Number of samples that are bucketed together [default: the shuffle window].
    #[arg(long, value_name = "SAMPLES", requires = "bucket")]
    bucket_window: Option<u64>,
    /// Bound a step over all ranks by rows × longest length, in the unit of the lengths. --global-batch or
    /// --batch-size then limits its rows [default: 65536].
    #[arg(long, value_name = "TOTAL")]
    batch_total: Option<f64>,
    /// The column of the lengths, for --batch-total and the share of padding without --bucket.
    #[arg(long, value_name = "COLUMN", conflicts_with = "bucket")]
    lengths: Option<String>,
}

/// Maximum rows of a step with --batch-total alone: far more than a batch of one-second audio clips has.
const DEFAULT_MAX_ROWS: u64 = 1 << 16;

impl LengthArgs {
    /// Returns the size of a step.
    fn size(&self, cut: &StepArgs) -> StepSize {
        let bounded = cut.global_batch.is_some() || cut.batch_size.is_some();
        match self.batch_total {
            Some(total) if bounded => StepSize::Total { total, max_rows: cut.global_batch(), ranks: 1 },
            Some(total) => StepSize::Total { total, max_rows: DEFAULT_MAX_ROWS, ranks: 1 },
            None => StepSize::Rows(cut.global_batch()),
        }
    }

    /// Reads the lengths, if a column is named.
    fn read(&self, dataset: &Dataset) -> Outcome<Option<Lengths>> {
        let Some(column) = self.bucket.as_ref().or(self.lengths.as_ref()) else { return Ok(None) };
        Ok(Some(futures::executor::block_on(dataset.lengths(column))?))
    }
}

/// [`Tail`] as an option.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TailArg {
    /// Leave out samples that do not fill a step.
    Drop,
    /// Repeat the first samples, and mark them.
    Pad,
}

const DEFAULT_BATCH_SIZE: u64 = 64;

impl StepArgs {
    /// Returns the number of samples per step over all ranks.
    pub(crate) fn global_batch(&self) -> u64 {
        self.global_batch.unwrap_or_else(|| {
            self.batch_size.unwrap_or(DEFAULT_BATCH_SIZE).saturating_mul(u64::from(self.world_size))
        })
    }

    pub(crate) fn tail(&self) -> Tail {
        match self.tail {
            TailArg::Drop => Tail::Drop,
            TailArg::Pad => Tail::Pad,
        }
    }

    fn shape(&self, size: StepSize, rank: u32) -> StepShape {
        let rank = Rank { rank, world_size: self.world_size };
        StepShape { size, rank, tail: self.tail() }
    }

    fn check(&self, plan: &Plan, size: StepSize, dataset: &Dataset) -> Outcome {
        let samples = plan.len();
        if self.world_size == 0 {
            return Err(Failure::config("--world-size must be at least 1; got 0"));
        }
        if self.from > samples {
            let from = self.from;
            return Err(Failure::config(format!(
                "--from must be at most {samples}, the number of samples; got {from}"
            )));
        }
        Ok(self.shape(size, 0).check(plan, &|sample| dataset.catalog().describe_sample(sample))?)
    }
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let dataset = self.source.open(common)?;
        let size = self.lengths.size(&self.cut);
        let (lengths, shuffle) = (self.lengths.read(&dataset)?, self.order.shuffle()?);
        let plan_of = |shuffle: &Shuffle| self.plan(&dataset, shuffle, lengths.as_ref(), size);
        let plan = plan_of(&shuffle)?;
        let ranks = match self.rank {
            Some(rank) if rank >= self.cut.world_size => {
                let world_size = self.cut.world_size;
                let last = world_size - 1;
                return Err(Failure::config(format!(
                    "--rank {rank} is out of range: with --world-size {world_size} it must be 0 to {last}"
                )));
            }
            Some(rank) => rank..rank + 1,
            None => 0..self.cut.world_size,
        };
        if let Some(path) = &self.cursor {
            let cursor = plan.cursor(self.cut.epoch, Position(self.cut.from));
            let text = serde_json::to_string(&cursor)
                .map_err(|e| Failure::bug(format!("a cursor cannot be written as JSON: {e}")))?;
            return std::fs::write(path, text).map_err(|e| Failure::write(path, &e));
        }
        let mut output = Output::new();
        if !self.summary {
            self.print_steps(common, &mut output, &plan, size, &ranks)?;
        }
        if self.summary || !common.json {
            let measured = self.summary && self.cut.global_batch().min(plan.len()) <= MAX_MEASURED_ROWS;
            let quality = match measured {
                true => {
                    let shape = self.cut.shape(size, 0);
                    let options =
                        QualityOptions { shape, epoch: self.cut.epoch, labels: self.labels.as_deref() };
                    Some(futures::executor::block_on(dataset.shuffle_quality(&shuffle, &options, plan_of))?)
                }
                false => None,
            };
            self.print_summary(common, &mut output, (&plan, size), quality.as_ref())?;
        }
        output.end()
    }

    /// Returns the plan with its lengths and buckets.
    fn plan(
        &self,
        dataset: &Dataset,
        shuffle: &Shuffle,
        lengths: Option<&Lengths>,
        size: StepSize,
    ) -> Outcome<Plan> {
        let mut plan = dataset.plan(shuffle)?;
        if let Some(lengths) = lengths {
            plan = plan.with_lengths(lengths)?;
        }
        self.cut.check(&plan, size, dataset)?; // before bucketing, whose errors would name samples by number only
        Ok(match (lengths, &self.lengths.bucket) {
            (Some(lengths), Some(_)) => plan.bucketed(lengths, self.lengths.bucket_window, size)?,
            _ => plan,
        })
    }

    fn print_steps(
        &self,
        common: &Common,
        output: &mut Output,
        plan: &Plan,
        size: StepSize,
        ranks: &std::ops::Range<u32>,
    ) -> Outcome {
        let mut order = plan.epoch(self.cut.epoch);
        let mut position = Position(self.cut.from);
        let mut number = match size {
            StepSize::Rows(rows) => self.cut.from / rows,
            StepSize::Total { .. } if self.cut.from == 0 => 0,
            StepSize::Total { .. } => {
                let shape = self.cut.shape(size, 0);
                order.steps_left(Position(0), &shape).saturating_sub(order.steps_left(position, &shape))
            }
        };
        let mut left = self.steps.unwrap_or(u64::MAX);
        while left > 0 {
            let mut next = None;
            for rank in ranks.clone() {
                let Some(step) = order.step(position, &self.cut.shape(size, rank)) else { return Ok(()) };
                self.print_rank(common, output, (number, rank), &step)?;
                next = Some(step.next);
            }
            let Some(next) = next else { return Ok(()) };
            (position, number, left) = (next, number + 1, left - 1);
        }
        Ok(())
    }

    /// Prints the number of steps, the share of padding, with bucketing and without, and how well the order shuffles.
    fn print_summary(
        &self,
        common: &Common,
        output: &mut Output,
        (plan, size): (&Plan, StepSize),
        quality: Option<&ShuffleQuality>,
    ) -> Outcome {
        let (epoch, shape) = (self.cut.epoch, self.cut.shape(size, 0));
        let padding = |plan: &Plan| plan.lengths().and_then(|_| plan.epoch(epoch).padding_share(&shape));
        let (share, plain) = (padding(plan), self.lengths.bucket.as_ref().map(|_| plan.without_bucketing()));
        let plain = plain.and_then(|plain| padding(&plain));
        if common.json {
            let steps = plan.steps_left(epoch, Position(0), &shape);
            return output.json(&json!({
                "epoch": epoch, "samples": plan.len(), "steps": steps,
                "padding_share": share, "unbucketed_padding_share": plain, "shuffle_quality": quality,
            }));
        }
        if self.summary {
            output.fact("steps", count(plan.steps_left(epoch, Position(0), &shape)))?;
            output.fact("samples", count(plan.len()))?;
        }
        if let Some(share) = share {
            let without =
                plain.map_or(String::new(), |plain| format!("; without bucketing {:.1} %", plain * 100.0));
            output.fact("padding", format!("{:.1} % of the cells in batches{without}", share * 100.0))?;
        }
        match quality {
            Some(quality) => quality::print(output, quality),
            None if self.summary => {
                let most = count(MAX_MEASURED_ROWS);
                output.fact("shuffle", format!("not measured for global batches of more than {most} samples"))
            }
            None => Ok(()),
        }
    }

    fn print_rank(
        &self,
        common: &Common,
        output: &mut Output,
        (number, rank): (u64, u32),
        step: &Step,
    ) -> Outcome {
        let samples: Vec<u64> = step.rows.iter().map(|row| row.sample.0).collect();
        let valid: Vec<bool> = step.rows.iter().map(|row| row.valid).collect();
        let (epoch, position) = (step.epoch, step.position.0);
        if !common.json {
            let samples: Vec<String> = step
                .rows
                .iter()
                .map(|row| format!("{}{}", row.sample, if row.valid { "" } else { "*" }))
                .collect();
            let samples = samples.join(" ");
            return output
                .line(format!("epoch {epoch} step {number} rank {rank} position {position}: {samples}"));
        }
        // Formatted here, because serde_json would sort the keys.
        let samples = json!(samples);
        let valid =
            if valid.contains(&false) { format!(",\"valid\":{}", json!(valid)) } else { String::new() };
        output.line(format!(
            "{{\"epoch\":{epoch},\"step\":{number},\"rank\":{rank},\"position\":{position},\"samples\":{samples}{valid}}}"
        ))
    }
}
