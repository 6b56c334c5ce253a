//! Shrinking pictures on their way into the shards, on all CPU threads, in order.
//!
//! ```text
//! RawBatches ─▶ [batch, batch, batch] each picture a task ─▶ pool ─▶ oldest batch complete ─▶ next()
//! ```

use super::{KeptSample, OnBadPicture};
use crate::pool::Pool;
use crate::raw::RawBatches;
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, BinaryViewBuilder, UInt64Array};
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use crossbeam_channel::{Receiver, Sender, unbounded};
use feedstock_dataset::{Catalog, SampleId};
use feedstock_ops::image::{ShrinkImage, Shrinker};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Batches in the pool's hands: one being completed, one that keeps the threads busy meanwhile, one to begin.
const BATCHES_AT_ONCE: usize = 3;

/// A batch as it goes into a shard.
pub(super) struct Recoded {
    /// `sample_id`, then the chosen columns.
    pub(super) batch: RecordBatch,
    /// Rows in which a picture was shrunk, ascending.
    pub(super) shrunk: Vec<usize>,
    /// Rows whose picture could not be shrunk and stays as it was.
    pub(super) kept: Vec<(usize, KeptSample)>,
}

/// What is done to pictures.
pub(super) struct Recoder {
    pub(super) columns: Vec<String>,
    pub(super) shrink: ShrinkImage,
    pub(super) on_error: OnBadPicture,
    pub(super) catalog: Arc<Catalog>,
}

type Shrunk = (usize, usize, feedstock_ops::Result<Option<Vec<u8>>>);

struct InFlight {
    batch: RecordBatch,
    results: Receiver<Shrunk>,
}

/// Record batches in plan order, pictures shrunk where that is asked for.
pub(super) struct Source {
    batches: Box<dyn Iterator<Item = Result<RecordBatch>>>,
    work: Option<(Recoder, Pool, Shrinkers)>,
    in_flight: VecDeque<InFlight>,
}

/// Idle shrinkers: as many as threads have ever been busy at once.
#[derive(Clone, Default)]
struct Shrinkers(Arc<Mutex<Vec<Shrinker>>>);

impl Shrinkers {
    fn shrink(&self, to: ShrinkImage, bytes: &[u8]) -> feedstock_ops::Result<Option<Vec<u8>>> {
        let idle = || self.0.lock().unwrap_or_else(PoisonError::into_inner); // pushes and pops only
        let free = idle().pop();
        let mut shrinker = match free {
            Some(shrinker) => shrinker,
            None => Shrinker::new(to)?,
        };
        let result = shrinker.shrink(bytes);
        idle().push(shrinker);
        result
    }
}

impl Source {
    /// `first` is a batch already taken from `rest`.
    pub(super) fn new(
        first: Option<RecordBatch>,
        rest: RawBatches,
        recoder: Option<Recoder>,
        threads: usize,
    ) -> Result<Self> {
        let work = match recoder {
            Some(recoder) => Some((recoder, Pool::new(threads)?, Shrinkers::default())),
            None => None,
        };
        Ok(Self {
            batches: Box::new(first.map(Ok).into_iter().chain(rest)),
            work,
            in_flight: VecDeque::new(),
        })
    }

    /// The next batch; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Recoded>> {
        let Some((recoder, pool, shrinkers)) = &self.work else {
            let batch = self.batches.next().transpose()?;
            return Ok(batch.map(|batch| Recoded { batch, shrunk: Vec::new(), kept: Vec::new() }));
        };
        while self.in_flight.len() < BATCHES_AT_ONCE {
            let Some(batch) = self.batches.next().transpose()? else { break };
            let (sender, results) = unbounded(); // bounded by the batch's rows
            recoder.submit(&batch, pool, shrinkers, &sender)?;
            self.in_flight.push_back(InFlight { batch, results });
        }
        self.in_flight.pop_front().map(|oldest| recoder.complete(oldest)).transpose()
    }
}

impl Recoder {
    fn submit(
        &self,
        batch: &RecordBatch,
        pool: &Pool,
        shrinkers: &Shrinkers,
        results: &Sender<Shrunk>,
    ) -> Result<()> {
        for (index, name) in self.columns.iter().enumerate() {
            let views = payload(batch, name)?;
            for row in (0..views.len()).filter(|&row| views.is_valid(row)) {
                let (views, shrinkers, results) = (views.clone(), shrinkers.clone(), results.clone());
                let to = self.shrink;
                pool.submit(Box::new(move |_| {
                    // Nobody listens any more when the rewrite was given up.
                    let _given_up = results.send((index, row, shrinkers.shrink(to, views.value(row))));
                }));
            }
        }
        Ok(())
    }

    fn complete(&self, InFlight { batch, results }: InFlight) -> Result<Recoded> {
        let mut smaller: Vec<Vec<Option<Vec<u8>>>> = vec![vec![None; batch.num_rows()]; self.columns.len()];
        let mut kept = Vec::new();
        let mut expected = 0;
        for name in &self.columns {
            let views = payload(&batch, name)?;
            expected += views.len() - views.null_count();
        }
        let mut failures = Vec::new();
        for (column, row, result) in results {
            expected -= 1;
            match result {
                Ok(bytes) => smaller[column][row] = bytes,
                Err(error) => failures.push((row, error)),
            }
        }
        if expected > 0 {
            let message = format!("{expected} pictures of a batch were lost: the shrinking panicked");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        failures.sort_by_key(|(row, _)| *row); // threads finish in any order, reports do not
        for (row, error) in failures {
            let sample = sample_id(&batch, row)?;
            let name = self.catalog.describe_sample(sample);
            if self.on_error == OnBadPicture::Raise || error.kind() == feedstock_ops::ErrorKind::Bug {
                return Err(Error::sample(
                    &format!(
                        "sample {sample} ({name}) cannot be shrunk (set on_error=copy to keep such bytes)"
                    ),
                    error,
                ));
            }
            kept.push((row, KeptSample { sample, name, reason: error.to_string() }));
        }
        let shrunk: Vec<usize> =
            (0..batch.num_rows()).filter(|&row| smaller.iter().any(|column| column[row].is_some())).collect();
        let batch = match shrunk.is_empty() {
            true => batch,
            false => self.replace(&batch, &smaller)?,
        };
        Ok(Recoded { batch, shrunk, kept })
    }

    /// The batch with the smaller pictures in place.
    fn replace(&self, batch: &RecordBatch, smaller: &[Vec<Option<Vec<u8>>>]) -> Result<RecordBatch> {
        let mut arrays: Vec<ArrayRef> = batch.columns().to_vec();
        for (name, smaller) in self.columns.iter().zip(smaller) {
            let views = payload(batch, name)?;
            let mut builder = BinaryViewBuilder::with_capacity(views.len());
            for (old, new) in views.iter().zip(smaller) {
                builder.append_option(new.as_deref().or(old));
            }
            let at = batch.schema().index_of(name).map_err(|e| missing(name, e))?;
            arrays[at] = Arc::new(builder.finish());
        }
        RecordBatch::try_new(batch.schema(), arrays)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot put shrunk pictures back: {e}")))
    }
}

fn payload<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a BinaryViewArray> {
    let column = batch.column_by_name(name).and_then(|array| array.as_binary_view_opt());
    column.ok_or_else(|| missing(name, "it is not a payload"))
}

fn missing(name: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Bug, format!("a record batch lacks column {name}: {why}"))
}

/// The ids of a batch's rows.
pub(super) fn sample_ids(batch: &RecordBatch) -> Result<&UInt64Array> {
    let column = batch.column_by_name("sample_id").and_then(|array| array.as_primitive_opt::<UInt64Type>());
    column.ok_or_else(|| missing("sample_id", "every raw batch has it"))
}

fn sample_id(batch: &RecordBatch, row: usize) -> Result<SampleId> {
    Ok(SampleId(sample_ids(batch)?.value(row)))
}
