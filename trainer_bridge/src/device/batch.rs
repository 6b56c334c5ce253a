//! A batch on a device: its tensors, and who uses them.

use super::buffers::Buffers;
use super::driver::{Address, Driver, StreamId};
use super::element::Element;
use super::events::Event;
use super::fixed::FixedBuffer;
use super::lent::{self, WeakOwner};
use super::ring::Index;
use crate::{Error, ErrorKind, Result};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In host memory.
    Host,
    /// On CUDA's device of this number.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A stream of the device's, as CUDA's handle: what `CudaStream::cu_stream()` or torch's `stream.cuda_stream` is; 0 or 1
/// the legacy default stream. Not 2, the thread's own, which is another one on the thread that drops a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle(pub u64);

/// CUDA's number of the default stream of each thread.
const THREADS_OWN: u64 = 2;

impl StreamHandle {
    /// The stream, if batches may be used on it.
    fn of(self, driver: &dyn Driver) -> Result<StreamId> {
        match self.0 {
            0 | 1 => Ok(StreamId::LEGACY),
            THREADS_OWN => {
                let message = "stream 2, the per-thread default one, is another stream on every thread, so that its end could \
                               not be seen from where the batch is dropped; use a stream of your own, or the legacy default \
                               one (1)";
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            handle => driver.check_stream(StreamId(handle)).map(|()| StreamId(handle)),
        }
    }
}

/// Refuses a stream that is being captured: what it is told now would become part of the graph, and the batch be another one
/// when that is replayed.
pub(crate) fn refuse_capture(driver: &dyn Driver, stream: StreamId) -> Result<()> {
    match driver.is_capturing(stream)? {
        false => Ok(()),
        true => {
            let message = "a batch was taken on a stream while a graph is captured there; take batches before the capture, and \
                           ask for fixed addresses";
            Err(Error::new(ErrorKind::BadConfig, message))
        }
    }
}

fn forked() -> Error {
    let message = "this batch was made in another process, before fork(), where its device is; it cannot be used here: copy \
                   what a child needs to host memory before, or start processes with 'spawn' or 'forkserver'";
    Error::new(ErrorKind::BadConfig, message)
}

/// As [`DeviceTensor::use_on`], for a batch at its fixed place.
pub(crate) fn use_fixed_on(fixed: &FixedBuffer, stream: StreamHandle) -> Result<()> {
    match fixed.is_forked() {
        true => Err(forked()),
        false => fixed.use_on(stream.of(fixed.driver())?),
    }
}

/// What keeps a buffer from being written again: lives as long as any tensor in it.
pub(crate) struct Hold {
    buffers: Arc<Buffers>,
    index: Index,
    start: Address,
    /// Copies and kernels that fill the buffer are done behind it.
    filled: Arc<Event>,
    streams: Mutex<Vec<StreamId>>,
}

impl Hold {
    pub(crate) fn new(
        buffers: Arc<Buffers>,
        index: Index,
        (start, bytes): (Address, usize),
        filled: Arc<Event>,
    ) -> Arc<Self> {
        let hold = Arc::new(Self { buffers, index, start, filled, streams: Mutex::default() });
        lent::insert(start, bytes, WeakOwner::Buffer(Arc::downgrade(&hold)));
        hold
    }

    /// Work that `stream` is given from now on finds the buffer filled, and is waited for before it is written again.
    pub(crate) fn use_on(&self, stream: StreamHandle) -> Result<()> {
        if self.buffers.is_forked() {
            return Err(forked());
        }
        let driver = self.buffers.driver();
        let stream = stream.of(driver)?;
        refuse_capture(driver, stream)?; // however well it is known: the buffer is another batch's at the replay
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&stream) {
            self.filled.hold_back(stream)?;
            streams.push(stream);
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.buffers.is_forked() {
            // The parent has the device and the threads: nothing is to be touched, nor freed.
            std::mem::forget((self.buffers.clone(), self.filled.clone()));
            return;
        }
        lent::remove(self.start);
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        let events = match streams.is_empty() {
            true => Ok(vec![self.filled.clone()]), // nobody used it, but it may still be filled
            false => streams.into_iter().map(|stream| self.buffers.mark(stream).map(Arc::new)).collect(),
        };
        match events {
            Ok(events) => self.buffers.give_back(self.index, events),
            Err(error) => self.buffers.retire(self.index, &error),
        }
    }
}

/// The columns of a batch on a device.
pub(crate) struct DeviceBatch {
    pub(crate) tensors: Vec<DeviceTensor>,
    /// Gone once the batch has moved to the fixed place; never there for a batch that stays in its slot.
    hold: Option<Arc<Hold>>,
    fixed: Option<Arc<FixedBuffer>>,
}

impl DeviceBatch {
    pub(crate) fn new(
        tensors: Vec<DeviceTensor>,
        hold: Option<Arc<Hold>>,
        fixed: Option<Arc<FixedBuffer>>,
    ) -> Self {
        Self { tensors, hold, fixed }
    }

    /// The batch goes to the caller.
    pub(crate) fn lend(&self) {
        if let Some(hold) = &self.hold {
            hold.buffers.lend(hold.index);
        }
    }

    pub(crate) fn use_on(&self, stream: StreamHandle) -> Result<()> {
        self.tensors.iter().try_for_each(|tensor| tensor.use_on(stream))
    }

    /// Where addresses are to be the same at every step: copies the batch there, in the order of `stream`, and gives its
    /// own buffer back. Else as [`use_on`](Self::use_on).
    pub(crate) fn settle(&mut self, stream: StreamHandle) -> Result<()> {
        let (Some(fixed), Some(hold)) = (&self.fixed, &self.hold) else { return self.use_on(stream) };
        hold.use_on(stream)?;
        let stream = stream.of(fixed.driver())?;
        // SAFETY: the buffer is filled before (`use_on`), and is written again only behind the event that dropping `hold`
        // puts behind this copy.
        let places = unsafe { fixed.settle(&self.tensors, hold.start, stream)? };
        for (tensor, place) in self.tensors.iter_mut().zip(places) {
            tensor.start = place;
            tensor.owner = Owner::Fixed(fixed.clone());
        }
        self.hold = None;
        Ok(())
    }
}

/// What keeps a tensor's memory.
#[derive(Clone)]
pub(crate) enum Owner {
    Buffer(Arc<Hold>),
    Fixed(Arc<FixedBuffer>),
    /// Of a batch that stays where it was made, in host memory.
    Slot(#[expect(dead_code, reason = "held, not read")] Arc<dyn Any + Send + Sync>),
}

/// A column of a batch on a device: rows first. It views the batch's buffer, which is not written again while any view
/// lives, nor before the streams that used it ([`use_on`](Self::use_on)) have passed the place where the last was dropped.
#[derive(Clone)]
pub struct DeviceTensor {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
    pub(crate) lengths: Option<Arc<[usize]>>,
    pub(crate) padded_axis: Option<usize>,
    /// From the start of the batch.
    pub(crate) offset: usize,
    pub(crate) start: Address,
    pub(crate) place: Place,
    pub(crate) owner: Owner,
}

impl DeviceTensor {
    /// The column's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Lengths of the axes, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements from one entry of an axis to the next: of pictures with channels last, the channel's is 1.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The rows' own lengths along [`padded_axis`](Self::padded_axis).
    pub fn lengths(&self) -> Option<&[usize]> {
        self.lengths.as_deref()
    }

    /// The axis along which short rows are padded.
    pub fn padded_axis(&self) -> Option<usize> {
        self.padded_axis
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its address there.
    pub fn address(&self) -> u64 {
        self.start.0
    }

    /// Bytes of all elements.
    pub fn byte_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.bytes()
    }

    /// To be called before `stream` is given work that uses the tensor: the stream waits for the copy, and the buffer is
    /// not written again before the stream has passed the place where the last view is dropped. No thread waits.
    ///
    /// # Errors
    /// `Retryable` for a fault of the device; `BadConfig` where the stream is not one of this device, is the thread's own
    /// default one, or is being captured, and in a child after `fork`.
    pub fn use_on(&self, stream: StreamHandle) -> Result<()> {
        match &self.owner {
            Owner::Buffer(hold) => hold.use_on(stream),
            Owner::Fixed(fixed) => use_fixed_on(fixed, stream),
            Owner::Slot(_) => stream.of(&super::host::Host::default()).map(|_| ()),
        }
    }

    /// Its bytes in host memory, once `stream` has come so far; waits. For tests and looking at data.
    ///
    /// # Errors
    /// As [`use_on`](Self::use_on).
    pub fn to_host(&self, stream: StreamHandle) -> Result<Vec<u8>> {
        self.use_on(stream)?;
        let mut bytes = vec![0; self.byte_len()];
        let host = super::host::Host::default();
        let driver: &dyn Driver = match &self.owner {
            Owner::Buffer(hold) => hold.buffers.driver(),
            Owner::Fixed(fixed) => fixed.driver(),
            Owner::Slot(_) => &host,
        };
        // SAFETY: the tensor's memory, filled before what `stream` does now.
        unsafe { driver.copy_out(&mut bytes, self.start, stream.of(driver)?)? };
        Ok(bytes)
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:?} on {}", self.name, self.element.name(), self.shape, self.place)
    }
}
