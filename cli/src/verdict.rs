//! The bottleneck of a run: a pure function of the measurements.

use std::fmt;

/// CPU threads that are busy for more than this share of the time are the bottleneck.
const BUSY: f64 = 0.85;
/// A caller that waits for less than this share of the time is the bottleneck.
const WAITING: f64 = 0.05;

/// Shares of the time after the first batch, from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// Time that this process's CPU threads spend in ops.
    pub(super) ops: f64,
    /// Time that the caller waits for batches.
    pub(super) waited: f64,
    /// Time that the fleet's CPU threads are busy, if workers produce the rows.
    pub(super) workers: Option<WorkersShare>,
}

/// How busy the CPU threads of a fleet are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum WorkersShare {
    /// Busy for this share of their time.
    Busy(f64),
    /// The workers did not report their load.
    Unknown,
}

/// The bottleneck of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bottleneck {
    /// This process's CPU threads.
    Ops,
    /// The workers' CPU threads.
    Workers,
    /// Reading, on this machine or on the workers.
    Storage,
    /// The caller takes batches later than they are ready.
    Consumer,
    /// Workers whose load is unknown: their CPUs, their storage or the network.
    WorkersUnknown,
}

impl Bottleneck {
    pub(super) fn of(shares: &Shares) -> Self {
        match (shares.workers, shares.ops > BUSY, shares.waited < WAITING) {
            (_, true, _) => Self::Ops,
            (_, _, true) => Self::Consumer,
            (None, ..) => Self::Storage,
            (Some(WorkersShare::Busy(busy)), ..) if busy > BUSY => Self::Workers,
            (Some(WorkersShare::Busy(_)), ..) => Self::Storage,
            (Some(WorkersShare::Unknown), ..) => Self::WorkersUnknown,
        }
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ops => "ops",
            Self::Workers => "workers",
            Self::Storage => "storage",
            Self::Consumer => "consumer",
            Self::WorkersUnknown => "workers_unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ops: f64, waited: f64, workers: Option<WorkersShare>) -> Bottleneck {
        Bottleneck::of(&Shares { ops, waited, workers })
    }

    #[test]
    fn without_workers_a_rank_that_waits_with_idle_cpus_waits_for_storage() {
        assert_eq!(verdict(0.9, 0.9, None), Bottleneck::Ops);
        assert_eq!(verdict(0.2, 0.01, None), Bottleneck::Consumer);
        assert_eq!(verdict(0.2, 0.9, None), Bottleneck::Storage);
    }

    #[test]
    fn workers_with_busy_cpus_are_the_bottleneck_and_idle_ones_wait_for_storage() {
        assert_eq!(verdict(0.0, 0.9, Some(WorkersShare::Busy(0.95))), Bottleneck::Workers);
        assert_eq!(verdict(0.0, 0.9, Some(WorkersShare::Busy(0.3))), Bottleneck::Storage);
        assert_eq!(verdict(0.0, 0.01, Some(WorkersShare::Busy(0.95))), Bottleneck::Consumer);
        assert_eq!(verdict(0.0, 0.9, Some(WorkersShare::Unknown)), Bottleneck::WorkersUnknown);
    }
}
