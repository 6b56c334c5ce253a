//! Opening a data set: the options, its durations, and what is open then.

mod opened;
mod options;
mod place;
mod probe;

pub(crate) use opened::{Opened, place_hash};
pub use options::OpenOptions;
pub(crate) use place::place_of;
pub use probe::{AudioProbe, Durations};
