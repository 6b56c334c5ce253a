//! Judges a failed attempt: retry, slow down, or give up with which error.

use super::credentials::is_renewal;
use super::observe::Answer;
use super::progress::LEAST_BYTES_PER_S;
use super::refused::Refused;
use super::secret::Cleaner;
use super::unconnected::Unconnected;
use crate::{Error, ErrorKind};
use std::error::Error as StdError;
use std::io;
use std::ops::Range;
use std::time::Duration;

/// A failed attempt, as reported by the store's library or our own checks.
#[derive(Debug)]
pub(crate) enum Fault {
    Store(object_store::Error),
    Io(io::Error),
    /// The answer ended early or was too long.
    Length {
        expected: u64,
        got: u64,
    },
    /// The answer has other bytes than those requested.
    Range {
        asked: Range<u64>,
        got: Range<u64>,
    },
    /// The rest of a range came without the ETag of its beginning.
    Unversioned,
    /// There was no complete answer within this time.
    Stalled(Duration),
    /// A body brought this many bytes in this time, below the minimum rate.
    Slow {
        bytes: u64,
        window: Duration,
    },
    /// The operation's time ended this long after the attempt began.
    Unfinished(Duration),
    /// The object is not the one that the catalog saw.
    Changed(String),
    /// A failure that is not retried; the message states why.
    Refused(String),
}

impl From<object_store::Error> for Fault {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What the retry loop does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The store requests a lower rate.
    Throttled,
    /// A passing fault.
    Transient,
    Missing,
    /// There is no such bucket, container or host folder.
    NoStore,
    Changed,
    Denied,
    /// Rejected by feedstock, not by the store.
    Forbidden,
    NoCredentials,
    /// No connection was made, for a reason that remains unless connections were made before.
    Unconnected,
    Exists,
    Config,
}

impl Verdict {
    /// Judges `fault` by its type, the HTTP answer and the store's own error code.
    pub(crate) fn of(fault: &Fault, answer: Answer) -> Self {
        match fault {
            Fault::Store(error) => store_verdict(error, answer, &chain(error)),
            Fault::Io(error) => io_verdict(error),
            Fault::Length { .. }
            | Fault::Range { .. }
            | Fault::Unversioned
            | Fault::Stalled(_)
            | Fault::Slow { .. }
            | Fault::Unfinished(_) => Self::Transient,
            Fault::Changed(_) => Self::Changed,
            Fault::Refused(_) => Self::Config,
        }
    }

    pub(crate) fn retryable(self) -> bool {
        matches!(self, Self::Throttled | Self::Transient)
    }

    fn kind(self) -> ErrorKind {
        match self {
            Self::Throttled | Self::Transient => ErrorKind::Retryable,
            Self::Missing | Self::NoStore | Self::Changed => ErrorKind::Gone,
            Self::Denied | Self::Forbidden | Self::NoCredentials => ErrorKind::Denied,
            Self::Unconnected | Self::Exists | Self::Config => ErrorKind::BadConfig,
        }
    }
}

/// A judged failure; its cause is safe to print.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) verdict: Verdict,
    pub(crate) cause: String,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(verdict: Verdict, cause: impl Into<String>) -> Self {
        Self { verdict, cause: cause.into(), retry_after: None }
    }

    /// Judges `fault`, as [`Verdict::of`] does, and states its cause.
    pub(crate) fn judge(fault: &Fault, answer: Answer, cleaner: &Cleaner) -> Self {
        let retry_after = answer.retry_after.filter(|_| matches!(fault, Fault::Store(_)));
        let cause = match fault {
            Fault::Store(error) => store_cause(error, answer, cleaner),
            Fault::Io(error) => error.to_string(),
            Fault::Length { expected, got } => format!("the answer holds {got} bytes, not {expected}"),
            Fault::Range { asked, got } => format!(
                "the answer has bytes {}..{}, not {}..{}",
                got.start, got.end, asked.start, asked.end
            ),
            Fault::Unversioned => {
                "the rest of the range came without the ETag of its beginning, so it may be of another version".into()
            }
            Fault::Stalled(limit) => {
                format!("there was no complete answer within {:.1} s", limit.as_secs_f64())
            }
            Fault::Slow { bytes: 0, window } => format!("nothing arrived for {:.1} s", window.as_secs_f64()),
            Fault::Slow { bytes, window } => {
                let (least, window) = (LEAST_BYTES_PER_S >> 10, window.as_secs_f64());
                format!("{bytes} bytes arrived in {window:.1} s, below the minimum rate of {least} KiB/s")
            }
            Fault::Unfinished(after) => format!("it was not done after {:.1} s", after.as_secs_f64()),
            Fault::Changed(how) => how.clone(),
            Fault::Refused(why) => cleaner.clean(why),
        };
        Self { verdict: Verdict::of(fault, answer), cause, retry_after }
    }

    /// Returns the error for `what` (an object, a listing, with its URI). `tries` states the attempts and the time.
    pub(crate) fn into_error(self, what: &str, tries: Option<String>) -> Error {
        let cause = self.cause;
        let message = match self.verdict {
            Verdict::Throttled | Verdict::Transient => match tries {
                Some(tries) => format!("{what}: {tries}: {cause}"),
                None => format!("{what}: {cause}"),
            },
            Verdict::Missing => format!("{what}: the object does not exist ({cause})"),
            Verdict::NoStore => {
                format!("{what}: the bucket does not exist ({cause}); check its name, region and endpoint")
            }
            Verdict::Changed => format!(
                "{what}: the object changed since the catalog was built ({cause}); build the catalog again"
            ),
            Verdict::Denied => format!(
                "{what}: the storage denied access ({cause}); check the credentials and their permissions"
            ),
            Verdict::NoCredentials => format!(
                "{what}: no credentials were found ({cause}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
                 (or the cloud's own variables), or request anonymous access"
            ),
            Verdict::Exists => format!("{what}: the object exists already ({cause})"),
            Verdict::Forbidden | Verdict::Unconnected | Verdict::Config => format!("{what}: {cause}"),
        };
        Error::new(self.verdict.kind(), message)
    }
}

fn store_verdict(error: &object_store::Error, answer: Answer, text: &str) -> Verdict {
    use object_store::Error as E;
    if Refused::within(error).is_some() {
        return Verdict::Forbidden;
    }
    if is_renewal(error) {
        let is_refusal =
            matches!(answer.status, Some(400..=407 | 409..=428 | 430..=499)) && answer.for_credentials;
        return if is_refusal { Verdict::Denied } else { Verdict::Transient };
    }
    if answer.for_credentials || lacks_credentials(text) {
        return Verdict::NoCredentials;
    }
    if Unconnected::within(error).is_some_and(|failure| failure.is_permanent) {
        return Verdict::Unconnected;
    }
    let code = tag(text, "Code");
    match error {
        _ if matches!(code, Some("NoSuchBucket" | "ContainerNotFound")) => Verdict::NoStore,
        E::NotFound { .. } => Verdict::Missing,
        E::Precondition { .. } | E::NotModified { .. } => Verdict::Changed,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Verdict::Denied,
        // 409 on S3 may also mean "another conditional write is under way": that is temporary
        E::AlreadyExists { .. } if code == Some("ConditionalRequestConflict") => Verdict::Transient,
        E::AlreadyExists { .. } => Verdict::Exists,
        E::Generic { .. } | E::JoinError { .. } => judge_status(answer.status, code, text),
        _ => Verdict::Config,
    }
}

fn store_cause(error: &object_store::Error, answer: Answer, cleaner: &Cleaner) -> String {
    if let Some(refused) = Refused::within(error) {
        return cleaner.clean(&refused.to_string());
    }
    let cause = cause_text(error, &chain(error), answer, cleaner);
    match is_renewal(error) {
        true => format!("the credentials could not be renewed: {cause}"),
        false => cause,
    }
}

fn judge_status(status: Option<u16>, code: Option<&str>, text: &str) -> Verdict {
    match (status, code) {
        (_, Some("SlowDown" | "TooManyRequests" | "ServerBusy")) => Verdict::Throttled,
        (_, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) => Verdict::Denied,
        (_, Some("RequestTimeout" | "InternalError" | "OperationTimedOut")) => Verdict::Transient,
        (Some(429 | 503), _) => Verdict::Throttled,
        // 520 and above: a content network got no complete answer from its store
        (Some(408 | 425 | 500 | 502 | 504 | 520..=599), _) => Verdict::Transient,
        (Some(401 | 403), _) => Verdict::Denied,
        (Some(404 | 410), _) => Verdict::Missing,
        (Some(412 | 416), _) => Verdict::Changed,
        (Some(300..=499 | 501 | 505..=519), _) => Verdict::Config,
        _ if text.contains("non-partial response") => Verdict::Config,
        // a header arrived and the body broke, or no header arrived at all
        _ => Verdict::Transient,
    }
}

/// Returns the error of reading the local file `uri` without [`super::Storage`].
pub(crate) fn local_error(uri: &str, error: io::Error) -> Error {
    Failure::new(io_verdict(&error), error.to_string()).into_error(uri, None)
}

fn lacks_credentials(text: &str) -> bool {
    text.contains("Missing AccessKeyId")
        || text.contains("Missing SecretAccessKey")
        || text.contains("Could not find environment variable")
}

fn io_verdict(error: &io::Error) -> Verdict {
    use io::ErrorKind as K;
    /// `EIO`: a disk or a mounted file system did not answer a read.
    const EIO: i32 = 5;
    /// `ENFILE`, `EMFILE`: too many open files at this moment, in the machine or in the process.
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    /// `ESTALE`: a network file system lost its handle.
    const ESTALE: i32 = 116;
    match error.kind() {
        K::NotFound | K::NotADirectory => Verdict::Missing,
        K::PermissionDenied | K::ReadOnlyFilesystem => Verdict::Denied,
        K::AlreadyExists => Verdict::Exists,
        K::Interrupted
        | K::TimedOut
        | K::WouldBlock
        | K::ConnectionReset
        | K::StaleNetworkFileHandle
        | K::OutOfMemory => Verdict::Transient,
        _ if matches!(error.raw_os_error(), Some(EIO | ENFILE | EMFILE | ESTALE)) => Verdict::Transient,
        _ => Verdict::Config,
    }
}

/// Returns one line for the user: the status and the store's own code and message, else the innermost cause.
fn cause_text(error: &object_store::Error, text: &str, answer: Answer, cleaner: &Cleaner) -> String {
    let mut out = String::new();
    if let Some(status) = answer.status.filter(|s| *s >= 300) {
        out = format!("HTTP {status}");
    }
    for part in [tag(text, "Code"), tag(text, "Message")].into_iter().flatten() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(part);
    }
    if out.is_empty() {
        let last = Unconnected::within(error).map_or_else(|| innermost(error), ToString::to_string);
        out = if answer.for_credentials { format!("the machine's metadata service: {last}") } else { last };
    }
    cleaner.clean(&out)
}

fn innermost(error: &object_store::Error) -> String {
    let mut cause: &dyn StdError = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn chain(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause: &dyn StdError = error;
    while let Some(next) = cause.source() {
        let line = next.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = next;
    }
    text
}

/// Returns the content of the first `<name>…</name>` in an XML error body.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!("<{name}>"))? + name.len() + 2;
    let end = text[start..].find('<')? + start;
    Some(text[start..end].trim()).filter(|content| !content.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Fault {
        Fault::Store(object_store::Error::Generic { store: "S3", source: text.to_owned().into() })
    }

    fn verdict(fault: Fault, status: Option<u16>) -> Verdict {
        let answer = Answer { status, ..Answer::default() };
        Failure::judge(&fault, answer, &Cleaner::default()).verdict
    }

    #[test]
    fn statuses_are_judged() {
        for (status, expected) in [
            (503, Verdict::Throttled),
            (429, Verdict::Throttled),
            (500, Verdict::Transient),
            (502, Verdict::Transient),
            (504, Verdict::Transient),
            (416, Verdict::Changed),
            (301, Verdict::Config),
            (501, Verdict::Config),
            (520, Verdict::Transient),
            (524, Verdict::Transient),
        ] {
            assert_eq!(verdict(generic("x"), Some(status)), expected, "{status}");
        }
        assert_eq!(verdict(generic("connection reset"), None), Verdict::Transient);
        assert_eq!(verdict(generic("body broke"), Some(206)), Verdict::Transient);
        assert_eq!(verdict(generic("<Error><Code>ExpiredToken</Code></Error>"), Some(400)), Verdict::Denied);
        assert_eq!(verdict(generic("<Error><Code>NoSuchBucket</Code></Error>"), Some(404)), Verdict::NoStore);
    }

    #[test]
    fn passing_faults_of_files_are_tried_again() {
        for code in [5, 23, 24, 116] {
            assert_eq!(
                verdict(io::Error::from_raw_os_error(code).into(), None),
                Verdict::Transient,
                "{code}"
            );
        }
        assert_eq!(verdict(io::Error::from_raw_os_error(21).into(), None), Verdict::Config); // EISDIR
    }

    #[test]
    fn only_the_code_and_message_of_an_error_body_are_shown() {
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>\
                    <StringToSign>AWS4-HMAC</StringToSign></Error>";
        let answer = Answer { status: Some(403), ..Answer::default() };
        let failure = Failure::judge(&generic(body), answer, &Cleaner::default());
        assert_eq!(failure.cause, "HTTP 403 SignatureDoesNotMatch no");
    }
}
