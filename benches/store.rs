//! Training from object storage with the latencies of a real one: `cargo bench --profile dev --bench store`.
//!
//! The S3 server draws the fate of each request from published figures of Amazon S3 (`feedstock_testkit::Profile`). Parts, all by
//! default:
//! - `start`: from a stored catalog to the first batch of 64 and of 256 rows, in 50 processes one after the other.
//! - `train`: two ranks, one process each, with steps of 50 ms: share of the time waiting, waits for each batch, hedges, CPU.
//! - `crowd`: 32 processes read from a prefix that serves 200 requests a second: answers that ask for a lower rate.
//!
//! `steps=1000` shortens `train`, `minutes=3` shortens `crowd`, `starts=10` shortens `start`, `profile=far` is another store.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
use feedstock_synth::{ImagenetOptions, Layout};
use feedstock_testkit::{S3Process, S3Server};
use futures::StreamExt;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use support::median;

/// The argument before the arguments of `feedstock`: this program again, so that both are of one build.
const FEEDSTOCK: &str = "as-feedstock";
/// The argument of a process of the crowd.
const READER: &str = "as-reader";

const SAMPLES: u64 = 4000;
const OPS: &str = "decode_image,random_resized_crop:224,horizontal_flip";
const LAYOUTS: [Layout; 2] = [Layout::WebDataset, Layout::Folder];

const RANKS: u32 = 2;
const STEP_MS: u64 = 50;
/// Rows of a rank's step: 640 images a second for two ranks, of which this machine's two cores decode some 1,700.
const ROWS: u64 = 16;
/// A quarter of the data, so that every epoch reads it again.
const BUDGET_BYTES: u64 = 112 << 20;

const CROWD: u64 = 32;
const CROWD_REQUESTS_PER_S: u64 = 200;
const IMAGE_BYTES: u64 = 110_000;

/// Measures one part, and prints what it found.
type Part = fn(&Bench);

struct Bench {
    folder: tempfile::TempDir,
    profile: String,
    starts: u64,
    steps: u64,
    minutes: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.first().map(String::as_str) {
        Some(FEEDSTOCK) => return feedstock_cli::main(std::env::args_os().skip(1)).into(),
        Some(READER) => return read_for_ever(&words[1..]),
        _ => {}
    }
    let set = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, default: u64| set(name).map_or(default, |n| n.parse().unwrap());
    let bench = Bench {
        folder: tempfile::tempdir().unwrap(),
        profile: set("profile").unwrap_or("s3").to_owned(),
        starts: number("starts", 50),
        steps: number("steps", 10_000),
        minutes: number("minutes", 6),
    };
    for layout in LAYOUTS {
        bench.store(layout);
    }
    let parts: [(&str, Part); 3] = [("start", start), ("train", train), ("crowd", crowd)];
    let named = |name: &str| words.iter().any(|word| word == name);
    let all = !parts.iter().any(|(name, _)| named(name));
    println!("profile {}", bench.profile);
    for (name, measure) in parts {
        if all || named(name) {
            measure(&bench);
        }
    }
    ExitCode::SUCCESS
}

impl Bench {
    fn bucket(&self) -> PathBuf {
        self.folder.path().join("s3")
    }

    /// Puts 4,000 images of about 110 kB into the bucket.
    fn store(&self, layout: Layout) {
        let folder = std::env::temp_dir().join(format!("feedstock-bench-store-{}", layout.name()));
        let (data, complete) = (folder.join("data"), folder.join("complete"));
        if !complete.exists() {
            println!("making {SAMPLES} images in {}", data.display());
            let options = ImagenetOptions { samples: SAMPLES, layout, overwrite: true, ..Default::default() };
            options.write(&data, &mut |_| ()).unwrap();
            std::fs::write(complete, "").unwrap();
        }
        std::fs::create_dir_all(self.bucket()).unwrap();
        let server = S3Server::start(self.bucket()).unwrap();
        server.import("corpus", layout.name(), &data).unwrap();
    }

    fn server(&self, more: &[&str]) -> S3Process {
        S3Process::start_with(&self.bucket(), &[&["--profile", &self.profile, "--seed", "1"], more].concat())
            .unwrap()
    }

    /// `feedstock bench` on a layout.
    fn command(&self, server: &S3Process, layout: Layout) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([FEEDSTOCK, "bench", &format!("s3://corpus/{}", layout.name()), "--json", "--quiet"]);
        command.args([
            "--ops",
            OPS,
            "--threads",
            "2",
            "--no-ceiling",
            "--budget-bytes",
            &BUDGET_BYTES.to_string(),
        ]);
        for (key, value) in server.config() {
            command.arg("--storage").arg(format!("{key}={value}"));
        }
        command.env("FEEDSTOCK_CACHE", self.folder.path()).stdout(Stdio::piped());
        command
    }
}

fn result(process: Child) -> Value {
    let output = process.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(result: &Value, pointer: &str) -> f64 {
    result.pointer(pointer).and_then(Value::as_f64).unwrap()
}

/// From the stored catalog to the first batch, without opening the data set, from the store and from one without latency.
fn start(bench: &Bench) {
    let servers = [bench.server(&[]), S3Process::start_with(&bench.bucket(), &[]).unwrap()];
    let layout = Layout::WebDataset; // the test server takes seconds to list thousands of files
    for rows in [64_u64, 256] {
        let mut times = [Vec::new(), Vec::new()];
        for seed in 0..=bench.starts {
            for (server, times) in servers.iter().zip(&mut times) {
                let mut command = bench.command(server, layout);
                let (rows, seed) = (rows.to_string(), seed.to_string());
                command.args(["--batch-size", &rows, "--samples", &rows, "--seed", &seed]);
                let result = result(command.spawn().unwrap());
                times.push(1000.0 * (number(&result, "/first_batch_s") - number(&result, "/opened_s")));
            }
        }
        let [stored, plain] = times.map(|mut times| {
            times.remove(0); // builds the catalog
            median(&mut times)
        });
        println!(
            "start  {:<11} {rows:>3} rows: first batch {stored:.0} ms after the data set is open, {plain:.0} ms without latency: {:.0} \
             ms more (medians)",
            layout.name(),
            stored - plain
        );
    }
}

fn train(bench: &Bench) {
    let server = bench.server(&[]);
    let epochs = (bench.steps * ROWS * u64::from(RANKS)).div_ceil(SAMPLES);
    for layout in LAYOUTS {
        let ranks: Vec<Child> = (0..RANKS)
            .map(|rank| {
                let mut command = bench.command(&server, layout);
                command.args(["--world-size", &RANKS.to_string(), "--rank", &rank.to_string()]);
                command.args(["--batch-size", &ROWS.to_string(), "--step-ms", &STEP_MS.to_string()]);
                command.args(["--epochs", &epochs.to_string()]).spawn().unwrap()
            })
            .collect();
        for (rank, process) in ranks.into_iter().enumerate() {
            let result = result(process);
            let number = |name| number(&result, name);
            let waiting = number("/waited_after_first_s") / number("/wall_s");
            println!(
                "train  {:<11} rank {rank}, {} steps: waiting {:.2} % of the time; wait for a batch p50 {:.2}, p99 {:.2}, p99.9 \
                 {:.2}, longest {:.0} ms; {} requests, {:.2} % hedges, {} throttled; CPU {:.2} s per 1,000 samples, peak {:.0} MiB",
                layout.name(),
                number("/batches"),
                100.0 * waiting,
                number("/waits_ms/p50"),
                number("/waits_ms/p99"),
                number("/waits_ms/p99_9"),
                number("/waits_ms/max"),
                number("/storage_requests"),
                100.0 * number("/storage_hedges") / number("/storage_requests"),
                number("/storage_throttled"),
                number("/cpu_s_per_1000_samples"),
                number("/peak_rss_bytes") / f64::from(1 << 20),
            );
        }
    }
}

/// Counts, minute by minute, what the processes of a crowd were answered.
fn crowd(bench: &Bench) {
    let server = bench.server(&["--requests-per-s", &CROWD_REQUESTS_PER_S.to_string()]);
    let mut readers: Vec<(Child, BufReader<_>)> = (0..CROWD)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg(READER).args(server.config().iter().map(|(key, value)| format!("{key}={value}")));
            let command = command.env("WORLD_SIZE", CROWD.to_string()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            (child, lines)
        })
        .collect();
    let mut before = (0, 0);
    for minute in 1..=bench.minutes {
        let (mut requests, mut throttled) = (0, 0);
        for (_, lines) in &mut readers {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().unwrap());
            requests += numbers.next().unwrap();
            throttled += numbers.next().unwrap();
        }
        let (sent, refused) = (requests - before.0, throttled - before.1);
        before = (requests, throttled);
        println!(
            "crowd  minute {minute}: {:.0} requests a second, {:.3} % of the answers ask for a lower rate",
            sent as f64 / 60.0,
            100.0 * refused as f64 / sent as f64
        );
    }
    for (mut child, _) in readers {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Reads parts of objects, as large as images, as fast as storage allows, and prints requests and refusals so far every minute.
fn read_for_ever(config: &[String]) -> ExitCode {
    let mut options = StorageOptions::default();
    for (key, value) in config.iter().map(|setting| setting.split_once('=').unwrap()) {
        options = options.with(key, value.to_owned());
    }
    let io = IoRuntime::new().unwrap();
    let storage = Storage::new(options, io).unwrap();
    let objects = futures::executor::block_on(storage.list("s3://corpus/webdataset")).unwrap();
    let places = objects.iter().flat_map(|object| {
        (0..object.size / IMAGE_BYTES)
            .map(move |image| (object, image * IMAGE_BYTES..(image + 1) * IMAGE_BYTES))
    });
    let (mut next, began) = (Instant::now() + Duration::from_secs(60), Instant::now());
    let mut reads = futures::stream::iter(places.cycle())
        .map(|(object, range)| async { storage.read(object, range).await.unwrap().len() })
        .buffer_unordered(16);
    while futures::executor::block_on(reads.next()).is_some() && began.elapsed() < Duration::from_secs(3600) {
        if Instant::now() >= next {
            next += Duration::from_secs(60);
            let stats = storage.stats();
            println!("{} {}", stats.requests, stats.throttled);
        }
    }
    ExitCode::SUCCESS
}
