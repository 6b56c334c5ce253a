//! The simulated network, and the seeds of its runs.

use super::data::Dice;
use std::time::Duration;

/// A rate at which nothing is silent, but a step of 2 KB takes from a second to half an hour.
pub(super) fn trickling_rate(dice: &mut Dice) -> u64 {
    [1, 10, 40, 100, 300, 1000, 2000][dice.roll(7) as usize]
}

/// A network without hosts, whose messages take up to 30 ms.
pub(super) fn network(seed: u64) -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .tick_duration(Duration::from_millis(5))
        .max_message_latency(Duration::from_millis(30))
        .tcp_capacity(4096)
        .build()
}

/// Seeds to run: the one of FEEDSTOCK_SEED, or the first of FEEDSTOCK_SEEDS or `most`.
pub(super) fn seeds(most: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("FEEDSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FEEDSTOCK_SEEDS").unwrap_or(most),
    }
}
