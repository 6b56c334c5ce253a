//! A dry run of one rank: the real plan and the real rules of the driver, with a model of the store, of the CPU threads and of
//! the trainer under a virtual clock. It reads no data, and has no threads and no clock.
//!
//! ```text
//! plan ─▶ planner ─▶ residency ─▶ requests ─▶ tasks ─▶ batches ─▶ trainer
//!         real       real         model       model    slots      model
//! ```
//! The model leaves out retries, the cache on disk, samples that take much working memory, and a limit on requests that
//! adapts: [`StoreModel::concurrency`] is constant.

mod clock;
mod model;
mod requests;
mod spans;
mod tally;

pub use model::{SimulatedRank, SimulatedSteps, StoreModel};
pub use tally::{Busy, Simulated};

use crate::Result;
use crate::run::job::Job;
use clock::Clock;
use model::check;

/// Runs steps of `job` under a virtual clock, from its position to the end of its epoch at most.
///
/// # Errors
/// `BadConfig` for a machine that cannot be simulated, and for a step that exceeds the job's budget.
pub fn simulate(job: &Job, rank: &SimulatedRank, steps: SimulatedSteps) -> Result<Simulated> {
    check(rank, steps)?;
    job.check()?;
    Clock::new(job, rank, steps)?.run()
}
