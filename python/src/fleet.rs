//! Workers, and the list of workers that a rank uses.

use crate::arguments;
use crate::errors::{call, call_long, config};
use crate::functions;
use crate::process::Own;
use feedstock::catalog::{CatalogOptions, CatalogSource};
use feedstock::storage::Secret;
use feedstock::workers::{ClientTls, FleetIdentity, Identity, ServerTls, Token, WorkerOptions};
use feedstock::{Local, OpenOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Serves lanes from threads of this process.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Worker {
    /// `None` after `stop`.
    worker: Own<Mutex<Option<Arc<feedstock::workers::Worker>>>>,
    address: String,
}

impl Worker {
    fn running(&self, py: Python<'_>) -> PyResult<Arc<feedstock::workers::Worker>> {
        let worker = self.worker.get(py)?.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        worker.clone().ok_or_else(|| config(py, "the worker was stopped"))
    }
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (listen, *, advertise, allow, threads, memory_bytes, token, tls, client_ca, insecure, storage, decoder_memory = None, catalogs_from = vec![], allow_code = false))]
    #[expect(clippy::too_many_arguments, reason = "from one place: feedstock/ray/fleet/worker.py")]
    fn new(
        py: Python<'_>,
        listen: String,
        advertise: Option<String>,
        allow: Vec<String>,
        threads: Option<usize>,
        memory_bytes: Option<u64>,
        token: Option<String>,
        tls: Option<(String, String)>,
        client_ca: Option<String>,
        insecure: bool,
        storage: &Bound<'_, PyDict>,
        decoder_memory: Option<u64>,
        catalogs_from: Vec<String>,
        allow_code: bool,
    ) -> PyResult<Self> {
        let storage = arguments::storage(storage)?;
        let worker = call_long(py, move || {
            let sources: Vec<_> = catalogs_from.into_iter().map(CatalogSource::from).collect();
            let mut options = WorkerOptions::new(move || OpenOptions {
                storage: storage.clone(),
                catalog: CatalogOptions { sources: sources.clone(), ..CatalogOptions::default() },
                audio_probe: Some(feedstock::catalog::audio_probe()),
                functions: feedstock::catalog::sql_functions(),
                ..OpenOptions::default()
            });
            (options.listen, options.allow, options.threads) = (listen, allow, threads);
            options.insecure = insecure;
            options.code = allow_code.then(|| functions::of_worker(functions::MEMORY_BYTES));
            options.memory_bytes = memory_bytes.unwrap_or(options.memory_bytes);
            options.decoder_memory = decoder_memory.unwrap_or(options.decoder_memory);
            options.token = token.as_deref().map(Token::new).transpose()?;
            options.tls = tls.map(|(certificates, key)| ServerTls {
                identity: Identity { certificates, key: Secret::from(key) },
                client_ca,
            });
            feedstock::workers::Worker::start(options)
        })?;
        let bound = worker.address();
        let address = advertise.map_or_else(|| bound.to_string(), |host| advertised(&host, bound));
        Ok(Self { worker: Own::new(Mutex::new(Some(Arc::new(worker)))), address })
    }

    /// `host:port`; the host is the advertised one if one was given.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Returns the worker's status as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let status = self.running(py)?.status();
        serde_json::to_string(&status).map_err(|e| config(py, format!("cannot write the status: {e}")))
    }

    /// Asks ranks to move their streams to other workers; returns True if all have moved within `timeout` seconds.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let worker = self.running(py)?;
        let timeout =
            Duration::try_from_secs_f64(timeout).map_err(|e| config(py, format!("timeout: {e}")))?;
        call_long(py, move || Ok(worker.drain(timeout)))
    }

    /// Stops the worker at once. A second call does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let worker = self.worker.get(py)?.lock().unwrap_or_else(PoisonError::into_inner).take();
        call(py, move || {
            drop(worker);
            Ok(())
        })
    }
}

fn advertised(host: &str, bound: SocketAddr) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{}", bound.port()),
        false => format!("{host}:{}", bound.port()),
    }
}

/// The list of workers, shared by all loaders that use it.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Members(feedstock::Workers);

impl Members {
    pub(crate) fn workers(&self) -> feedstock::Workers {
        self.0.clone()
    }
}

#[pymethods]
impl Members {
    #[new]
    #[pyo3(signature = (workers, *, token, ca, client, server_name, local))]
    fn new(
        py: Python<'_>,
        workers: Named,
        token: Option<String>,
        ca: Option<String>,
        client: Option<(String, String)>,
        server_name: Option<String>,
        local: &str,
    ) -> PyResult<Self> {
        let local = match local {
            "never" => Local::Never,
            "fallback" => Local::Fallback,
            "share" => Local::Share,
            other => {
                let message = format!("local must be 'never', 'fallback' or 'share'; got '{other}'");
                return Err(config(py, message));
            }
        };
        let made = call(py, move || {
            let mut made = match workers {
                Named::Text(text) => feedstock::Workers::at(&text)?,
                Named::List(list) => {
                    let made = feedstock::Workers::none_yet();
                    made.set(&list)?;
                    made
                }
            };
            if let Some(token) = token {
                made = made.token(Token::new(&token)?);
            }
            if ca.is_none() && (client.is_some() || server_name.is_some()) {
                let message = "certificate, key and server_name need ca: without an authority, connections are not encrypted";
                return Err(feedstock::Error::new(feedstock::ErrorKind::BadConfig, message));
            }
            if let Some(ca) = ca {
                let identity =
                    client.map(|(certificates, key)| Identity { certificates, key: Secret::from(key) });
                made = made.tls(ClientTls { ca, identity, server_name });
            }
            Ok(made.local(local))
        })?;
        Ok(Self(made))
    }

    /// Replaces the list of workers. Lanes move at the next step.
    fn set(&self, py: Python<'_>, addresses: Vec<String>) -> PyResult<()> {
        call(py, || self.0.set(&addresses))
    }

    fn addresses(&self) -> Vec<String> {
        self.0.addresses()
    }

    /// Returns the status of the worker at an address as JSON.
    fn status(&self, py: Python<'_>, address: String) -> PyResult<String> {
        let workers = self.0.clone();
        let status = call_long(py, move || workers.status(&address))?;
        serde_json::to_string(&status).map_err(|e| config(py, format!("cannot write the status: {e}")))
    }
}

/// Addresses of workers, in one string or a list, which may be empty.
#[derive(FromPyObject)]
enum Named {
    Text(String),
    List(Vec<String>),
}

/// Makes a certificate authority, certificates that it signs (all as PEM), and a token.
#[pyfunction]
pub(crate) fn fleet_identity(py: Python<'_>, names: Vec<String>) -> PyResult<Bound<'_, PyDict>> {
    let made = call(py, || FleetIdentity::generate(&names))?;
    let facts = PyDict::new(py);
    facts.set_item("ca", made.ca)?;
    facts.set_item("server_cert", made.server.certificates)?;
    facts.set_item("server_key", made.server.key.expose())?;
    facts.set_item("client_cert", made.client.certificates)?;
    facts.set_item("client_key", made.client.key.expose())?;
    facts.set_item("token", made.token.expose())?;
    Ok(facts)
}
