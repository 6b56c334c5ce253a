//! The program `feedstock` as users and scripts run it: results on standard output, one sentence on standard error, an exit code.
//!
//! One program, since each would compile and link the same libraries anew.

mod commands;
mod errors;
mod shard;
mod speech;
