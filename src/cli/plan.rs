//! `feedstock plan`: which sample stands where, for every rank.

use super::Common;
use super::failure::{Failure, Outcome};
use super::output::Output;
use super::source::{ShuffleArgs, SourceArgs};
use clap::{Args, ValueEnum};
use feedstock_dataset::{EpochOrder, Position, Rank, Step, StepShape, Tail};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  feedstock plan /data/imagenet --seed 7 --epoch 0 --global-batch 256 --world-size 8 --json
  feedstock plan /data/imagenet --seed 7 --global-batch 256 --world-size 8 --rank 3 --steps 10
  feedstock plan /data/imagenet --seed 7 --global-batch 512 --world-size 16 --from 25600   # resume, twice as wide

One line a step and rank: {\"epoch\":0,\"step\":0,\"rank\":0,\"position\":0,\"samples\":[…]}. `position` is the step's
first place in the order; a checkpoint holds the next one. `samples` are catalog ids. With --tail pad, lines whose
batch holds repeated samples have \"valid\":[…].";

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
    /// Only this rank's lines.
    #[arg(long, value_name = "R")]
    rank: Option<u32>,
    /// Stop after so many steps [default: the epoch's end].
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Write a checkpoint's state for --from to this file, as JSON, and print nothing.
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
}

/// How an epoch is cut into steps.
#[derive(Args, Debug, Clone)]
pub(crate) struct StepArgs {
    /// The epoch.
    #[arg(long, default_value_t = 0)]
    pub(crate) epoch: u64,
    /// Samples of a step over all ranks.
    #[arg(long, value_name = "G", conflicts_with = "batch_size")]
    global_batch: Option<u64>,
    /// Samples of a step for each rank [default: 64].
    #[arg(long, value_name = "B")]
    batch_size: Option<u64>,
    /// Number of ranks.
    #[arg(long, default_value_t = 1, value_name = "D")]
    pub(crate) world_size: u32,
    /// Start at this position of the order.
    #[arg(long, default_value_t = 0, value_name = "POSITION")]
    pub(crate) from: u64,
    /// drop leaves out the last samples that fill no batch; pad repeats the first ones and marks them.
    #[arg(long, default_value = "drop")]
    pub(crate) tail: TailArg,
}

/// [`Tail`] as an option.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TailArg {
    /// Leave out what fills no batch.
    Drop,
    /// Repeat the first samples, marked.
    Pad,
}

const DEFAULT_BATCH_SIZE: u64 = 64;

impl StepArgs {
    /// Samples of a step over all ranks.
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

    fn shape(&self, rank: u32) -> StepShape {
        let rank = Rank { rank, world_size: self.world_size };
        StepShape { global_batch: self.global_batch(), rank, tail: self.tail() }
    }

    fn check(&self, samples: u64) -> Outcome {
        if self.world_size == 0 {
            return Err(Failure::config("--world-size is 0; there is at least one rank"));
        }
        if self.from > samples {
            let from = self.from;
            return Err(Failure::config(format!("--from {from} lies behind the epoch's end at {samples}")));
        }
        Ok(self.shape(0).check(samples)?)
    }
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let dataset = self.source.open(common)?;
        let plan = dataset.plan(&self.order.shuffle()?)?;
        self.cut.check(plan.len())?;
        let ranks = match self.rank {
            Some(rank) if rank >= self.cut.world_size => {
                let world_size = self.cut.world_size;
                return Err(Failure::config(format!(
                    "--rank {rank} is none of the {world_size} ranks, 0 to {}",
                    world_size - 1
                )));
            }
            Some(rank) => rank..rank + 1,
            None => 0..self.cut.world_size,
        };
        if let Some(path) = &self.cursor {
            let cursor = plan.cursor(self.cut.epoch, Position(self.cut.from));
            let text = serde_json::to_string(&cursor)
                .map_err(|e| Failure::bug(format!("a cursor is no JSON: {e}")))?;
            return std::fs::write(path, text).map_err(|e| Failure::write(path, &e));
        }
        let mut order = plan.epoch(self.cut.epoch);
        let mut output = Output::new();
        let mut position = Position(self.cut.from);
        let mut left = self.steps.unwrap_or(u64::MAX);
        while left > 0 {
            let Some(next) = self.print_step(common, &mut output, &mut order, position, ranks.clone())?
            else {
                break;
            };
            position = next;
            left -= 1;
        }
        output.end()
    }

    /// Prints one step for `ranks`, and says where the next one starts.
    fn print_step(
        &self,
        common: &Common,
        output: &mut Output,
        order: &mut EpochOrder,
        position: Position,
        ranks: std::ops::Range<u32>,
    ) -> Outcome<Option<Position>> {
        let mut next = None;
        for rank in ranks {
            let Some(step) = order.step(position, &self.cut.shape(rank)) else { return Ok(None) };
            self.print_rank(common, output, rank, &step)?;
            next = Some(step.next);
        }
        Ok(next)
    }

    fn print_rank(&self, common: &Common, output: &mut Output, rank: u32, step: &Step) -> Outcome {
        let number = step.position.0 / self.cut.global_batch();
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
        // By hand, so that the keys keep their order.
        let samples = json!(samples);
        let valid =
            if valid.contains(&false) { format!(",\"valid\":{}", json!(valid)) } else { String::new() };
        output.line(format!(
            "{{\"epoch\":{epoch},\"step\":{number},\"rank\":{rank},\"position\":{position},\"samples\":{samples}{valid}}}"
        ))
    }
}
