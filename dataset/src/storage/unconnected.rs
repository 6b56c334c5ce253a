//! A failure to connect, as an error within those of the HTTP client. It names the host, which object_store's errors do not, and
//! what to change.

use object_store::client::HttpError;
use std::error::Error as StdError;
use std::{fmt, io};
use tokio_rustls::rustls;
use url::Url;

/// A failure to connect.
#[derive(Debug)]
pub(super) struct Unconnected {
    message: String,
    /// Whether another attempt will fail in the same way, unless a connection was made before.
    pub(super) is_permanent: bool,
    source: HttpError,
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Unconnected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.source)
    }
}

impl Unconnected {
    /// Describes the failure `source` to connect to the host of `url`.
    pub(super) fn new(url: &Url, source: HttpError) -> Self {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().map_or(String::new(), |port| format!(":{port}"));
        let tls = causes(&source).find_map(tls_error);
        let why =
            tls.map_or_else(|| causes(&source).last().map(ToString::to_string), |tls| Some(tls.to_string()));
        let (why, advice) = (why.unwrap_or_default(), tls.map_or("", advice));
        let message = format!("cannot connect to {host}{port}: {why}{advice}");
        let is_permanent = tls.is_some_and(is_permanent);
        Self { message, is_permanent, source }
    }

    /// Returns the failure to connect that caused `error`, if one did.
    pub(super) fn within<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        causes(error).find_map(|cause| cause.downcast_ref())
    }
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// An `io::Error` that wraps another error is not followed by it among the causes, but by its cause.
fn tls_error<'a>(cause: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = cause.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
    match wrapped {
        Some(wrapped) => wrapped
            .downcast_ref::<io::Error>()
            .map_or_else(|| wrapped.downcast_ref(), |inner| tls_error(inner)),
        None => cause.downcast_ref(),
    }
}

fn is_permanent(error: &rustls::Error) -> bool {
    use rustls::{Error as E, InvalidMessage};
    matches!(error, E::InvalidCertificate(_) | E::InvalidMessage(InvalidMessage::InvalidContentType))
}

/// What to change, where the message of the error does not state it.
fn advice(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError, Error as E, InvalidMessage};
    match error {
        E::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "; add the certificate of its authority to those that this machine trusts (update-ca-certificates)"
        }
        E::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "; the server does not use TLS at this port: write http:// instead of https://"
        }
        _ => "",
    }
}
