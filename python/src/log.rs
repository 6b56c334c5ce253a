//! Sends the library's log messages to Python's `logging`, to the logger `feedstock`.
//!
//! Any thread may log. Messages are kept until the next call into the library returns: a thread that waited for the
//! interpreter's lock in order to log could deadlock with a lock holder that waits for the thread.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Messages kept for the next call. Further ones are only counted. Two calls are at most seconds apart while a loader is
/// used, so 256 messages are more than a person reads.
const MOST: usize = 256;

static KEPT: Mutex<Kept> = Mutex::new(Kept { messages: VecDeque::new(), dropped: 0 });

struct Kept {
    messages: VecDeque<(u8, String)>,
    dropped: u64,
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner) // messages are stored whole
}

/// Installs the listener, unless the process has another one.
pub(crate) fn listen() {
    let _ = tracing::subscriber::set_global_default(Listener);
}

/// Passes the messages to `logging`. A failure there is reported and does not undo the call that logged.
pub(crate) fn flush(py: Python<'_>) {
    let (messages, dropped) = {
        let mut kept = kept();
        if kept.messages.is_empty() {
            return;
        }
        (std::mem::take(&mut kept.messages), std::mem::take(&mut kept.dropped))
    };
    let Err(error) = pass_on(py, messages, dropped) else { return };
    match error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: the interpreter's lock is held. Python raises it again when it next checks signals.
        true => unsafe { pyo3::ffi::PyErr_SetInterrupt() },
        false => error.write_unraisable(py, None),
    }
}

fn pass_on(py: Python<'_>, messages: VecDeque<(u8, String)>, dropped: u64) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("feedstock",))?;
    for (level, message) in messages {
        logger.call_method1("log", (level, "%s", message))?;
    }
    if dropped > 0 {
        logger.call_method1("warning", ("%d more messages were left out", dropped))?;
    }
    Ok(())
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("feedstock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // spans are ignored
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20, // logging.INFO
        };
        let mut kept = kept();
        match kept.messages.len() < MOST {
            true => kept.messages.push_back((level, format!("{}{}", text.message, text.fields))),
            false => kept.dropped += 1,
        }
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        }; // writing to a string does not fail
    }
}
