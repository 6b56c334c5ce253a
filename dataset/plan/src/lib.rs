//! The plan: which sample is at which position of which epoch. Pure arithmetic: no I/O, no clock.
//!
//! ```text
//! blocks or pieces ──permute by epoch──▶ block order ──cut──▶ C lanes ──shuffle windows──▶ position p = entry p/C of lane p%C
//! ```
//! 1. Blocks, or pieces of k consecutive selected samples (`pieces.rs`), are permuted with a hash of (seed, epoch) and their
//!    selected samples concatenated. In a full shuffle, k is 1.
//! 2. That *block order* is cut into C contiguous spans whose lengths differ by at most one: the lanes.
//! 3. Inside a lane each run of ⌈W/C⌉ entries is permuted with (seed, epoch, lane, window).
//! 4. Position p is entry ⌊p/C⌋ of lane p mod C. A global step is a run of positions, cut into ranks by lane.
//!
//! That is the base order of one data set (`plain.rs`). The base order of a weighted mix draws from each part's order in turn
//! (`mixed.rs`). On top of it, length bucketing (`bucket.rs`) permutes positions inside macro-windows. Steps bounded by a
//! total length (`cuts.rs`) cut either order. If the data changed in the middle of an epoch, that epoch is the list of the
//! samples that were left (`rest.rs`).
//!
//! Every process computes the same order from the same few numbers, so no process has to coordinate.
//! Memory is O(blocks), whatever k is; a filter adds one bit a sample, lengths four bytes a sample, and weights eight.
//!
//! ```
//! use feedstock_base::{Position, SampleId};
//! use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Shuffle};
//!
//! let input = PlanInput {
//!     block_starts: [0, 4, 8].into(), // two blocks of four samples
//!     selection: None,
//!     data: DataHashes { identity: 0xFEED, blocks: 1, legacy: 0 },
//!     filter: None,
//!     encoded_bytes: 8 * 110_000,
//!     access: Access::Blocks,
//! };
//! let plan = Plan::new(input, &Shuffle::seeded(7))?;
//! let mut order = plan.epoch(0);
//! let mut samples: Vec<SampleId> = (0..8).map(|p| order.sample_at(Position(p)).sample).collect();
//! assert_eq!(plan.clone().epoch(0).sample_at(Position(3)).sample, samples[3]); // any process computes the same
//! samples.sort();
//! assert_eq!(samples, (0..8).map(SampleId).collect::<Vec<_>>()); // every sample once
//! # Ok::<(), feedstock_base::Error>(())
//! ```

mod access;
mod base;
mod bucket;
mod carried;
mod counters;
mod cursor;
mod cuts;
mod deflated;
mod digest;
mod extent;
mod facts;
mod input;
mod keyed;
mod lanes;
mod lengths;
mod mixed;
mod order;
mod packed;
mod pieces;
mod plain;
mod plan;
mod planned;
mod quality;
mod quotas;
mod random;
mod rank_steps;
mod rest;
mod sample_set;
mod saved;
mod selection;
mod shape_check;
mod share_bounds;
mod shares;
mod shuffle;
mod size;
mod stages;
mod step;
mod strand;
mod walks;
mod weights;

pub use access::Access;
pub use cursor::{Bucketing, Carried, Cursor, Fingerprint};
pub use digest::Digest;
pub use extent::Extent;
pub use input::{DataHashes, PlanInput};
pub use lengths::Lengths;
pub use mixed::{Mixing, Stop};
pub use order::EpochOrder;
pub use plan::Plan;
pub use planned::PlannedSample;
pub use quality::{EpochReads, ExtentReads, LabelMix, MAX_MEASURED_ROWS, SampledSteps};
pub use rest::{Left, Rest};
pub use sample_set::{PackedSet, SampleSet};
pub use selection::Selection;
pub use shuffle::{Shuffle, ShuffleKind};
pub use size::StepSize;
pub use step::{PlannedRow, Step, StepShape, Tail};
pub use strand::{StrandSet, Strands};
pub use weights::draws_by_weight;
