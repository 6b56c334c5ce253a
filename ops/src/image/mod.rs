//! Images: decoding, geometry, colour and conversion.
//!
//! Between ops, an image is RGB, 8 bits per channel, height × width × 3. Geometry is lazy: crops only narrow a rectangle,
//! and the first op that needs pixels decodes what is left of it (`run.rs`). The ops are in `op/image/`, one file each.
//!
//! ```text
//! op/image/*.rs ── compile.rs: ImageOp ──▶ step.rs: kinds of steps ──▶ stages.rs ──▶ plan.rs ─▶ sample.rs ─▶ run.rs ─▶ row
//! ```

mod annotation;
pub(crate) mod augment;
pub(crate) mod augmenter;
pub(crate) mod blur;
mod buffer;
pub(crate) mod compile;
mod convert;
pub(crate) mod decode;
mod deferred;
mod encode;
pub(crate) mod enhance;
pub(crate) mod fill;
pub(crate) mod geometry;
pub(crate) mod in_place;
mod layers;
pub(crate) mod limits;
pub(crate) mod parameters;
mod plan;
pub(crate) mod policies;
mod resample;
mod restarts;
mod row_index;
mod rows;
mod run;
mod sample;
mod sampler;
mod stages;
pub(crate) mod step;
mod turbo;
mod views;
pub(crate) mod warp;
mod working;

pub(crate) use annotation::compile as compile_annotation;
pub(crate) use plan::compile;
pub(crate) use views::{CompiledView, run_views};

pub use crate::chain::views::{View, Views};
pub use crate::op::constructors::image::*;
pub use crate::op::image::*;
pub use annotation::{Annotation, BoxFormat, Boxes, Keypoints};
pub use decode::{
    DecodeImage, DecodeMode, ImageFormat, ImageHeader, decode_rgb, decode_rgb_warned, read_header, read_mode,
};
pub use deferred::{DeferredRow, Shown};
pub use encode::{ShrinkImage, Shrinker};
pub use fill::{Fill, PaddingMode};
pub use geometry::{Filter, Rect, Size};
pub use restarts::{Marked, RestartMarkers, Unmarked};
pub use row_index::RowIndex;
pub use views::ViewRows;
pub use warp::Interpolation;
