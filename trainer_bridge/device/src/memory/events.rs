//! Events, reused.

use crate::driver::Driver;
use crate::handles::{EventId, StreamId};
use feedstock_base::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A device's idle events. A wait refers to the mark at the time of its call, so an event can be recorded again at once.
pub(crate) struct Events {
    driver: Arc<dyn Driver>,
    idle: Mutex<Vec<EventId>>,
}

impl Events {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, idle: Mutex::default() })
    }

    /// Marks the end of the work that `stream` has so far.
    pub(crate) fn mark(self: &Arc<Self>, stream: StreamId) -> Result<Event> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let id = idle.map_or_else(|| self.driver.new_event(), Ok)?;
        let event = Event { events: self.clone(), id };
        self.driver.record(id, stream)?;
        Ok(event)
    }

    /// As [`mark`](Self::mark), for a stream of the caller.
    ///
    /// # Errors
    /// `BadConfig` if the stream is being captured, so that nothing can mark the end of its work.
    pub(crate) fn mark_user(self: &Arc<Self>, stream: StreamId) -> Result<Event> {
        if self.driver.is_capturing(stream)? {
            let message = "a batch was dropped or replaced while a graph was captured on a stream that uses it; take and drop \
                           batches outside of captures, and use fixed addresses";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        self.mark(stream)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in self.idle.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: nothing else uses idle events.
            unsafe { self.driver.free_event(event) };
        }
    }
}

/// A recorded event.
pub struct Event {
    events: Arc<Events>,
    id: EventId,
}

impl Event {
    /// Makes `stream` wait for it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn hold_back(&self, stream: StreamId) -> Result<()> {
        self.events.driver.wait(stream, self.id)
    }

    /// Blocks this thread until it has passed.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn synchronize(&self) -> Result<()> {
        self.events.driver.synchronize(self.id)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.events.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}
