//! Errors and panics as Python's exceptions (`feedstock/errors.py`).

use feedstock::SampleContext;
use feedstock::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The longest time until Ctrl-C is noticed.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Runs `f` without the interpreter's lock. Errors and panics become exceptions, and log messages are passed on.
pub(crate) fn call<T: Send>(py: Python<'_>, f: impl FnOnce() -> feedstock::Result<T> + Send) -> PyResult<T> {
    let done = py.detach(|| catch(f));
    crate::log::flush(py);
    done.map_err(|error| raise(py, &error))
}

/// Like [`call`], for calls that may take long. It responds to Ctrl-C; the call then runs to its end in the background.
pub(crate) fn call_long<T: Send + 'static>(
    py: Python<'_>,
    f: impl FnOnce() -> feedstock::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = sync_channel(1);
    let work = move || {
        let _abandoned = send.send(catch(f)); // after Ctrl-C
    };
    let started = std::thread::Builder::new().name("feedstock-call".into()).spawn(work);
    started
        .map_err(|e| raise(py, &Error::new(ErrorKind::Retryable, format!("cannot start a thread: {e}"))))?;
    // Only the lock that a receiver needs to be shared with the closure below.
    let receive = Mutex::new(receive);
    loop {
        let wait = || receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS_EVERY);
        match py.detach(wait) {
            Ok(done) => {
                crate::log::flush(py);
                return done.map_err(|error| raise(py, &error));
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raise(py, &Error::new(ErrorKind::Bug, "a call ended without a result")));
            }
        }
    }
}

fn catch<T>(f: impl FnOnce() -> feedstock::Result<T>) -> feedstock::Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::new(ErrorKind::Bug, format!("a defect in feedstock, please report it: {what}")))
    })
}

/// Returns the exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Retryable => "RetryableError",
        ErrorKind::BadSample => "SampleError",
        ErrorKind::BadConfig => "ConfigError",
        ErrorKind::Denied => "DeniedError",
        ErrorKind::Gone => "GoneError",
        ErrorKind::Bug => "InternalError",
    };
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    let raised = exception(py, class, in_python(message));
    match error.sample_context().map(|sample| attach(py, &raised, sample)) {
        Some(Err(failed)) => failed,
        Some(Ok(())) | None => raised,
    }
}

/// Sets an exception's attributes that name its sample.
fn attach(py: Python<'_>, raised: &PyErr, sample: &SampleContext) -> PyResult<()> {
    let value = raised.value(py);
    value.setattr("sample_id", sample.sample.0)?;
    value.setattr("uri", &sample.uri)?;
    value.setattr("column", sample.column.as_deref())
}

/// Rust's spellings in the library's messages, and Python's.
const SPELLINGS: [(&str, &str); 10] = [
    ("Dataset::", "Dataset."),
    ("Pipeline::", "Pipeline."),
    ("Loader::", "Loader."),
    ("Batch::", "Batch."),
    (" with map_as", " with map(..., output=...)"),
    (" (Plan::regrouped_as)", ""),
    ("on_error=skip", "on_error=\"skip\""),
    ("on_change=next_epoch", "on_change=\"next_epoch\""),
    ("on_change=remap", "on_change=\"remap\""),
    ("on_error=raise", "on_error=\"raise\""),
];

/// Returns a message of the library in Python's spellings.
pub(crate) fn in_python(message: String) -> String {
    SPELLINGS.iter().fold(message, |message, (rust, python)| match message.contains(rust) {
        true => message.replace(rust, python),
        false => message,
    })
}

/// Returns an exception of the package, by its name.
pub(crate) fn exception(py: Python<'_>, class: &str, message: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || PyModule::import(py, "feedstock.errors").map(Bound::unbind));
    let made = module.and_then(|module| module.bind(py).getattr(class)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns a `ConfigError`.
pub(crate) fn config(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "ConfigError", message.into())
}
