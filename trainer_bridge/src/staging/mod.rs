//! Copies batches to the memory of the device that trains on them while it computes, and finishes them there.
//!
//! ```text
//! Ready ─▶ stage (a thread) ── copies on one stream, kernels on another ──▶ Ready ─▶ rank iterator ─▶ caller
//!            │  ▲ a buffer of the ring (ring.rs)                              event: the caller's stream waits
//!            │  └──── event of the caller's streams: the copy stream waits ◀── batch dropped
//!            └─▶ reaper (a thread): frees slot and staging memory when the copy's or the decoder's event has passed
//! ```
//! The stage is between a finished step and the rank iterator, so the cursor, the ledger and the skip report still count what
//! the caller got. A device is used through the trait `Driver` of `feedstock-device`, which has three implementations: CUDA,
//! host memory, and a simulated device for tests.
//!
//! JPEGs that are left to the device (`decoding.rs`) are decoded on the finishing stream, before its kernels.
//!
//! Lifetimes:
//! - An open device lives as long as any loader of the process uses it, and its driver as long as any batch.
//! - The memory of fixed addresses lives as long as its loader.
//! - Buffers, streams and threads live as long as a run and its batches.
//!
//! Invariants:
//! - A pending copy owns its source: the reaper keeps the slot's lease and the staging memory until it has ended.
//! - A buffer is written again only after events of every stream that uses it, or of the work that filled it if none does.
//!   Only the copy stream waits for them. The caller's stream has one event wait per batch, and one event record when the
//!   batch is dropped.
//! - If no event can be recorded (the stream no longer exists, or is being captured), the buffer is retired, not reused.
//!   Streams on which events can never be recorded (another context's, the per-thread default) are rejected at their first use.
//! - A decoder is reused and freed only after its work has finished. Two take turns, so that no thread waits for that.
//! - Memory is freed after all its possible uses, or never: a failure in between leaks it.
//! - A child of `fork` neither uses nor frees anything of its parent's device.
//! - Finishing draws from (seed, epoch, sample), as ops do, and from (seed, epoch, position) when it mixes rows.
//! - A defect of the stage (a panic) is the next batch's error, not an endless wait.
//!
//! Costs: page-locked slots, `depth + 1` device buffers (each with the copied and the finished form of a batch), and the whole
//! images of the largest batch that the device decodes. With host memory and nothing to finish, the only cost is a hand-over
//! between threads.

mod decoding;
mod layout;
mod options;
mod prepare;
mod stage;

#[cfg(test)]
mod decoding_tests;
#[cfg(test)]
mod lists_tests;
#[cfg(test)]
mod tests;

pub use options::DeviceOptions;
#[cfg(feature = "cuda")]
pub use prepare::compile_kernels;
pub(crate) use prepare::{BatchRoute, DevicePlan, MappedColumn};
pub(crate) use stage::Stage;
