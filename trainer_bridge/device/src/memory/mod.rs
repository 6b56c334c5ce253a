//! The memory that batches are copied from and to, and the owners that keep it until nothing uses it any more.

mod buffers;
mod events;
mod locked;
mod owned;
mod reaper;
mod ring;

pub use buffers::Buffers;
pub use events::Event;
pub(crate) use events::Events;
pub use locked::{Locked, LockedPool};
pub use owned::DeviceMemory;
pub use reaper::{Kept, PATIENCE, Reaper, Reaping, join_within};
pub use ring::Index;
