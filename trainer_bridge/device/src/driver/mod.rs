//! What is asked of a device: memory, streams, events, copies, kernels. A narrow door, so that what drives a device can be
//! tested without one.

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

/// What columns and kernels' memory begin on: a multiple of every vector and every transaction, and what
/// [`Driver::allocate`] aligns to.
pub const ALIGN_BYTES: usize = 256;

/// What a search for a device found.
pub(crate) enum Found {
    /// The device, and the node of the machine that it is attached to.
    #[cfg_attr(
        not(any(feature = "cuda", test)),
        expect(dead_code, reason = "without the feature `cuda` there is none")
    )]
    Device(Arc<dyn Driver>, Option<Node>),
    /// The machine has no device, for this reason.
    Absent(String),
}

/// A JPEG in host memory, and where its pixels go.
#[derive(Debug, Clone, Copy)]
pub struct Jpeg {
    /// The file.
    pub bytes: HostAddress,
    /// Its bytes.
    pub length: usize,
    /// Width and height that its target has room for.
    pub size: (u32, u32),
    /// RGB, line after line.
    pub to: Address,
    /// Bytes from one line to the next.
    pub pitch: usize,
}

/// What decodes JPEGs on a device; one batch at a time.
pub trait Decoder: Send {
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
pub trait Driver: Send + Sync + UnwindSafe + RefUnwindSafe + 'static {
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
