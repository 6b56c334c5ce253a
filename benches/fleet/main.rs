//! A fleet of real `feedstock worker` processes, each held to a share of a core, so that five of them do not compete for
//! the two cores of the machine that the figures are for: `cargo bench --profile dev --bench fleet [scale] [loopback] [loss]`.
//!
//! - `scale`: one worker and five, a fifth of a core each, over the same steps. Ranks connect by TCP, as to other machines.
//! - `loopback`: one worker and its rank on N cores beside the engine in this process on the same N; by the host's socket,
//!   by TCP, and by TCP with TLS and a token.
//! - `loss`: four workers, of which one is killed, or stopped, in mid-epoch: the latest batch, when throughput is back, and
//!   whether the batches are the same bytes as without workers.
//!
//! Shares are cgroup quotas (version 1 or 2), which needs root; without, the bench says so and measures nothing. What it
//! starts has precedence over other work of the machine, which else would take what the quotas leave. Rounds alternate
//! between the cases; medians are printed, and the machine's load beside them.
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

/// Lanes, so that 1, 3, 4 and 5 workers have equally many.
const LANES: u32 = 60;

/// Steps until streams are open, blocks read and queues as they stay.
const WARM_STEPS: usize = 10;

/// Steps measured: with those before, nearly the first epoch, in which every block is read once.
const STEPS: usize = 50;

/// Room for the longest run.
const EPOCHS: u64 = 20;

/// What the parts share.
struct Bench {
    /// Holds the rank, and below it the workers with their quotas.
    group: Group,
    data: PathBuf,
    /// Catalogs, logs and certificates.
    folder: tempfile::TempDir,
}

/// What measures one part.
type Part = fn(&Bench);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == worker::WORD) {
        return worker::be_one();
    }
    let parts: [(&str, Part); 3] =
        [("scale", scale::measure), ("loopback", loopback::measure), ("loss", loss::measure)];
    if let Some(word) = words.iter().find(|word| parts.iter().all(|(name, _)| name != word)) {
        println!("no part is called '{word}'; there are scale, loopback and loss");
        return ExitCode::FAILURE;
    }
    let group = match Group::new(&format!("feedstock-bench-{}", std::process::id())) {
        Ok(group) => group,
        Err(error) => {
            println!("workers cannot be held to shares of a core, so nothing is measured: {error}");
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

/// The job of the figures, on lanes that all the fleets share out evenly.
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

/// The next batch, of the next epoch if need be.
fn next_batch(ranks: &mut RankIterator) -> Batch {
    match ranks.next() {
        Some(batch) => batch.unwrap(),
        None => ranks.next().unwrap().unwrap(),
    }
}

/// What a steady run takes. No worker is slow in it, so none is asked for rows of another one.
struct Steady {
    samples_per_s: f64,
    /// Of this process.
    cpu_per_1000: f64,
    /// Of the workers: CPU seconds a second.
    worker_cores: Vec<f64>,
    worker_cpu_per_1000: f64,
}

/// [`STEPS`] steps behind [`WARM_STEPS`], all of the first epoch.
fn steady(ranks: &mut RankIterator, workers: &[Worker]) -> Steady {
    for _ in 0..WARM_STEPS {
        next_batch(ranks);
    }
    let used = || workers.iter().map(Worker::cpu_s).collect::<Vec<f64>>();
    let (begun, cpu, before) = (Instant::now(), cpu_s(), used());
    for _ in 0..STEPS {
        next_batch(ranks);
    }
    let (seconds, samples) = (begun.elapsed().as_secs_f64(), STEPS as f64 * BATCH as f64);
    let hedged = ranks.stats().engine.hedged_samples;
    assert_eq!(hedged, 0, "rows were asked for twice though nothing was slow");
    let theirs: Vec<f64> = used().iter().zip(&before).map(|(after, before)| after - before).collect();
    Steady {
        samples_per_s: samples / seconds,
        cpu_per_1000: (cpu_s() - cpu) / samples * 1000.0,
        worker_cpu_per_1000: theirs.iter().sum::<f64>() / samples * 1000.0,
        worker_cores: theirs.iter().map(|cpu| cpu / seconds).collect(),
    }
}

fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
