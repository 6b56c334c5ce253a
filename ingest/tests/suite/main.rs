//! The public face of `feedstock-ingest`.
//!
//! One program, since each would compile and link the same libraries anew.

mod raw_mix;
mod rewrite;
mod rewrite_common;
