//! The worker: serves lanes of any order, to ranks as frames (see `wire`), to other clients over Arrow Flight.
//!
//! ```text
//! TCP ─▶ TLS ─▶ ALPN or first bytes ─┬─▶ connection.rs: hello, describe, open ─▶ lane.rs: a run of the engine ─▶ frames
//!                                    └─▶ flight.rs (gRPC), health
//! ```
//! It keeps no state but caches: recipes that ranks described, with their data sets opened. Memory is bounded by `memory_bytes`,
//! from which each stream gets a share for its blocks, and by the steps of each stream that wait to be sent.

mod at_work;
mod connection;
mod flight;
mod functions;
mod lane;
mod listen;
mod memory;
mod receiving;
mod receptions;
mod registry;
mod schema;
mod service;
mod ticket;

pub(crate) use connection::{Serve, serve};
#[cfg(test)]
pub(crate) use lane::{Body, FinishedRows, Lane, LaneMemory};
#[cfg(test)]
pub(crate) use receptions::Reception;

use crate::functions::RowExecutor;
use crate::recipe::{Recipe, RecipeSpec};
use crate::run::engine::Engine;
use crate::run::job::Map;
use crate::run::row_indexes::ROW_INDEX_BYTES;
use crate::threads::available_threads;
use crate::wire::{ServerTls, Token, WorkerStatus};
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Allow, CatalogSource, CatalogStore, IoRuntime, OpenOptions};
use feedstock_ops::DECODER_MEMORY;
use listen::{Listener, bind_unix};
use memory::Memory;
use receptions::{InboxFolder, OpenWith, Receptions};
use registry::Registry;
use service::Service;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Encoded bytes that all streams together hold, by default.
const MEMORY_BYTES: u64 = 4 << 30;

/// Two streams of the smallest budget, since one may have no more than half of what is left.
const LEAST_MEMORY_BYTES: u64 = 64 << 20;

/// How a worker runs. Start from [`WorkerOptions::new`].
pub struct WorkerOptions {
    /// Where it listens: `host:port`; port 0 takes a free one. Default `127.0.0.1:7117`.
    pub listen: String,
    /// URI prefixes of what requests may read; default none, so that every request is refused.
    pub allow: Vec<String>,
    /// CPU threads; default: [`available_threads`]. A worker is not a rank, so `LOCAL_WORLD_SIZE` does not apply.
    pub threads: Option<usize>,
    /// Its share of a fleet's work relative to other workers, 1 to 4,096: a worker of 8 serves twice as many strands as a worker
    /// of 4. Default: its CPU threads. See [`Worker::set_capacity`].
    pub capacity: Option<u32>,
    /// Encoded bytes that all streams together may hold, with the working memory of samples beyond `decoder_memory` and with
    /// `row_index_bytes`. Default 4 GiB.
    pub memory_bytes: u64,
    /// Bytes of working memory that each CPU thread may take for one sample. Default 64 MiB.
    pub decoder_memory: u64,
    /// Bytes of `memory_bytes` that remember where the rows of JPEGs begin ([`Engine::row_index_bytes`]); 0 remembers nothing.
    /// Default 64 MiB, and at most 1/16 of `memory_bytes`.
    pub row_index_bytes: Option<u64>,
    /// Who may connect; default everybody.
    pub token: Option<Token>,
    /// Encryption; default none.
    pub tls: Option<ServerTls>,
    /// Listen beyond this machine without token or encryption. Default false: that is refused.
    pub insecure: bool,
    /// What runs Python functions of ranks. Default none: recipes with functions are refused. A worker needs a
    /// token for it, and one that listens beyond this machine TLS too, also if it is `insecure`.
    pub code: Option<Arc<dyn RowExecutor>>,
    /// How data sets are opened: storage, caches, functions.
    pub open_with: Arc<dyn Fn() -> OpenOptions + Send + Sync>,
}

impl WorkerOptions {
    /// Returns the defaults.
    pub fn new(open_with: impl Fn() -> OpenOptions + Send + Sync + 'static) -> Self {
        Self {
            listen: "127.0.0.1:7117".into(),
            allow: Vec::new(),
            threads: None,
            capacity: None,
            memory_bytes: MEMORY_BYTES,
            decoder_memory: DECODER_MEMORY,
            row_index_bytes: None,
            token: None,
            tls: None,
            insecure: false,
            code: None,
            open_with: Arc::new(open_with),
        }
    }
}

/// Returns the default bytes for row indexes: never more than leave the streams what one needs.
fn row_index_bytes_within(memory_bytes: u64) -> u64 {
    ROW_INDEX_BYTES.min(memory_bytes / 16).min(memory_bytes.saturating_sub(LEAST_MEMORY_BYTES))
}

/// A running worker; dropping it ends it at once.
pub struct Worker {
    service: Arc<Service>,
    address: SocketAddr,
    /// The folder of the socket for this host's processes.
    _unix: Option<tempfile::TempDir>,
    io: IoRuntime,
    _tasks: JoinSet<()>,
    /// Last, so that no task writes there any more.
    _inbox: Option<InboxFolder>,
}

impl Worker {
    /// Listens, and serves from its own threads.
    ///
    /// ```
    /// # use feedstock_dataset::OpenOptions;
    /// # use feedstock_ingest::{Worker, WorkerOptions, Workers};
    /// let mut options = WorkerOptions::new(OpenOptions::default);
    /// options.listen = "127.0.0.1:0".into(); // a free port
    /// options.allow = vec!["s3://corpus/".into()];
    /// options.threads = Some(1);
    /// let worker = Worker::start(options)?;
    /// let status = Workers::none_yet().status(&worker.address().to_string())?; // as a rank would
    /// assert_eq!((status.streams, status.threads, status.draining), (0, 1, false));
    ///
    /// let mut open = WorkerOptions::new(OpenOptions::default);
    /// open.listen = "0.0.0.0:0".into(); // without token and TLS
    /// assert!(Worker::start(open).err().unwrap().message().contains("can be reached from other machines"));
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an address that is not this machine's or taken, certificates that do not fit, a capacity that is not 1 to
    /// 4,096, a listening beyond this machine without token and encryption, or of one that runs code and is only
    /// `insecure`, or has no token; `Retryable` where the system has no threads.
    pub fn start(options: WorkerOptions) -> Result<Self> {
        let WorkerOptions {
            listen,
            allow,
            threads,
            capacity,
            memory_bytes,
            decoder_memory,
            row_index_bytes,
            token,
            tls,
            insecure,
            code,
            open_with,
        } = options;
        let row_index_bytes = row_index_bytes.unwrap_or_else(|| row_index_bytes_within(memory_bytes));
        let stream_bytes = memory_bytes.saturating_sub(row_index_bytes);
        if stream_bytes < LEAST_MEMORY_BYTES {
            let least = LEAST_MEMORY_BYTES >> 20;
            return Err(Error::config(format!(
                "a memory of {memory_bytes} bytes, of which {row_index_bytes} are for row indexes, holds no stream: leave at \
                 least {least} MiB"
            )));
        }
        let io = IoRuntime::new()?;
        let allow = Allow::new(&allow)?;
        let engine = Engine::new(threads.unwrap_or_else(available_threads))?
            .decoder_memory(decoder_memory)
            .row_index_bytes(row_index_bytes);
        let acceptor = tls.as_ref().map(ServerTls::acceptor).transpose()?;
        let bound = listen.clone();
        let tcp = io.block_on(async move {
            let tcp = TcpListener::bind(&bound).await;
            tcp.map_err(|e| Error::config(format!("cannot listen on {bound}: {e}")))
        })?;
        let address = tcp.local_addr().map_err(|e| Error::config(format!("{listen}: {e}")))?;
        let is_local = is_loopback(address.ip());
        if is_local && code.is_some() && token.is_none() {
            return Err(Error::config(format!(
                "a worker at {address} that runs code (--allow-code) needs a token (--token-file), since every user of this machine \
                 can connect"
            )));
        }
        let is_closed = is_local || (token.is_some() && tls.is_some());
        if !is_closed && (!insecure || code.is_some()) {
            let missing = match (&token, &tls) {
                (None, None) => "a token (--token-file) and TLS (--tls-cert, --tls-key)",
                (None, Some(_)) => "a token (--token-file)",
                _ => "TLS (--tls-cert, --tls-key)",
            };
            let instead = match &code {
                None => "or give --insecure, if the network keeps all others out",
                Some(_) => "--insecure does not replace them, since every client can run code (--allow-code)",
            };
            let message =
                format!("{address} can be reached from other machines: that needs {missing}; {instead}");
            return Err(Error::config(message));
        }
        let (folder, unix) = socket(&io)?.unzip();
        let path = folder.as_ref().map(|folder: &tempfile::TempDir| folder.path().join(SOCKET));
        let own = open_with();
        let inbox = InboxFolder::new(&own.catalog.store);
        let at = inbox.as_ref().map(InboxFolder::path);
        // Code reads what it likes, and indexes hold no data.
        let may_open = if code.is_some() { allow.clone().and_indexes() } else { allow.clone() };
        let open_with = restricted(open_with, &own, may_open, at)?;
        let receptions = at.map(|at| Receptions::new(at, open_with.clone(), allow.clone()));
        let registry = Registry::new(open_with, allow, engine, Memory::new(stream_bytes), receptions, code);
        let service = Arc::new(Service::new(registry, token, path, capacity)?);
        let (listener, grpc) = Listener::new(service.clone(), acceptor);
        let mut tasks = JoinSet::new();
        let handle = io.handle();
        tasks.spawn_on(flight::serve(service.clone(), grpc), handle);
        tasks.spawn_on(listener.clone().tcp(tcp), handle);
        if let Some(unix) = unix {
            tasks.spawn_on(listener.unix(unix), handle);
        }
        Ok(Self { service, address, _unix: folder, io, _tasks: tasks, _inbox: inbox })
    }

    /// Returns the address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its state: streams, memory, samples so far.
    pub fn status(&self) -> WorkerStatus {
        self.service.status()
    }

    /// Publishes another capacity. Ranks with a stream learn it from that, the others within a minute. They move strands at most a
    /// second later. Only the machine that decodes a row changes, not the row.
    ///
    /// ```
    /// # use feedstock_dataset::OpenOptions;
    /// # use feedstock_ingest::{Worker, WorkerOptions};
    /// let mut options = WorkerOptions::new(OpenOptions::default);
    /// (options.listen, options.threads) = ("127.0.0.1:0".into(), Some(2));
    /// let worker = Worker::start(options)?;
    /// assert_eq!(worker.status().capacity, 2);
    /// worker.set_capacity(1)?; // another program needs a core
    /// assert_eq!(worker.status().capacity, 1);
    /// assert!(worker.set_capacity(0).is_err());
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if it is not 1 to 4,096.
    pub fn set_capacity(&self, capacity: u32) -> Result<()> {
        self.service.set_capacity(capacity)
    }

    /// Waits for SIGTERM or SIGINT; a second one ends the process.
    ///
    /// # Errors
    /// `Retryable` where signals cannot be listened to.
    pub fn wait_for_signal(&self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind)
                .map_err(|e| Error::new(ErrorKind::Retryable, format!("cannot listen to signals: {e}")))
        };
        self.io.block_on(async move {
            let (mut terminate, mut interrupt) =
                (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tokio::spawn(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                std::process::exit(SIGNALLED_TWICE);
            });
            Ok(())
        })
    }

    /// Ends the functions that run for ranks, and their processes. Rows under way are given up, also those that are stuck.
    pub fn stop_functions(&self) {
        self.service.registry().stop_functions();
    }

    /// Asks the ranks of all streams to go elsewhere, and waits until they have, at most `timeout`. Returns whether all have. Meanwhile
    /// it opens further streams, each of which first reports the drain: only ranks without another ready worker keep them.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.service.leave();
        let mut streams = self.service.streams();
        let gone = async move {
            let gone = tokio::time::timeout(timeout, streams.wait_for(|streams| *streams == 0)).await;
            Ok(gone.is_ok_and(|gone| gone.is_ok()))
        };
        self.io.block_on(gone).unwrap_or(false)
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("address", &self.address)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// A worker inside the rank's own process, for one recipe, within the rank's budget.
pub(crate) fn local_service(
    recipe: &Recipe,
    maps: Vec<Map>,
    spec: &RecipeSpec,
    engine: Engine,
    budget_bytes: u64,
) -> Result<Arc<impl Serve + use<>>> {
    let registry = Registry::holding(recipe.clone(), maps, spec, engine, budget_bytes)?;
    Ok(Arc::new(Service::new(registry, None, None, None)?))
}

/// As a shell reports a process that SIGTERM ended.
const SIGNALLED_TWICE: i32 = 128 + 15;

/// The socket's name in its folder.
const SOCKET: &str = "worker.sock";

type Bound = (tempfile::TempDir, tokio::net::UnixListener);

/// A socket for this host's processes; none where there is no folder for it, which costs speed and nothing else.
fn socket(io: &IoRuntime) -> Result<Option<Bound>> {
    let Ok(folder) = tempfile::Builder::new().prefix("feedstock-").tempdir() else { return Ok(None) };
    let path: PathBuf = folder.path().join(SOCKET);
    let warn = |error: &std::io::Error| tracing::warn!("no socket for processes of this host: {error}");
    let bound = io.block_on(async move { Ok(bind_unix(&path).inspect_err(warn).ok()) })?;
    Ok(bound.map(|listener| (folder, listener)))
}

/// The options with the list of what may be read; the worker's own caches and ready catalogs are on it.
fn restricted(
    open_with: Arc<dyn Fn() -> OpenOptions + Send + Sync>,
    options: &OpenOptions,
    allow: Allow,
    inbox: Option<&Path>,
) -> Result<OpenWith> {
    let mut own: Vec<String> = inbox.iter().map(|folder| folder.to_string_lossy().into_owned()).collect();
    own.extend(options.catalog.sources.iter().filter_map(|source| match source {
        CatalogSource::Folder(folder) => Some(folder.clone()),
        CatalogSource::Beside | CatalogSource::Received(_) => None,
    }));
    if let CatalogStore::Cache(folder) = &options.catalog.store {
        own.push(folder.to_string_lossy().into_owned());
    }
    own.extend(options.archives.iter().map(|folder| folder.to_string_lossy().into_owned()));
    let allow = allow.and(own)?;
    Ok(Arc::new(move || {
        let mut options = open_with();
        options.storage.allow = Some(allow.clone());
        options
    }))
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a worker. Returns what it has for streams.
    fn stream_bytes(memory_bytes: u64, row_index_bytes: Option<u64>) -> Result<u64> {
        let mut options = WorkerOptions::new(OpenOptions::default);
        (options.listen, options.threads) = ("127.0.0.1:0".into(), Some(1));
        (options.memory_bytes, options.row_index_bytes) = (memory_bytes, row_index_bytes);
        Worker::start(options).map(|worker| worker.status().memory_bytes)
    }

    #[test]
    fn row_indexes_count_in_a_workers_memory() {
        const MIB: u64 = 1 << 20;
        assert_eq!(stream_bytes(4096 * MIB, None).unwrap(), (4096 - 64) * MIB);
        assert_eq!(stream_bytes(256 * MIB, None).unwrap(), (256 - 16) * MIB);
        assert_eq!(stream_bytes(64 * MIB, None).unwrap(), 64 * MIB);
        assert_eq!(stream_bytes(256 * MIB, Some(0)).unwrap(), 256 * MIB);
        assert_eq!(stream_bytes(256 * MIB, Some(100 * MIB)).unwrap(), 156 * MIB);
        let error = stream_bytes(100 * MIB, Some(64 * MIB)).unwrap_err();
        assert!(error.message().contains("leave at least 64 MiB"), "{error}");
    }
}
