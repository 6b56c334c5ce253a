//! One worker and several, with the same share of a core each.

use super::{Bench, STEPS, Steady, WARM_STEPS, Worker, addresses, job, run, steady};
use crate::support::{WINDOW, median};
use feedstock::Shuffle;

const ROUNDS: usize = 3;
const FLEETS: [usize; 2] = [1, 5];

/// Cores per worker: five leave one for the rank.
const CORES: f64 = 0.2;

pub(super) fn measure(bench: &Bench) {
    let dataset = bench.dataset();
    let round = |workers: usize| -> Steady {
        let workers = Worker::fleet(bench, workers, CORES);
        let mut ranks = run(&job(&dataset).workers(addresses(&workers)));
        steady(&mut ranks, &workers, (WARM_STEPS, STEPS)).without_hedges()
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

/// Sizes of fleets for [`measure_many`].
const MANY: [usize; 3] = [1, 8, 24];

/// Cores per worker: 24 leave one for the rank.
const FEW_CORES: f64 = 0.04;

/// Steps per worker that are measured, after a third of them: each fleet takes as long.
const STEPS_OF_WORKER: usize = 21;

/// Steps that are made ahead: those of the default, and more, of which the rows of a worker differ less.
const SLOTS: [usize; 2] = [4, 16];

pub(super) fn measure_many(bench: &Bench) {
    // A hundred blocks, of which a window holds a quarter: fewer than 24 workers need for equal rows of each step.
    let job = job(&bench.dataset()).shuffle(Shuffle::seeded(7).window(WINDOW));
    for slots in SLOTS {
        let mut of_one = None;
        for size in MANY {
            let workers = Worker::fleet(bench, size, FEW_CORES);
            let mut ranks = run(&job.clone().slots(slots).workers(addresses(&workers)));
            let steps = (STEPS_OF_WORKER / 3 * size, STEPS_OF_WORKER * size);
            let Steady { samples_per_s: rate, hedged, .. } = steady(&mut ranks, &workers, steps);
            let linear = rate / (*of_one.get_or_insert(rate) * size as f64);
            println!(
                "many: {slots} slots, {size} workers at {FEW_CORES} of a core: {rate:.1} images/s, {linear:.3} of linear, \
                 goal 0.9; {hedged} rows requested twice"
            );
        }
    }
}
