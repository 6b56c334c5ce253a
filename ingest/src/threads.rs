//! Default numbers of CPU threads, of a rank and of other processes.

use std::num::NonZeroUsize;
use std::sync::Once;

/// What torchrun, Ray Train and Accelerate set to the number of ranks on a machine.
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// Returns the CPUs that this process may use: min(CPU affinity, cgroup quota), at least 1. For processes that are not ranks:
/// workers and the command line.
pub fn available_threads() -> usize {
    // Respects the affinity mask, and the CPU quota of cgroup v1 and v2.
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the share of a rank: [`available_threads`] divided by the environment's `LOCAL_WORLD_SIZE`, at least 1. For all that
/// runs inside a trainer's process. A value that is not an integer above 0 is ignored, and a warning is logged once.
pub fn default_threads() -> usize {
    let text = std::env::var(LOCAL_WORLD_SIZE).ok();
    let ranks = text.as_deref().map_or(Some(NonZeroUsize::MIN), ranks_in);
    if ranks.is_none() {
        static LOGGED: Once = Once::new();
        LOGGED.call_once(|| {
            tracing::warn!(
                "{LOCAL_WORLD_SIZE} must be an integer >= 1, the number of ranks on this machine; got {:?}, which is ignored: \
                 this rank uses all CPUs",
                text.unwrap_or_default()
            );
        });
    }
    share_of(available_threads(), ranks.unwrap_or(NonZeroUsize::MIN))
}

fn ranks_in(text: &str) -> Option<NonZeroUsize> {
    text.trim().parse().ok()
}

fn share_of(available: usize, ranks: NonZeroUsize) -> usize {
    (available / ranks).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_machine_share_its_cpus() {
        for (available, ranks, threads) in [(96, "1", 96), (96, "8", 12), (10, " 4", 2), (4, "8", 1)] {
            let share = share_of(available, ranks_in(ranks).unwrap());
            assert_eq!(share, threads, "{available} CPUs, {ranks} ranks");
        }
        assert!(["0", "-1", "many", ""].iter().all(|text| ranks_in(text).is_none()));
    }
}
