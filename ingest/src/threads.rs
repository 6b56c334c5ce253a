//! How many CPU threads a rank has where nothing says.

/// What torchrun, Ray Train and Accelerate set to the number of ranks on a machine.
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// The CPUs that this process may use, shared among the ranks of its machine: min(CPU affinity, cgroup quota) divided by
/// the environment's `LOCAL_WORLD_SIZE`, at least 1.
pub fn default_threads() -> usize {
    // Respects the affinity mask, and the CPU quota of cgroup v1 and v2.
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    share_of(available, std::env::var(LOCAL_WORLD_SIZE).ok().as_deref())
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
