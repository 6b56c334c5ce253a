//! Faults of a fleet, with real processes: `feedstock worker` as its operator starts it, ranks as a trainer runs them.
//!
//! ```text
//! data.rs: images, and a pipeline ───┬─▶ alone, in this process ────────────────────────────▶ the reference run
//!                                    └─▶ run.rs: ranks ◀─ network.rs ─▶ worker.rs: processes ─▶ the same batches?
//!                                                          hosts.rs: network namespaces, packets lost or late
//!                                                          relay.rs: the same for connections, without root rights
//! ```
//! Every fault is checked in the same way: whole batches (ids, validity, tensors, columns) must equal those of the
//! reference run, in which nothing fails. Network faults are tested on every kind of network that this machine can
//! create; standard error lists them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "tests fail by panicking; system calls need no explanation"
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

/// Prints a line on standard error that the test harness does not capture.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::tell(format!($($what)*))
    };
}
pub(crate) use say;

fn tell(what: String) {
    use std::io::Write;
    // The harness captures `eprintln!` of passing tests, but the networks that a test used must be visible.
    let _closed = writeln!(std::io::stderr(), "fleet_faults: {what}");
}
