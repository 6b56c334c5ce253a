//! Errors of CUDA's driver and libraries.

use feedstock_base::{Error, ErrorKind};

/// Returns the error for a failed call: `what` was tried, and the driver reported `says`.
pub(super) fn fault(what: &str, says: impl std::fmt::Display) -> Error {
    let message = format!(
        "{what}: {says}; if an earlier kernel of the program failed, this is its error, else the device or its driver has \
         failed: restart the process from its checkpoint"
    );
    Error::new(ErrorKind::Retryable, message)
}
