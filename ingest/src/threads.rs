//! Default numbers of CPU threads, of a rank and of other processes.

/// What torchrun, Ray Train and Accelerate set to the number of ranks on a machine.
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// Returns the CPUs that this process may use: min(CPU affinity, cgroup quota), at least 1. For processes that are not ranks:
/// workers and the command line.
pub fn available_threads() -> usize {
    // Respects the affinity mask, and the CPU quota of cgroup v1 and v2.
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the share of a rank: [`available_threads`] divided by the environment's `LOCAL_WORLD_SIZE`, at least 1. For all that
/// runs inside a trainer's process.
pub fn default_threads() -> usize {
    share_of(available_threads(), std::env::var(LOCAL_WORLD_SIZE).ok().as_deref())
}

fn share_of(available: usize, local_world_size: Option<&str>) -> usize {
    let ranks = local_world_size.and_then(|ranks| ranks.trim().parse::<usize>().ok());
    (available / ranks.unwrap_or(1).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_machine_share_its_cpus() {
        for (available, ranks, threads) in [
            (96, None, 96),
            (96, Some("8"), 12),
            (10, Some("4"), 2),
            (4, Some("8"), 1),
            (4, Some("0"), 4),
            (4, Some("many"), 4),
        ] {
            assert_eq!(share_of(available, ranks), threads, "{available} CPUs, {ranks:?} ranks");
        }
    }
}
