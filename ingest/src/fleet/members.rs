//! The workers of a fleet: their addresses, the token and TLS for them, and whether this machine serves as well.

use super::dispatch::Local;
use crate::run::job::own_stream_bytes;
use crate::wire::{ClientTls, Token};
use crate::{Error, Result};
use std::sync::Arc;
use tokio::sync::watch;

/// Workers at most: each is a connection of every rank.
pub(super) const WORKERS_MAX: usize = 4096;

/// The workers of a fleet, as a rank sees them. Clones share the list, which may change while ranks run.
#[derive(Debug, Clone)]
pub struct Workers(Arc<FleetSettings>);

#[derive(Debug)]
struct FleetSettings {
    source: watch::Sender<WorkerAddresses>,
    token: Option<Token>,
    tls: Option<ClientTls>,
    local: Local,
}

/// The workers' addresses, or the name to look them up by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerAddresses {
    /// These `host:port`.
    Listed(Vec<String>),
    /// All addresses of a name.
    Dns(String),
}

impl Workers {
    /// Returns the workers at `addresses`: `host:port,host:port…`, or `dns:name:port` for all addresses of a name (a headless
    /// service of Kubernetes), which is looked up again and again.
    ///
    /// ```
    /// use feedstock_ingest::Workers;
    ///
    /// let workers = Workers::at("10.0.0.1:7117, 10.0.0.2:7117")?;
    /// assert_eq!(workers.addresses(), ["10.0.0.1:7117", "10.0.0.2:7117"]);
    /// assert!(Workers::at("dns:workers.jobs.svc:7117")?.addresses().is_empty()); // looked up when ranks run
    ///
    /// let error = Workers::at("10.0.0.1").unwrap_err();
    /// assert_eq!(error.message(), "'10.0.0.1' is not the address of a worker: write host:port");
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an address without a port, one named twice, or none.
    pub fn at(addresses: &str) -> Result<Self> {
        let source = match addresses.strip_prefix("dns:") {
            Some(name) => WorkerAddresses::Dns(checked(name)?),
            None => listed(addresses.split(',').map(str::trim).filter(|address| !address.is_empty()))?,
        };
        if source == WorkerAddresses::Listed(Vec::new()) {
            return Err(Error::config(
                "no worker is named: give host:port, several with commas, or dns:name:port",
            ));
        }
        Ok(Self::from_source(source))
    }

    /// Returns an empty list of workers, for [`set`](Self::set) to fill.
    pub fn none_yet() -> Self {
        Self::from_source(WorkerAddresses::Listed(Vec::new()))
    }

    fn from_source(source: WorkerAddresses) -> Self {
        let source = watch::Sender::new(source);
        Self(Arc::new(FleetSettings { source, token: None, tls: None, local: Local::Never }))
    }

    /// Sends `token` to every worker.
    #[must_use]
    pub fn token(self, token: Token) -> Self {
        self.with(|shared| shared.token = Some(token))
    }

    /// Speaks TLS with every worker.
    #[must_use]
    pub fn tls(self, tls: ClientTls) -> Self {
        self.with(|shared| shared.tls = Some(tls))
    }

    /// Sets whether this machine's own CPUs serve as well. Default: never.
    #[must_use]
    pub fn local(self, local: Local) -> Self {
        self.with(|shared| shared.local = local)
    }

    fn with(self, change: impl FnOnce(&mut FleetSettings)) -> Self {
        let FleetSettings { source, token, tls, local } = &*self.0;
        let mut shared = FleetSettings {
            source: watch::Sender::new(source.borrow().clone()),
            token: token.clone(),
            tls: tls.clone(),
            local: *local,
        };
        change(&mut shared);
        Self(Arc::new(shared))
    }

    /// Replaces the list of workers with these `host:port`. Lanes of removed workers move at the next step.
    ///
    /// ```
    /// use feedstock_ingest::Workers;
    ///
    /// let workers = Workers::none_yet();
    /// let ranks = workers.clone(); // clones share the list
    /// workers.set(&["10.0.0.7:7117"])?;
    /// assert_eq!(ranks.addresses(), ["10.0.0.7:7117"]);
    ///
    /// let error = workers.set(&["10.0.0.7:7117", "10.0.0.7:7117"]).unwrap_err();
    /// assert_eq!(error.message(), "the worker 10.0.0.7:7117 is named twice");
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` as for [`at`](Self::at); none at all are allowed here.
    pub fn set<A: AsRef<str>>(&self, addresses: &[A]) -> Result<()> {
        let new = listed(addresses.iter().map(AsRef::as_ref))?;
        self.0.source.send_if_modified(|source| {
            let changed = *source != new;
            *source = new;
            changed
        });
        Ok(())
    }

    /// Returns the listed addresses; none if they are looked up by name.
    pub fn addresses(&self) -> Vec<String> {
        match &*self.0.source.borrow() {
            WorkerAddresses::Listed(addresses) => addresses.clone(),
            WorkerAddresses::Dns(_) => Vec::new(),
        }
    }

    pub(crate) fn source(&self) -> watch::Receiver<WorkerAddresses> {
        self.0.source.subscribe()
    }

    pub(crate) fn local_share(&self) -> Local {
        self.0.local
    }

    /// Returns what of a rank's `budget_bytes` each of its streams may have: all of it, or half if the rank's own machine
    /// serves as well.
    pub fn stream_budget_bytes(&self, budget_bytes: u64) -> u64 {
        match self.0.local {
            Local::Never => budget_bytes,
            Local::Fallback | Local::Share => own_stream_bytes(budget_bytes),
        }
    }

    /// The token that is sent to workers.
    pub(crate) fn sent_token(&self) -> Option<&Token> {
        self.0.token.as_ref()
    }

    /// The TLS of connections to workers.
    pub(crate) fn client_tls(&self) -> Option<&ClientTls> {
        self.0.tls.as_ref()
    }
}

fn listed<'a>(addresses: impl Iterator<Item = &'a str>) -> Result<WorkerAddresses> {
    let addresses: Vec<String> = addresses.map(checked).collect::<Result<_>>()?;
    if addresses.len() > WORKERS_MAX {
        return Err(Error::config(format!("{} workers, over {WORKERS_MAX}", addresses.len())));
    }
    match addresses.iter().enumerate().find(|(i, address)| addresses[..*i].contains(address)) {
        Some((_, twice)) => Err(Error::config(format!("the worker {twice} is named twice"))),
        None => Ok(WorkerAddresses::Listed(addresses)),
    }
}

fn checked(address: &str) -> Result<String> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        true => Ok(address.to_owned()),
        false => Err(Error::config(format!("'{address}' is not the address of a worker: write host:port"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        assert_eq!(Workers::at("a:1, [::1]:2").unwrap().addresses(), ["a:1", "[::1]:2"]);
        assert_eq!(
            *Workers::at("dns:fleet.svc:7117").unwrap().source().borrow(),
            WorkerAddresses::Dns("fleet.svc:7117".into())
        );
        for bad in ["", "a", "a:", ":1", "a:0", "a:x", "a:1,a:1", "dns:a"] {
            assert!(Workers::at(bad).is_err(), "{bad}");
        }
        let workers = Workers::none_yet();
        workers.clone().set(&["b:1"]).unwrap();
        assert_eq!(workers.addresses(), ["b:1"], "clones share the list");
    }
}
