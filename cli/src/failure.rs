//! Errors of subcommands and their exit codes.

use feedstock_dataset::{Error, ErrorKind, hide_urls};
use feedstock_synth as synth;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

/// Why a subcommand ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error to be printed.
    Told {
        /// The exit code; see the list in `feedstock --help`.
        code: u8,
        /// One sentence: what happened, where, the limit, what to do.
        message: String,
    },
    /// The reader of standard output closed it. This is not an error, and nothing is printed.
    ReaderLeft,
}

/// The result of a subcommand.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

const BUG: u8 = 1;
pub(crate) const BAD_CONFIG: u8 = 2;
const DENIED: u8 = 3;
const GONE: u8 = 4;
const BAD_SAMPLE: u8 = 5;
const RETRYABLE: u8 = 6;

impl Failure {
    /// An option is wrong.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::Told { code: BAD_CONFIG, message: hide_urls(&message.into()) }
    }

    /// A defect in feedstock.
    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::Told { code: BUG, message: message.into() }
    }

    /// Samples are unusable.
    pub(crate) fn sample(message: impl Into<String>) -> Self {
        Self::Told { code: BAD_SAMPLE, message: message.into() }
    }

    /// A failure that may pass when the command is repeated.
    pub(crate) fn retry(message: impl Into<String>) -> Self {
        Self::Told { code: RETRYABLE, message: message.into() }
    }

    /// A local file could not be written.
    pub(crate) fn write(path: &std::path::Path, cause: &io::Error) -> Self {
        let advice = match cause.kind() {
            io::ErrorKind::NotFound => "; create its folder, or name another file",
            io::ErrorKind::IsADirectory => "; name a file in it",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; free some space, or name another file"
            }
            _ => "",
        };
        let message = format!("cannot write {}: {cause}{advice}", path.display());
        Self::Told { code: code_of(cause), message }
    }

    fn told(code: u8, error: &dyn StdError) -> Self {
        Self::Told { code, message: with_causes(error) }
    }
}

/// Returns the exit code for a local file that could not be written.
fn code_of(cause: &io::Error) -> u8 {
    match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => DENIED,
        // A retry does not help before someone makes room.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BAD_CONFIG,
        io::ErrorKind::NotFound
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::NotADirectory => BAD_CONFIG,
        _ => RETRYABLE,
    }
}

/// Parses a path on this machine. A URL would otherwise become a folder named `s3:`.
pub(crate) fn local_path(text: &str) -> Result<PathBuf, String> {
    match text.split_once("://") {
        Some((scheme, _)) => Err(format!(
            "must be a path on this machine; got the {scheme} URL {text}: write to a local path and copy the result there"
        )),
        None => Ok(PathBuf::from(text)),
    }
}

/// Returns the message with those causes that it does not contain already.
fn with_causes(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !message.contains(&words) {
            let _infallible = write!(message, ": {words}");
        }
        cause = error.source();
    }
    message
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderLeft,
            _ => Self::Told {
                code: code_of(&error),
                message: format!("cannot write to standard output: {error}"),
            },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::BadConfig => BAD_CONFIG,
            ErrorKind::Denied => DENIED,
            ErrorKind::Gone => GONE,
            ErrorKind::BadSample => BAD_SAMPLE,
            ErrorKind::Retryable => RETRYABLE,
            ErrorKind::Bug => BUG,
        };
        Self::told(code, &error)
    }
}

impl From<synth::Error> for Failure {
    fn from(error: synth::Error) -> Self {
        let code = match error.kind() {
            synth::ErrorKind::BadConfig => BAD_CONFIG,
            synth::ErrorKind::Storage => {
                error.source().and_then(|cause| cause.downcast_ref()).map_or(RETRYABLE, code_of)
            }
            synth::ErrorKind::Bug => BUG,
        };
        Self::told(code, &error)
    }
}
