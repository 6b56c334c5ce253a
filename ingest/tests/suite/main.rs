//! Tests of the public API of `feedstock-ingest`.
//!
//! They are one program, since several would each compile and link the same libraries again.

mod memory_bound;
mod memory_files;
mod raw_mix;
mod rewrite;
mod rewrite_common;
mod rewrite_pages;
