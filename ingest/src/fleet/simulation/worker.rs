//! Simulated workers.

use super::data::{Dice, SLOTS, bytes, plan, specs, warnings};
use super::throttled::{Limit, Throttled};
use crate::recipe::RecipeSpec;
use crate::run::walk::Walk;
use crate::wire::{Capacity, LaneRequest, Offered, PlanId, RowHead, Token, WorkerStatus};
use crate::worker::{Body, FinishedRows, Lane, Reception, Serve, serve};
use crate::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, UInt64Array};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::SampleId;
use feedstock_ops::TensorSpec;
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use turmoil::net::TcpListener;

pub(super) const PORT: u16 = 7117;
pub(super) const WORKERS: [&str; 3] = ["worker-a", "worker-b", "worker-c"];

/// The most steps that any stream of any run was late with.
pub(super) static OVERDUE: AtomicU32 = AtomicU32::new(0);

/// The processes so far: a host that comes back is another one.
static INSTANCES: AtomicU32 = AtomicU32::new(0);

/// A worker whose rows cost nothing but time.
pub(super) struct Simulated {
    told: AtomicBool,
    instance: String,
    leaving: watch::Sender<bool>,
    capacity: watch::Sender<Capacity>,
    seed: u64,
    kind: Kind,
}

/// What kind of worker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kind {
    /// In which epoch a file is missing.
    pub(super) gone_in: Option<u64>,
    /// It is always quick.
    pub(super) steady: bool,
}

struct SimulatedLane {
    kind: Kind,
    specs: Arc<[TensorSpec]>,
    walk: Walk,
    dice: Dice,
    next: Option<FinishedRows>,
}

struct Made(Vec<[Vec<u8>; 2]>);

impl Body for Made {
    fn part(&self, row: usize, column: usize) -> &[u8] {
        &self.0[row][column]
    }
}

impl Lane for SimulatedLane {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<FinishedRows>>> {
        Box::pin(async move {
            if self.next.is_none() {
                let step = self.walk.next();
                if step.as_ref().is_some_and(|step| Some(step.epoch) == self.kind.gone_in) {
                    return Err(Error::new(ErrorKind::Gone, "a file is not there"));
                }
                self.next = step.map(|step| {
                    let head = |sample: SampleId| RowHead {
                        sample,
                        failure: None,
                        warnings: warnings(sample),
                        lengths: vec![bytes(step.epoch, sample, 1).len()],
                    };
                    let ids: UInt64Array = step.rows.iter().map(|row| row.sample.0).collect();
                    let body = step.rows.iter();
                    let body = body.map(|row| [0, 1].map(|column| bytes(step.epoch, row.sample, column)));
                    FinishedRows {
                        epoch: step.epoch,
                        position: step.position.0,
                        heads: step.rows.iter().map(|row| head(row.sample)).collect(),
                        columns: RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap(),
                        body: Box::new(Made(body.collect())),
                    }
                });
                // Mostly quick, now and then slower than a rank likes to wait.
                let slow = !self.kind.steady && self.dice.roll(40) == 0;
                let pause = if slow { 300 + self.dice.roll(1500) } else { self.dice.roll(20) };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Ok(self.next.take())
        })
    }
}

impl Serve for Simulated {
    fn token(&self) -> Option<&Token> {
        None
    }

    fn instance(&self) -> (&str, Option<&PathBuf>) {
        (&self.instance, None)
    }

    fn status(&self) -> WorkerStatus {
        WorkerStatus {
            instance: self.instance.clone(),
            draining: *self.leaving.borrow(),
            ..WorkerStatus::default()
        }
    }

    fn describe(&self, spec: RecipeSpec, _: Vec<Offered>) -> BoxFuture<'_, Result<Vec<Reception>>> {
        assert_eq!(spec, super::data::spec());
        self.told.store(true, Ordering::Relaxed);
        Box::pin(async { Ok(Vec::new()) })
    }

    fn prepare(&self, _: PlanId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(self.told.load(Ordering::Relaxed)) })
    }

    fn open(&self, request: LaneRequest) -> BoxFuture<'_, Result<Option<Box<dyn Lane>>>> {
        Box::pin(async move {
            if !self.told.load(Ordering::Relaxed) {
                return Ok(None);
            }
            assert!(request.overdue as usize <= SLOTS, "only steps that have a place are waited for");
            OVERDUE.fetch_max(request.overdue, Ordering::Relaxed);
            let start = (request.cursor.epoch, request.cursor.position);
            let walk = Walk::new(plan(), request.shape, Some(request.strands), start, request.end_epoch);
            let dice = Dice(self.seed ^ start.1.0);
            let lane = SimulatedLane { kind: self.kind, specs: specs(), walk, dice, next: None };
            Ok(Some(Box::new(lane) as Box<dyn Lane>))
        })
    }

    fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }
}

impl Simulated {
    pub(super) fn new(seed: u64, kind: Kind) -> Arc<Self> {
        let leaving = watch::Sender::new(false);
        // Workers of several sizes: strands move while a run goes on.
        let units = 1 + Dice(seed).roll(4) as u32;
        let capacity = watch::Sender::new(Capacity { units, generation: seed });
        let instance = format!("{seed}-{}", INSTANCES.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self { told: AtomicBool::new(false), instance, leaving, capacity, seed, kind })
    }
}

async fn host(seed: u64, kind: Kind, limit: Limit) -> turmoil::Result {
    let server = Simulated::new(seed, kind);
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (server, stream) = (server.clone(), Throttled::new(stream, limit.clone()));
        tokio::spawn(async move {
            let _ended = serve(stream, &*server).await;
        });
    }
}

/// Adds all workers to a network.
pub(super) fn hosts(sim: &mut turmoil::Sim<'_>, seed: u64, kind: Kind, limits: &[Limit; 3]) {
    for (index, (name, limit)) in WORKERS.iter().zip(limits).enumerate() {
        let (seed, limit) = (seed.wrapping_mul(31).wrapping_add(index as u64), limit.clone());
        sim.host(*name, move || host(seed, kind, limit.clone()));
    }
}
