//! A simulated rank.

use super::data::{BATCH, EPOCHS, SAMPLES, SLOTS, bytes, spec, specs, walk, warnings};
use super::worker::{Kind, PORT, Simulated, WORKERS};
use crate::fleet::connect::Connect;
use crate::fleet::dispatch::{HERE, Local};
use crate::fleet::members::Workers;
use crate::fleet::run::{FleetDriver, FleetJob};
use crate::fleet::warm::Introduction;
use crate::memory::row::RowBuffers;
use crate::run::job::Finished;
use crate::run::ready::Ready;
use crate::run::stats::RunStatus;
use crate::wire::Io;
use crate::worker::{LaneMemory, serve};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::{DataType, Field, Schema};
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use turmoil::net::TcpStream;

/// The rank's connections, and its own lanes.
struct Simulation(Arc<Simulated>);

impl Connect for Simulation {
    fn connect<'a>(&'a self, member: &'a str) -> BoxFuture<'a, Result<Box<dyn Io>>> {
        Box::pin(async move {
            if member == HERE {
                let (ours, theirs) = tokio::io::duplex(4096);
                let here = self.0.clone();
                tokio::spawn(async move {
                    let _ended = serve(theirs, &*here).await;
                });
                return Ok(Box::new(ours) as Box<dyn Io>);
            }
            let stream = TcpStream::connect(member).await;
            let stream = stream.map_err(|e| Error::new(ErrorKind::Retryable, format!("{member}: {e}")))?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }

    fn unix<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, Option<Box<dyn Io>>> {
        Box::pin(async { None })
    }
}

/// What a rank has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) steps: AtomicU64,
    /// The longest wait for the first step, and for any other, in milliseconds.
    first_ms: AtomicU64,
    longest_ms: AtomicU64,
    hedges: AtomicU64,
    hedged_samples: AtomicU64,
}

impl Seen {
    fn waited(&self, time: Duration) {
        let of = match self.steps.fetch_add(1, Ordering::Relaxed) {
            0 => &self.first_ms,
            _ => &self.longest_ms,
        };
        of.fetch_max(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn hedged(&self, shared: &RunStatus) {
        let stats = shared.stats();
        self.hedges.store(stats.hedges, Ordering::Relaxed);
        self.hedged_samples.store(stats.hedged_samples, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> [u64; 4] {
        [&self.first_ms, &self.longest_ms, &self.hedges, &self.hedged_samples]
            .map(|of| of.load(Ordering::Relaxed))
    }
}

/// From which step of the first epoch on, and with whose help.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Start {
    pub(super) step: u64,
    pub(super) local: Local,
}

/// A rank that takes every step, checks it, and gives the place back.
pub(super) async fn rank(seen: Arc<Seen>, start: Start) -> turmoil::Result {
    let ready = Arc::new(Ready::<Finished<LaneMemory>>::default());
    let addresses: Vec<String> = WORKERS.iter().map(|name| format!("{name}:{PORT}")).collect();
    let shared = Arc::new(RunStatus::default());
    let here = Simulated::new(0, Kind { steady: true, ..Kind::default() });
    let job = FleetJob {
        workers: Workers::at(&addresses.join(","))?.local(start.local),
        connect: Arc::new(Simulation(here)),
        introduction: Introduction { spec: Arc::new(spec()), catalogs: Arc::new([]) },
        walk: walk(start.step),
        end_epoch: Some(EPOCHS),
        tensors: specs(),
        columns: Arc::new(Schema::new(vec![Field::new("id", DataType::UInt64, false)])),
        budget_bytes: 64 << 20,
        sample_bytes: 64 << 20,
        sink: ready.clone(),
        shared: shared.clone(),
    };
    let (driver, offers) = FleetDriver::new(job)?;
    let driver = tokio::spawn(driver.run());
    let buffers = Arc::new(RowBuffers::default());
    for _ in 0..SLOTS {
        offers.offer(LaneMemory::new(specs(), buffers.clone())?);
    }
    let mut expected = walk(start.step);
    let (mut samples, mut warned) = (BTreeSet::new(), 0);
    loop {
        let asked = Instant::now();
        let Some(finished) = poll_fn(|cx| ready.poll(cx)).await.transpose()? else { break };
        seen.waited(asked.elapsed());
        seen.hedged(&shared);
        let planned = expected.next().ok_or("a step too many")?;
        assert_eq!(finished.step, planned);
        let ids =
            arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt64Type>(finished.columns.column(0));
        for (at, row) in planned.rows.iter().enumerate() {
            for column in [0, 1] {
                let made = bytes(planned.epoch, row.sample, column);
                assert_eq!(
                    finished.destination.part(at, column),
                    made,
                    "sample {} of {planned:?}",
                    row.sample
                );
            }
            assert_eq!(ids.value(at), row.sample.0);
            assert!(!row.valid || samples.insert((planned.epoch, row.sample)), "sample {} twice", row.sample);
        }
        let expected = planned.rows.iter().map(|row| warnings(row.sample)).enumerate();
        let expected: Vec<_> = expected.filter(|(_, warnings)| !warnings.is_empty()).collect();
        assert_eq!(finished.warnings, expected, "once for each row, from any stream");
        warned += expected.len();
        offers.offer(finished.destination);
    }
    assert!(expected.next().is_none(), "steps are missing");
    assert_eq!(samples.len() as u64, SAMPLES * EPOCHS - start.step * BATCH);
    assert!(warned > 0);
    driver.await?;
    Ok(())
}
