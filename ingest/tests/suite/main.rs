//! The public face of `feedstock-ingest`.
//!
//! One program, since each would compile and link the same libraries anew.

mod memory_bound;
mod memory_files;
mod raw_mix;
mod rewrite;
mod rewrite_common;
