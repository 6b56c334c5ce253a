//! The handles of a driver: addresses, streams and events.

use std::ptr::NonNull;

/// An address in a device's memory.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// No address.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` bytes further on.
    ///
    /// ```
    /// use feedstock_device::handles::Address;
    ///
    /// let batch = Address(4_096);
    /// assert_eq!(batch.at(256), Address(4_352));
    /// assert!(Address::NULL < batch);
    /// ```
    #[must_use]
    pub fn at(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A stream, which runs work in the order of submission. This is CUDA's handle; 0, 1 and 2 are the default streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default stream of all threads.
    pub const LEGACY: Self = Self(1);
}

/// A mark in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// Host memory that a device copies from without the CPU's help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostAddress(pub NonNull<u8>);

// SAFETY: only an address. Code that reads or writes there is responsible for it.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}
