//! The one error of this crate.

use feedstock_dataset as dataset;
use feedstock_ops as ops;
use std::error::Error as StdError;
use std::fmt;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use dataset::ErrorKind;

/// What failed while a plan ran, and where.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

#[derive(Debug, Clone)]
enum Source {
    Dataset(dataset::Error),
    Ops(ops::Error),
}

impl Error {
    /// An error of `kind`; the message says what, which, the limit and the next step.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A sample's error, told with the sample's name and what to do.
    pub fn sample(what: &str, cause: ops::Error) -> Self {
        Self { kind: kind_of(&cause), message: format!("{what}: {cause}"), source: Some(Source::Ops(cause)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.source.as_ref()? {
            Source::Dataset(e) => e.source(),
            Source::Ops(e) => e.source(),
        }
    }
}

impl From<dataset::Error> for Error {
    fn from(e: dataset::Error) -> Self {
        Self { kind: e.kind(), message: e.to_string(), source: Some(Source::Dataset(e)) }
    }
}

impl From<ops::Error> for Error {
    fn from(e: ops::Error) -> Self {
        Self { kind: kind_of(&e), message: e.to_string(), source: Some(Source::Ops(e)) }
    }
}

fn kind_of(e: &ops::Error) -> ErrorKind {
    match e.kind() {
        ops::ErrorKind::BadSample => ErrorKind::BadSample,
        ops::ErrorKind::BadConfig => ErrorKind::BadConfig,
        ops::ErrorKind::Bug => ErrorKind::Bug,
    }
}
