//! What a driver gives out: addresses, streams, events.

use std::ptr::NonNull;

/// A place in a device's memory.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// No address.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on.
    #[must_use]
    pub fn at(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A stream: work in the order that it was given. CUDA's handle, the default streams' (0, 1, 2) included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default stream, that of all threads.
    pub const LEGACY: Self = Self(1);
}

/// A mark in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// Host memory that a device copies from without help of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostAddress(pub NonNull<u8>);

// SAFETY: an address; who reads or writes there answers for it.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}
