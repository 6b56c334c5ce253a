//! Events, reused.

use crate::driver::Driver;
use crate::handles::{EventId, StreamId};
use feedstock_base::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A device's idle events. A wait holds what was marked when it was asked for, so an event may be marked anew at once.
pub(crate) struct Events {
    driver: Arc<dyn Driver>,
    idle: Mutex<Vec<EventId>>,
}

impl Events {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, idle: Mutex::default() })
    }

    /// A mark behind all that `stream` has so far.
    pub(crate) fn mark(self: &Arc<Self>, stream: StreamId) -> Result<Event> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let id = idle.map_or_else(|| self.driver.new_event(), Ok)?;
        let event = Event { events: self.clone(), id };
        self.driver.record(id, stream)?;
        Ok(event)
    }

    /// As [`mark`](Self::mark), of a stream of the caller's.
    ///
    /// # Errors
    /// `BadConfig` where the stream is being captured: then nothing marks when its work has run.
    pub(crate) fn mark_user(self: &Arc<Self>, stream: StreamId) -> Result<Event> {
        if self.driver.is_capturing(stream)? {
            let message = "a batch was let go, or replaced, while a graph was captured on a stream that uses it; take and drop \
                           batches outside of captures, and ask for fixed addresses";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        self.mark(stream)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in self.idle.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: idle ones belong to nobody else.
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
    /// `stream` goes on behind it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn hold_back(&self, stream: StreamId) -> Result<()> {
        self.events.driver.wait(stream, self.id)
    }

    /// Waits for it on this thread.
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
