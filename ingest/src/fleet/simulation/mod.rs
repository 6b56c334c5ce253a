//! The protocol's both ends under a simulated network, from a seed: hosts crash and come back, links are cut in one or both
//! directions, held and let go, and what a host writes trickles. One oracle: every step once, in order, every row the planned
//! one with its own bytes. Where hosts do nothing but trickle, no step may take longer than 2 s either.
//! Two have no network: `readiness.rs`, ranks whose workers join, drain and die, and `thousand.rs`, shares of 1,000 workers and
//! steps of 1,000 ranks.
//!
//! A failing seed prints the command that runs it again.

mod data;
mod faults;
mod network;
mod rank;
mod readiness;
mod revoked;
mod thousand;
mod throttled;
mod trickle;
mod worker;
