//! A fleet of real `feedstock worker` processes: `cargo bench --profile dev --bench fleet [scale] [many] [loopback] [loss]`.
//! Each worker is limited to a share of a core, so that five of them do not compete for the two cores of the machine
//! for which the figures are stated.
//!
//! - `scale`: one worker and five, a fifth of a core each, over the same steps. Ranks connect by TCP, as to other
//!   machines.
//! - `many`: 1, 8 and 24 workers, a 25th of a core each: their shares of the order must be equal, too.
//! - `loopback`: one worker and its rank on N cores, compared with the engine in this process on the same N; by the
//!   host's socket, by TCP, and by TCP with TLS and a token.
//! - `loss`: four workers, of which one is killed, or stopped, in mid-epoch. Reports the latest batch, the time until
//!   throughput recovers, and whether the batches have the same bytes as without workers.
//!
//! Shares are cgroup quotas (version 1 or 2), which need root; without them, the bench reports that and measures
//! nothing. Its processes have precedence over other work of the machine, which would otherwise take the CPU time
//! that the quotas leave. Rounds alternate between the cases. The bench prints medians and the machine's load.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod loopback;
mod loss;
mod scale;
mod share;
#[path = "../support/mod.rs"]
mod support;
mod worker;

use feedstock::{Batch, Dataset, Pipeline, Rank, RankIterator, Shuffle, Workers};
use share::Group;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::{BATCH, WINDOW, cpu_s, open, pipeline, sample_data};
use worker::Worker;

/// Number of lanes, so that 1, 3, 4 and 5 workers get equally many.
const LANES: u32 = 60;

/// Steps until streams are open, blocks are read and queues have their usual length.
const WARM_STEPS: usize = 10;

/// Steps that are measured. With the warm-up, they are nearly the first epoch, in which every block is read once.
const STEPS: usize = 50;

/// Enough epochs for the longest run.
const EPOCHS: u64 = 20;

/// Shared state of the parts.
struct Bench {
    /// The control group of the rank; below it are the workers' groups with their quotas.
    group: Group,
    data: PathBuf,
    /// The folder of catalogs, logs and certificates.
    folder: tempfile::TempDir,
}

/// The function that measures one part.
type Part = fn(&Bench);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == worker::WORD) {
        return worker::be_one();
    }
    let parts: [(&str, Part); 4] = [
        ("scale", scale::measure),
        ("many", scale::measure_many),
        ("loopback", loopback::measure),
        ("loss", loss::measure),
    ];
    if let Some(word) = words.iter().find(|word| parts.iter().all(|(name, _)| name != word)) {
        println!("the part must be scale, many, loopback or loss; got '{word}'");
        return ExitCode::FAILURE;
    }
    let group = match Group::new(&format!("feedstock-bench-{}", std::process::id())) {
        Ok(group) => group,
        Err(error) => {
            println!("workers cannot be limited to shares of a core, so nothing is measured: {error}");
            return ExitCode::FAILURE;
        }
    };
    let bench = Bench { group, data: sample_data(), folder: tempfile::tempdir().unwrap() };
    for (name, measure) in parts {
        if words.is_empty() || words.iter().any(|word| word == name) {
            println!("\n{name}, load average {}", load_average());
            measure(&bench);
            println!("{name}: load average at the end {}", load_average());
        }
    }
    ExitCode::SUCCESS
}

impl Bench {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> &str {
        self.data.to_str().unwrap()
    }

    fn dataset(&self) -> Dataset {
        open(self.data(), self.folder(), &[])
    }
}

/// Returns the job of the figures, with lanes that divide evenly among all the fleets.
fn job(dataset: &Dataset) -> Pipeline {
    let shuffle = Shuffle::seeded(7).window(WINDOW).lanes(LANES);
    pipeline(dataset.clone()).shuffle(shuffle).epochs(EPOCHS)
}

fn run(pipeline: &Pipeline) -> RankIterator {
    pipeline.rank(Rank::new(0, 1)).start().unwrap()
}

fn addresses(workers: &[Worker]) -> Workers {
    let addresses: Vec<&str> = workers.iter().map(Worker::address).collect();
    Workers::at(&addresses.join(",")).unwrap()
}

/// Returns the next batch, which may be in the next epoch.
fn next_batch(ranks: &mut RankIterator) -> Batch {
    match ranks.next() {
        Some(batch) => batch.unwrap(),
        None => ranks.next().unwrap().unwrap(),
    }
}

/// Figures of a steady run.
struct Steady {
    samples_per_s: f64,
    /// Rows that were requested twice.
    hedged: u64,
    /// CPU seconds of this process per 1,000 samples.
    cpu_per_1000: f64,
    /// Cores used by each worker: CPU seconds per second.
    worker_cores: Vec<f64>,
    worker_cpu_per_1000: f64,
}

/// Measures `steps` steps after `warm_steps`.
fn steady(ranks: &mut RankIterator, workers: &[Worker], (warm_steps, steps): (usize, usize)) -> Steady {
    for _ in 0..warm_steps {
        next_batch(ranks);
    }
    let used = || workers.iter().map(Worker::cpu_s).collect::<Vec<f64>>();
    let (begun, cpu, before) = (Instant::now(), cpu_s(), used());
    for _ in 0..steps {
        next_batch(ranks);
    }
    let (seconds, samples) = (begun.elapsed().as_secs_f64(), steps as f64 * BATCH as f64);
    let theirs: Vec<f64> = used().iter().zip(&before).map(|(after, before)| after - before).collect();
    Steady {
        samples_per_s: samples / seconds,
        hedged: ranks.stats().engine.hedged_samples,
        cpu_per_1000: (cpu_s() - cpu) / samples * 1000.0,
        worker_cpu_per_1000: theirs.iter().sum::<f64>() / samples * 1000.0,
        worker_cores: theirs.iter().map(|cpu| cpu / seconds).collect(),
    }
}

impl Steady {
    /// No worker was slow, so none was asked for rows of another one.
    fn without_hedges(self) -> Self {
        assert_eq!(self.hedged, 0, "rows were requested twice although no worker was slow");
        self
    }
}

fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
