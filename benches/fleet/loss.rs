//! One of four workers is lost in mid-epoch.

use super::{Bench, Worker, addresses, job, next_batch, run, seconds};
use crate::support::{BATCH, median};
use feedstock::{Batch, Pipeline};
use std::time::{Duration, Instant};

const WORKERS: usize = 4;

/// Cores per worker.
const CORES: f64 = 0.2;

/// Steps until workers read as much as they serve. At first they serve rows that they had read ahead, for an eighth
/// less CPU.
const WARM: usize = 200;

/// Steps before the loss, which show the usual figures, and steps after it: 30 seconds, which include ends of epochs.
const BEFORE: usize = 100;
const AFTER: usize = 250;

/// Goal: throughput has recovered within this time.
const BACK: Duration = Duration::from_secs(5);

/// Throughput is measured over the batches in a window of this length.
const WINDOW: Duration = Duration::from_secs(4);

/// With quotas, three workers deliver at most three quarters, so that mark itself would be reached only by chance.
const MARK: f64 = 0.75 * 0.97;

const ROUNDS: usize = 2;

pub(super) fn measure(bench: &Bench) {
    let dataset = bench.dataset();
    let quiet = deliver(&job(&dataset), &[], |_| ()).digests;
    for _ in 0..ROUNDS {
        for (what, signal) in
            [("nothing", None), ("killed", Some(libc::SIGKILL)), ("stopped", Some(libc::SIGSTOP))]
        {
            let workers = Worker::fleet(bench, WORKERS, CORES);
            let job = job(&dataset).workers(addresses(&workers));
            let delivered = deliver(&job, &workers, |workers| {
                if let Some(signal) = signal {
                    workers[1].signal(signal);
                }
            });
            report(what, &delivered, delivered.digests == quiet);
        }
    }
    println!(
        "loss: goals: no batch more than 2 s late, three quarters of the throughput within 5 s, the same bytes"
    );
}

/// The batches of one rank, with their times.
struct Delivered {
    arrivals: Vec<Instant>,
    digests: Vec<(u64, u64, u32)>,
    /// CPU seconds of all workers until then.
    cpu_s: Vec<f64>,
    lost: Instant,
    /// Number of rows that were requested from two workers.
    hedged: u64,
}

fn deliver(job: &Pipeline, workers: &[Worker], lose: impl FnOnce(&[Worker])) -> Delivered {
    let mut ranks = run(job);
    let mut delivered =
        Delivered { arrivals: vec![], digests: vec![], cpu_s: vec![], lost: Instant::now(), hedged: 0 };
    let mut take = |delivered: &mut Delivered, steps: usize| {
        for _ in 0..steps {
            let batch = next_batch(&mut ranks);
            delivered.arrivals.push(Instant::now());
            delivered.digests.push(digest(&batch));
            delivered.cpu_s.push(workers.iter().map(Worker::cpu_s).sum());
        }
    };
    take(&mut delivered, WARM + BEFORE);
    delivered.lost = Instant::now();
    lose(workers);
    take(&mut delivered, AFTER);
    delivered.hedged = ranks.stats().engine.hedged_samples;
    delivered
}

/// Returns its position and digests of all its bytes.
fn digest(batch: &Batch) -> (u64, u64, u32) {
    let mut hasher = crc32fast::Hasher::new();
    for sample in batch.sample_ids() {
        hasher.update(&sample.0.to_le_bytes());
    }
    for tensor in batch.tensors() {
        hasher.update(tensor.bytes());
    }
    for column in batch.columns().columns() {
        hasher.update(format!("{column:?}").as_bytes());
    }
    (batch.epoch(), batch.position().0, hasher.finalize())
}

fn report(what: &str, delivered: &Delivered, same: bool) {
    let Delivered { arrivals, lost, .. } = delivered;
    let first = WARM - 1;
    let (before, after) = (&arrivals[first..WARM + BEFORE], &arrivals[WARM + BEFORE - 1..]);
    let gaps =
        |arrivals: &[Instant]| arrivals.windows(2).map(|pair| seconds(pair[1] - pair[0])).collect::<Vec<_>>();
    let usual = median(&mut gaps(before));
    let longest = |gaps: &[f64]| gaps.iter().copied().fold(0.0, f64::max);
    let (longest_before, longest_after) = (longest(&gaps(before)), longest(&gaps(after)));
    let rate = (before.len() - 1) as f64 / seconds(before[before.len() - 1] - before[0]);
    let share = |from: Instant, to: Instant| {
        let inside = after.iter().filter(|at| (from..to).contains(*at)).count();
        inside as f64 / seconds(to - from) / rate
    };
    let last = after[after.len() - 1];
    let back = after.iter().copied().filter(|from| *from > *lost && *from + WINDOW <= last);
    let back = back.into_iter().find(|from| share(*from, *from + WINDOW) >= MARK);
    let back = back.map_or("never".to_owned(), |at| format!("{:.1} s", seconds(at - *lost)));
    let used = |steps: std::ops::Range<usize>| {
        let (from, to) = (steps.start, steps.end - 1);
        let cpu = delivered.cpu_s[to] - delivered.cpu_s[from];
        let images = ((to - from) as u64 * BATCH) as f64;
        format!(
            "{:.2} cores, {:.2} CPU-s/1000 images",
            cpu / seconds(arrivals[to] - arrivals[from]),
            cpu / images * 1000.0
        )
    };
    let settled = arrivals.iter().position(|at| *at >= *lost + BACK).unwrap_or(arrivals.len() - 1);
    println!(
        "loss: {what:<8} latest batch {:.2} s beyond the usual gap of {usual:.2} s (before: {:.2} s); {:.0} images/s before; \
         back at three quarters after {back}; from 5 s on {:.1} % of before; workers used {}, then {}; {} rows requested twice; digest {}",
        longest_after - usual,
        longest_before - usual,
        rate * BATCH as f64,
        100.0 * share(*lost + BACK, last),
        used(first..WARM + BEFORE),
        used(settled..arrivals.len()),
        delivered.hedged,
        if same { "equals the reference run's" } else { "DIFFERS from the reference run's" }
    );
}
