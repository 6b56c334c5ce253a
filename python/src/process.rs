//! Values that belong to one process: after `fork`, the child does not have their threads.

use crate::errors::exception;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;

/// A value that only the process that made it may use or drop.
pub(crate) struct Own<T: Send> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T: Send> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value, or an error after `fork`.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        check(py, self.process).map(|()| &*self.value)
    }
}

/// Returns an error if this process is not `process` but a child of it.
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
        // A forked child does not drop the value: that would wait for threads that the child does not have.
        if self.process == std::process::id() {
            // Dropping may wait for threads, so it must not hold the interpreter's lock.
            let value = &mut self.value;
            // SAFETY: dropped here only, and not used after.
            let mut end = move || unsafe { ManuallyDrop::drop(value) };
            if Python::try_attach(|py| py.detach(&mut end)).is_none() {
                end(); // the interpreter has finished
            }
        }
    }
}
