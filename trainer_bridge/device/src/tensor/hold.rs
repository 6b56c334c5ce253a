//! Keeps a buffer of the ring for a batch.

use super::lent;
use super::owner::Owner;
use super::stream::{StreamHandle, forked, refuse_capture};
use crate::driver::Driver;
use crate::handles::{Address, StreamId};
use crate::memory::{Buffers, Event, Index};
use feedstock_base::Result;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Keeps a buffer from being written again. It lives as long as any tensor in the buffer.
pub struct Hold {
    buffers: Arc<Buffers>,
    index: Index,
    start: Address,
    /// The event after the copies and kernels that fill the buffer.
    filled: Arc<Event>,
    streams: Mutex<Vec<StreamId>>,
}

impl Hold {
    /// Holds the buffer of `bytes` bytes at `start`. `filled` is recorded after the work that fills it.
    pub fn new(
        buffers: Arc<Buffers>,
        index: Index,
        (start, bytes): (Address, usize),
        filled: Arc<Event>,
    ) -> Arc<Self> {
        let hold = Arc::new(Self { buffers, index, start, filled, streams: Mutex::default() });
        let weak: Weak<Self> = Arc::downgrade(&hold);
        lent::insert(start, bytes, weak);
        hold
    }

    /// Returns the start of the buffer.
    pub(crate) fn start(&self) -> Address {
        self.start
    }

    /// Notes that the caller has the batch.
    pub(crate) fn lend(&self) {
        self.buffers.lend(self.index);
    }
}

impl Owner for Hold {
    /// Orders later work of `stream` after the buffer's filling. The buffer is written again only after that work.
    fn use_on(&self, stream: StreamHandle) -> Result<()> {
        if self.buffers.is_forked() {
            return Err(forked());
        }
        let driver = self.buffers.driver();
        let stream = stream.of(driver)?;
        refuse_capture(driver, stream)?; // even for a known stream: at the replay, the buffer has another batch
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&stream) {
            self.filled.hold_back(stream)?;
            streams.push(stream);
        }
        Ok(())
    }

    fn driver(&self) -> &dyn Driver {
        self.buffers.driver()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.buffers.is_forked() {
            // The parent has the device and the threads, so nothing must be used or freed here.
            std::mem::forget((self.buffers.clone(), self.filled.clone()));
            return;
        }
        lent::remove(self.start);
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        let events = match streams.is_empty() {
            true => Ok(vec![self.filled.clone()]), // no stream used it, but the device may still fill it
            false => streams.into_iter().map(|stream| self.buffers.mark(stream).map(Arc::new)).collect(),
        };
        match events {
            Ok(events) => self.buffers.give_back(self.index, events),
            Err(error) => self.buffers.retire(self.index, &error),
        }
    }
}
