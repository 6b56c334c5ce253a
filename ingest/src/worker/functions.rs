//! A lane whose rows go through functions of the user before they are sent.
//!
//! ```text
//! EngineLane ─▶ rows that did not fail ─▶ RowLane, on a blocking thread ─▶ results as further columns ─▶ sent, in order
//! ```
//! Up to [`STEPS`] steps of a lane are under way, so that the processes have rows while results are put together.

use super::lane::{FinishedRows, Lane};
use crate::functions::{
    FunctionKind, FunctionsSpec, ResultColumn, RowFunctions, RowLane, RowResults, RowStep, RowTensor,
};
use crate::{Error, ErrorKind, Result, SampleContext};
use arrow::array::{ArrayRef, FixedSizeBinaryArray, LargeBinaryArray, UInt64Array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use feedstock_dataset::{Dataset, SampleId};
use feedstock_ops::TensorSpec;
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_blocking};

/// One whose results are put together, and one that runs.
pub(super) const STEPS: usize = 2;

/// Loaded functions. They are stopped when the last lane with them ends, and no other recipe keeps them.
pub(super) struct Held(Option<Arc<dyn RowFunctions>>);

impl Held {
    pub(super) fn new(functions: Arc<dyn RowFunctions>) -> Self {
        Self(Some(functions))
    }

    /// Returns what runs the rows of one stream.
    pub(super) fn lane(&self) -> Result<Arc<dyn RowLane>> {
        let functions = self.0.as_ref().ok_or_else(|| Error::bug("functions were stopped"))?;
        functions.lane()
    }

    /// Ends processes and calls that are under way. Blocks until the interpreter has time.
    pub(super) fn stop(&self) {
        if let Some(functions) = &self.0 {
            functions.stop();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(functions) = self.0.take() {
            in_background(move || functions.stop());
        }
    }
}

/// Runs what may wait for an interpreter: lanes end on threads that serve connections.
fn in_background(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("feedstock-functions".into()).spawn(work);
    if let Err(error) = thread {
        tracing::warn!(
            "functions go on until their process ends: the system has no thread to stop them: {error}"
        );
    }
}

/// Returns the error of a worker that runs no code.
pub(super) fn not_allowed(functions: &FunctionsSpec) -> Error {
    let is_of_items = functions.steps.iter().any(|step| step.kind == FunctionKind::FromTorch);
    let (how, instead) = match is_of_items {
        true => ("", "leave out workers=, so that the rank's machine makes the items"),
        false => {
            (" with executor=\"worker\"", "use another executor, which runs functions on the rank's machine")
        }
    };
    Error::config(format!(
        "this worker runs no Python, and the pipeline has {functions}{how}; start workers with `python -m feedstock worker \
         --allow-code` (Fleet(…, allow_code=True) on Ray), or {instead}"
    ))
}

/// What all steps of a lane need.
pub(super) struct FunctionsRun {
    /// By mapped column.
    pub(super) tensors: Vec<(String, TensorSpec)>,
    pub(super) fields: Vec<Arc<Field>>,
    pub(super) functions: Arc<dyn RowLane>,
    /// Names samples in errors.
    pub(super) dataset: Dataset,
}

/// See the module.
pub(super) struct FunctionsLane {
    lane: Box<dyn Lane>,
    run: Arc<FunctionsRun>,
    /// In order.
    under_way: VecDeque<JoinHandle<Result<FinishedRows>>>,
    ended: bool,
    _held: Arc<Held>,
}

impl FunctionsLane {
    pub(super) fn new(lane: Box<dyn Lane>, run: FunctionsRun, held: Arc<Held>) -> Self {
        Self { lane, run: Arc::new(run), under_way: VecDeque::new(), ended: false, _held: held }
    }
}

impl Drop for FunctionsLane {
    /// Gives up the steps under way, for which no rank waits any more.
    fn drop(&mut self) {
        let functions = self.run.functions.clone();
        in_background(move || functions.give_up());
    }
}

impl Lane for FunctionsLane {
    fn specs(&self) -> &[TensorSpec] {
        self.lane.specs()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<FinishedRows>>> {
        Box::pin(async move {
            loop {
                if self.under_way.is_empty() && self.ended {
                    return Ok(None);
                }
                if self.under_way.len() == STEPS || self.ended {
                    return first(&mut self.under_way).await.map(Some);
                }
                let rows = tokio::select! {
                    biased;
                    done = first(&mut self.under_way) => return done.map(Some),
                    rows = self.lane.next() => rows?,
                };
                match rows {
                    Some(rows) => {
                        let run = self.run.clone();
                        self.under_way.push_back(spawn_blocking(move || run.on(rows)));
                    }
                    None => self.ended = true,
                }
            }
        })
    }
}

/// Waits for the first of the steps under way and removes it; for ever if there is none.
async fn first(under_way: &mut VecDeque<JoinHandle<Result<FinishedRows>>>) -> Result<FinishedRows> {
    let Some(step) = under_way.front_mut() else { return pending().await };
    let done = step.await;
    under_way.pop_front();
    done.map_err(|error| Error::bug(format!("running functions panicked: {error}")))?
}

impl FunctionsRun {
    /// Runs the functions on the rows that did not fail.
    fn on(&self, mut rows: FinishedRows) -> Result<FinishedRows> {
        let good: Vec<usize> =
            (0..rows.heads.len()).filter(|&row| rows.heads[row].failure.is_none()).collect();
        let results = if good.is_empty() { self.nothing() } else { self.results(&rows, &good)? };
        for (nth, reason) in &results.failures {
            let head = good.get(*nth).and_then(|&row| rows.heads.get_mut(row));
            let head =
                head.ok_or_else(|| Error::bug(format!("functions failed on row {nth} of {}", good.len())))?;
            head.failure = Some(self.failure(head.sample, rows.epoch, reason));
        }
        rows.columns = self.with_results(&rows.columns, rows.heads.len(), &good, results.columns)?;
        Ok(rows)
    }

    fn nothing(&self) -> RowResults {
        RowResults { columns: vec![ResultColumn::default(); self.fields.len()], failures: Vec::new() }
    }

    fn results(&self, rows: &FinishedRows, good: &[usize]) -> Result<RowResults> {
        let ids: Vec<SampleId> = good.iter().map(|&row| rows.heads[row].sample).collect();
        let mut ragged = 0;
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (column, (name, spec)) in self.tensors.iter().enumerate() {
            let mut lengths = Vec::new();
            if spec.is_ragged() {
                lengths = good
                    .iter()
                    .map(|&row| rows.heads[row].lengths.get(ragged).copied().unwrap_or(0))
                    .collect();
                ragged += 1;
            }
            let rows = good.iter().map(|&row| rows.body.part(row, column)).collect();
            tensors.push(RowTensor { name, spec, lengths, rows });
        }
        let columns = taken(&rows.columns, good)?;
        let step = RowStep { epoch: rows.epoch, ids: &ids, tensors: &tensors, columns: &columns };
        self.functions.run(&step)
    }

    fn failure(&self, sample: SampleId, epoch: u64, reason: &str) -> Error {
        let uri = self.dataset.catalog().sample_uri(sample);
        Error::new(ErrorKind::BadSample, format!("sample {sample} of epoch {epoch}: {reason}"))
            .with_sample(SampleContext { sample, uri, column: None })
    }

    /// Adds the results of the rows `good` to the columns of all `rows`; other rows get zeros.
    fn with_results(
        &self,
        columns: &RecordBatch,
        rows: usize,
        good: &[usize],
        results: Vec<ResultColumn>,
    ) -> Result<RecordBatch> {
        if results.len() != self.fields.len() {
            return Err(Error::bug(format!(
                "functions made {} results of {}",
                results.len(),
                self.fields.len()
            )));
        }
        let mut fields = columns.schema().fields().to_vec();
        let mut arrays = columns.columns().to_vec();
        for (field, result) in self.fields.iter().zip(results) {
            let array = match *field.data_type() {
                DataType::FixedSizeBinary(width) => of_one_length(field, width, result.bytes, rows, good)?,
                _ => of_any_length(field, result, rows, good)?,
            };
            fields.push(field.clone());
            arrays.push(array);
        }
        batch(Schema::new(fields), arrays, rows)
    }
}

/// Returns the column of results with `width` bytes for each of the rows `good`.
fn of_one_length(field: &Field, width: i32, bytes: Vec<u8>, rows: usize, good: &[usize]) -> Result<ArrayRef> {
    let row_bytes = usize::try_from(width).unwrap_or(0);
    if bytes.len() != good.len() * row_bytes {
        let (name, found) = (field.name(), bytes.len());
        return Err(Error::bug(format!("{name}: {found} bytes for {} rows of {row_bytes}", good.len())));
    }
    let bytes = if good.len() == rows { bytes } else { spread(&bytes, row_bytes, rows, good) };
    Ok(Arc::new(FixedSizeBinaryArray::try_new(width, Buffer::from_vec(bytes), None).map_err(bug)?))
}

/// Returns the column of results whose lengths differ; rows other than `good` have none.
fn of_any_length(field: &Field, result: ResultColumn, rows: usize, good: &[usize]) -> Result<ArrayRef> {
    let ResultColumn { bytes, lengths } = result;
    let total = lengths.iter().copied().fold(0, usize::saturating_add);
    if lengths.len() != good.len() || total != bytes.len() {
        let (name, found) = (field.name(), lengths.len());
        return Err(Error::bug(format!("{name}: {found} results of {total} bytes for {} rows", good.len())));
    }
    let mut all = vec![0; rows];
    good.iter().zip(lengths).for_each(|(&row, length)| all[row] = length);
    let offsets = OffsetBuffer::from_lengths(all);
    Ok(Arc::new(LargeBinaryArray::try_new(offsets, Buffer::from_vec(bytes), None).map_err(bug)?))
}

/// Returns memory of `rows` rows in which those of `good` have these bytes, and others zeros.
fn spread(bytes: &[u8], row_bytes: usize, rows: usize, good: &[usize]) -> Vec<u8> {
    let mut all = vec![0; rows * row_bytes];
    for (&row, bytes) in good.iter().zip(bytes.chunks_exact(row_bytes)) {
        all[row * row_bytes..][..row_bytes].copy_from_slice(bytes);
    }
    all
}

fn taken(columns: &RecordBatch, rows: &[usize]) -> Result<RecordBatch> {
    if rows.len() == columns.num_rows() {
        return Ok(columns.clone());
    }
    if columns.num_columns() == 0 {
        return batch(Schema::empty(), Vec::new(), rows.len()); // arrow takes no rows of a batch without columns
    }
    let rows: UInt64Array = rows.iter().map(|&row| row as u64).collect();
    take_record_batch(columns, &rows).map_err(bug)
}

fn batch(schema: Schema, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(schema), arrays, &options).map_err(bug)
}

fn bug(error: ArrowError) -> Error {
    Error::bug(format!("cannot put the results of functions together: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Array;

    #[test]
    fn rows_without_a_result_have_zeros() {
        assert_eq!(spread(&[1, 2, 3, 4], 2, 4, &[1, 3]), [0, 0, 1, 2, 0, 0, 3, 4]);
        assert_eq!(spread(&[], 3, 2, &[]), [0; 6]);
    }

    #[test]
    fn results_of_any_length_are_those_of_their_rows() {
        let field = Field::new("text", DataType::LargeBinary, false);
        let made = |bytes: &[u8], lengths: &[usize], good: &[usize]| {
            let result = ResultColumn { bytes: bytes.to_vec(), lengths: lengths.to_vec() };
            of_any_length(&field, result, 4, good)
        };
        let texts = made(b"onethree", &[3, 0, 5], &[0, 1, 3]).unwrap();
        let expected: [&[u8]; 4] = [b"one", b"", b"", b"three"];
        assert_eq!(texts.as_ref(), &LargeBinaryArray::from_iter_values(expected) as &dyn Array);
        assert!(made(b"one", &[3], &[0, 1]).is_err());
        assert!(made(b"one", &[3, 1], &[0, 1]).is_err());
    }

    #[test]
    fn rows_are_taken_also_of_no_columns() {
        let none = batch(Schema::empty(), Vec::new(), 5).unwrap();
        assert_eq!(taken(&none, &[0, 4]).unwrap().num_rows(), 2);
        let labels: ArrayRef = Arc::new(UInt64Array::from(vec![7, 8, 9]));
        let columns = RecordBatch::try_from_iter([("label", labels)]).unwrap();
        let some = taken(&columns, &[0, 2]).unwrap();
        assert_eq!(
            *some.column(0).as_any().downcast_ref::<UInt64Array>().unwrap(),
            UInt64Array::from(vec![7, 9])
        );
    }
}
