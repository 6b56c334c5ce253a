//! Opening a data set: the options, what headers of audio clips state, and the opened data set.

mod build;
mod codecs;
mod durations;
mod opened;
mod options;
mod place;
mod probe;
mod spec;

pub(crate) use build::open_or_build;
pub(crate) use opened::{Opened, place_hash};
pub use options::OpenOptions;
pub(crate) use place::{folder_name, place_in, place_of, published};
pub use probe::{AudioProbe, Durations};
pub use spec::{DatasetSpec, SourceSpec};
