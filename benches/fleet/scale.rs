//! One worker and five, over the same steps.

use super::{Bench, Steady, Worker, addresses, job, run, steady};
use crate::support::median;

const ROUNDS: usize = 3;
const FLEETS: [usize; 2] = [1, 5];

/// Cores per worker: five leave one for the rank.
const CORES: f64 = 0.2;

pub(super) fn measure(bench: &Bench) {
    let dataset = bench.dataset();
    let round = |workers: usize| -> Steady {
        let workers = Worker::fleet(bench, workers, CORES);
        let mut ranks = run(&job(&dataset).workers(addresses(&workers)));
        steady(&mut ranks, &workers)
    };
    let mut rates = FLEETS.map(|_| Vec::new());
    let mut factors = Vec::new();
    for number in 1..=ROUNDS {
        for (workers, rates) in FLEETS.iter().zip(&mut rates) {
            let steady = round(*workers);
            let cores: Vec<String> = steady.worker_cores.iter().map(|cores| format!("{cores:.3}")).collect();
            println!(
                "scale: round {number}, {workers} workers: {:.1} images/s; cores used {}; CPU-s/1000 images: workers {:.2}, \
                 rank {:.3}",
                steady.samples_per_s,
                cores.join(" "),
                steady.worker_cpu_per_1000,
                steady.cpu_per_1000
            );
            rates.push(steady.samples_per_s);
        }
        factors.push(rates[1][number - 1] / rates[0][number - 1]);
    }
    let [one, five] = rates.each_mut().map(|rates| median(rates));
    println!(
        "scale: 1 worker {one:.1} images/s, 5 workers {five:.1} images/s at {CORES} of a core each: {:.2} × \
         (median of {ROUNDS} rounds), goal 4.8 ×",
        median(&mut factors)
    );
}
