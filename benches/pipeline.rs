//! The whole pipeline compared with the bare chain, in one run: `cargo bench --profile dev --bench pipeline`.
//!
//! Rounds alternate between the cases, so that a busy machine affects all of them; medians are printed. The S3 server
//! and the file server are separate processes: CPU figures are those of feedstock alone, although they share the
//! cores.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench"
)]

mod support;

use arrow::array::AsArray;
use feedstock::ops::{SampleSeed, Scratch};
use feedstock::{Dataset, Rank, RawOptions};
use feedstock_testkit::{S3Process, S3Server, StaticServer};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use support::{BATCH, THREADS, chain, cpu_s, median, open, pipeline, sample_data};

const ROUNDS: usize = 5;

/// Encoded images in memory for the bare chain.
const BARE_SAMPLES: u64 = 2000;

struct Case {
    name: &'static str,
    rate: Vec<f64>,
    cpu_per_1000: Vec<f64>,
    turnover_batches: Vec<f64>,
}

fn main() {
    if std::env::args().any(|arg| arg == "--serve") {
        return serve();
    }
    let data = sample_data();
    let folder = tempfile::tempdir().unwrap();
    let s3_root = folder.path().join("s3");
    std::fs::create_dir_all(&s3_root).unwrap();
    let writer = S3Server::start(&s3_root).unwrap();
    writer.create_bucket("corpus").unwrap();
    writer.import("corpus", "train", &data).unwrap();
    drop(writer);
    let s3 = S3Process::start(&s3_root).unwrap();
    let files = FileServer::start(&data);

    let local = open(data.to_str().unwrap(), folder.path(), &[]);
    let bucket = open("s3://corpus/train", folder.path(), &s3.config());
    let shards = std::fs::read_dir(&data).unwrap().count();
    let pattern = format!("{}/train-{{00000..{:05}}}-of-{shards:05}.parquet", files.endpoint, shards - 1);
    let http = open(&pattern, folder.path(), &[]);

    first_batch(&data, folder.path());
    let encoded = encoded(&local);
    let mut cases: Vec<Case> = ["bare chain", "local files", "S3 (own process)", "static HTTP (own process)"]
        .map(|name| Case { name, rate: vec![], cpu_per_1000: vec![], turnover_batches: vec![] })
        .into();
    for _ in 0..ROUNDS {
        bare(&encoded, &mut cases[0]);
        epoch(&local, &mut cases[1]);
        epoch(&bucket, &mut cases[2]);
        epoch(&http, &mut cases[3]);
    }
    report(cases);
}

/// Prints medians, and the share of the bare chain's.
fn report(mut cases: Vec<Case>) {
    println!(
        "\n{:<28}{:>12}{:>10}{:>18}{:>12}",
        "case", "images/s", "of bare", "CPU-s/1000 images", "turnover"
    );
    let bare = median(&mut cases[0].rate);
    for case in &mut cases {
        let rate = median(&mut case.rate);
        let turnover = match case.turnover_batches.is_empty() {
            true => String::new(),
            false => format!("{:.2} batches", median(&mut case.turnover_batches)),
        };
        let (share, cpu) = (100.0 * rate / bare, median(&mut case.cpu_per_1000));
        println!("{:<28}{rate:>12.0}{share:>9.0} %{cpu:>18.3}{turnover:>12}", case.name);
    }
}

/// Runs two threads that decode, crop, resize and flip from memory to memory, and do nothing else.
fn bare(encoded: &[Vec<u8>], case: &mut Case) {
    let chain = chain().compile().unwrap();
    let (next, begun, cpu) = (AtomicUsize::new(0), Instant::now(), cpu_s());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut scratch = Scratch::new();
                let row = chain.output().bytes();
                let mut out = vec![0; row * BATCH as usize];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(bytes) = encoded.get(index) else { break };
                    let at = index % BATCH as usize * row;
                    let seed = SampleSeed::new(7, 0, index as u64);
                    chain.apply(bytes, seed, &mut scratch, &mut out[at..at + row]).unwrap();
                }
            });
        }
    });
    case.rate.push(encoded.len() as f64 / begun.elapsed().as_secs_f64());
    case.cpu_per_1000.push((cpu_s() - cpu) / encoded.len() as f64 * 1000.0);
}

/// Measures the second of two epochs, from the last batch of the first to its own last batch, without warm-up.
fn epoch(dataset: &Dataset, case: &mut Case) {
    let mut ranks = pipeline(dataset.clone()).rank(Rank::new(0, 1)).start().unwrap();
    assert_eq!(
        ranks.by_ref().map(|batch| batch.unwrap().len() as u64).sum::<u64>(),
        dataset.len() / BATCH * BATCH
    );
    let (begun, cpu) = (Instant::now(), cpu_s());
    let (mut samples, mut arrivals) = (0, vec![begun]);
    for batch in &mut ranks {
        samples += batch.unwrap().len();
        arrivals.push(Instant::now());
    }
    case.rate.push(samples as f64 / begun.elapsed().as_secs_f64());
    case.cpu_per_1000.push((cpu_s() - cpu) / samples as f64 * 1000.0);
    let mut gaps: Vec<f64> = arrivals.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    let turnover = gaps[0];
    case.turnover_batches.push(turnover / (gaps.drain(..).sum::<f64>() / (arrivals.len() - 1) as f64));
    ranks.ledger().check().unwrap();
}

/// Measures the time from the stored catalog to the first batch.
fn first_batch(data: &std::path::Path, catalogs: &std::path::Path) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let dataset = open(data.to_str().unwrap(), catalogs, &[]);
            let mut ranks = pipeline(dataset).rank(Rank::new(0, 1)).start().unwrap();
            ranks.next().unwrap().unwrap();
            begun.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    println!(
        "first batch from a stored catalog: {:.0} ms (open, plan, read, decode {BATCH} images)",
        median(&mut times)
    );
}

fn encoded(dataset: &Dataset) -> Vec<Vec<u8>> {
    let mut pictures = Vec::new();
    for batch in dataset.record_batches(&RawOptions::default()).unwrap() {
        let batch = batch.unwrap();
        let images = batch.column_by_name("image").unwrap().as_binary_view().clone();
        pictures.extend(images.iter().map(|bytes| bytes.unwrap().to_vec()));
        if pictures.len() as u64 >= BARE_SAMPLES {
            break;
        }
    }
    pictures
}

/// This program again, serving a folder over HTTP until its standard input closes.
struct FileServer {
    child: Child,
    endpoint: String,
}

impl FileServer {
    fn start(root: &std::path::Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.arg("--serve").arg(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut endpoint = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut endpoint).unwrap();
        Self { child, endpoint: endpoint.trim().to_owned() }
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn serve() {
    let root = std::env::args().skip_while(|arg| arg != "--serve").nth(1).unwrap();
    let server = StaticServer::start(root).unwrap();
    println!("{}", server.endpoint());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
