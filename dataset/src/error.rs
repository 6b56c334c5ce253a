//! The one error of this crate.

use crate::storage::hide_urls;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The same call may succeed later: time-outs, throttling, broken connections.
    Retryable,
    /// One sample is unusable; the rest of the data set is fine.
    BadSample,
    /// An option, a filter, a URI or a data set does not fit; the message says which and the limit.
    BadConfig,
    /// The storage refuses: credentials, permissions.
    Denied,
    /// The object is not there, or is not the object the catalog was built from.
    Gone,
    /// A defect in feedstock.
    Bug,
}

/// What failed, where (URI, block, sample) and what to do about it.
///
/// Cheap to clone, so that every waiter on one failed block gets the same error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// The bytes of an object are damaged; reading them again would not help.
    is_damage: bool,
}

impl Error {
    /// An error of `kind` whose message says what, which, the limit and the next step. Queries and passwords of http(s) URLs
    /// in it are replaced by `***`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: hide_urls(&message.into()), source: None, is_damage: false }))
    }

    /// The same error, caused by `source`.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            source: Some(Arc::new(source)),
            is_damage: self.0.is_damage,
        }))
    }

    /// The same error with `context` before its message, as in `shard x.tar: …`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message: hide_urls(&format!("{context}: {}", self.0.message)),
            source: self.0.source.clone(),
            is_damage: self.0.is_damage,
        }))
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without its sources.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadConfig, message)
    }

    /// The error of an object whose bytes are damaged, of kind [`BadConfig`](ErrorKind::BadConfig). Only such errors are
    /// skipped by [`BadShards::Skip`](crate::BadShards::Skip).
    pub(crate) fn damage(message: impl Into<String>) -> Self {
        let kind = ErrorKind::BadConfig;
        Self(Arc::new(Inner { kind, message: hide_urls(&message.into()), source: None, is_damage: true }))
    }

    /// Returns true for an error of [`damage`](Self::damage).
    pub(crate) fn is_damage(&self) -> bool {
        self.0.is_damage
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, " (caused by: {source})")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
