//! What the library has to say goes to Python's `logging`, under the logger `feedstock`.
//!
//! It is said on any thread, and told when the next call into the library returns: a thread that waited for the
//! interpreter's lock to log could be waited for by the lock's holder.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Messages kept for the next call; more are only counted, since nobody would read them.
const MOST: usize = 256;

static SAID: Mutex<Said> = Mutex::new(Said { messages: VecDeque::new(), dropped: 0 });

struct Said {
    messages: VecDeque<(u8, String)>,
    dropped: u64,
}

fn said() -> MutexGuard<'static, Said> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner) // messages are stored whole
}

/// Listens from now on, unless the process has a listener of its own.
pub(crate) fn listen() {
    let _ = tracing::subscriber::set_global_default(Listener);
}

/// Hands what was said to `logging`. What fails there is reported, and does not undo the call that it follows.
pub(crate) fn tell(py: Python<'_>) {
    let (messages, dropped) = {
        let mut said = said();
        if said.messages.is_empty() {
            return;
        }
        (std::mem::take(&mut said.messages), std::mem::take(&mut said.dropped))
    };
    let Err(error) = hand_on(py, messages, dropped) else { return };
    match error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: the interpreter's lock is held; raised again where signals are looked at next.
        true => unsafe { pyo3::ffi::PyErr_SetInterrupt() },
        false => error.write_unraisable(py, None),
    }
}

fn hand_on(py: Python<'_>, messages: VecDeque<(u8, String)>, dropped: u64) -> PyResult<()> {
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
        Id::from_u64(1) // spans are not listened to
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
        let mut said = said();
        match said.messages.len() < MOST {
            true => said.messages.push_back((level, format!("{}{}", text.message, text.fields))),
            false => said.dropped += 1,
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
