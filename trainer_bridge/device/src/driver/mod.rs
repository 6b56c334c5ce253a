//! The interface of a device: memory, streams, events, copies and kernels. It is narrow, so that code that drives a device
//! can be tested without one.

mod host;
#[cfg(any(feature = "simulated", test))]
#[expect(clippy::unwrap_used, reason = "a device of tests: a panic is how they fail")]
mod simulated;

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "absent.rs"]
pub(crate) mod cuda;

pub use host::Host;
#[cfg(any(feature = "simulated", test))]
pub use simulated::Simulated;

use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::Launch;
use crate::numa::Node;
use crate::place::Place;
use feedstock_base::Result;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// The alignment of columns and of kernels' memory: a multiple of every vector and every memory transaction.
/// [`Driver::allocate`] aligns to it.
pub const ALIGN_BYTES: usize = 256;

/// The result of a search for a device.
pub(crate) enum Found {
    /// The device, and the machine node that it is attached to.
    #[cfg_attr(
        not(any(feature = "cuda", test)),
        expect(dead_code, reason = "without the feature `cuda` there is none")
    )]
    Device(Arc<dyn Driver>, Option<Node>),
    /// The machine has no device, for this reason.
    Absent(String),
}

/// A JPEG in host memory, and the destination of its pixels.
#[derive(Debug, Clone, Copy)]
pub struct Jpeg {
    /// The encoded bytes.
    pub bytes: HostAddress,
    /// The number of encoded bytes.
    pub length: usize,
    /// Width and height that the destination has room for.
    pub size: (u32, u32),
    /// The destination: RGB, line after line.
    pub to: Address,
    /// Bytes from one line to the next.
    pub pitch: usize,
}

/// Decodes JPEGs on a device, one batch at a time.
pub trait Decoder: Send {
    /// Decodes the JPEGs in the order of `stream`. Returns the indices of those that it rejects, for the caller to decode.
    ///
    /// # Safety
    /// The decoder's earlier work has finished. Until `stream` has run this work, the sources are valid and not written, the
    /// targets are valid and not used, and the decoder is not dropped.
    unsafe fn decode(&mut self, pictures: &[Jpeg], stream: StreamId) -> Result<Vec<usize>>;
}

/// A device. Every call may come from any thread. Only calls documented to wait do wait for pending work.
///
/// A driver is unwind safe because it owns the memory of slots, and Arrow requires that of owners of memory.
pub trait Driver: Send + Sync + UnwindSafe + RefUnwindSafe + 'static {
    /// Returns the device's name.
    fn place(&self) -> Place;

    /// Makes the device current on a thread that will call often.
    fn adopt_thread(&self) -> Result<()>;

    /// Allocates page-locked memory, aligned to a page, for any device of the process. `BadConfig` if memory or the limit of
    /// locked memory is exhausted.
    fn allocate_host(&self, bytes: usize) -> Result<HostAddress>;

    /// # Safety
    /// `memory` comes from `allocate_host` and is freed once. No copy from it is pending.
    unsafe fn free_host(&self, memory: HostAddress);

    /// Allocates device memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// # Safety
    /// `memory` comes from `allocate` and is freed once. No pending or later work uses it.
    unsafe fn free(&self, memory: Address);

    /// Loads the finishing kernels, so that their errors are reported before the first batch.
    fn load_kernels(&self) -> Result<()>;

    /// Loads the library that decodes JPEGs, as `load_kernels` loads the kernels.
    ///
    /// # Errors
    /// `BadConfig` if it is missing.
    fn load_decoder(&self) -> Result<()>;

    /// Returns a new decoder of JPEGs.
    ///
    /// # Errors
    /// As `load_decoder`.
    fn new_decoder(&self) -> Result<Box<dyn Decoder>>;

    /// Returns a new stream that does not wait for the default one. The device starts the work of urgent streams first.
    fn new_stream(&self, is_urgent: bool) -> Result<StreamId>;

    /// Rejects a stream of another device, or of another context of this one.
    fn check_stream(&self, stream: StreamId) -> Result<()>;

    /// # Safety
    /// `stream` comes from `new_stream` and is freed once.
    unsafe fn free_stream(&self, stream: StreamId);

    /// Returns a new event, not recorded yet.
    fn new_event(&self) -> Result<EventId>;

    /// # Safety
    /// `event` comes from `new_event` and is freed once.
    unsafe fn free_event(&self, event: EventId);

    /// Marks the work that `stream` has so far. A later mark with the same event replaces it.
    fn record(&self, event: EventId, stream: StreamId) -> Result<()>;

    /// Makes `stream` wait until the work that `event` now marks is done.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Blocks this thread until the work that `event` marks is done.
    fn synchronize(&self, event: EventId) -> Result<()>;

    /// Blocks this thread until all work of `stream` is done.
    fn synchronize_stream(&self, stream: StreamId) -> Result<()>;

    /// Whether work submitted to `stream` now is captured into a graph instead of run.
    fn is_capturing(&self, stream: StreamId) -> Result<bool>;

    /// # Safety
    /// Until the copy has run, the source is valid and not written, and the target is valid and not used.
    unsafe fn copy_in(&self, to: Address, from: HostAddress, bytes: usize, stream: StreamId) -> Result<()>;

    /// # Safety
    /// As `copy_in`. Both are on the device.
    unsafe fn copy_within(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    /// Copies to host memory and blocks this thread until the copy is done.
    ///
    /// # Safety
    /// `from` is valid for `to.len()` bytes, and the work that wrote it comes earlier in `stream`.
    unsafe fn copy_out(&self, to: &mut [u8], from: Address, stream: StreamId) -> Result<()>;

    /// # Safety
    /// Until the kernel has run, the memory that its arguments point to is valid, and only the kernel writes it.
    unsafe fn launch(&self, launch: &Launch, stream: StreamId) -> Result<()>;
}
