//! Options for workers: their addresses, credentials and TLS; and the wait for their first batch.

use super::failure::{Failure, Outcome};
use super::output::complain;
use super::verdict::WorkersShare;
use clap::{Args, ValueEnum};
use feedstock_dataset::Secret;
use feedstock_ingest::{ClientTls, Identity, Token};
use feedstock_trainer_bridge::{Batch, Local, Next, RankIterator, Workers};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How ranks and workers authenticate each other.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// File with the token that ranks send and workers expect [default: $FEEDSTOCK_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file: the authority that must have issued the workers' certificates.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file: the client certificate, for workers that require one.
    #[arg(long, value_name = "FILE", requires_all = ["client_key", "ca"])]
    client_cert: Option<PathBuf>,
    /// PEM file: the private key of --client-cert.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// The name in the workers' certificates [default: the host of the address].
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

    /// Returns `workers` with this token and TLS configuration.
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

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|e| Failure::config(format!("cannot read {}: {e}", path.display())))
}

/// The workers that produce the rows.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Workers")]
pub(crate) struct WorkersArgs {
    /// The workers that produce the rows: host:port,host:port…, or dns:name:port for all addresses of a name.
    #[arg(long, value_name = "ADDRESSES")]
    workers: Option<String>,
    /// Whether this machine's CPUs also decode.
    #[arg(long, value_enum, default_value_t, requires = "workers")]
    local: LocalArg,
    /// Seconds after which the command fails if no worker is reachable. No effect with dns: addresses or --local.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "workers")]
    connect_timeout: u64,
    #[command(flatten)]
    trust: TrustArgs,
}

/// Whether this machine's CPUs also decode.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LocalArg {
    /// Never.
    #[default]
    Never,
    /// While no worker answers.
    Fallback,
    /// Always, as one of the workers.
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

    /// Returns the wait for the first batch from `workers`. If `quiet`, nothing is reported before the time limit.
    pub(crate) fn first_wait<'a>(&self, workers: Option<&'a Workers>, quiet: bool) -> FirstWait<'a> {
        let limit = matches!(self.local, LocalArg::Never).then(|| Duration::from_secs(self.connect_timeout));
        FirstWait { workers, limit, quiet }
    }
}

/// A longer wait for the first batch is reported: running workers send it within a second.
const SLOW_START: Duration = Duration::from_secs(2);
/// Interval at which the clock is checked.
const LOOK: Duration = Duration::from_millis(250);

/// Waits for the first batch from workers: reports a long wait, and fails if no worker is reachable.
pub(crate) struct FirstWait<'a> {
    /// `None` once the first batch has arrived.
    workers: Option<&'a Workers>,
    /// `None` if this machine also decodes.
    limit: Option<Duration>,
    quiet: bool,
}

impl FirstWait<'_> {
    /// Returns the rank's next batch; `None` at the end of an epoch.
    pub(crate) fn next(&mut self, rank: &mut RankIterator) -> Outcome<Option<Batch>> {
        let Some(workers) = self.workers.take() else { return Ok(rank.next().transpose()?) };
        let begun = Instant::now();
        let (mut is_reported, mut limit) = (self.quiet, self.limit);
        loop {
            match rank.next_within(LOOK)? {
                Next::Batch(batch) => return Ok(Some(batch)),
                Next::EpochEnd => return Ok(None),
                Next::Pending => {}
            }
            if !is_reported && begun.elapsed() >= SLOW_START {
                is_reported = true;
                complain(&format!("no batch after {} s: {}", SLOW_START.as_secs(), rank.waiting()));
            }
            if let Some(passed) = limit.filter(|limit| begun.elapsed() >= *limit) {
                check_reachable(workers, passed)?;
                limit = None;
            }
        }
    }
}

/// Fails if no listed worker answers. Workers with a `dns:` address are not listed.
fn check_reachable(workers: &Workers, waited: Duration) -> Outcome {
    let addresses = workers.addresses();
    let mut troubles = Vec::new();
    for address in &addresses {
        match workers.status(address) {
            Ok(_) => return Ok(()),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    if troubles.is_empty() {
        return Ok(());
    }
    troubles.truncate(4);
    Err(Failure::retry(format!(
        "no worker answered within {} s (--connect-timeout; {} tried): {}; start them with `feedstock worker`, \
         check --workers, or decode here with --local fallback",
        waited.as_secs(),
        addresses.len(),
        troubles.join("; ")
    )))
}

/// The CPU time that a fleet's workers had spent on rows at one moment.
pub(crate) struct FleetLoad {
    at: Instant,
    /// CPU threads and their busy seconds by worker instance: a restarted worker is another instance.
    workers: HashMap<String, (u64, f64)>,
}

impl FleetLoad {
    /// Queries every listed worker, and leaves out those that do not answer. Workers with a `dns:` address are not
    /// listed.
    pub(crate) fn now(workers: &Workers) -> Self {
        let statuses = workers.addresses().into_iter().filter_map(|address| workers.status(&address).ok());
        let loads = statuses.filter(|status| status.threads > 0);
        let workers = loads.map(|status| (status.instance, (status.threads, status.busy_s))).collect();
        Self { at: Instant::now(), workers }
    }

    /// Returns the average busy share of the workers' threads since `before`.
    pub(super) fn since(&self, before: &Self) -> WorkersShare {
        let wall = (self.at - before.at).as_secs_f64();
        let (mut busy, mut threads) = (0.0, 0);
        for (instance, (count, busy_s)) in &self.workers {
            let Some((_, busy_before)) = before.workers.get(instance) else { continue };
            busy += busy_s - busy_before;
            threads += count;
        }
        match threads > 0 && wall > 0.0 {
            true => WorkersShare::Busy(busy / (wall * threads as f64)),
            false => WorkersShare::Unknown,
        }
    }
}
