//! Who may talk to whom: bearer tokens and TLS.
//!
//! A fleet makes a certificate authority for its lifetime (`FleetIdentity`); longer-lived workers bring
//! certificates from files. All certificates may carry one name, which ranks check instead of addresses, since workers
//! come and go with addresses that are not known beforehand.

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name of frames in TLS's negotiation of protocols.
pub(crate) const ALPN_ROWS: &[u8] = b"feedstock";

/// That of gRPC, and so of Flight.
pub(crate) const ALPN_GRPC: &[u8] = b"h2";

/// Bytes of a generated token, before they are written in hexadecimal.
const TOKEN_BYTES: usize = 32;

/// A bearer token. A client that sends it may use the worker. `Debug` prints `***`.
///
/// ```
/// use feedstock_ingest::Token;
///
/// let token = Token::new("0123456789abcdef")?;
/// assert_eq!(format!("{token:?}"), "***");
/// assert_eq!(token.expose(), "0123456789abcdef");
/// assert!(Token::new("hunter2").unwrap_err().message().starts_with("a token has at least 16 characters"));
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Takes `text`, without surrounding white space, as the token.
    ///
    /// # Errors
    /// `BadConfig` for one that is shorter than 16 characters, or has others than printable ASCII.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < 16 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "a token has at least 16 characters, printable and without spaces; make one with \
                           `openssl rand -hex 32`";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        Ok(Self(text.to_owned()))
    }

    /// Generates a token of 256 random bits, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// `Retryable` where the system has no randomness.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0u8; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|e| Error::new(ErrorKind::Retryable, format!("the system has no randomness: {e}")))?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Returns the secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether they are equal, in a time that does not depend on where they differ.
    pub(crate) fn is(&self, other: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), other.as_bytes());
        own.len() == other.len() && own.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A certificate chain and its private key, as PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, then those that vouch for it.
    pub certificates: String,
    /// The key of the first.
    pub key: Secret,
}

/// How a worker encrypts.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Who it is.
    pub identity: Identity,
    /// Certificate authorities, as PEM, one of which must have signed a client's certificate; `None`: clients need no certificate.
    pub client_ca: Option<String>,
}

/// How a rank encrypts.
#[derive(Debug, Clone)]
pub struct ClientTls {
    /// Certificate authorities, as PEM, one of which must vouch for every worker.
    pub ca: String,
    /// Who it is, for workers that ask.
    pub identity: Option<Identity>,
    /// The name in the workers' certificates; `None`: the host that was connected to.
    pub server_name: Option<String>,
}

fn config(what: &str, cause: impl fmt::Display) -> Error {
    Error::new(ErrorKind::BadConfig, format!("{what}: {cause}"))
}

fn roots(pem: &str, what: &str) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, what)? {
        store.add(certificate).map_err(|e| config(what, e))?;
    }
    Ok(store)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| config(what, e))?;
    match found.is_empty() {
        true => Err(config(what, "no certificate in it; PEM begins with -----BEGIN CERTIFICATE-----")),
        false => Ok(found),
    }
}

fn key(identity: &Identity) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(identity.key.expose().as_bytes()).map_err(|e| config("the private key", e))
}

impl ServerTls {
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| config("TLS", e))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(roots(ca, "the clients' certificate authority")?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| config("the clients' authority", e))?)
            }
        };
        let chain = certificates(&self.identity.certificates, "the worker's certificate")?;
        let mut made = builder
            .with_single_cert(chain, key(&self.identity)?)
            .map_err(|e| config("the worker's certificate", e))?;
        made.alpn_protocols = vec![ALPN_ROWS.to_vec(), ALPN_GRPC.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(made)))
    }
}

impl ClientTls {
    pub(crate) fn connector(&self) -> Result<TlsConnector> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| config("TLS", e))?
            .with_root_certificates(roots(&self.ca, "the workers' certificate authority")?);
        let mut made = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = certificates(&identity.certificates, "this rank's certificate")?;
                builder
                    .with_client_auth_cert(chain, key(identity)?)
                    .map_err(|e| config("this rank's certificate", e))?
            }
        };
        made.alpn_protocols = vec![ALPN_ROWS.to_vec()];
        Ok(TlsConnector::from(Arc::new(made)))
    }

    /// The name that the certificate of a worker at `host` must carry.
    pub(crate) fn name(&self, host: &str) -> Result<ServerName<'static>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned()).map_err(|e| config(&format!("the workers' name '{name}'"), e))
    }
}

/// The certificates and the token with which the workers and ranks of one fleet trust each other, and no one else.
#[derive(Debug, Clone)]
pub struct FleetIdentity {
    /// The fleet's certificate authority, as PEM; its key is gone.
    pub ca: String,
    /// What workers show.
    pub server: Identity,
    /// What ranks show.
    pub client: Identity,
    /// The token that ranks send.
    pub token: Token,
}

impl FleetIdentity {
    /// Generates an identity whose workers' certificates carry `names` (DNS names or IP addresses). The certificates do
    /// not expire: a fleet ends with its job, and its keys are not kept.
    ///
    /// ```
    /// use feedstock_ingest::FleetIdentity;
    ///
    /// let fleet = FleetIdentity::generate(&["workers.jobs.svc".to_owned()])?;
    /// assert!(fleet.ca.starts_with("-----BEGIN CERTIFICATE-----"));
    /// assert!(format!("{:?}", fleet.server).contains("key: ***")); // keys are never printed
    /// assert_eq!(fleet.token.expose().len(), 64); // 256 bits in hexadecimal
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for names that no certificate can carry.
    pub fn generate(names: &[String]) -> Result<Self> {
        let failed = |e: rcgen::Error| config("the fleet's certificates", e);
        let authority_key = KeyPair::generate().map_err(failed)?;
        let mut authority = CertificateParams::new(Vec::new()).map_err(failed)?;
        authority.distinguished_name.push(DnType::CommonName, "feedstock fleet");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca = authority.self_signed(&authority_key).map_err(failed)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let signed = |names: Vec<String>, common: &str, usage| -> Result<Identity, rcgen::Error> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(names)?;
            params.distinguished_name.push(DnType::CommonName, common);
            params.extended_key_usages = vec![usage];
            let certificates = params.signed_by(&key, &issuer)?.pem();
            Ok(Identity { certificates, key: Secret::from(key.serialize_pem()) })
        };
        let server = signed(names.to_vec(), "feedstock worker", ExtendedKeyUsagePurpose::ServerAuth);
        let client = signed(Vec::new(), "feedstock rank", ExtendedKeyUsagePurpose::ClientAuth);
        let (server, client) = (server.map_err(failed)?, client.map_err(failed)?);
        Ok(Self { ca, server, client, token: Token::generate()? })
    }
}
