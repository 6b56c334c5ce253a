//! A worker without its sockets.

use super::connection::Serve;
use super::lane::{FinishedRows, Lane};
use super::receptions::Reception;
use super::registry::Registry;
use crate::recipe::RecipeSpec;
use crate::wire::{
    CAPACITY_MAX, Capacity, LaneRequest, Offered, PROTOCOL, PlanId, Token, WorkerStatus, release,
};
use crate::{Error, ErrorKind, Result};
use feedstock_ops::TensorSpec;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::watch;

/// What all connections of one worker share.
pub(crate) struct Service {
    registry: Arc<Registry>,
    token: Option<Token>,
    instance: String,
    unix: Option<PathBuf>,
    leaving: watch::Sender<bool>,
    capacity: watch::Sender<Capacity>,
    /// The number of streams under way; watchers are woken when it changes.
    streams: Arc<watch::Sender<u64>>,
    started: Instant,
}

impl Service {
    /// Returns the service of a worker. Its share of the strands is in proportion to `capacity`, by default its CPU threads.
    pub(crate) fn new(
        registry: Registry,
        token: Option<Token>,
        unix: Option<PathBuf>,
        capacity: Option<u32>,
    ) -> Result<Self> {
        let threads = || u32::try_from(registry.engine().threads()).unwrap_or(u32::MAX).min(CAPACITY_MAX);
        let capacity = Capacity::after(None, capacity.unwrap_or_else(threads))?;
        let mut instance = [0u8; 8];
        getrandom::fill(&mut instance)
            .map_err(|e| Error::new(ErrorKind::Retryable, format!("the system has no randomness: {e}")))?;
        Ok(Self {
            registry: Arc::new(registry),
            token,
            instance: format!("{:016x}", u64::from_ne_bytes(instance)),
            unix,
            leaving: watch::Sender::new(false),
            capacity: watch::Sender::new(capacity),
            streams: Arc::new(watch::Sender::new(0)),
            started: Instant::now(),
        })
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Prepares no more streams, and notifies the ranks of those under way, and of those that are opened all the same.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Publishes another capacity.
    pub(crate) fn set_capacity(&self, units: u32) -> Result<()> {
        let mut result = Ok(());
        self.capacity.send_if_modified(|capacity| match Capacity::after(Some(*capacity), units) {
            Ok(next) if next.units != capacity.units => {
                *capacity = next;
                true
            }
            Ok(_) => false,
            Err(error) => {
                result = Err(error);
                false
            }
        });
        result
    }

    /// How many streams are under way, now and whenever that changes.
    pub(crate) fn streams(&self) -> watch::Receiver<u64> {
        self.streams.subscribe()
    }

    /// Counts a lane as a stream for as long as it lives.
    pub(crate) fn counted(&self, lane: Box<dyn Lane>) -> Box<dyn Lane> {
        Box::new(Counted::new(lane, self.streams.clone()))
    }
}

impl Serve for Service {
    fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    fn instance(&self) -> (&str, Option<&PathBuf>) {
        (&self.instance, self.unix.as_ref())
    }

    fn status(&self) -> WorkerStatus {
        let engine = self.registry.engine();
        let capacity = *self.capacity.borrow();
        WorkerStatus {
            release: release(),
            protocol: PROTOCOL,
            instance: self.instance.clone(),
            draining: *self.leaving.borrow(),
            streams: *self.streams.borrow(),
            plans: self.registry.len() as u64,
            samples: self.registry.samples.load(Ordering::Relaxed),
            shared_samples: self.registry.shared_samples(),
            reserved_bytes: self.registry.memory().reserved(),
            memory_bytes: self.registry.memory().limit(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            threads: engine.threads() as u64,
            busy_s: engine.busy().as_secs_f64(),
            capacity: capacity.units,
            capacity_generation: capacity.generation,
        }
    }

    fn describe(&self, spec: RecipeSpec, catalogs: Vec<Offered>) -> BoxFuture<'_, Result<Vec<Reception>>> {
        async move { self.registry.introduce(spec, &catalogs).await }.boxed()
    }

    fn prepare(&self, plan: PlanId) -> BoxFuture<'_, Result<bool>> {
        self.registry.prepare(plan).boxed()
    }

    fn open(&self, request: LaneRequest) -> BoxFuture<'_, Result<Option<Box<dyn Lane>>>> {
        async move { Ok(self.registry.open(request).await?.map(|lane| self.counted(lane))) }.boxed()
    }

    fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }
}

/// A lane that counts as a stream.
struct Counted {
    lane: Box<dyn Lane>,
    streams: Arc<watch::Sender<u64>>,
}

impl Counted {
    fn new(lane: Box<dyn Lane>, streams: Arc<watch::Sender<u64>>) -> Self {
        streams.send_modify(|streams| *streams += 1);
        Self { lane, streams }
    }
}

impl Lane for Counted {
    fn specs(&self) -> &[TensorSpec] {
        self.lane.specs()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<FinishedRows>>> {
        self.lane.next()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.streams.send_modify(|streams| *streams -= 1);
    }
}
