//! The ring's memory and the device's streams of one run. The stage and the caller's batches share them.
//!
//! ```text
//! copy stream:      wait(last users) ── copies ── "copied" ──┐ ── the next batch's copies …
//! finishing stream:                                  wait ◀──┘ ── kernels ── "filled"
//! ```
//! With two streams, the copies of one batch run concurrently with the kernels of the previous one. The finishing stream
//! has priority over the model's work, of which there is always more.

use super::events::{Event, Events};
use super::owned::{DeviceMemory, OwnStream};
use super::reaper::{Kept, Reaper, Reaping};
use super::ring::{Index, Ring};
use crate::driver::Driver;
use crate::handles::{Address, StreamId};
use feedstock_base::{Error, ErrorKind, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

struct BuffersState {
    ring: Ring<Arc<Event>>,
    memory: Vec<Option<DeviceMemory>>,
    closed: bool,
}

/// The device buffers of one run.
pub struct Buffers {
    driver: Arc<dyn Driver>,
    events: Arc<Events>,
    reaper: Reaper,
    streams: Option<[OwnStream; 2]>,
    copying: StreamId,
    finishing: StreamId,
    state: Mutex<BuffersState>,
    changed: Condvar,
    /// After `fork`, the child has neither the threads nor the device.
    process: u32,
}

impl Buffers {
    /// Makes `buffers` buffers, without memory yet, and starts the thread that releases the host memory they were copied from.
    pub fn new(driver: Arc<dyn Driver>, buffers: usize) -> Result<(Arc<Self>, Reaping)> {
        let streams = [OwnStream::new(&driver, false)?, OwnStream::new(&driver, true)?];
        let [copying, finishing] = [streams[0].id, streams[1].id];
        let memory = (0..buffers).map(|_| None).collect();
        let state = Mutex::new(BuffersState { ring: Ring::new(buffers), memory, closed: false });
        let (reaper, thread) = Reaper::start(driver.clone())?;
        let events = Events::new(driver.clone());
        let this = Arc::new(Self {
            driver,
            events,
            reaper,
            streams: Some(streams),
            copying,
            finishing,
            state,
            changed: Condvar::new(),
            process: std::process::id(),
        });
        let weak: Weak<Self> = Arc::downgrade(&this);
        let reaping = Reaping::new(thread, weak);
        Ok((this, reaping))
    }

    /// Returns the device's driver.
    pub fn driver(&self) -> &dyn Driver {
        self.driver.as_ref()
    }

    /// Returns the thread that releases the memory that copies read.
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Returns the stream of all copies.
    pub fn copying(&self) -> StreamId {
        self.copying
    }

    /// Returns the stream of all kernels.
    pub fn finishing(&self) -> StreamId {
        self.finishing
    }

    /// Whether this is a child of the process that has the device.
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Marks the end of the work that `stream` has so far.
    ///
    /// # Errors
    /// If the device fails, or the stream no longer exists or is being captured, so that nothing can mark the end of its work.
    pub fn mark(&self, stream: StreamId) -> Result<Event> {
        self.events.mark_user(stream)
    }

    /// Waits until the caller has returned a buffer, and takes it, with at least `bytes` bytes. The copy stream waits for its
    /// last users; this thread does not. Returns `None` if the buffers were closed meanwhile.
    pub fn take(&self, bytes: usize) -> Result<Option<(Index, Address)>> {
        let (index, behind) = {
            let mut state = self.lock();
            loop {
                if state.closed {
                    return Ok(None);
                }
                if let Some(taken) = state.ring.take() {
                    break taken;
                }
                if state.ring.usable() == 0 {
                    let message =
                        "all device buffers were lost to streams that are gone or captured; see the warnings";
                    return Err(Error::new(ErrorKind::BadConfig, message));
                }
                let wait = self.changed.wait_timeout(state, Duration::from_secs(60));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        self.behind(index, &behind, bytes).map(|start| Some((index, start)))
    }

    /// Returns the start of the buffer, which the copy stream may write from now on, after its last users.
    fn behind(&self, index: Index, last_users: &[Arc<Event>], bytes: usize) -> Result<Address> {
        let held = self.lock().memory[index.0].as_ref().map(|memory| (memory.start(), memory.size()));
        let waited = match held {
            Some((_, size)) if size >= bytes => {
                last_users.iter().try_for_each(|event| event.hold_back(self.copying))
            }
            // It grows, which is rare. This thread waits, so that old and new memory do not exist at the same time.
            _ => last_users.iter().try_for_each(|event| event.synchronize()),
        };
        if let Err(error) = waited {
            self.retire(index, &error);
            return Err(error);
        }
        if let Some((start, _)) = held.filter(|(_, size)| *size >= bytes) {
            return Ok(start);
        }
        let outgrown = self.lock().memory[index.0].take();
        // If batches vary in size, allocate a quarter more, so that a growing maximum does not allocate at every step.
        let spare = if outgrown.is_some() { bytes / 4 } else { 0 };
        drop(outgrown);
        let made = DeviceMemory::new(&self.driver, bytes.saturating_add(spare));
        match made.or_else(|_| DeviceMemory::new(&self.driver, bytes)) {
            Ok(memory) => {
                let start = memory.start();
                self.lock().memory[index.0] = Some(memory);
                Ok(start)
            }
            Err(error) => {
                self.give_back(index, Vec::new());
                Err(error)
            }
        }
    }

    /// Notes that all work that fills the buffer was submitted to the device.
    pub fn copied(&self, index: Index) {
        self.lock().ring.copied(index);
    }

    /// Notes that the caller has the buffer's batch.
    pub fn lend(&self, index: Index) {
        self.lock().ring.lend(index);
    }

    /// Returns the buffer to the ring. It may be written after the events `behind`.
    pub fn give_back(&self, index: Index, behind: Vec<Arc<Event>>) {
        self.lock().ring.give_back(index, behind);
        self.changed.notify_all();
    }

    /// Gives up the buffer and its memory, because its remaining users are unknown.
    pub fn retire(&self, index: Index, error: &Error) {
        tracing::warn!("a device buffer is lost, since its last users are unknown: {error}");
        let mut state = self.lock();
        state.ring.retire(index);
        std::mem::forget(state.memory[index.0].take());
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the number of buffers that the caller has, and that of all usable ones.
    pub fn lent(&self) -> (usize, usize) {
        let state = self.lock();
        (state.ring.lent(), state.ring.usable())
    }

    /// Makes all calls of `take` return `None` from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BuffersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // the ring asserts before it changes
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut until: Vec<Arc<Event>> = state.ring.drain();
        let what = Box::new((std::mem::take(&mut state.memory), self.streams.take()));
        let own = [self.copying, self.finishing].map(|stream| self.events.mark(stream));
        for marked in own {
            match marked {
                Ok(event) => until.push(Arc::new(event)),
                Err(error) => {
                    tracing::warn!("device memory is not freed, since its last users are unknown: {error}");
                    std::mem::forget(what);
                    return;
                }
            }
        }
        self.reaper.keep(Kept { until, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Simulated;

    #[test]
    fn memory_is_as_large_as_the_first_batch_and_more_only_where_batches_grow() {
        let driver = Simulated::new(1);
        let (buffers, _reaping) = Buffers::new(driver.clone(), 1).unwrap();
        let (index, _) = buffers.take(1000).unwrap().unwrap();
        assert_eq!(driver.device_bytes(), 1000);
        buffers.give_back(index, Vec::new());
        let (index, start) = buffers.take(1200).unwrap().unwrap();
        assert_eq!(driver.device_bytes(), 1500);
        buffers.give_back(index, Vec::new());
        assert_eq!(buffers.take(1500).unwrap().unwrap(), (index, start));
    }

    #[test]
    fn memory_whose_users_cannot_be_waited_for_is_not_freed() {
        let driver = Simulated::new(1);
        let (buffers, reaping) = Buffers::new(driver.clone(), 2).unwrap();
        let (index, start) = buffers.take(1000).unwrap().unwrap();
        driver.write_later(start, 1000, buffers.copying());
        let used = Arc::new(buffers.mark(buffers.copying()).unwrap());
        buffers.give_back(index, vec![used]);
        let (other, _) = buffers.take(500).unwrap().unwrap();
        driver.refuse("wait", 1);
        assert!(buffers.take(1000).is_err());
        assert_eq!(buffers.lent(), (0, 1), "one of two is usable");
        buffers.give_back(other, Vec::new());
        drop(buffers);
        drop(reaping);
        let (violations, left) = driver.finish();
        assert!(violations.is_empty(), "{violations:#?}");
        assert_eq!(left, [1, 0, 0], "its memory is lost");
    }

    #[test]
    fn the_thread_that_frees_memory_has_ended_when_a_run_has() {
        let driver = Simulated::new(1);
        let (buffers, reaping) = Buffers::new(driver.clone(), 1).unwrap();
        buffers.take(1000).unwrap();
        drop(buffers);
        drop(reaping);
        assert_eq!(driver.finish().1, [0; 3], "everything was freed before");
    }
}
