//! The rank's side of a fleet: steps whose rows workers make.
//!
//! ```text
//! offer(place) ─▶ run.rs ─▶ dispatch.rs: who owes which rows ─▶ stream.rs, one a worker ─▶ rows into the place ─▶ Sink
//!                    ▲            members.rs: who there is            connect.rs: TCP, TLS, this host's sockets
//!                    │            hedge.rs: who is slow               progress.rs: bytes that came
//!                    └──────────── opened, received, lost, leaving ◀──────────────┘
//! ```
//! The rank walks the plan itself, so it knows which rows of each step lie on which strand, asks the strand's worker for
//! them, and compares what comes. A stream is read only for steps that have a place: the worker feels a rank that stops
//! through TCP, and nothing else bounds it. Batches are the same bytes as without workers.

mod assign;
mod connect;
mod dispatch;
mod gathering;
mod hedge;
mod member;
mod members;
mod progress;
mod run;
mod selection;
mod silence;
#[cfg(test)]
mod simulation;
mod stream;
mod warm;
mod weights;

pub use dispatch::Local;
pub use members::Workers;

use crate::recipe::{Recipe, RecipeSpec};
use crate::run::columns::unmapped;
use crate::run::engine::Engine;
use crate::run::handle::Run;
use crate::run::job::{Destination, Job, Sink};
use crate::run::stats::RunStatus;
use crate::run::walk::Walk;
use crate::wire::{SPEC_BYTES, WorkerStatus};
use crate::worker::{Serve, local_service};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::Schema;
use connect::Network;
use feedstock_dataset::IoRuntime;
use run::{FleetDriver, FleetJob};
use std::sync::Arc;
use warm::Introduction;

impl Workers {
    /// Starts `job`, which `recipe` describes, on these workers: the counterpart of [`Engine::run`]. `engine` is asked
    /// for only where this machine may serve as well.
    ///
    /// # Errors
    /// `BadConfig` where the shape yields no step, or certificates do not fit.
    pub fn run<D: Destination>(
        &self,
        recipe: &Recipe,
        job: Job,
        engine: impl FnOnce() -> Result<Engine>,
        sink: Arc<dyn Sink<D>>,
    ) -> Result<Run<D>> {
        job.check()?;
        let spec = recipe.spec();
        check_size(&spec)?;
        let here = match self.local_share() {
            Local::Never => None,
            Local::Fallback | Local::Share => {
                Some(local_service(recipe, job.maps.clone(), &spec, engine()?, job.budget_bytes)?)
            }
        };
        let mut columns = unmapped(job.dataset.block_reader().schema(), &job.dataset, &job.maps)?;
        if let Some(functions) = &recipe.functions {
            let fields = columns.fields().iter().cloned().chain(functions.fields()?);
            columns = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        }
        let shared = Arc::new(RunStatus::default());
        let io = job.dataset.io().clone();
        let fleet_job = FleetJob {
            workers: self.clone(),
            connect: Arc::new(Network::new(self, here.map(|here| here as Arc<dyn Serve>))?),
            introduction: Introduction {
                spec: Arc::new(spec),
                catalogs: recipe.dataset.stored_catalogs().into(),
            },
            columns,
            tensors: job.maps.iter().map(|map| map.chain.output().clone()).collect(),
            walk: Walk::new(job.plan, job.shape, None, (job.epoch, job.position), job.end_epoch),
            end_epoch: job.end_epoch,
            budget_bytes: job.budget_bytes,
            sample_bytes: job.sample_bytes,
            sink: sink.clone(),
            shared: shared.clone(),
        };
        let (driver, offers) = FleetDriver::new(fleet_job)?;
        Ok(Run::start(driver.run(), offers, sink, shared, io))
    }

    /// Returns the state of the worker at `address`; blocks until it answers.
    ///
    /// # Errors
    /// `Retryable` if no worker answers, `Denied` for a wrong token or certificate, `BadConfig` for another protocol.
    pub fn status(&self, address: &str) -> Result<WorkerStatus> {
        let (network, token, address) =
            (Network::new(self, None)?, self.sent_token().cloned(), address.to_owned());
        let io = IoRuntime::new()?;
        io.block_on(async move { connect::status(&network, &address, token.as_ref()).await })
    }
}

/// Rejects a description that no worker takes.
fn check_size(spec: &RecipeSpec) -> Result<()> {
    let text = serde_json::to_string(spec)
        .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the recipe: {e}")))?;
    if text.len() <= SPEC_BYTES as usize {
        return Ok(());
    }
    let message = format!(
        "the description of the pipeline has {} bytes, and workers take at most {SPEC_BYTES}; select fewer samples by id, or \
         select them by a filter on a column",
        text.len()
    );
    Err(Error::new(ErrorKind::BadConfig, message))
}
