//! The error type of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an [`Error`]: what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An option or the target folder is wrong; the message names it and its limit.
    BadConfig,
    /// The file system failed: disk full, or no permission.
    Storage,
    /// A defect in feedstock.
    Bug,
}

/// An error: what failed, where, and what to do about it.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadConfig, message)
    }

    /// Returns the error for a failed write of `path`. The message holds the system's own text and, for a full disk,
    /// what to do.
    pub(crate) fn write(path: &Path, cause: std::io::Error) -> Self {
        let advice = match cause.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; the folder is incomplete: free some space, or request fewer samples, and run again with force"
            }
            _ => "",
        };
        let message = format!("cannot write {}: {cause}{advice}", path.display());
        Self { kind: ErrorKind::Storage, message, source: Some(Box::new(cause)) }
    }

    /// Returns what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message without its sources.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
