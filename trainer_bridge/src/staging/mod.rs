//! Batches in the memory of the device that trains on them: copied while it computes, finished there.
//!
//! ```text
//! Ready ─▶ stage (a thread) ── copies on one stream, kernels on another ──▶ Ready ─▶ rank iterator ─▶ caller
//!            │  ▲ a buffer of the ring (ring.rs)                              event: the caller's stream waits
//!            │  └──── event of the caller's streams: the copy stream waits ◀── batch dropped
//!            └─▶ reaper (a thread): slot and staging memory go home when the copy's event has passed, or the decoder's
//! ```
//! The stage is between a finished step and the rank iterator, so the cursor, the ledger and the skip report go on
//! counting what the caller got. A device is used through [`driver::Driver`], which has three implementations: CUDA
//! (`cuda.rs`, loaded at run time), host memory (`host.rs`, where there is no GPU) and one for tests that completes work
//! late and out of order and finds races (`simulated/`).
//!
//! JPEGs that are left to the device (`decoding.rs`) are decoded on the finishing stream, before its kernels.
//!
//! What lives how long: an open device, as long as any loader of the process uses it (`registry.rs`); its driver, as long as any batch; the place of fixed
//! addresses, as long as its loader (`fixed.rs`); buffers, streams and threads, as long as a run and its batches.
//!
//! Invariants:
//! - A copy under way owns its source: the slot's lease and the staging memory lie with the reaper until it has ended.
//! - A buffer is written again only after events of every stream that uses it, or of what filled it if none does.
//!   Only the copy stream waits for them; on the caller's stream there is one event wait a batch, and one event
//!   record when the batch is dropped.
//! - What cannot be recorded (a stream that is gone, or is being captured) retires the buffer instead of reusing it. Streams
//!   for which it could not be recorded at all (another context's, the thread's own) are refused when they are named.
//! - A decoder is used again, and given back, when it has ended what it had; two take turns, so that no thread waits for that.
//! - Memory is freed after all that may use it, or not at all: what fails in between leaks it.
//! - A child of `fork` touches nothing of its parent's device: it neither uses nor frees.
//! - Finishing draws from (seed, epoch, sample), as ops do, and from (seed, epoch, position) where it mixes rows.
//! - A defect of the stage (a panic) is the next batch's error, not a wait.
//!
//! Costs: page-locked slots; `depth + 1` device buffers, each of a batch as it is copied and as it is finished; whole images
//! of the largest batch that the device decodes. Host memory
//! with nothing to finish costs a hand-over between threads and copies nothing.

mod decoding;
mod layout;
mod options;
mod prepare;
mod stage;

#[cfg(test)]
mod decoding_tests;
#[cfg(test)]
mod tests;

pub use options::DeviceOptions;
#[cfg(feature = "cuda")]
pub use prepare::compile_kernels;
pub(crate) use prepare::{BatchRoute, DevicePlan, MappedColumn};
pub(crate) use stage::Stage;
