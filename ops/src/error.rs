//! The one error of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The encoded bytes of one sample are unusable; other samples are fine.
    BadSample,
    /// The chain's description does not fit; the message names the op and the reason.
    BadConfig,
    /// A defect in feedstock.
    Bug,
}

/// What failed, in which op, and what to do about it. Whoever knows the sample's URI and id adds them with
/// [`Error::context`].
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` whose message says what, which, the limit and the next step.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same error, caused by `source`.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            source: Some(Arc::new(source)),
        }))
    }

    /// The same error with `context` before its message, as in `sample 17: …`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self(Arc::new(Inner {
            kind: self.0.kind,
            message: format!("{context}: {}", self.0.message),
            source: self.0.source.clone(),
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

    pub(crate) fn sample(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadSample, message)
    }

    #[cfg_attr(
        not(any(feature = "image", feature = "audio", feature = "text")),
        expect(dead_code, reason = "no op needs it")
    )]
    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadConfig, message)
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
