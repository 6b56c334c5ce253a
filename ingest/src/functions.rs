//! Python functions that run on single rows: how a recipe describes them, and what runs them.
//!
//! ```text
//! FunctionsSpec (in the recipe) ──▶ RowExecutor::load, on a worker or in the rank's process ──▶ RowFunctions::lane ──▶ RowLane::run, once a step
//! ```
//! This crate knows no interpreter. The Python package implements [`RowExecutor`]. A process without one refuses recipes with
//! functions. Results are columns of bytes next to those that no chain transforms: [`FunctionsSpec::fields`].

use crate::{Error, Result};
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::SampleId;
use feedstock_ops::TensorSpec;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the names of result columns begin with, so that a result can have the name of another column.
pub const RESULT_PREFIX: &str = "map_rows:";

/// One result at most, as for rows of chains.
const RESULT_BYTES: u32 = 1 << 30;

/// Functions that run on each row after all maps, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionsSpec {
    /// The interpreter that made the code, such as `cpython 3.12, numpy 2.1`. Another one may not be able to read it.
    pub interpreter: String,
    /// The functions.
    pub steps: Vec<FunctionStep>,
    /// Columns of numbers that functions get as Python values, since the data set has nulls in them. The rank sets it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<String>,
}

/// What a function is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionKind {
    /// A function that gets rows of columns.
    #[default]
    MapRows,
    /// A data set of the user, whose items take the place of a column of indexes.
    FromTorch,
}

impl FunctionKind {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// One function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionStep {
    /// What it is of.
    #[serde(default, skip_serializing_if = "FunctionKind::is_default")]
    pub kind: FunctionKind,
    /// Its name, for messages.
    pub name: String,
    /// The user's version of it.
    pub version: String,
    /// The columns that it gets; `None`: all.
    pub inputs: Option<Vec<String>>,
    /// The columns that it returns.
    pub outputs: Vec<FunctionOutput>,
    /// Processes that run it; `None`: the number of CPU threads.
    pub processes: Option<usize>,
    /// Seconds that a row may take; `None`: no limit.
    pub timeout: Option<f64>,
    /// The function as cloudpickle writes it, in Base64.
    pub code: String,
}

/// A column that a function returns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionOutput {
    /// Its name.
    pub name: String,
    /// NumPy's name of its dtype.
    pub dtype: String,
    /// The shape of one row's value; 0 for the axis that has any size.
    pub shape: Vec<u64>,
    /// The axis that has any size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<u32>,
    /// Bytes of one row's value, at least 1; `None`: any number, another one in each row.
    pub bytes: Option<u32>,
}

impl FunctionsSpec {
    /// Returns the columns that rows have after the last function: of results with one name, the last.
    pub fn results(&self) -> Vec<&FunctionOutput> {
        let mut results: Vec<&FunctionOutput> = Vec::new();
        for output in self.steps.iter().flat_map(|step| &step.outputs) {
            match results.iter_mut().find(|result| result.name == output.name) {
                Some(result) => *result = output,
                None => results.push(output),
            }
        }
        results
    }

    /// Returns the bytes of one row's results, without those of any number.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.results().iter().filter_map(|result| result.bytes).map(u64::from).sum()
    }

    /// Returns the columns of batches that hold the results: bytes of a fixed or of any number, named [`RESULT_PREFIX`] and the
    /// result's name.
    ///
    /// ```
    /// use feedstock_ingest::{FunctionOutput, FunctionStep, FunctionsSpec};
    ///
    /// let output = FunctionOutput { name: "shift".into(), dtype: "float32".into(), shape: vec![2], bytes: Some(8), axis: None };
    /// let step = FunctionStep { name: "shifted".into(), outputs: vec![output], ..FunctionStep::default() };
    /// let spec = FunctionsSpec { steps: vec![step], ..FunctionsSpec::default() };
    /// assert_eq!(spec.fields()?[0].name(), "map_rows:shift");
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if a result has no bytes, or more than 1 GiB a row.
    pub fn fields(&self) -> Result<Vec<Arc<Field>>> {
        let type_of = |output: &FunctionOutput| -> Result<DataType> {
            let Some(bytes) = output.bytes else { return Ok(DataType::LargeBinary) };
            let is_sent = (1..=RESULT_BYTES).contains(&bytes);
            let width = i32::try_from(bytes).ok().filter(|_| is_sent).ok_or_else(|| {
                let message = format!(
                    "the result '{}' of {self} has {bytes} bytes a row; workers send results of 1 byte to {RESULT_BYTES} bytes",
                    output.name
                );
                Error::config(message)
            })?;
            Ok(DataType::FixedSizeBinary(width))
        };
        let field = |output: &FunctionOutput| {
            let name = format!("{RESULT_PREFIX}{}", output.name);
            Ok(Arc::new(Field::new(name, type_of(output)?, false)))
        };
        self.results().into_iter().map(field).collect()
    }
}

impl std::fmt::Display for FunctionsSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of =
            |kind| self.steps.iter().filter(move |step| step.kind == kind).map(|step| step.name.as_str());
        let items: Vec<String> =
            of(FunctionKind::FromTorch).map(|name| format!("from_torch({name})")).collect();
        let rows: Vec<&str> = of(FunctionKind::MapRows).collect();
        let rows = (!rows.is_empty() || items.is_empty()).then(|| format!("map_rows({})", rows.join(", ")));
        f.write_str(&items.into_iter().chain(rows).collect::<Vec<_>>().join(", "))
    }
}

/// The rows of one step that functions run on: none that has failed.
#[derive(Debug)]
pub struct RowStep<'a> {
    /// The epoch.
    pub epoch: u64,
    /// The sample of each row.
    pub ids: &'a [SampleId],
    /// The mapped columns.
    pub tensors: &'a [RowTensor<'a>],
    /// The columns that no chain transforms.
    pub columns: &'a RecordBatch,
}

/// A mapped column.
#[derive(Debug)]
pub struct RowTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Dtype and shape.
    pub spec: &'a TensorSpec,
    /// The length of each row along its ragged axis; empty if there is none.
    pub lengths: Vec<usize>,
    /// The bytes of each row, without padding.
    pub rows: Vec<&'a [u8]>,
}

/// One result of all rows of a step.
#[derive(Debug, Clone, Default)]
pub struct ResultColumn {
    /// The bytes of the rows, one after another.
    pub bytes: Vec<u8>,
    /// If rows may have any number of bytes: that of each.
    pub lengths: Vec<usize>,
}

/// What functions made of a step.
#[derive(Debug, Default)]
pub struct RowResults {
    /// One for each of [`FunctionsSpec::results`].
    pub columns: Vec<ResultColumn>,
    /// Rows without a result, and why: a bad sample. Their bytes are not used.
    pub failures: Vec<(usize, String)>,
}

/// Functions that are ready to run. Threads may share them.
pub trait RowFunctions: Send + Sync {
    /// Returns what runs the rows of one stream.
    ///
    /// # Errors
    /// `Retryable` if the interpreter ends.
    fn lane(&self) -> Result<Arc<dyn RowLane>>;

    /// Ends processes and calls that are under way, also those of lanes. There are no further calls.
    fn stop(&self);
}

/// Functions for the rows of one stream. Threads may share it.
pub trait RowLane: Send + Sync {
    /// Runs the functions on the rows of one step; blocks until they are done.
    ///
    /// # Errors
    /// Why no row has a result: `Retryable` after [`give_up`](Self::give_up) or [`RowFunctions::stop`].
    fn run(&self, step: &RowStep<'_>) -> Result<RowResults>;

    /// Ends calls that are under way, also if a row is stuck. Later calls of [`run`](Self::run) fail.
    fn give_up(&self);
}

/// Loads functions, where there is an interpreter.
pub trait RowExecutor: Send + Sync {
    /// Loads functions; blocks until one process has loaded each.
    ///
    /// `seed` is that of the recipe's ops, and `threads` the number of CPU threads.
    ///
    /// # Errors
    /// `BadConfig` for a function that does not load here, which is named, and code of another interpreter.
    fn load(&self, functions: &FunctionsSpec, seed: u64, threads: usize) -> Result<Arc<dyn RowFunctions>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(name: &str, dtype: &str, bytes: u32) -> FunctionOutput {
        let shape = vec![u64::from(bytes)];
        FunctionOutput { name: name.into(), dtype: dtype.into(), shape, bytes: Some(bytes), axis: None }
    }

    fn spec(steps: &[&[FunctionOutput]]) -> FunctionsSpec {
        let step = |outputs: &&[FunctionOutput]| FunctionStep {
            outputs: outputs.to_vec(),
            ..FunctionStep::default()
        };
        FunctionsSpec { steps: steps.iter().map(step).collect(), ..FunctionsSpec::default() }
    }

    #[test]
    fn of_results_with_one_name_the_last_is_sent() {
        let (first, second) = ([output("a", "u1", 1), output("b", "u1", 2)], [output("a", "f4", 4)]);
        let spec = spec(&[&first, &second]);
        let fields: Vec<_> = spec
            .fields()
            .unwrap()
            .iter()
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect();
        let bytes = DataType::FixedSizeBinary;
        assert_eq!(fields, [("map_rows:a".to_owned(), bytes(4)), ("map_rows:b".to_owned(), bytes(2))]);
    }

    #[test]
    fn results_of_any_length_are_sent_as_bytes() {
        let text = FunctionOutput { bytes: None, ..output("text", "str", 1) };
        let spec = spec(&[&[text, output("a", "u1", 3)]]);
        assert_eq!(spec.fields().unwrap()[0].data_type(), &DataType::LargeBinary);
        assert_eq!(spec.row_bytes(), 3);
    }

    #[test]
    fn items_and_functions_are_named_in_their_order() {
        let step = |kind, name: &str| FunctionStep { kind, name: name.into(), ..FunctionStep::default() };
        let (pairs, first) = (step(FunctionKind::FromTorch, "Pairs"), step(FunctionKind::MapRows, "first"));
        let shown = |steps| FunctionsSpec { steps, ..FunctionsSpec::default() }.to_string();
        assert_eq!(shown(vec![pairs.clone()]), "from_torch(Pairs)");
        let second = step(FunctionKind::MapRows, "second");
        assert_eq!(shown(vec![pairs, first, second]), "from_torch(Pairs), map_rows(first, second)");
        let sent = serde_json::to_value(step(FunctionKind::FromTorch, "Pairs")).unwrap();
        assert_eq!(sent["kind"], "from_torch");
        assert_eq!(serde_json::to_value(step(FunctionKind::MapRows, "x")).unwrap().get("kind"), None);
    }

    #[test]
    fn a_row_has_the_bytes_of_what_is_sent() {
        let (first, second) = ([output("a", "u1", 1), output("b", "u1", 2)], [output("a", "f4", 4)]);
        assert_eq!(spec(&[&first, &second]).row_bytes(), 6);
    }

    #[test]
    fn results_without_bytes_and_of_too_many_are_refused() {
        for bytes in [0, (1 << 30) + 1, u32::MAX] {
            let error = spec(&[&[output("a", "u1", bytes)]]).fields().unwrap_err();
            assert!(error.message().contains("the result 'a' of map_rows() has"), "{error}");
        }
    }
}
