//! Drops memory once the device no longer uses it, on a separate thread, so that no trainer waits.

use super::events::Event;
use crate::driver::Driver;
use feedstock_base::{Error, ErrorKind, Result};
use std::any::Any;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end of a run waits for the device to finish: longer than many steps of any trainer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Waits at most `patience` until a thread has ended, and returns whether it has. The thread may wait for a stream of the
/// caller, which may be stuck. If it has not ended, it continues in the background.
pub fn join_within(thread: JoinHandle<()>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let _panicked = thread.join(); // the panic was reported already
    true
}

/// A value that is kept until events have passed.
pub struct Kept {
    /// The events to wait for.
    pub until: Vec<Arc<Event>>,
    /// The value to drop after them.
    pub what: Box<dyn Any + Send>,
}

/// Sends values to the thread, which ends once this is dropped and nothing is kept.
pub struct Reaper(Sender<Kept>);

impl Reaper {
    pub(crate) fn start(driver: Arc<dyn Driver>) -> Result<(Self, JoinHandle<()>)> {
        let (send, receive) = channel();
        let thread = std::thread::Builder::new()
            .name("feedstock-reaper".into())
            .spawn(move || reap(driver.as_ref(), &receive))
            .map_err(|e| Error::new(ErrorKind::Retryable, format!("cannot start a thread: {e}")))?;
        Ok((Self(send), thread))
    }

    /// Keeps a value until its events have passed. Events pass in about the order of these calls, so waiting for one value at a
    /// time delays little.
    pub fn keep(&self, kept: Kept) {
        if let Err(unsent) = self.0.send(kept) {
            // Without the thread, nothing can determine when it may be dropped.
            std::mem::forget(unsent.0);
        }
    }
}

fn reap(driver: &dyn Driver, receive: &Receiver<Kept>) {
    let mut told = false;
    if let Err(error) = driver.adopt_thread() {
        tracing::error!("the thread that frees batches cannot use the device: {error}");
    }
    for Kept { until, what } in receive {
        for event in &until {
            if let Err(error) = event.synchronize()
                && !std::mem::replace(&mut told, true)
            {
                // A failed device copies nothing any more. The stage's next call reports it to the caller.
                tracing::error!("waiting for the device failed: {error}");
            }
        }
        drop(until); // idle again before dropping `what` can start more work
        drop(what);
    }
}

/// A run's thread, which ends with its last buffer. It is dropped after the run, and then waits for the thread. So memory is
/// free when the run has ended, and no thread is in the driver when the process exits. It does not wait for batches that the
/// caller still has.
pub struct Reaping {
    thread: Option<JoinHandle<()>>,
    buffers: Weak<dyn Any + Send + Sync>,
}

impl Reaping {
    pub(crate) fn new(thread: JoinHandle<()>, buffers: Weak<dyn Any + Send + Sync>) -> Self {
        Self { thread: Some(thread), buffers }
    }
}

impl Drop for Reaping {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| self.buffers.strong_count() == 0) else { return };
        if !join_within(thread, PATIENCE) {
            tracing::warn!(
                "the device still uses a run's memory {PATIENCE:?} after its end; it is freed later"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_behind_a_stuck_stream_is_not_waited_for_without_end() {
        let (stuck, stream) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ended = stream.recv();
        });
        let begun = Instant::now();
        assert!(!join_within(thread, Duration::from_millis(20)));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        drop(stuck);
        assert!(join_within(std::thread::spawn(|| {}), PATIENCE));
    }
}
