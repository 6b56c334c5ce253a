//! Changes of images on their way into the shards, on all CPU threads and in order: shrinking, restart markers.
//!
//! ```text
//! RawBatches ─▶ [batch, batch, batch] each picture a task ─▶ pool ─▶ oldest batch complete ─▶ next()
//! ```

use super::options::OnBadPicture;
use super::report::KeptSample;
use crate::pool::{Pool, Turns};
use crate::raw::RawBatches;
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, BinaryViewBuilder, UInt64Array};
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use crossbeam_channel::{Receiver, Sender, unbounded};
use feedstock_dataset::{Catalog, SampleId};
use feedstock_ops::Scratch;
use feedstock_ops::image::{Marked, RestartMarkers, ShrinkImage, Shrinker, Unmarked};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Batches in the pool's hands: one being completed, one that keeps the threads busy meanwhile, one to begin.
const BATCHES_AT_ONCE: usize = 3;

/// A batch as it goes into a shard.
pub(super) struct Recoded {
    /// `sample_id`, then the chosen columns.
    pub(super) batch: RecordBatch,
    /// What became of images, by row, ascending; some have several fates, most have none.
    pub(super) fates: Vec<(usize, Fate)>,
}

/// What became of a row's image.
#[derive(Debug)]
pub(super) enum Fate {
    Shrunk,
    /// It got restart markers.
    Marked,
    /// It should have got them, and has none.
    Unmarked(Unmarked),
    /// It could not be read, and stays as it was.
    Kept(KeptSample),
}

/// Which images are changed, and how.
pub(super) struct Recoder {
    pub(super) columns: Vec<String>,
    pub(super) change: Change,
    pub(super) on_error: OnBadPicture,
    pub(super) catalog: Arc<Catalog>,
}

/// How an image is changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) shrink: Option<ShrinkImage>,
    /// MCUs between restart markers.
    pub(super) restart_interval: Option<u16>,
}

/// An image as it is written.
#[derive(Debug, Clone, Default)]
struct Changed {
    /// `None` where it stays as it was.
    bytes: Option<Vec<u8>>,
    shrunk: bool,
    /// `None` where markers were not asked for.
    marked: Option<std::result::Result<(), Unmarked>>,
}

/// Column, row and outcome.
type Outcome = (usize, usize, feedstock_ops::Result<Changed>);

struct InFlight {
    batch: RecordBatch,
    results: Receiver<Outcome>,
}

/// Record batches in plan order, with images changed if that is requested.
pub(super) struct RecodedBatches {
    batches: Box<dyn Iterator<Item = Result<RecordBatch>>>,
    work: Option<(Recoder, Turns, Idle)>,
    in_flight: VecDeque<InFlight>,
}

/// One thread's codecs.
struct Codecs {
    shrinker: Option<Shrinker>,
    markers: Option<RestartMarkers>,
}

impl Codecs {
    fn new(change: Change) -> feedstock_ops::Result<Self> {
        Ok(Self {
            shrinker: change.shrink.map(Shrinker::new).transpose()?,
            markers: change.restart_interval.map(RestartMarkers::new).transpose()?,
        })
    }

    fn change(&mut self, bytes: &[u8]) -> feedstock_ops::Result<Changed> {
        let small = self.shrinker.as_mut().map_or(Ok(None), |shrinker| shrinker.shrink(bytes))?;
        let shrunk = small.is_some();
        let Some(markers) = &mut self.markers else {
            return Ok(Changed { bytes: small, shrunk, marked: None });
        };
        Ok(match markers.add(small.as_deref().unwrap_or(bytes))? {
            Marked::Yes(bytes) => Changed { bytes: Some(bytes), shrunk, marked: Some(Ok(())) },
            Marked::No(why) => Changed { bytes: small, shrunk, marked: Some(Err(why)) },
        })
    }
}

/// Idle codecs: at most one for each thread that was busy at the same time.
#[derive(Clone, Default)]
struct Idle(Arc<Mutex<Vec<Codecs>>>);

impl Idle {
    fn change(&self, change: Change, bytes: &[u8]) -> feedstock_ops::Result<Changed> {
        let idle = || self.0.lock().unwrap_or_else(PoisonError::into_inner); // pushes and pops only
        let free = idle().pop();
        let mut codecs = match free {
            Some(codecs) => codecs,
            None => Codecs::new(change)?,
        };
        let result = codecs.change(bytes);
        idle().push(codecs);
        result
    }
}

impl RecodedBatches {
    /// `first` is a batch already taken from `rest`.
    pub(super) fn new(
        first: Option<RecordBatch>,
        rest: RawBatches,
        recoder: Option<Recoder>,
        threads: usize,
    ) -> Result<Self> {
        let work = match recoder {
            Some(recoder) => Some((recoder, Pool::shared(threads)?.share(threads).turns(0), Idle::default())),
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
        let Some((recoder, turns, idle)) = &mut self.work else {
            let batch = self.batches.next().transpose()?;
            return Ok(batch.map(|batch| Recoded { batch, fates: Vec::new() }));
        };
        while self.in_flight.len() < BATCHES_AT_ONCE {
            let Some(batch) = self.batches.next().transpose()? else { break };
            let (sender, results) = unbounded(); // bounded by the batch's rows
            recoder.submit(&batch, turns, idle, &sender)?;
            self.in_flight.push_back(InFlight { batch, results });
        }
        self.in_flight.pop_front().map(|oldest| recoder.complete(oldest)).transpose()
    }
}

impl Recoder {
    fn submit(
        &self,
        batch: &RecordBatch,
        turns: &mut Turns,
        idle: &Idle,
        results: &Sender<Outcome>,
    ) -> Result<()> {
        let turn = turns.next();
        for (index, name) in self.columns.iter().enumerate() {
            let views = payload(batch, name)?;
            for row in (0..views.len()).filter(|&row| views.is_valid(row)) {
                let (views, idle, results) = (views.clone(), idle.clone(), results.clone());
                let change = self.change;
                let task = move |_: &mut Scratch| {
                    // No thread listens once the rewrite was given up.
                    let _given_up = results.send((index, row, idle.change(change, views.value(row))));
                };
                turns.submit(turn, Box::new(task));
            }
        }
        Ok(())
    }

    fn complete(&self, InFlight { batch, results }: InFlight) -> Result<Recoded> {
        let mut changed = vec![vec![Changed::default(); batch.num_rows()]; self.columns.len()];
        let mut fates = Vec::new();
        let mut expected = 0;
        for name in &self.columns {
            let views = payload(&batch, name)?;
            expected += views.len() - views.null_count();
        }
        let mut failures = Vec::new();
        for (column, row, result) in results {
            expected -= 1;
            match result {
                Ok(picture) => changed[column][row] = picture,
                Err(error) => failures.push((row, error)),
            }
        }
        if expected > 0 {
            let message = format!("{expected} images of a batch were lost: their task panicked");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        failures.sort_by_key(|(row, _)| *row); // threads finish in any order, reports do not
        for (row, error) in failures {
            let sample = sample_id(&batch, row)?;
            let name = self.catalog.describe_sample(sample);
            if self.on_error == OnBadPicture::Raise || error.kind() == ErrorKind::Bug {
                return Err(error.context(format!(
                    "sample {sample} ({name}) cannot be rewritten (set on_error=copy to keep such bytes)"
                )));
            }
            fates.push((row, Fate::Kept(KeptSample { sample, name, reason: error.to_string() })));
        }
        for row in 0..batch.num_rows() {
            fates.extend(fates_of(changed.iter().map(|column| &column[row])).map(|fate| (row, fate)));
        }
        fates.sort_by_key(|(row, _)| *row);
        let batch = match changed.iter().flatten().any(|picture| picture.bytes.is_some()) {
            true => self.replace(&batch, &changed)?,
            false => batch,
        };
        Ok(Recoded { batch, fates })
    }

    /// Returns the batch with the changed images in place.
    fn replace(&self, batch: &RecordBatch, changed: &[Vec<Changed>]) -> Result<RecordBatch> {
        let mut arrays: Vec<ArrayRef> = batch.columns().to_vec();
        for (name, changed) in self.columns.iter().zip(changed) {
            let views = payload(batch, name)?;
            let mut builder = BinaryViewBuilder::with_capacity(views.len());
            for (old, new) in views.iter().zip(changed) {
                builder.append_option(new.bytes.as_deref().or(old));
            }
            let at = batch.schema().index_of(name).map_err(|e| missing(name, e))?;
            arrays[at] = Arc::new(builder.finish());
        }
        RecordBatch::try_new(batch.schema(), arrays)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot put changed images back: {e}")))
    }
}

/// What became of one row's images, which count as one.
fn fates_of<'a>(pictures: impl Iterator<Item = &'a Changed> + Clone) -> impl Iterator<Item = Fate> {
    let shrunk = pictures.clone().any(|picture| picture.shrunk).then_some(Fate::Shrunk);
    let marked = pictures.filter_map(|picture| picture.marked).min().map(|marked| match marked {
        Ok(()) => Fate::Marked,
        Err(why) => Fate::Unmarked(why),
    });
    shrunk.into_iter().chain(marked)
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
