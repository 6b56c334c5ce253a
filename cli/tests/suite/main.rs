//! The program `feedstock` as users and scripts run it: results on standard output, one sentence on standard error, an exit code.
//!
//! All tests are in one program, because each test program would compile and link the same libraries again.

mod commands;
mod doctor;
mod errors;
mod lists;
mod pages;
mod sandbox;
mod shard;
mod speech;
mod views;
