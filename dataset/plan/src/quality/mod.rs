//! How well an order mixes, measured on sampled steps of the real plan.
//!
//! ```text
//! plan ──walk sampled steps──▶ SampledSteps ──▶ labels of a batch, pairs from one shard, displacement, reads an epoch
//! ```
//! At most 64 steps are walked, spread over the epoch by a fixed rule, so the cost depends on the batch size and the window,
//! not on the number of samples: 0.2 µs a row, and the permutation of each window that a sampled step reaches. Only the block
//! order and the displacement cost time in proportion to the number of blocks.
//!
//! [`SampledSteps::like`] takes steps of the same numbers of rows from another plan. With the plan of a full shuffle it gives
//! the reference: ratios of the two are unbiased, because both are means over the same number of batches of the same sizes.

mod mixing;
mod reads;
mod sampled;
mod starts;

pub use mixing::LabelMix;
pub use reads::{EpochReads, ExtentReads};
pub use sampled::{MAX_MEASURED_ROWS, SampledSteps};
