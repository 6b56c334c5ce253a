//! Naming workers, and what is said and shown to them.

use super::failure::{Failure, Outcome};
use clap::{Args, ValueEnum};
use feedstock_dataset::Secret;
use feedstock_ingest::{ClientTls, Identity, Token};
use feedstock_trainer_bridge::{Local, Workers};
use std::path::{Path, PathBuf};

/// Who may talk to whom.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// File that holds the token which ranks say and workers expect [default: $FEEDSTOCK_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file: workers must show a certificate of this authority.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file: this side's certificate, for workers that ask.
    #[arg(long, value_name = "FILE", requires_all = ["client_key", "ca"])]
    client_cert: Option<PathBuf>,
    /// PEM file: its private key.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// The name in the workers' certificates [default: the host that is connected to].
    #[arg(long, value_name = "NAME", requires = "ca")]
    server_name: Option<String>,
}

impl TrustArgs {
    pub(crate) fn token(&self) -> Outcome<Option<Token>> {
        let text = match &self.token_file {
            Some(file) => Some(read(file)?),
            None => std::env::var("FEEDSTOCK_TOKEN").ok().filter(|token| !token.is_empty()),
        };
        Ok(text.map(|text| Token::new(&text)).transpose()?)
    }

    /// Workers that are spoken to like this.
    pub(crate) fn apply(&self, mut workers: Workers) -> Outcome<Workers> {
        if let Some(token) = self.token()? {
            workers = workers.token(token);
        }
        let Some(ca) = &self.ca else { return Ok(workers) };
        let identity = match (&self.client_cert, &self.client_key) {
            (Some(certificate), Some(key)) => {
                Some(Identity { certificates: read(certificate)?, key: Secret::from(read(key)?) })
            }
            _ => None,
        };
        Ok(workers.tls(ClientTls { ca: read(ca)?, identity, server_name: self.server_name.clone() }))
    }
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|e| Failure::config(format!("cannot read {}: {e}", path.display())))
}

/// Workers that make the rows.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Workers")]
pub(crate) struct WorkersArgs {
    /// Have these workers make the rows: host:port,host:port…, or dns:name:port for all addresses of a name.
    #[arg(long, value_name = "ADDRESSES")]
    workers: Option<String>,
    /// Whether this machine's CPUs serve as well.
    #[arg(long, value_enum, default_value_t, requires = "workers")]
    local: LocalArg,
    #[command(flatten)]
    trust: TrustArgs,
}

/// Whether this machine's CPUs serve as well.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LocalArg {
    /// They do not.
    #[default]
    Never,
    /// While no worker answers.
    Fallback,
    /// As one of the workers.
    Share,
}

impl WorkersArgs {
    pub(crate) fn workers(&self) -> Outcome<Option<Workers>> {
        let Some(addresses) = &self.workers else { return Ok(None) };
        let local = match self.local {
            LocalArg::Never => Local::Never,
            LocalArg::Fallback => Local::Fallback,
            LocalArg::Share => Local::Share,
        };
        self.trust.apply(Workers::at(addresses)?.local(local)).map(Some)
    }
}
