//! Pictures: decoding, geometry, colour and conversion.
//!
//! A picture between ops is RGB, 8 bits a channel, height × width × 3. Geometry is lazy: crops only narrow a
//! rectangle, and the first op that needs pixels decodes what is left of it (`plan.rs`). Every op has a file, named
//! like it, with its description (what [`Op`](crate::Op) serialises), its constructor and its kernel.

mod augment;
mod center_crop;
mod color_jitter;
mod decode;
mod deferred;
mod encode;
mod enhance;
mod geometry;
mod horizontal_flip;
mod normalize;
mod plan;
mod rand_augment;
mod random_crop;
mod random_erasing;
mod random_resized_crop;
mod resample;
mod resize;
mod restarts;
mod to_chw;
mod to_f32;
mod trivial_augment;
mod turbo;
mod warp;
mod working;

pub(crate) use deferred::Deferring;
pub(crate) use plan::{ImagePlan, ImageScratch};

pub use center_crop::{CenterCrop, center_crop};
pub use color_jitter::{ColorJitter, color_jitter};
pub use decode::{
    DecodeImage, ImageFormat, ImageHeader, decode_image, decode_rgb, decode_rgb_warned, read_header,
    read_mode,
};
pub use deferred::{DeferredRow, Shown};
pub use encode::{ShrinkImage, Shrinker};
pub use geometry::{Filter, Rect, Size};
pub use horizontal_flip::{HorizontalFlip, horizontal_flip};
pub use normalize::{IMAGENET_MEAN, IMAGENET_STD, Normalize, normalize};
pub use rand_augment::{RandAugment, rand_augment};
pub use random_crop::{RandomCrop, random_crop};
pub use random_erasing::{EraseValue, Noise, RandomErasing, random_erasing};
pub use random_resized_crop::{RandomResizedCrop, random_resized_crop};
pub use resize::{Resize, ResizeTo, resize};
pub use restarts::{Marked, RestartMarkers, Unmarked};
pub use to_chw::{ToChw, to_chw};
pub use to_f32::{ToF32, to_f32};
pub use trivial_augment::{TrivialAugment, trivial_augment};
pub use warp::Interpolation;
