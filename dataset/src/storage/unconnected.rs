//! Describes why no connection was made, so that the message names the host and what to change.

use std::error::Error as StdError;
use std::io;
use tokio_rustls::rustls;

/// A failure to connect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unconnected {
    pub(super) cause: String,
    /// Whether another attempt will fail in the same way, unless a connection was made before.
    pub(super) is_permanent: bool,
}

impl Unconnected {
    /// Finds a failure to connect among the causes of `error`.
    pub(super) fn within(error: &(dyn StdError + 'static)) -> Option<Self> {
        let failed = causes(error).filter_map(|cause| cause.downcast_ref::<reqwest::Error>());
        let failed = failed.last().filter(|failed| failed.is_connect())?;
        let url = failed.url()?;
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let tls = causes(failed).find_map(tls_error);
        let why = match tls {
            Some(tls) => tls.to_string(),
            None => causes(failed).last()?.to_string(),
        };
        let advice = tls.map_or("", advice);
        let cause = format!("cannot connect to {host}:{port}: {why}{advice}");
        Some(Self { cause, is_permanent: tls.is_some_and(is_permanent) })
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

/// What to change, where the message of the error does not tell.
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
