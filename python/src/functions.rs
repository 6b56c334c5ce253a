//! Runs Python functions on the rows of a worker: `feedstock/_rows/remote.py` by Rust's traits.

use crate::tensor::Tensor;
use crate::values::list;
use arrow::record_batch::RecordBatch;
use feedstock::ops::DType;
use feedstock::workers::{
    FunctionsSpec, ResultColumn, RowExecutor, RowFunctions, RowLane, RowResults, RowStep, RowTensor,
    columns_of_functions,
};
use feedstock::{Error, ErrorKind, Numbers, Result};
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList};
use std::sync::Arc;

/// What each process of functions on a worker may allocate, by default.
pub(crate) const MEMORY_BYTES: u64 = 4 << 30;

/// Loads functions in this process's interpreter.
struct PythonExecutor {
    /// The limit of each process, of a worker.
    memory_bytes: Option<u64>,
}

/// What runs functions on a worker.
pub(crate) fn of_worker(memory_bytes: u64) -> Arc<dyn RowExecutor> {
    Arc::new(PythonExecutor { memory_bytes: Some(memory_bytes) })
}

/// What runs a rank's own functions in its process, next to workers.
pub(crate) fn of_rank() -> Arc<dyn RowExecutor> {
    Arc::new(PythonExecutor { memory_bytes: None })
}

/// Loaded functions: `_rows.remote.Functions`.
struct PythonFunctions {
    functions: Py<PyAny>,
    lists: Vec<String>,
}

impl RowExecutor for PythonExecutor {
    fn load(&self, functions: &FunctionsSpec, seed: u64, threads: usize) -> Result<Arc<dyn RowFunctions>> {
        let json = serde_json::to_string(functions)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("functions cannot be written as JSON: {e}")))?;
        let loaded = attached(|py| {
            let load = py.import("feedstock._rows.remote")?.getattr("load")?;
            load.call1((json, seed, threads, self.memory_bytes)).map(Bound::unbind)
        })?;
        Ok(Arc::new(PythonFunctions { functions: loaded, lists: functions.lists.clone() }))
    }
}

/// `_rows.remote.Lane`.
struct PythonLane {
    lane: Py<PyAny>,
    lists: Vec<String>,
}

impl RowLane for PythonLane {
    fn run(&self, step: &RowStep<'_>) -> Result<RowResults> {
        let columns = columns_of_functions(step.columns.clone(), &self.lists)?;
        attached(|py| {
            let ids: Vec<u64> = step.ids.iter().map(|id| id.0).collect();
            let tensors = step.tensors.iter().map(|tensor| described(py, tensor));
            let tensors = PyList::new(py, tensors.collect::<PyResult<Vec<_>>>()?)?;
            let arguments = (step.epoch, ids, tensors, values(py, &columns)?);
            let results = self.lane.bind(py).call_method1("run", arguments)?;
            let (columns, failures): (Vec<(Bound<'_, PyBytes>, Vec<usize>)>, _) = results.extract()?;
            let column = |(bytes, lengths): (Bound<'_, PyBytes>, _)| ResultColumn {
                bytes: bytes.as_bytes().to_vec(),
                lengths,
            };
            let columns = columns.into_iter().map(column).collect();
            Ok(RowResults { columns, failures })
        })
    }

    fn give_up(&self) {
        // It frees what the object has: without the interpreter's lock, the object stays until something takes the lock.
        let given_up = Python::try_attach(|py| self.lane.bind(py).call_method0("give_up").map(drop));
        if let Some(Err(error)) = given_up {
            tracing::warn!("rows of functions were not given up: {error}");
        }
    }
}

impl RowFunctions for PythonFunctions {
    fn lane(&self) -> Result<Arc<dyn RowLane>> {
        let lane = attached(|py| self.functions.bind(py).call_method0("lane").map(Bound::unbind))?;
        Ok(Arc::new(PythonLane { lane, lists: self.lists.clone() }))
    }

    fn stop(&self) {
        // At the interpreter's exit, its processes end with it.
        let stopped = Python::try_attach(|py| self.functions.bind(py).call_method0("stop").map(drop));
        if let Some(Err(error)) = stopped {
            tracing::warn!("processes of functions did not end: {error}");
        }
    }
}

impl Drop for PythonFunctions {
    fn drop(&mut self) {
        // Frees the object now: without the interpreter's lock, it would stay until something takes the lock.
        let _at_exit = Python::try_attach(|py| {
            let functions = std::mem::replace(&mut self.functions, py.None());
            drop(functions.into_bound(py));
        });
    }
}

/// Runs `f` with the interpreter. Exceptions become errors.
fn attached<T>(f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
    let done = Python::try_attach(|py| f(py).map_err(|error| error_of(py, &error)));
    done.unwrap_or_else(|| Err(Error::new(ErrorKind::Retryable, "the interpreter ends; ask another worker")))
}

fn error_of(py: Python<'_>, error: &PyErr) -> Error {
    let is = |class: &str| {
        let module = py.import("feedstock.errors").and_then(|module| module.getattr(class));
        module.is_ok_and(|class| error.is_instance(py, &class))
    };
    if is("ConfigError") {
        Error::config(error.value(py).to_string())
    } else if is("RetryableError") {
        Error::new(ErrorKind::Retryable, error.value(py).to_string())
    } else {
        Error::new(ErrorKind::Bug, format!("running functions failed: {error}"))
    }
}

/// Returns (name, dtype, shape of a row, ragged axis or None, lengths, bytes of the rows one after another).
fn described<'py>(py: Python<'py>, tensor: &RowTensor<'_>) -> PyResult<Bound<'py, PyAny>> {
    let bytes: usize = tensor.rows.iter().map(|row| row.len()).sum();
    let bytes = PyByteArray::new_with(py, bytes, |all| {
        let mut at = 0;
        for row in &tensor.rows {
            all[at..][..row.len()].copy_from_slice(row);
            at += row.len();
        }
        Ok(())
    })?;
    let spec = tensor.spec;
    let lengths = tensor.lengths.clone();
    let described =
        (tensor.name, dtype_of(spec.dtype)?, spec.shape.clone(), spec.ragged_axis, lengths, bytes);
    Ok(described.into_pyobject(py)?.into_any())
}

/// NumPy's name.
fn dtype_of(dtype: DType) -> PyResult<&'static str> {
    match dtype {
        DType::U8 => Ok("uint8"),
        DType::U16 => Ok("uint16"),
        DType::I64 => Ok("int64"),
        DType::F32 => Ok("float32"),
        _ => Err(PyNotImplementedError::new_err(format!("functions get no columns of {dtype:?}"))),
    }
}

/// Returns the columns as a batch has them: arrays of NumPy, and lists.
fn values<'py>(py: Python<'py>, columns: &RecordBatch) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    for (field, array) in columns.schema().fields().iter().zip(columns.columns()) {
        let name = field.name();
        match Numbers::of(field, array) {
            Some(numbers) => {
                let tensor = Bound::new(py, Tensor::of_numbers(name, &numbers)?)?;
                values.set_item(name, tensor.call_method0("numpy")?)?;
            }
            None => values.set_item(name, list(py, name, array)?)?,
        }
    }
    Ok(values)
}
