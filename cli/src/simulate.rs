//! `feedstock simulate`: forecasts rate, reads, memory and costs of a job without reading its data.

use super::bucket::BucketArgs;
use super::chains::encoded_column;
use super::common::Common;
use super::failure::{Failure, Outcome};
use super::memory::MemoryArgs;
use super::output::{Output, bytes, count, hours};
use super::plan::StepArgs;
use super::source::{ShuffleArgs, SourceArgs};
use clap::Args;
use feedstock_ops::ChainSpec;
use feedstock_trainer_bridge as bridge;
use feedstock_trainer_bridge::{
    Forecast, Prices, SimulateOptions, SimulatedWorkers, Simulation, StoreProfile,
};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  feedstock simulate s3://bucket/train --world-size 8 --threads 12 --decode-ms 3 --step-ms 120 --batch-size 256
  feedstock simulate /data/imagenet --store s3 --step-ms 50           # as if the files were on Amazon S3
  feedstock simulate s3://bucket/train --store far --network-gbit 10 --json
  feedstock simulate s3://bucket/train --world-size 64 --workers 32 --worker-threads 16 --step-ms 80

No data is read, only the catalog. The order, the prefetching and the memory budget are those of a real run; the store, the
CPU threads and the trainer are models. `feedstock bench --threads 1` measures --decode-ms: 1000 / chain_ceiling_samples_per_s.
bottleneck is one of:
  trainer          batches are ready before the trainer takes them
  cpu              the CPU threads are busy: more --threads, or --workers
  requests         the store's limit on requests per second: larger pieces, or more prefixes
  bandwidth        the network, or all connections, are busy with bodies
  latency          all connections wait for first bytes
  budget           the memory budget is full: a larger --budget-bytes, or a smaller --shuffle-bytes
  prefetch         slow answers are not covered by what is read ahead: a larger --prefetch-bytes, or more --slots
The table shows the same job with one setting changed.";

/// Forecast a job without reading its data: rate, waiting, requests, bytes, memory, costs, bottleneck.
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
    /// The ops whose results are counted as memory of the slots, in the syntax that `feedstock ops` describes [default:
    /// none].
    #[arg(long)]
    ops: Option<String>,
    /// The column of encoded samples, for --ops [default: the only one].
    #[arg(long, requires = "ops")]
    column: Option<String>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    store: StoreModelArgs,
}

/// What the job runs on. --threads is the number of CPU threads of each rank.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Machine")]
struct MachineArgs {
    /// Milliseconds that one CPU thread takes for a sample; the default is a photograph.
    #[arg(long, default_value_t = 3.0, value_name = "MS")]
    decode_ms: f64,
    /// Milliseconds that the trainer takes for a step; 0 takes batches as fast as they come.
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    step_ms: f64,
    /// Gigabits per second of each rank's network, its share of the machine's [default: no limit].
    #[arg(long, value_name = "GBIT")]
    network_gbit: Option<f64>,
    /// Workers that decode for all ranks, instead of the ranks' threads.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// CPU threads of each worker.
    #[arg(long, value_name = "N", requires = "workers", default_value_t = 16)]
    worker_threads: usize,
}

/// How the store answers, and what it costs.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Store model")]
struct StoreModelArgs {
    /// The store: s3 (27 ms, same region), express (5 ms), far (150 ms), local (files) [default: local for local data,
    /// else s3].
    #[arg(long, value_name = "NAME")]
    store: Option<String>,
    /// Median milliseconds until the first byte [default: by --store].
    #[arg(long, value_name = "MS")]
    first_byte_ms: Option<f64>,
    /// Megabytes per second of a connection [default: by --store].
    #[arg(long, value_name = "MB")]
    connection_mb_s: Option<f64>,
    /// Requests per second that the store serves to all ranks together [default: by --store; 5500 for s3].
    #[arg(long, value_name = "N")]
    requests_per_s: Option<f64>,
    /// Requests of a rank or worker that are under way at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    concurrency: usize,
    /// Dollars for 1,000 GET requests.
    #[arg(long, value_name = "USD", default_value_t = 0.0004)]
    price_per_1000_requests: f64,
    /// Dollars for 10^9 bytes read.
    #[arg(long, value_name = "USD", default_value_t = 0.0)]
    price_per_gb: f64,
}

impl StoreModelArgs {
    /// Returns the profile of the store; `None` for the default.
    fn profile(&self, is_local: bool) -> Outcome<StoreProfile> {
        let mut profile = match self.store.as_deref() {
            None if is_local => StoreProfile::LOCAL,
            None => StoreProfile::S3,
            Some(name) => StoreProfile::named(name).ok_or_else(|| {
                Failure::config(format!("--store must be one of s3, express, far, local; got {name}"))
            })?,
        };
        if let Some(ms) = self.first_byte_ms {
            let time = Duration::try_from_secs_f64(ms / 1e3);
            let text = || format!("--first-byte-ms must be at least 0; got {ms}");
            profile.first_byte = time.map_err(|_| Failure::config(text()))?;
        }
        if let Some(mb) = self.connection_mb_s {
            profile.bytes_per_s = mb * 1e6;
        }
        if let Some(requests) = self.requests_per_s {
            profile.requests_per_s = requests;
        }
        Ok(profile)
    }
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let spec = self.ops.as_deref().map(str::parse::<ChainSpec>).transpose()?;
        if self.cut.world_size == 0 {
            return Err(Failure::config("--world-size must be at least 1; got 0"));
        }
        if self.cut.from > 0 {
            return Err(Failure::config("--from has no effect: a whole epoch is simulated; leave it out"));
        }
        let dataset = self.source.open(common)?;
        let options = SimulateOptions {
            world_size: self.cut.world_size,
            epoch: self.cut.epoch,
            threads: Some(common.threads()),
            decode_s: self.machine.decode_ms / 1e3,
            step_s: self.machine.step_ms / 1e3,
            store: Some(self.store.profile(dataset.catalog().is_local())?),
            network_bytes_per_s: self.machine.network_gbit.map(|gbit| gbit * 1e9 / 8.0),
            concurrency: self.store.concurrency,
            workers: self
                .machine
                .workers
                .map(|workers| SimulatedWorkers { workers, threads: self.machine.worker_threads }),
            prices: Prices {
                per_1000_requests: self.store.price_per_1000_requests,
                per_gb: self.store.price_per_gb,
            },
            seed: self.order.seed,
        };
        let mut pipeline =
            bridge::Dataset::from(dataset.clone()).shuffle(self.order.shuffle()?).tail(self.cut.tail());
        if let Some(spec) = spec {
            pipeline = pipeline.map(&encoded_column(&dataset, self.column.as_deref())?, spec);
        }
        pipeline = self.lengths.apply(pipeline, self.cut.global_batch())?;
        let simulation = self.memory.apply(pipeline).simulate(&options)?;
        print(common, &simulation)
    }
}

fn print(common: &Common, simulation: &Simulation) -> Outcome {
    let mut output = Output::new();
    if common.json {
        let value = serde_json::to_value(simulation)
            .map_err(|e| Failure::bug(format!("a forecast cannot be written as JSON: {e}")))?;
        output.json(&value)?;
        return output.end();
    }
    let (forecast, ranks) = (&simulation.forecast, u64::from(simulation.world_size));
    output.fact("samples/s", format!("{:.0}, all {ranks} ranks together", forecast.samples_per_s))?;
    output.fact("waiting", format!("{} of the trainer's time", percent(forecast.waiting_share)))?;
    output.fact("first batch", format!("after {:.3} s", forecast.first_batch_s))?;
    output.fact(
        "epoch",
        format!(
            "{}: {} steps, {} samples",
            hours(forecast.epoch_s),
            count(simulation.steps),
            count(simulation.samples)
        ),
    )?;
    output.fact(
        "reads",
        format!("{} requests, {} an epoch", count(forecast.requests), bytes(forecast.bytes)),
    )?;
    output.fact("cost", format!("${:.4} an epoch", forecast.dollars))?;
    output.fact(
        "memory",
        format!(
            "{} of blocks at the peak, {} with the slots; each rank",
            bytes(forecast.resident_peak_bytes),
            bytes(forecast.memory_bytes)
        ),
    )?;
    output.fact("bottleneck", forecast.bottleneck.to_string())?;
    output.fact("busy", busy(forecast))?;
    let steps = count(simulation.simulated_steps);
    output.fact("simulated", format!("{} ranks, {steps} steps of each", simulation.simulated_ranks))?;
    output.line("")?;
    output.line(row(
        "",
        ["samples/s", "waiting", "requests", "bytes", "peak", "cost", "bottleneck"].map(str::to_owned),
    ))?;
    output.line(row("as set", cells(forecast)))?;
    for alternative in &simulation.alternatives {
        match &alternative.forecast {
            Some(forecast) => output.line(row(&alternative.change, cells(forecast)))?,
            None => output.line(format!("{:<20} a batch exceeds the budget", alternative.change))?,
        }
    }
    output.end()
}

fn busy(forecast: &Forecast) -> String {
    let busy = &forecast.busy;
    format!(
        "threads {}, connections {}, request limit {}, network {}",
        percent(busy.threads),
        percent(busy.connections),
        percent(busy.request_rate),
        percent(busy.network)
    )
}

fn cells(forecast: &Forecast) -> [String; 7] {
    [
        format!("{:.0}", forecast.samples_per_s),
        percent(forecast.waiting_share),
        count(forecast.requests),
        bytes(forecast.bytes),
        bytes(forecast.resident_peak_bytes),
        format!("${:.4}", forecast.dollars),
        forecast.bottleneck.to_string(),
    ]
}

fn row(name: &str, cells: [String; 7]) -> String {
    let [rate, waiting, requests, size, peak, cost, bottleneck] = cells;
    format!("{name:<20} {rate:>10} {waiting:>8} {requests:>13} {size:>8} {peak:>8} {cost:>10}  {bottleneck}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
