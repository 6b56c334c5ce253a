//! Tests of the public API of `feedstock-trainer-bridge`.
//!
//! They are one program, since several would each compile and link the same libraries again.

mod bad_clips;
mod bad_input;
mod cache_blocks;
mod common;
mod deriving;
mod exactly_once;
mod faults_s3;
mod faulty_ops;
mod fleet;
mod fleet_capacity;
mod fleet_functions;
mod fleet_joining;
#[path = "../../../ops/tests/support/hostile.rs"]
mod hostile;
mod large_samples;
mod lists;
mod loader;
mod memory_bound;
mod memory_files;
mod multi_crop;
mod nulls;
mod pieces;
mod prefetch;
mod remap;
mod same_names;
mod selecting;
mod simulate;
mod speech;
mod views;
mod warnings;
