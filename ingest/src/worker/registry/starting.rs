//! The run that makes a lane's rows: what a request may ask for, the memory that it gets, and samples that it shares with other lanes.

use super::{OpenedRecipe, Refused, Registry};
use crate::run::job::Job;
use crate::run::large::{Spare, Whose};
use crate::run::planner::Planner;
use crate::run::share::Sharing;
use crate::wire::{HEAD_BYTES, LaneRequest, STEP_ROWS};
use crate::worker::functions::STEPS;
use crate::worker::lane::EngineLane;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Plan};
use std::any::Any;

/// Steps ahead for one stream at most.
const PLACES_MAX: u32 = 64;

/// Steps for which a stream reserves memory at least: one that runs, and three ahead of it.
const STEPS_RESERVED: u64 = 4;

impl Registry {
    pub(super) fn start(&self, opened: &OpenedRecipe, request: LaneRequest) -> Result<EngineLane, Refused> {
        request.check()?;
        let LaneRequest {
            cursor,
            shape,
            strands,
            end_epoch,
            budget_bytes,
            most_bytes,
            sample_bytes,
            places,
            overdue,
            ..
        } = request;
        if places == 0 || places > PLACES_MAX || strands.is_empty() {
            let message = format!("{places} places for {} strands", strands.len());
            return Err(Refused::Because(Error::new(ErrorKind::BadConfig, message)));
        }
        let recipe = opened.recipe.as_saved(&cursor.fingerprint);
        let plan: Plan = recipe.plan(&shape)?.regrouped_as(&cursor).map_err(|e| {
            let message = format!("this worker sees another order than the rank: {e}");
            Refused::OtherOrder(Error::new(e.kind(), message))
        })?;
        let count = plan.strands().count();
        if let Some(strand) = strands.iter().find(|strand| *strand >= count) {
            let message = format!("there is no strand {strand}: this order has {count}");
            return Err(Refused::Because(Error::new(ErrorKind::BadConfig, message)));
        }
        let rows = shape.size.max_rows().min(plan.len());
        if rows > STEP_ROWS {
            let message = format!("a step of up to {rows} rows: workers make at most {STEP_ROWS}");
            return Err(Refused::Because(Error::new(ErrorKind::BadConfig, message)));
        }
        let job = Job {
            dataset: opened.recipe.dataset.clone(),
            plan,
            maps: opened.maps.clone(),
            shape,
            strands: Some(strands),
            seed: opened.recipe.seed(),
            epoch: cursor.epoch,
            position: cursor.position,
            end_epoch,
            budget_bytes: budget_bytes.max(self.least_bytes),
            prefetch_bytes: u64::MAX, // what is reserved is the limit
            sample_bytes,
        };
        check_results(opened, &job)?;
        let most_bytes = most_bytes.max(job.budget_bytes);
        Ok(self.run(opened, job, places, overdue.min(places), most_bytes)?)
    }

    /// Runs a job within what is left of the memory.
    fn run(
        &self,
        opened: &OpenedRecipe,
        mut job: Job,
        places: u32,
        overdue: u32,
        most_bytes: u64,
    ) -> Result<EngineLane> {
        job.check()?;
        let wanted = self.wanted_bytes(opened, &job, most_bytes)?;
        let blocks = self.memory.reserve(wanted);
        job.budget_bytes = blocks.bytes();
        let made = self.rows.reserve_all(made_bytes(opened, &job, places));
        let Some(made) = made.filter(|_| job.budget_bytes >= self.least_bytes) else {
            return Err(self.full());
        };
        let sharing = self.sharing(opened, &job)?;
        // For a step or sample that needs more than this: what the rank itself would have, if there is ever so much.
        let whose = match most_bytes > self.memory.stream_most() {
            _ if self.is_of_rank() => Whose::Rank,
            true => Whose::SmallWorker,
            false => Whose::Worker,
        };
        let most_bytes = most_bytes.min(self.memory.stream_most()).saturating_sub(job.budget_bytes);
        let (memory, shortages) = (self.memory.clone(), self.memory.clone());
        let take = move |bytes| memory.take(bytes).map(|taken| Box::new(taken) as Box<dyn Any + Send>);
        let spare = Spare::new(most_bytes, whose, take, move || shortages.shortages());
        EngineLane::start(&opened.maps, places, Box::new((blocks, made)), self.samples.clone(), |sink| {
            self.engine.run_shared(job, sink, Some(sharing), Some(spare), overdue)
        })
    }

    /// Returns what a stream reserves if it is left. A worker makes steps ahead; the rank's own streams keep to their shares, so
    /// that something is left for each other.
    fn wanted_bytes(&self, opened: &OpenedRecipe, job: &Job, most_bytes: u64) -> Result<u64> {
        if self.is_of_rank() {
            return Ok(job.budget_bytes / 2); // `Memory::of_rank`
        }
        let (step_bytes, _) = Planner::of(job).largest_need();
        let reserve_bytes = opened.recipe.dataset.catalog().reserve_bytes();
        let step_with_reserve = step_bytes.saturating_add(reserve_bytes);
        if step_with_reserve > self.memory.limit() && step_with_reserve <= most_bytes {
            return Err(Error::config(format!(
                "the blocks of a step take {} MiB, and the worker has {} MiB; raise --memory-bytes, or lower the batch size",
                step_with_reserve >> 20,
                self.memory.limit() >> 20
            )));
        }
        let needed = step_bytes.saturating_mul(STEPS_RESERVED).saturating_add(reserve_bytes);
        Ok(job.budget_bytes.max(needed.min(most_bytes)))
    }

    /// Whether this serves the rank of this process.
    fn is_of_rank(&self) -> bool {
        self.least_bytes == 0
    }

    fn sharing(&self, opened: &OpenedRecipe, job: &Job) -> Result<Sharing> {
        let (dataset, hash) = (&opened.recipe.dataset, Cursor::hash_ops);
        // Data sets of other bytes may agree in names and sizes, and so in the content hash.
        let data = dataset.place_hash();
        // Limits decide which samples are bad.
        let made = format!("{data} {} {} {}", opened.recipe.ops_hash()?, job.seed, job.sample_bytes);
        let order = serde_json::to_string(job.plan.fingerprint())
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the order: {e}")))?;
        let columns = format!("{:?}", dataset.block_reader().schema());
        Ok(Sharing {
            asker: self.share.asker(hash(&made), hash(&order), job.shape.rank, job.strands.clone()),
            share: self.share.clone(),
            specs: job.maps.iter().map(|map| map.chain.output().clone()).collect(),
            read: (data, hash(&columns)),
        })
    }

    fn full(&self) -> Error {
        self.memory.lacks();
        let message = format!(
            "the worker's memory of {} MiB is promised to other streams; raise --memory-bytes or add workers",
            self.memory.limit() >> 20
        );
        Error::new(ErrorKind::Retryable, message)
    }
}

/// Refuses steps whose results of functions are more than a frame may have, before any row runs.
fn check_results(opened: &OpenedRecipe, job: &Job) -> Result<()> {
    let Some(functions) = &opened.recipe.functions else { return Ok(()) };
    let rows = rows_of_step(job);
    let bytes = rows.saturating_mul(functions.row_bytes());
    if bytes > u64::from(HEAD_BYTES) {
        return Err(Error::config(format!(
            "a step of {rows} rows whose results of {functions} take {bytes} bytes; workers send at most {HEAD_BYTES} bytes: \
             use a smaller batch"
        )));
    }
    Ok(())
}

/// The rows of one stream in a step, at about.
fn rows_of_step(job: &Job) -> u64 {
    let rows = job.shape.rows().min(job.plan.len());
    let strands = job.strands.as_ref().map_or(0, |strands| strands.len() as u64);
    rows.saturating_mul(strands).div_ceil(u64::from(job.plan.strands().count()).max(1))
}

/// Bytes of finished rows of fixed size that wait to be sent at most, and of steps that functions run. Those of ragged rows
/// cannot be predicted.
fn made_bytes(opened: &OpenedRecipe, job: &Job, places: u32) -> u64 {
    let rows = rows_of_step(job);
    let row_bytes: usize = opened.maps.iter().map(|map| map.chain.output().bytes()).sum();
    let made = rows.saturating_mul(row_bytes as u64).saturating_mul(u64::from(places));
    let Some(functions) = &opened.recipe.functions else { return made };
    // Rows and results of each step twice: here, and in the memory that processes of functions share.
    let step_bytes = rows.saturating_mul((row_bytes as u64).saturating_add(functions.row_bytes()));
    made.saturating_add(step_bytes.saturating_mul(2 * STEPS as u64))
}
