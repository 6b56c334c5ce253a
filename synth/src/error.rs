//! The one error of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An option or the target folder does not fit; the message says which and the limit.
    BadConfig,
    /// The file system refused: disk full, no permission.
    Storage,
    /// A defect in feedstock.
    Bug,
}

/// What failed, where and what to do about it.
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

    /// `path` could not be written; the message carries the system's own words and, for a full disk, what to do.
    pub(crate) fn write(path: &Path, cause: std::io::Error) -> Self {
        let advice = match cause.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "; the folder is incomplete: free some space, or ask for fewer samples, and run again with force"
            }
            _ => "",
        };
        let message = format!("cannot write {}: {cause}{advice}", path.display());
        Self { kind: ErrorKind::Storage, message, source: Some(Box::new(cause)) }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without its sources.
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
