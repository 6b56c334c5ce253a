//! Turns a finished step into a batch. The error policy is applied here, on the thread that finished the step.

use crate::batch::{Batch, Tensor};
use crate::nulls::{NullRule, with_rules};
use crate::policy::{OnError, Skipped, sources};
use crate::slots::{Column, Home, Lease, Slot};
use crate::warnings::Warned;
use crate::{Error, ErrorKind, Result};
use arrow::array::{Int64Array, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Catalog, Step};
use feedstock_ingest::{Finished, Ready, SampleContext, Sink, row_seed};
use feedstock_ops::SampleSeed;
use std::sync::Arc;

/// A batch, the samples that were replaced in it, and those that a person should know of.
pub(crate) struct Assembled {
    pub(crate) batch: Batch,
    pub(crate) skipped: Vec<Skipped>,
    /// The unusual samples that it nevertheless contains.
    pub(crate) warned: Vec<Warned>,
    /// By row, the seed of its ops, for finishing on a device. Empty without a device.
    pub(crate) seeds: Vec<SampleSeed>,
}

impl Assembled {
    /// Replaces rows that turn out to be bad later, as the assembler does with rows that fail. They are marked and listed, and
    /// take the content and columns of the nearest good row.
    ///
    /// # Errors
    /// The first error, if the policy allows no bad rows or no row is good.
    ///
    /// # Safety
    /// Only this batch uses the slot.
    pub(crate) unsafe fn substitute(&mut self, on_error: OnError, bad: Vec<(usize, Error)>) -> Result<()> {
        let (batch, mut rows): (_, Vec<usize>) = (&mut self.batch, bad.iter().map(|(row, _)| *row).collect());
        rows.sort_unstable();
        let sources = sources(batch.len(), &rows);
        refuse(on_error, &bad)?;
        batch.columns = take_rows(&batch.columns, &sources)?;
        for tensor in &mut batch.tensors {
            // SAFETY: the caller's contract.
            unsafe { tensor.copy_rows(&sources) };
        }
        self.seeds = seeds_of(&self.seeds, &sources);
        batch.substitutes.extend(rows);
        batch.substitutes.sort_unstable();
        batch.substitutes.dedup();
        for (row, error) in bad {
            if std::mem::replace(&mut batch.valid[row], false) {
                let (sample, epoch) = (batch.sample_ids[row], batch.epoch);
                self.skipped.push(Skipped { sample, epoch, reason: error.to_string() });
                self.warned.retain(|warned| warned.sample != sample);
            }
        }
        Ok(())
    }
}

/// Fails the batch unless the policy allows all its failures.
fn refuse(on_error: OnError, failures: &[(usize, Error)]) -> Result<()> {
    let Some((_, first)) = failures.first() else { return Ok(()) };
    if on_error == OnError::Raise {
        return Err(first_of(first, failures.len()));
    }
    // Only bad data can be skipped, not feedstock's own defects or a bad chain.
    let ours = failures.iter().find(|(_, error)| error.kind() != ErrorKind::BadSample);
    ours.map_or(Ok(()), |(_, error)| Err(error.clone()))
}

/// Returns the seed of each row. A row that takes another row's content also takes its seed.
fn seeds_of(seeds: &[SampleSeed], sources: &[Option<usize>]) -> Vec<SampleSeed> {
    seeds.iter().zip(sources).map(|(own, from)| from.map_or(*own, |from| seeds[from])).collect()
}

/// Returns the rows that `sources` names. A row without a source stays itself.
fn take_rows(columns: &RecordBatch, sources: &[Option<usize>]) -> Result<RecordBatch> {
    if columns.num_columns() == 0 {
        return Ok(columns.clone()); // arrow takes no rows of a batch without columns
    }
    let rows = sources.iter().enumerate().map(|(row, from)| from.unwrap_or(row) as u64);
    take_record_batch(columns, &rows.collect::<UInt64Array>())
        .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot substitute rows: {e}")))
}

/// Turns finished steps into batches, in step order.
pub(crate) struct Assembler {
    pub(crate) ready: Ready<Assembled>,
    pub(crate) home: Arc<Home>,
    pub(crate) on_error: OnError,
    /// The mapped columns, in the order of the maps.
    pub(crate) columns: Arc<[Column]>,
    /// The forms of columns of numbers.
    pub(crate) nulls: Arc<[NullRule]>,
    /// Names samples in errors.
    pub(crate) catalog: Arc<Catalog>,
    /// The seed of the ops' randomness, if a device also draws from it.
    pub(crate) device_seed: Option<u64>,
}

impl Assembler {
    fn assemble(&self, finished: Finished<Slot>) -> Result<Assembled> {
        let Finished { step, mut columns, destination: mut slot, mut failures, warnings, .. } = finished;
        let mut valid: Vec<bool> = step.rows.iter().map(|row| row.valid).collect();
        let mut skipped = Vec::new();
        self.add_nulls(&step, &columns, &mut failures);
        refuse(self.on_error, &failures)?;
        let bad: Vec<usize> = failures.iter().map(|(row, _)| *row).collect();
        let sources = sources(step.rows.len(), &bad);
        if !bad.is_empty() {
            columns = take_rows(&columns, &sources)?;
        }
        columns = with_rules(columns, &self.nulls)?;
        for (row, error) in failures {
            if std::mem::replace(&mut valid[row], false) {
                let (sample, epoch) = (step.rows[row].sample, step.epoch);
                skipped.push(Skipped { sample, epoch, reason: error.to_string() });
            }
        }
        let warned = warnings.into_iter().filter(|(row, _)| valid[*row]).map(|(row, warnings)| Warned {
            sample: step.rows[row].sample,
            epoch: step.epoch,
            warnings,
        });
        let warned = warned.collect();
        let placed = slot.finish(&sources)?;
        let lease = Arc::new(Lease::new(slot, columns.get_array_memory_size(), self.home.clone()));
        let tensors: Vec<Tensor> = self
            .columns
            .iter()
            .zip(placed)
            .map(|(column, placed)| Tensor {
                name: column.name.clone(),
                dtype: column.spec.dtype,
                ragged_axis: column.spec.ragged_axis,
                is_list: column.spec.is_list(),
                rows: placed.rows,
                placed: Arc::new(placed),
                lease: lease.clone(),
            })
            .collect();
        let ragged = tensors.iter().zip(&*self.columns).filter(|(_, column)| !column.is_deferred);
        let ragged = ragged.filter_map(|(tensor, _)| Some((tensor, tensor.lengths()?)));
        let batch = Batch {
            epoch: step.epoch,
            position: step.position,
            next: step.next,
            sample_ids: step.rows.iter().map(|row| row.sample).collect(),
            padding: step.rows.iter().map(|row| !row.valid).collect(),
            valid,
            substitutes: bad,
            columns: with_lengths(columns, ragged)?,
            padded: tensors
                .iter()
                .zip(&*self.columns)
                .map(|(tensor, column)| if column.is_deferred { (0, 0) } else { tensor.padding() })
                .collect(),
            tensors,
            lease: Some(lease),
            device: None,
        };
        let seeds: Vec<SampleSeed> = self.device_seed.map_or_else(Vec::new, |seed| {
            step.rows.iter().map(|row| row_seed(seed, step.epoch, row)).collect()
        });
        Ok(Assembled { batch, skipped, warned, seeds: seeds_of(&seeds, &sources) })
    }
}

impl Assembler {
    /// Adds the rows that a null makes bad samples, except those that have failed already.
    fn add_nulls(&self, step: &Step, columns: &RecordBatch, failures: &mut Vec<(usize, Error)>) {
        for rule in &*self.nulls {
            for row in rule.bad_rows(columns) {
                if failures.iter().any(|(failed, _)| *failed == row) {
                    continue;
                }
                let sample = step.rows[row].sample;
                let name = self.catalog.describe_sample(sample);
                let message = format!("{name} (sample {sample}): {}", rule.problem());
                let about = SampleContext {
                    sample,
                    uri: self.catalog.sample_uri(sample),
                    column: Some(rule.column.clone()),
                };
                failures.push((row, Error::new(ErrorKind::BadSample, message).with_sample(about)));
            }
        }
        failures.sort_by_key(|(row, _)| *row);
    }
}

/// Adds a column `<name>_length` (Int64) for each of these tensors and their rows' lengths.
fn with_lengths<'a>(
    columns: RecordBatch,
    ragged: impl Iterator<Item = (&'a Tensor, &'a [usize])>,
) -> Result<RecordBatch> {
    let mut ragged = ragged.peekable();
    if ragged.peek().is_none() {
        return Ok(columns);
    }
    let mut fields = columns.schema().fields().to_vec();
    let mut arrays = columns.columns().to_vec();
    for (tensor, lengths) in ragged {
        let lengths: Int64Array = lengths.iter().map(|&length| i64::try_from(length).ok()).collect();
        fields.push(Arc::new(Field::new(length_column(&tensor.name), DataType::Int64, false)));
        arrays.push(Arc::new(lengths));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
        .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot add the rows' lengths: {e}")))
}

/// Returns the name of the column with the row lengths of the ragged tensor `name`.
pub(crate) fn length_column(name: &str) -> String {
    format!("{name}_length")
}

impl Sink<Slot> for Assembler {
    fn finished(&self, finished: Finished<Slot>) {
        let index = finished.index;
        match self.assemble(finished) {
            Ok(assembled) => self.ready.push(index, assembled),
            Err(error) => self.ready.fail(index, error),
        }
    }

    fn failed(&self, index: u64, error: Error) {
        self.ready.fail(index, error);
    }

    fn ended(&self, steps: u64) {
        self.ready.end(steps);
    }
}

fn first_of(error: &Error, failures: usize) -> Error {
    match failures {
        1 => error.clone(),
        n => error.clone().with_note(&format!(" (and {} more in this batch)", n - 1)),
    }
}
