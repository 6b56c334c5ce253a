//! The error type of all crates.

use crate::{SampleId, hide_urls};
use serde::{Deserialize, Serialize};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// `Result` with feedstock's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`]. Serialized in snake case: `bad_sample`.
///
/// ```
/// use feedstock_base::{Error, ErrorKind};
///
/// let failures = [Error::new(ErrorKind::Retryable, "a.tar: HTTP 503"), Error::new(ErrorKind::Gone, "b.tar: HTTP 404")];
/// let (again, given_up): (Vec<_>, Vec<_>) = failures.iter().partition(|error| error.kind() == ErrorKind::Retryable);
/// assert_eq!(again[0].message(), "a.tar: HTTP 503");
/// assert_eq!(given_up[0].message(), "b.tar: HTTP 404");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The same call may succeed later: time-outs, throttling, broken connections.
    Retryable,
    /// One sample is unusable; the rest of the data set is fine.
    BadSample,
    /// An option, filter, URI, chain or data set is invalid; the message names it and the limit.
    BadConfig,
    /// The storage denied access: credentials or permissions.
    Denied,
    /// The object does not exist, or is not the object that the catalog was built from.
    Gone,
    /// A defect in feedstock.
    Bug,
}

/// What failed, where (URI, block, sample, op) and what to do about it.
///
/// Cheap to clone, so that every waiter on one failed block gets the same error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    sample: Option<SampleContext>,
    /// The bytes of an object are damaged; reading them again would not help.
    is_damage: bool,
}

/// The sample that an error is about, for programs. The message states the same in words.
///
/// ```
/// use feedstock_base::{Error, SampleContext, SampleId};
///
/// let uri = "s3://bucket/train-0042.parquet".to_owned();
/// let about = SampleContext { sample: SampleId(17), uri, column: Some("image".into()) };
/// let error = Error::bad_sample("the JPEG header is missing").with_sample(about);
/// let bad = error.sample_context().unwrap();
/// assert_eq!((bad.sample, bad.column.as_deref()), (SampleId(17), Some("image")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleContext {
    /// The sample.
    pub sample: SampleId,
    /// The URI of the stored object that holds it.
    pub uri: String,
    /// The column whose value is unusable; `None` if the error is not about one column.
    pub column: Option<String>,
}

impl Error {
    /// Creates an error of `kind`. The message states what failed, where, the limit and the next step. Queries and passwords of
    /// http(s) URLs in it are replaced by `***`, and control characters, which names in damaged files have, by their
    /// escapes.
    ///
    /// ```
    /// use feedstock_base::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Denied, "https://user:pw@h.example/a.tar?sig=1f: HTTP 403");
    /// assert_eq!(error.message(), "https://***@h.example/a.tar?***: HTTP 403");
    /// assert_eq!(Error::damage("a.tar: the size of \u{1b}[2J").message(), "a.tar: the size of \\u{1b}[2J");
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = cleaned(&message.into());
        Self(Arc::new(Inner { kind, message, source: None, sample: None, is_damage: false }))
    }

    /// Creates an error of kind [`BadSample`](ErrorKind::BadSample).
    pub fn bad_sample(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadSample, message)
    }

    /// Creates an error of kind [`BadConfig`](ErrorKind::BadConfig).
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadConfig, message)
    }

    /// Creates an error of kind [`Bug`](ErrorKind::Bug).
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// Creates the error for an object whose bytes are damaged, of kind [`BadConfig`](ErrorKind::BadConfig). A data set that is
    /// opened with `bad_shards="skip"` leaves out only objects with such errors.
    ///
    /// ```
    /// use feedstock_base::{Error, ErrorKind};
    ///
    /// let error = Error::damage("x.tar: the archive ends inside a file");
    /// assert!(error.is_damage() && !Error::config("x.tar is not a tar").is_damage());
    /// assert_eq!(error.kind(), ErrorKind::BadConfig);
    /// ```
    pub fn damage(message: impl Into<String>) -> Self {
        Self::config(message).with(|inner| inner.is_damage = true)
    }

    /// Returns the same error, caused by `source`.
    ///
    /// ```
    /// use feedstock_base::{Error, ErrorKind};
    ///
    /// let cause = std::io::Error::other("connection reset");
    /// let error = Error::new(ErrorKind::Retryable, "cannot read a.tar").with_source(cause);
    /// assert_eq!(error.to_string(), "cannot read a.tar");
    /// assert_eq!(format!("{error:?}"), "Retryable: cannot read a.tar (caused by: connection reset)");
    /// ```
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }

    /// Returns the same error with the sample that it is about.
    #[must_use]
    pub fn with_sample(self, sample: SampleContext) -> Self {
        self.with(|inner| inner.sample = Some(sample))
    }

    /// Returns the same error with `context` before its message, as in `shard x.tar: …`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        self.with(|inner| inner.message = cleaned(&format!("{context}: {}", inner.message)))
    }

    /// Returns the same error with `more` after its message.
    ///
    /// ```
    /// let error = feedstock_base::Error::config("batch_size must be at least 1; got 0");
    /// let error = error.with_note(" (from --batch-size)").context("train.toml");
    /// assert_eq!(error.message(), "train.toml: batch_size must be at least 1; got 0 (from --batch-size)");
    /// ```
    #[must_use]
    pub fn with_note(self, more: &str) -> Self {
        self.with(|inner| inner.message.push_str(&cleaned(more)))
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Returns what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message without its sources.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the sample that the error is about, if any.
    pub fn sample_context(&self) -> Option<&SampleContext> {
        self.0.sample.as_ref()
    }

    /// Returns true for an error that [`damage`](Self::damage) created.
    pub fn is_damage(&self) -> bool {
        self.0.is_damage
    }
}

/// Returns a message without secrets and without control characters, which could change how a terminal shows it.
fn cleaned(message: &str) -> String {
    let is_hidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    let message = hide_urls(message);
    if !message.contains(is_hidden) {
        return message;
    }
    let mut shown = String::with_capacity(message.len());
    for c in message.chars() {
        match is_hidden(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_keeps_the_rest() {
        let sample = SampleContext { sample: SampleId(3), uri: "s3://b/x.tar".into(), column: None };
        let error = Error::damage("it is cut off")
            .with_source(std::io::Error::other("the end"))
            .with_sample(sample.clone())
            .context("x.tar")
            .with_note("; copy it again");
        assert_eq!(error.to_string(), "x.tar: it is cut off; copy it again");
        assert_eq!((error.kind(), error.is_damage()), (ErrorKind::BadConfig, true));
        assert_eq!(error.source().unwrap().to_string(), "the end");
        assert_eq!(error.sample_context(), Some(&sample));
        assert_eq!(
            format!("{error:?}"),
            "BadConfig: x.tar: it is cut off; copy it again (caused by: the end)"
        );
    }

    #[test]
    fn no_message_shows_a_signature() {
        let error = Error::config("http://h/x?sig=1").context("https://u:p@h/y");
        assert_eq!(error.message(), "https://***@h/y: http://h/x?***");
    }
}
