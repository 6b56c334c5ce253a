//! The buffer for batches whose addresses are the same at every step, for the lifetime of their loader.

use super::lent;
use super::owner::Owner;
use super::stream::{StreamHandle, forked, refuse_capture};
use super::view::DeviceTensor;
use crate::driver::{ALIGN_BYTES, Driver};
use crate::element::Element;
use crate::handles::{Address, StreamId};
use crate::memory::{DeviceMemory, Event, Events, Kept, Reaper};
use feedstock_base::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The largest gap between two columns that are copied together. A copy costs some microseconds, this gap far less.
const GAP_BYTES: usize = 16 << 10;

/// The fixed buffer of a loader's batches.
pub struct FixedBuffer {
    driver: Arc<dyn Driver>,
    events: Arc<Events>,
    state: Mutex<Fixed>,
    process: u32,
}

#[derive(Default)]
struct Fixed {
    memory: Option<DeviceMemory>,
    /// The columns of the first batch, which all batches must have.
    columns: Vec<Column>,
    /// The stream on which the current batch was copied, and the event after that copy.
    settled: Option<(StreamId, Event)>,
    /// Other streams that use it.
    readers: Vec<StreamId>,
}

/// The properties of a column that must not change from batch to batch.
#[derive(Debug, Clone, PartialEq)]
struct Column {
    name: String,
    element: Element,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// The offset in the fixed buffer.
    to: usize,
}

/// One copy from the batch's buffer to the fixed buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Move {
    from: usize,
    to: usize,
    bytes: usize,
}

impl FixedBuffer {
    /// Makes a buffer on the device of `driver`, without memory yet.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        let (events, process) = (Events::new(driver.clone()), std::process::id());
        Arc::new(Self { driver, events, state: Mutex::default(), process })
    }

    /// Copies the columns of a batch, whose buffer begins at `from`, in the order of `stream` and after all uses of the
    /// previous batch. Returns the new address of each column.
    ///
    /// # Errors
    /// `BadConfig` if the columns or their shapes differ from those of the first batch.
    ///
    /// # Safety
    /// The columns are valid until the copies have run, and `stream` has waited for the work that fills them.
    pub(super) unsafe fn settle(
        self: &Arc<Self>,
        tensors: &[DeviceTensor],
        from: Address,
        stream: StreamId,
    ) -> Result<Vec<Address>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner); // a failure changes only readers
        let state = &mut *state;
        let start = match &state.memory {
            Some(memory) => {
                if let Some(message) = difference(&state.columns, tensors) {
                    return Err(Error::new(ErrorKind::BadConfig, message));
                }
                memory.start()
            }
            None => {
                let (columns, bytes) = pack(tensors);
                let memory = state.memory.insert(DeviceMemory::new(&self.driver, bytes)?);
                state.columns = columns;
                let weak: Weak<Self> = Arc::downgrade(self);
                lent::insert(memory.start(), bytes, weak);
                memory.start()
            }
        };
        let earlier = state.settled.as_ref().map(|(earlier, _)| *earlier);
        for user in state.readers.iter().copied().chain(earlier).filter(|user| *user != stream) {
            self.events.mark_user(user)?.hold_back(stream)?;
        }
        if !state.readers.contains(&stream) {
            state.readers.push(stream); // even if the copies fail halfway, it uses the buffer
        }
        for Move { from: offset, to, bytes } in moves(tensors, &state.columns) {
            // SAFETY: the caller's contract. All earlier uses of the buffer come before this copy in `stream`.
            unsafe { self.driver.copy_within(start.at(to), from.at(offset), bytes, stream)? };
        }
        state.settled = Some((stream, self.events.mark(stream)?));
        state.readers.clear();
        Ok(state.columns.iter().map(|column| start.at(column.to)).collect())
    }

    /// Lets `stream` use the batch, too.
    ///
    /// # Errors
    /// `BadConfig` if the stream is being captured and does not use the batch yet: its wait would become part of the graph.
    fn read_on(&self, stream: StreamId) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((owner, copied)) = &state.settled else { return Ok(()) };
        if *owner != stream && !state.readers.contains(&stream) {
            refuse_capture(self.driver.as_ref(), stream)?;
            copied.hold_back(stream)?;
            state.readers.push(stream);
        }
        Ok(())
    }
}

impl Owner for FixedBuffer {
    fn use_on(&self, stream: StreamHandle) -> Result<()> {
        match self.process == std::process::id() {
            true => self.read_on(stream.of(self.driver.as_ref())?),
            false => Err(forked()),
        }
    }

    fn driver(&self) -> &dyn Driver {
        self.driver.as_ref()
    }
}

/// Returns the offsets of the columns in the fixed buffer, and its size in bytes. Columns keep their order, and their distance
/// if the gap is small, so that one copy takes several.
fn pack(tensors: &[DeviceTensor]) -> (Vec<Column>, usize) {
    let mut places = vec![0; tensors.len()];
    let (mut source_end, mut end) = (0, 0usize);
    for index in in_order(tensors) {
        let tensor = &tensors[index];
        let gap = tensor.column.offset - source_end;
        let begin = if end > 0 && gap <= GAP_BYTES { end + gap } else { end.next_multiple_of(ALIGN_BYTES) };
        places[index] = begin;
        (source_end, end) = (tensor.column.offset + tensor.byte_len(), begin + tensor.byte_len());
    }
    let column = |(tensor, to): (&DeviceTensor, usize)| Column {
        name: tensor.column.name.clone(),
        element: tensor.column.element,
        shape: tensor.column.shape.clone(),
        strides: tensor.column.strides.clone(),
        to,
    };
    (tensors.iter().zip(places).map(column).collect(), end)
}

/// Returns the copies that move every column to its offset.
fn moves(tensors: &[DeviceTensor], columns: &[Column]) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for index in in_order(tensors) {
        let (from, to, bytes) = (tensors[index].column.offset, columns[index].to, tensors[index].byte_len());
        match moves.last_mut() {
            Some(last) if from - last.from <= last.bytes + GAP_BYTES && to - last.to == from - last.from => {
                last.bytes = from - last.from + bytes;
            }
            _ => moves.push(Move { from, to, bytes }),
        }
    }
    moves
}

/// Returns the columns' indices, ordered by their offset in the batch.
fn in_order(tensors: &[DeviceTensor]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|index| tensors[*index].column.offset);
    order
}

/// Returns the message about the first difference from the first batch, if any.
fn difference(then: &[Column], now: &[DeviceTensor]) -> Option<String> {
    let what = then
        .iter()
        .find(|column| now.iter().all(|tensor| tensor.column.name != column.name))
        .map(|column| format!("the column of numbers '{}' is missing in this batch", column.name))
        .or_else(|| {
            let new =
                now.iter().find(|tensor| then.iter().all(|column| column.name != tensor.column.name))?;
            Some(format!("the column of numbers '{}' is new in this batch", new.column.name))
        })
        .or_else(|| {
            let is_other = |(column, tensor): &(&Column, &DeviceTensor)| {
                (&column.name, column.element, &column.shape, &column.strides)
                    != (
                        &tensor.column.name,
                        tensor.column.element,
                        &tensor.column.shape,
                        &tensor.column.strides,
                    )
            };
            let (column, tensor) = then.iter().zip(now).find(is_other)?;
            Some(format!(
                "'{}' was {:?} and is {:?} now",
                tensor.column.name, column.shape, tensor.column.shape
            ))
        })?;
    Some(format!(
        "fixed addresses need batches of one shape: {what}; pad rows to one length (pad_seconds), batch by rows, leave out \
         columns that miss values, or do without fixed addresses"
    ))
}

impl Drop for FixedBuffer {
    fn drop(&mut self) {
        let Fixed { memory, settled, mut readers, .. } =
            std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Some(memory) = memory else { return };
        if self.process != std::process::id() {
            std::mem::forget((memory, settled, self.events.clone()));
            return;
        }
        lent::remove(memory.start());
        readers.extend(settled.map(|(stream, _)| stream));
        let until: Result<Vec<_>> =
            readers.into_iter().map(|stream| self.events.mark_user(stream).map(Arc::new)).collect();
        match until.and_then(|until| Ok((until, Reaper::start(self.driver.clone())?))) {
            Ok((until, (reaper, _))) => reaper.keep(Kept { until, what: Box::new(memory) }),
            Err(error) => {
                tracing::warn!("device memory is not freed, since its last users are unknown: {error}");
                std::mem::forget(memory);
            }
        }
    }
}
