//! The catalog of 10⁷ small files: `cargo bench -p feedstock-dataset --profile dev --bench catalog -- --files
//! 10000000 --folders 1000`.
//!
//! The bucket generates its keys on request, so no file exists. One process lists them and builds the catalog. Other processes
//! open the stored catalog, plan, seek, and walk some hundred steps. Each process is a new run of this program, so it reports
//! its own memory only. `--processes` is the number of processes that have the catalog open at once; default 8.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

use feedstock_dataset::{
    CatalogOptions, CatalogStore, Dataset, OpenOptions, Position, Rank, Shuffle, StepShape, StepSize, Tail,
};
use feedstock_testkit::{KeyServer, KeyServerOptions, Keys, S3Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

const STEPS: usize = 300;
const SEEKS: u64 = 100;
/// Rows of a step, over all ranks.
const STEP_ROWS: u64 = 2048;
const URI: &str = "s3://bucket/train/";

/// `train/class_000042/img_00000017.jpg`.
struct ClassFolders {
    files: u64,
    folders: u64,
}

impl Keys for ClassFolders {
    fn len(&self) -> u64 {
        self.files
    }

    fn key(&self, index: u64) -> String {
        let each = self.files.div_ceil(self.folders);
        format!("train/class_{:06}/img_{:08}.jpg", index / each, index % each)
    }

    fn size(&self, index: u64) -> u64 {
        20_000 + index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 30_000
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().position(|a| a == "--child") {
        Some(at) => child(&arguments[at + 1], &arguments[at + 2], Path::new(&arguments[at + 3])),
        None => parent(&arguments),
    }
}

fn option(arguments: &[String], name: &str, default: u64) -> u64 {
    let at = arguments.iter().position(|a| a == name);
    at.map_or(default, |at| arguments[at + 1].parse().unwrap())
}

fn parent(arguments: &[String]) {
    let files = option(arguments, "--files", 1_000_000);
    let folders = option(arguments, "--folders", 1_000);
    let processes = option(arguments, "--processes", 8);
    let server = KeyServer::start(ClassFolders { files, folders }, KeyServerOptions::default()).unwrap();
    let store = tempfile::tempdir().unwrap();
    println!("{files} files in {folders} folders");

    let mut builder = Opener::start("build", &server.endpoint(), store.path());
    builder.print();
    builder.end();
    println!("  {} pages listed", server.listings());
    let stored = bytes_below(store.path());
    println!("  stored: {:.1} MB, {:.1} bytes a file", mb(stored), stored as f64 / files as f64);

    println!("one process opens it, warm:");
    let mut first = Opener::start("open", &server.endpoint(), store.path());
    first.print();
    println!("  PSS {:.1} MB", mb(first.pss()));
    first.end();

    let mut opened: Vec<Opener> =
        (0..processes).map(|_| Opener::start("open", &server.endpoint(), store.path())).collect();
    opened.iter_mut().for_each(Opener::wait);
    let sum: u64 = opened.iter().map(Opener::pss).sum();
    println!(
        "{processes} processes with the catalog and a plan open, after {STEPS} steps: PSS {:.1} MB in total",
        mb(sum)
    );
    opened.into_iter().for_each(Opener::end);
}

/// A process that runs this program and waits at its end.
struct Opener {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Opener {
    fn start(role: &str, endpoint: &str, store: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--child", role, endpoint, store.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, input, output: BufReader::new(output) }
    }

    /// Returns the lines up to `done`.
    fn lines(&mut self) -> Vec<String> {
        let lines = (&mut self.output).lines().map(Result::unwrap);
        lines.take_while(|line| line != "done").collect()
    }

    fn print(&mut self) {
        self.lines().iter().for_each(|line| println!("  {line}"));
    }

    fn wait(&mut self) {
        self.lines();
    }

    fn pss(&self) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id())).unwrap();
        let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.process.wait().unwrap().success());
    }
}

fn child(role: &str, endpoint: &str, store: &Path) {
    let mut options = OpenOptions {
        catalog: CatalogOptions { store: CatalogStore::Cache(store.to_owned()), ..CatalogOptions::default() },
        ..OpenOptions::default()
    };
    for (key, value) in S3Server::config_at(endpoint) {
        options.storage = options.storage.with(key, value);
    }
    let began = Instant::now();
    let dataset = futures::executor::block_on(Dataset::open_with(URI, options)).unwrap();
    assert!(dataset.is_catalog_kept());
    let (files, blocks) = (dataset.len(), dataset.catalog().blocks());
    if role == "build" {
        println!("listed, built and stored in {:.1} s; {files} samples in {blocks} blocks", s(began));
        let peak = memory_bytes("VmHWM");
        println!("peak memory {:.1} MB, {:.0} bytes a file", mb(peak), peak as f64 / files as f64);
    } else {
        println!("opened in {:.3} s", s(began));
        let began = Instant::now();
        let plan = dataset.plan(&Shuffle::seeded(7)).unwrap();
        let mut order = plan.epoch(0);
        let shape = StepShape { size: StepSize::Rows(STEP_ROWS), rank: Rank::new(3, 8), tail: Tail::Drop };
        std::hint::black_box(order.step(Position(0), &shape).unwrap());
        println!("planned, with the first step, in {:.3} s", s(began));
        let began = Instant::now();
        for seek in 0..SEEKS {
            let position = Position(seek * 7_919_317 % (plan.len() - STEP_ROWS));
            std::hint::black_box(order.step(position, &shape).unwrap());
        }
        println!("one seek: {:.3} ms", s(began) * 1000.0 / SEEKS as f64);
        let walked = order.steps(Position(0), &shape).take(STEPS).map(std::hint::black_box).count();
        println!("{walked} steps walked; {blocks} blocks; private {:.1} MB", mb(memory_bytes("RssAnon")));
        finish();
        drop((order, plan, dataset));
        return;
    }
    finish();
}

/// Waits until the parent has measured this process.
fn finish() {
    println!("done");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            meta if meta.is_dir() => bytes_below(&entry.path()),
            meta => meta.len(),
        })
        .sum()
}

/// Returns a field of `/proc/self/status` in bytes.
fn memory_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn s(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
