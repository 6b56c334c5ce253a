//! The one error of this crate.

use dataset::SampleId;
use feedstock_dataset as dataset;
use feedstock_ops as ops;
use serde::{Deserialize, Serialize};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use dataset::ErrorKind;

/// What failed while a plan ran, and where.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
    sample: Option<Arc<SampleContext>>,
}

/// The sample that an error is about, for programs: the message states the same in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleContext {
    /// The sample.
    pub sample: SampleId,
    /// The URI of the stored object that holds it.
    pub uri: String,
    /// The column whose value is unusable; `None` if the error is not about one column.
    pub column: Option<String>,
}

#[derive(Debug, Clone)]
enum Source {
    Dataset(dataset::Error),
    Ops(ops::Error),
}

impl Error {
    /// An error of `kind`; the message says what, which, the limit and the next step. Queries and passwords of http(s) URLs in
    /// it are replaced by `***`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: dataset::hide_urls(&message.into()), source: None, sample: None }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A sample's error, told with the sample's name and what to do.
    pub fn sample(what: &str, cause: ops::Error) -> Self {
        let (kind, message) = (kind_of(&cause), format!("{what}: {cause}"));
        Self { kind, message, source: Some(Source::Ops(cause)), sample: None }
    }

    /// The same error with the sample that it is about.
    #[must_use]
    pub fn with_sample(mut self, sample: SampleContext) -> Self {
        self.sample = Some(Arc::new(sample));
        self
    }

    /// The same error with `more` after its message.
    #[must_use]
    pub fn with_note(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    /// The sample that it is about, if it is about one.
    pub fn sample_context(&self) -> Option<&SampleContext> {
        self.sample.as_deref()
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
        Self { kind: e.kind(), message: e.to_string(), source: Some(Source::Dataset(e)), sample: None }
    }
}

impl From<ops::Error> for Error {
    fn from(e: ops::Error) -> Self {
        Self { kind: kind_of(&e), message: e.to_string(), source: Some(Source::Ops(e)), sample: None }
    }
}

fn kind_of(e: &ops::Error) -> ErrorKind {
    match e.kind() {
        ops::ErrorKind::BadSample => ErrorKind::BadSample,
        ops::ErrorKind::BadConfig => ErrorKind::BadConfig,
        ops::ErrorKind::Bug => ErrorKind::Bug,
    }
}
