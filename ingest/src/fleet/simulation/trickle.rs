//! Hosts that do nothing wrong but trickle: how long does a rank wait for a step?

use super::throttled::Limit;
use super::{Dice, Kind, Seen, Start, hosts, network, rank, seeds, trickle};
use crate::fleet::dispatch::Local;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs of each kind.
const SEEDS: u64 = 150;

/// No step may take longer, where a host is well. The aim is 2 s, and up to 2.0 s are measured; the rest is for chance, since
/// runs of one seed differ a little.
const MOST: Duration = Duration::from_millis(2500);

/// Nor where none is, and this machine serves in their place: other trickling hosts may be tried before. The aim is 2 s; up
/// to 4.5 s are measured, over 2 s in one run of 25.
const MOST_HERE: Duration = Duration::from_secs(8);

/// Before streams are open: a greeting that trickles is given up after so long.
const OPENING: Duration = Duration::from_millis(1500);

/// Which hosts may trickle: all that do are quick else.
#[derive(Debug, Clone, Copy)]
enum Trickling {
    None,
    /// One or two of the three.
    Some,
    /// All, and the rank's own machine serves instead.
    All,
}

/// Nothing goes wrong but that hosts trickle, from the start or from a random moment on, for a while or for good.
fn simulate_trickling(seed: u64, trickling: Trickling) -> turmoil::Result<[u64; 4]> {
    let mut dice = Dice(seed);
    let mut sim = network(seed);
    let limits: [Limit; 3] = Default::default();
    hosts(&mut sim, seed, Kind { steady: true, ..Kind::default() }, &limits);
    let local = if matches!(trickling, Trickling::All) { Local::Fallback } else { Local::Never };
    let (seen, start) =
        (Arc::new(Seen::default()), Start { step: dice.roll(2) * (1 + dice.roll(20)), local });
    sim.client("rank", rank(seen.clone(), start));
    let hosts = match trickling {
        Trickling::None => 0,
        Trickling::Some => 1 + dice.roll(2) as usize,
        Trickling::All => 3,
    };
    let mut next = Duration::from_millis(dice.roll(2) * dice.roll(1500));
    loop {
        if sim.elapsed() >= next && hosts > 0 {
            // Together, or one after the other.
            for limit in &limits[..hosts] {
                match dice.roll(5) {
                    0 => limit.store(0, Ordering::Relaxed),
                    1 => {}
                    _ => limit.store(trickle(&mut dice), Ordering::Relaxed),
                }
            }
            next = sim.elapsed() + Duration::from_millis(50 + dice.roll(5000));
        }
        if sim.step()? {
            return Ok(seen.take());
        }
    }
}

/// What a seed's run has found, or the command that runs it again.
fn trickled(seed: u64, trickling: Trickling) -> [u64; 4] {
    let run = std::panic::catch_unwind(|| simulate_trickling(seed, trickling).map_err(|e| e.to_string()));
    match run {
        Ok(Ok(found)) => found,
        run => panic!("seed {seed}, {trickling:?}: {run:?}; run it again with FEEDSTOCK_SEED={seed}"),
    }
}

/// From the first step on, after starts in the middle of an epoch too; a stream is open once its greeting has come.
#[test]
fn no_step_waits_for_workers_that_trickle() {
    let (mut longest, mut hedges) = ([0; 2], 0);
    for (seed, trickling) in seeds(SEEDS).flat_map(|seed| [(seed, Trickling::Some), (seed, Trickling::All)]) {
        let [first_ms, longest_ms, hedged, _] = trickled(seed, trickling);
        let most = if matches!(trickling, Trickling::All) { MOST_HERE } else { MOST };
        assert!(
            u128::from(first_ms) <= (OPENING + most).as_millis()
                && u128::from(longest_ms) <= most.as_millis(),
            "seed {seed}, {trickling:?}: {first_ms} ms for the first step, up to {longest_ms} ms for others"
        );
        longest = [longest[0].max(first_ms), longest[1].max(longest_ms)];
        hedges += hedged;
    }
    println!(
        "{hedges} hedges; {} ms for a first step, {} ms for another one at most",
        longest[0], longest[1]
    );
    assert!(hedges > 0 || seeds(SEEDS).count() == 1, "nothing was slow");
}

#[test]
fn a_fleet_in_which_nothing_is_slow_is_asked_for_nothing_twice() {
    for seed in seeds(50) {
        let [first_ms, longest_ms, hedges, samples] = trickled(seed, Trickling::None);
        assert_eq!((hedges, samples), (0, 0), "seed {seed}");
        assert!(first_ms.max(longest_ms) < 1000, "seed {seed}: {first_ms} ms, {longest_ms} ms");
    }
}
