//! Faults of a fleet, with real processes: `feedstock worker` as its operator starts it, ranks as a trainer runs them.
//!
//! ```text
//! data.rs: pictures, and a pipeline ─┬─▶ alone, in this process ────────────────────────────▶ the quiet run
//!                                    └─▶ run.rs: ranks ◀─ network.rs ─▶ worker.rs: processes ─▶ the same batches?
//!                                                          hosts.rs: network namespaces, packets lost or late
//!                                                          relay.rs: the same for connections, where nobody is root
//! ```
//! One oracle for every fault: whole batches (ids, validity, tensors, columns) equal the quiet run's. Faults of a network
//! are tried on every network that this machine can make; which ones these are is told on standard error.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "tests fail by panicking; system calls are their own explanation"
)]

mod data;
mod hosts;
mod link;
mod network;
mod raw;
mod relay;
mod run;
mod trust;
mod worker;

mod half_a_minute;
mod identities;
mod lateness;
mod networks;
mod processes;
mod rank_process;
mod requests;
mod trickle;
mod versions;

/// A line on standard error that the test harness does not swallow.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::tell(format!($($what)*))
    };
}
pub(crate) use say;

fn tell(what: String) {
    use std::io::Write;
    // `eprintln!` is kept back for passing tests; what a test used must be seen all the same.
    let _closed = writeln!(std::io::stderr(), "fleet_faults: {what}");
}
