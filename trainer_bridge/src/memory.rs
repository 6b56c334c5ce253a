//! The memory of slots: plain, or page-locked for a device that copies from it.

use crate::{Error, ErrorKind, Result};
use feedstock_device::memory::{Locked, LockedPool};
use feedstock_ingest::{Pages, SlabMemory};
use std::ptr::NonNull;
use std::sync::Arc;

/// Page-aligned bytes of unspecified content.
pub(crate) enum Memory {
    /// A mapping, returned to the system.
    Plain(Pages),
    /// A block of the device's pool, returned to the pool.
    Locked(Locked),
}

impl Memory {
    /// Returns its size in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Plain(pages) => pages.size(),
            Self::Locked(block) => block.size(),
        }
    }

    /// Returns the address of byte `offset`.
    ///
    /// # Panics
    /// If `offset` exceeds the size.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        match self {
            Self::Plain(pages) => pages.at(offset),
            Self::Locked(block) => {
                assert!(offset <= block.size(), "byte {offset} is outside of {} bytes", block.size());
                // SAFETY: just checked to be inside the block or at its end.
                unsafe { block.start().add(offset) }
            }
        }
    }
}

// SAFETY: pages and locked blocks keep their address and size while they live, and belong to their holder alone.
unsafe impl SlabMemory for Memory {
    fn size(&self) -> usize {
        self.size()
    }

    fn start(&self) -> NonNull<u8> {
        self.at(0)
    }
}

/// The source of memory.
#[derive(Clone, Default)]
pub(crate) enum Allocator {
    /// The system.
    #[default]
    Plain,
    /// A device's page-locked memory.
    Locked(Arc<LockedPool>),
}

impl Allocator {
    /// Allocates at least `bytes` bytes.
    ///
    /// # Errors
    /// `BadConfig` if there is not enough memory, or no more can be page-locked.
    pub(crate) fn memory(&self, bytes: usize) -> Result<Arc<Memory>> {
        match self {
            Self::Locked(pool) if bytes > 0 => pool.take(bytes).map(Memory::Locked).map(Arc::new),
            Self::Plain | Self::Locked(_) => {
                Pages::new(bytes).map(Memory::Plain).map(Arc::new).ok_or_else(|| no_memory(bytes))
            }
        }
    }
}

/// Returns the error for a slot for which there is no memory.
pub(crate) fn no_memory(bytes: usize) -> Error {
    Error::new(
        ErrorKind::BadConfig,
        format!("no memory for a slot of {bytes} bytes; lower the batch size or the number of slots"),
    )
}
