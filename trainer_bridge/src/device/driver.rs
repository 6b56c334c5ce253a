//! What is asked of a device: memory, streams, events, copies, kernels. A narrow door, so that what drives a device can be
//! tested without one.

use super::batch::Place;
use super::launch::Launch;
use crate::Result;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

/// A place in a device's memory.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NULL: Self = Self(0);

    /// `bytes` further on.
    pub(crate) fn at(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A stream: work in the order that it was given. CUDA's handle, the default streams' (0, 1, 2) included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

impl StreamId {
    /// The default stream, that of all threads.
    pub(crate) const LEGACY: Self = Self(1);
}

/// A mark in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct EventId(pub(crate) u64);

/// Host memory that a device copies from without help of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostAddress(pub(crate) NonNull<u8>);

// SAFETY: an address; who reads or writes there answers for it.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// A JPEG in host memory, and where its pixels go.
#[cfg_attr(
    not(any(feature = "cuda", test)),
    expect(dead_code, reason = "only a GPU's decoder reads the fields")
)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Jpeg {
    pub(crate) bytes: HostAddress,
    pub(crate) length: usize,
    /// Width and height that its target has room for.
    pub(crate) size: (u32, u32),
    /// RGB, line after line.
    pub(crate) to: Address,
    /// Bytes from one line to the next.
    pub(crate) pitch: usize,
}

/// What decodes JPEGs on a device; one batch at a time.
pub(crate) trait Decoder: Send {
    /// Decodes all of them in the order of `stream`, but for those whose indices it gives back: they are the caller's.
    ///
    /// # Safety
    /// What it was given before has ended. Until `stream` has come this far, the sources are valid and not written, the targets valid and not used, and the
    /// decoder lives.
    unsafe fn decode(&mut self, pictures: &[Jpeg], stream: StreamId) -> Result<Vec<usize>>;
}

/// A device. Every call may come from any thread; none waits for work under way but those that say so.
///
/// Unwind safe, since Arrow asks that of what owns memory: a slot's belongs to a driver.
pub(crate) trait Driver: Send + Sync + UnwindSafe + RefUnwindSafe + 'static {
    /// Which device it is.
    fn place(&self) -> Place;

    /// Prepares a thread that will call often: makes the device its current one.
    fn adopt_thread(&self) -> Result<()>;

    /// Page-locked memory, aligned to a page, for any device of the process; `BadConfig` where there is none left, or no
    /// more may be locked.
    fn allocate_host(&self, bytes: usize) -> Result<HostAddress>;

    /// # Safety
    /// `memory` comes from `allocate_host`, is freed once, and no copy from it is under way.
    unsafe fn free_host(&self, memory: HostAddress);

    /// Device memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// # Safety
    /// `memory` comes from `allocate`, is freed once, and no work that uses it is under way or comes.
    unsafe fn free(&self, memory: Address);

    /// Readies the finishing kernels, so that whatever is wrong with them is told before the first batch.
    fn load_kernels(&self) -> Result<()>;

    /// Readies the library that decodes JPEGs, as `load_kernels` does with kernels.
    ///
    /// # Errors
    /// `BadConfig` where it is missing.
    fn load_decoder(&self) -> Result<()>;

    /// A decoder of JPEGs.
    ///
    /// # Errors
    /// As `load_decoder`.
    fn new_decoder(&self) -> Result<Box<dyn Decoder>>;

    /// A stream that does not wait for the default one; the work of urgent ones is started before that of others.
    fn new_stream(&self, is_urgent: bool) -> Result<StreamId>;

    /// Refuses a stream that belongs to another device, or to another context of this one.
    fn check_stream(&self, stream: StreamId) -> Result<()>;

    /// # Safety
    /// `stream` comes from `new_stream` and is given back once.
    unsafe fn free_stream(&self, stream: StreamId);

    /// An event, not recorded.
    fn new_event(&self) -> Result<EventId>;

    /// # Safety
    /// `event` comes from `new_event` and is given back once.
    unsafe fn free_event(&self, event: EventId);

    /// Marks the work that `stream` has so far; a later mark with the same event takes its place.
    fn record(&self, event: EventId, stream: StreamId) -> Result<()>;

    /// `stream` goes on when what `event` marks now is done.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Waits on this thread until what `event` marks is done.
    fn synchronize(&self, event: EventId) -> Result<()>;

    /// Waits on this thread for all work of `stream`.
    fn synchronize_stream(&self, stream: StreamId) -> Result<()>;

    /// Whether what `stream` is given now becomes a graph instead of running.
    fn is_capturing(&self, stream: StreamId) -> Result<bool>;

    /// # Safety
    /// Until the copy has run, the source is valid and not written, the target valid and not used.
    unsafe fn copy_in(&self, to: Address, from: HostAddress, bytes: usize, stream: StreamId) -> Result<()>;

    /// # Safety
    /// As `copy_in`; both lie on the device.
    unsafe fn copy_within(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    /// Copies out, and waits for it on this thread.
    ///
    /// # Safety
    /// `from` is valid for so many bytes, and what wrote it comes before in `stream`.
    unsafe fn copy_out(&self, to: &mut [u8], from: Address, stream: StreamId) -> Result<()>;

    /// # Safety
    /// Until the kernel has run, what its arguments point to is valid, and only read unless it is the kernel's to write.
    unsafe fn launch(&self, launch: &Launch, stream: StreamId) -> Result<()>;
}
