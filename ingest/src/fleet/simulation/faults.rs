//! Hosts that crash and come back, and links that are cut and held.

use super::data::{BATCH, Dice, SAMPLES};
use super::network::{network, seeds, trickling_rate};
use super::rank::{Seen, Start, rank};
use super::throttled::Limit;
use super::worker::{Kind, OVERDUE, WORKERS, hosts};
use crate::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Something goes wrong, or right again, every few hundred milliseconds.
fn fault(sim: &turmoil::Sim<'_>, dice: &mut Dice, limits: &[Limit; 3]) -> Option<Crash> {
    let nth = dice.roll(3) as usize;
    let worker = WORKERS[nth];
    match dice.roll(10) {
        0 => return Some(Crash::Down(worker)),
        1 | 2 => return Some(Crash::Up(worker)),
        3 => sim.partition("rank", worker),
        4 => sim.partition_oneway("rank", worker),
        5 => sim.partition_oneway(worker, "rank"),
        6 => sim.hold("rank", worker),
        7 => limits[nth].store(trickling_rate(dice), Ordering::Relaxed),
        _ => {
            for worker in WORKERS {
                sim.release("rank", worker);
                sim.repair("rank", worker);
            }
            limits.iter().for_each(|limit| limit.store(0, Ordering::Relaxed));
        }
    }
    None
}

enum Crash {
    Down(&'static str),
    Up(&'static str),
}

fn simulate(seed: u64) -> turmoil::Result {
    let mut sim = network(seed);
    let limits: [Limit; 3] = Default::default();
    hosts(&mut sim, seed, Kind::default(), &limits);
    sim.client("rank", rank(Arc::default(), Start::default()));
    let mut dice = Dice(seed);
    let mut next = Duration::from_millis(200);
    while !sim.step()? {
        if sim.elapsed() < next || sim.elapsed() > Duration::from_secs(120) {
            continue; // after two minutes all is repaired below, so that every run can end
        }
        next = sim.elapsed() + Duration::from_millis(100 + dice.roll(900));
        match fault(&sim, &mut dice, &limits) {
            Some(Crash::Down(worker)) => sim.crash(worker),
            Some(Crash::Up(worker)) => sim.bounce(worker),
            None => {}
        }
        if next > Duration::from_secs(120) {
            for worker in WORKERS {
                sim.release("rank", worker);
                sim.repair("rank", worker);
                sim.bounce(worker);
            }
            limits.iter().for_each(|limit| limit.store(0, Ordering::Relaxed));
        }
    }
    Ok(())
}

#[test]
fn every_step_arrives_whatever_the_network_does() {
    let seeds = seeds(200);
    for seed in seeds.clone() {
        let run = std::panic::catch_unwind(|| simulate(seed).map_err(|e| e.to_string()));
        if !matches!(run, Ok(Ok(()))) {
            panic!(
                "seed {seed}: {run:?}; run it again: FEEDSTOCK_SEED={seed} cargo test -p feedstock-ingest --lib \
                 every_step_arrives"
            );
        }
    }
    assert!(seeds.count() == 1 || OVERDUE.load(Ordering::Relaxed) > 0, "streams that take over are late");
}

/// The steps that came before an error, the error's kind, and when it came.
type Ended = (u64, ErrorKind, Duration);

/// No worker has a file of the second epoch, and one goes down.
fn missing_file(seed: u64, down_at: Duration) -> Ended {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(120))
        .tick_duration(Duration::from_millis(5))
        .max_message_latency(Duration::from_millis(30))
        .build();
    hosts(&mut sim, seed, Kind { gone_in: Some(1), ..Kind::default() }, &Default::default());
    let ended = Arc::new(std::sync::Mutex::new(None));
    let said = ended.clone();
    sim.client("rank", async move {
        let seen = Arc::new(Seen::default());
        let error = rank(seen.clone(), Start::default()).await.expect_err("a file is missing");
        let kind = error.downcast_ref::<Error>().map(Error::kind);
        let kind = kind.ok_or_else(|| format!("another error: {error}"))?;
        *said.lock().unwrap() = Some((seen.steps.load(Ordering::Relaxed), kind, turmoil::elapsed()));
        Ok(())
    });
    let mut is_down = false;
    while !sim.step().unwrap() {
        if !is_down && sim.elapsed() >= down_at {
            sim.crash(WORKERS[0]);
            is_down = true;
        }
    }
    let ended = ended.lock().unwrap().take();
    ended.expect("the rank has ended")
}

/// The steps of the first epoch arrive, and then the error, with its kind and long before any deadline.
#[test]
fn a_missing_file_is_an_error_at_once_though_a_worker_is_down() {
    for seed in 0..20 {
        let down_at = Duration::from_millis(seed * 15);
        let (steps, kind, at) = missing_file(seed, down_at);
        assert_eq!((steps, kind), (SAMPLES / BATCH, ErrorKind::Gone), "seed {seed}");
        assert!(at < Duration::from_secs(30), "seed {seed}: after {at:?}");
    }
}
