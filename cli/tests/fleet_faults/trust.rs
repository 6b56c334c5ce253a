//! A fleet's certificates and token: as files for processes, and as options for ranks.

use crate::worker::Start;
use feedstock::Workers;
use feedstock::storage::Secret;
use feedstock::workers::{ClientTls, FleetIdentity, Identity, Token};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use std::path::PathBuf;

/// The name in the workers' certificates.
pub const NAME: &str = "feedstock-fleet";

/// A fleet's secrets, and files with them.
pub struct Trust {
    pub fleet: FleetIdentity,
    folder: tempfile::TempDir,
}

impl Trust {
    pub fn new() -> Self {
        Self::of(FleetIdentity::generate(&[NAME.into()]).unwrap())
    }

    pub fn of(fleet: FleetIdentity) -> Self {
        Self { fleet, folder: tempfile::tempdir().unwrap() }
    }

    /// Configures a worker to show its certificate, and to require a client certificate and the token.
    pub fn worker(&self, start: Start) -> Start {
        let FleetIdentity { ca, server, token, .. } = &self.fleet;
        let (ca, certificate) = (self.file("ca.crt", ca), self.file("worker.crt", &server.certificates));
        let (key, token) = (self.file("worker.key", server.key.expose()), self.file("token", token.expose()));
        let path = |file: &PathBuf| file.to_str().unwrap().to_owned();
        start.args(&["--tls-cert", &path(&certificate), "--tls-key", &path(&key)]).args(&[
            "--client-ca",
            &path(&ca),
            "--token-file",
            &path(&token),
        ])
    }

    /// Configures a rank in the same way.
    pub fn rank(&self, workers: Workers) -> Workers {
        self.rank_as(workers, Some(&self.fleet.client), &self.fleet.token)
    }

    /// Configures a rank with another certificate or token.
    pub fn rank_as(&self, workers: Workers, identity: Option<&Identity>, token: &Token) -> Workers {
        let (ca, server_name) = (self.fleet.ca.clone(), Some(NAME.to_owned()));
        workers.tls(ClientTls { ca, identity: identity.cloned(), server_name }).token(token.clone())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Returns a fleet in which the workers' or the ranks' certificates have expired. The others are valid; all are by
/// one authority.
pub fn expired(workers: bool, ranks: bool) -> FleetIdentity {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let signed = |names: Vec<String>, usage, expired: bool| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2020, 1, 1);
        if expired {
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let certificates = params.signed_by(&key, &issuer).unwrap().pem();
        Identity { certificates, key: Secret::from(key.serialize_pem()) }
    };
    let server = signed(vec![NAME.into()], ExtendedKeyUsagePurpose::ServerAuth, workers);
    let client = signed(Vec::new(), ExtendedKeyUsagePurpose::ClientAuth, ranks);
    FleetIdentity { ca, server, client, token: Token::generate().unwrap() }
}
