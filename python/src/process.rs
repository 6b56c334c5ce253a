//! What belongs to one process: after `fork` the threads behind it are gone in the child.

use crate::errors::exception;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;

/// A value that only the process that made it may touch, or drop.
pub(crate) struct Own<T: Send> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T: Send> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// The value, or an error after `fork`.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        check(py, self.process).map(|()| &*self.value)
    }
}

/// An error where this is not the process of that number, but a child of it.
pub(crate) fn check(py: Python<'_>, process: u32) -> PyResult<()> {
    match process == std::process::id() {
        true => Ok(()),
        false => Err(exception(
            py,
            "ForkError",
            format!(
                "this was opened in process {process} and is used in process {} after fork(), where its threads (and its \
                 device) do not exist; open the Dataset and make the Loader in the process that uses them (or pickle the \
                 Pipeline to it), or start processes with the 'spawn' or 'forkserver' method",
                std::process::id()
            ),
        )),
    }
}

impl<T: Send> Drop for Own<T> {
    fn drop(&mut self) {
        // In a forked child the value is left alone: to end it would wait for threads that are not there.
        if self.process == std::process::id() {
            // It may wait for threads: not while all of Python waits for it.
            let value = &mut self.value;
            // SAFETY: dropped here only, and not used after.
            let mut end = move || unsafe { ManuallyDrop::drop(value) };
            if Python::try_attach(|py| py.detach(&mut end)).is_none() {
                end(); // the interpreter has ended
            }
        }
    }
}
