//! One rank's share of one global step, as a mapping from column to values.

use crate::arrow_c::batch_capsules;
use crate::errors::{call, config, raise};
use crate::process;
use crate::tensor::Tensor;
use crate::values::list;
use arrow::array::{Array, AsArray, FixedSizeBinaryArray, LargeBinaryArray};
use feedstock::Element;
use feedstock::workers::RESULT_PREFIX;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyTuple};

/// Columns that dicts with ids hold in addition to those of the data set.
const OWN_NAMES: [&str; 2] = ["sample_ids", "valid"];

/// A result of functions that workers ran.
enum ResultArray<'a> {
    OfOneLength(&'a FixedSizeBinaryArray),
    OfAnyLength(&'a LargeBinaryArray),
}

/// Returns the column `name` if it is a result of functions that workers ran.
fn result_of<'a>(batch: &'a feedstock::Batch, name: &str) -> Option<ResultArray<'a>> {
    let array = batch.column(name).filter(|_| name.starts_with(RESULT_PREFIX))?;
    let of_one_length = array.as_fixed_size_binary_opt().map(ResultArray::OfOneLength);
    of_one_length.or_else(|| array.as_binary_opt().map(ResultArray::OfAnyLength))
}

/// One rank's share of one global step: a mapping from column to `Tensor` (numbers) or list (all else).
///
/// It holds one slot of the pipeline, or one buffer of its device, until the batch and every view of it are dropped.
#[pyclass(frozen, mapping, module = "feedstock")]
pub(crate) struct Batch {
    batch: feedstock::Batch,
    /// The process that made the batch. A forked child has neither its device nor its threads.
    process: u32,
}

impl Batch {
    pub(crate) fn new(batch: feedstock::Batch) -> Self {
        Self { batch, process: std::process::id() }
    }

    /// Returns an error in a forked child if the batch was made for a device.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.batch.device_tensors().is_empty() {
            true => Ok(()),
            false => process::check(py, self.process),
        }
    }

    fn names(&self) -> Vec<String> {
        let mapped = self.batch.tensors().iter().map(|tensor| tensor.name().to_owned());
        let schema = self.batch.columns().schema();
        let on_device = self.batch.device_tensors().iter().map(|tensor| tensor.name().to_owned());
        let on_device: Vec<String> = on_device.filter(|name| !OWN_NAMES.contains(&name.as_str())).collect();
        let along = schema.fields().iter().map(|field| field.name().clone());
        let along = along.filter(|name| result_of(&self.batch, name).is_none());
        let on_host = along.filter(|name| !on_device.contains(name)).collect::<Vec<_>>();
        mapped.chain(on_device).chain(on_host).collect()
    }

    /// Returns feedstock's column of ids or flags if the batch is on a device.
    fn own<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tensor = self.batch.device_tensor(name);
        tensor.map(|tensor| Ok(Bound::new(py, Tensor::of_device(tensor)?)?.into_any())).transpose()
    }

    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.check_process(py)?;
        if let Some(tensor) = self.batch.device_tensor(name).filter(|_| !OWN_NAMES.contains(&name)) {
            return Ok(Bound::new(py, Tensor::of_device(tensor)?)?.into_any());
        }
        if let Some(tensor) = self.batch.tensor(name) {
            return Ok(Bound::new(py, Tensor::of_slot(tensor)?)?.into_any());
        }
        let Some(array) = self.batch.column(name) else {
            return Err(PyKeyError::new_err(format!("no column '{name}'; the batch has {:?}", self.names())));
        };
        match self.batch.numbers(name) {
            Some(numbers) => Ok(Bound::new(py, Tensor::of_numbers(name, &numbers)?)?.into_any()),
            None => Ok(list(py, name, array)?.into_any()),
        }
    }

    /// Returns a dict of all columns: views made by `view` (`numpy` or `torch`) of tensors, and lists.
    fn views<'py>(&self, py: Python<'py>, view: &str) -> PyResult<Bound<'py, PyDict>> {
        let views = PyDict::new(py);
        for name in self.names() {
            let value = self.column(py, &name)?;
            let value = match value.is_instance_of::<Tensor>() {
                true => value.call_method0(view)?,
                false => value,
            };
            views.set_item(name, value)?;
        }
        Ok(views)
    }

    /// Like [`views`](Self::views); an error if a column has one of the names that ids and flags get.
    fn views_without_ids<'py>(&self, py: Python<'py>, view: &str) -> PyResult<Bound<'py, PyDict>> {
        match self.names().iter().find(|name| OWN_NAMES.contains(&name.as_str())) {
            None => self.views(py, view),
            Some(name) => Err(config(
                py,
                format!(
                    "the data set's column '{name}' has the name of a column that feedstock adds; leave it out with \
                     Dataset.columns([...]), or use output=\"batch\""
                ),
            )),
        }
    }

    fn valid_flags(&self) -> PyResult<Tensor> {
        Tensor::of_flags("valid", self.batch.valid())
    }
}

#[pymethods]
impl Batch {
    /// The epoch of the batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch()
    }

    /// The first global position of the batch's step.
    #[getter]
    fn position(&self) -> u64 {
        self.batch.position().0
    }

    /// The first global position of the next step.
    #[getter]
    fn next_position(&self) -> u64 {
        self.batch.next_position().0
    }

    /// The number of rows, padding and substitutes included.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.len()
    }

    /// The id of each row's sample: numpy uint64 [rows].
    #[getter]
    fn sample_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ids = Tensor::of_ids("sample_ids", self.batch.sample_ids(), Element::U64)?;
        Bound::new(py, ids)?.call_method0("numpy")
    }

    /// numpy bool [rows]: False for padding and for substitutes of unusable samples. Leave these rows out of the loss.
    #[getter]
    fn valid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Bound::new(py, self.valid_flags()?)?.call_method0("numpy")
    }

    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match name.extract::<String>() {
            Ok(text) => self.column(name.py(), &text),
            Err(_) => Err(PyKeyError::new_err(name.clone().unbind())),
        }
    }

    /// The number of columns. For rows see `num_rows`.
    fn __len__(&self) -> usize {
        self.names().len()
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<String>().is_ok_and(|name| self.names().contains(&name))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.names())?.try_iter()?.into_any())
    }

    /// Returns the columns' names, mapped columns first.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyDict>().call_method1("fromkeys", (self.names(),))?.call_method0("keys")
    }

    /// Returns the columns' values, in the order of `keys()`.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.names().iter().map(|name| self.column(py, name)).collect()
    }

    /// Returns pairs of name and value, in the order of `keys()`.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        self.names().into_iter().map(|name| self.column(py, &name).map(|value| (name, value))).collect()
    }

    /// Returns the column `name`, or `default` if there is none.
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.names().iter().any(|known| known == name) {
            true => self.column(py, name).map(Some),
            false => Ok(default),
        }
    }

    /// Returns the rows whose sample is unusable.
    fn substitutes(&self) -> Vec<usize> {
        self.batch.substitutes().to_vec()
    }

    /// Returns a dict of the results of functions that workers ran: the bytes of all rows, a copy; of those whose lengths
    /// differ, a list of the bytes of each row.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = PyDict::new(py);
        for field in self.batch.columns().schema().fields() {
            let Some(array) = result_of(&self.batch, field.name()) else { continue };
            let name = field.name().strip_prefix(RESULT_PREFIX).unwrap_or_default();
            match array {
                ResultArray::OfOneLength(array) => {
                    let row_bytes = usize::try_from(array.value_length()).unwrap_or(0);
                    let start = array.offset() * row_bytes;
                    let bytes = array.value_data().get(start..start + array.len() * row_bytes);
                    results.set_item(name, PyByteArray::new(py, bytes.unwrap_or_default()))?;
                }
                ResultArray::OfAnyLength(array) => {
                    let rows = (0..array.len()).map(|row| PyBytes::new(py, array.value(row)));
                    results.set_item(name, PyList::new(py, rows)?)?;
                }
            }
        }
        Ok(results)
    }

    /// Returns a dict of numpy arrays (views) and lists; `ids=True` adds "sample_ids" (uint64) and "valid" (bool).
    #[pyo3(signature = (*, ids = false))]
    fn numpy<'py>(&self, py: Python<'py>, ids: bool) -> PyResult<Bound<'py, PyDict>> {
        if !ids {
            return self.views(py, "numpy");
        }
        let views = self.views_without_ids(py, "numpy")?;
        views.set_item("sample_ids", self.sample_ids(py)?)?;
        views.set_item("valid", self.valid(py)?)?;
        Ok(views)
    }

    /// Returns a dict of torch tensors (views) and lists; `ids=True` adds "sample_ids" (int64) and "valid" (bool).
    #[pyo3(signature = (*, ids = false))]
    fn torch<'py>(&self, py: Python<'py>, ids: bool) -> PyResult<Bound<'py, PyDict>> {
        if !ids {
            return self.views(py, "torch");
        }
        let views = self.views_without_ids(py, "torch")?;
        let samples = match self.own(py, "sample_ids")? {
            Some(samples) => samples,
            None => Bound::new(py, Tensor::of_ids("sample_ids", self.batch.sample_ids(), Element::I64)?)?
                .into_any(),
        };
        let valid = match self.own(py, "valid")? {
            Some(valid) => valid,
            None => Bound::new(py, self.valid_flags()?)?.into_any(),
        };
        views.set_item("sample_ids", samples.call_method0("torch")?)?;
        views.set_item("valid", valid.call_method0("torch")?)?;
        Ok(views)
    }

    /// Registers `stream` (a torch.cuda.Stream, or its CUDA handle as a number) as a further user of the batch.
    ///
    /// The stream waits for the data. The memory is used again only after the stream has passed the point where the last
    /// view is dropped. Does nothing for a batch in host memory.
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_process(py)?;
        let number = stream.getattr_opt("cuda_stream")?.unwrap_or_else(|| stream.clone());
        let handle = feedstock::device::StreamHandle(number.extract::<u64>()?);
        call(py, || self.batch.use_on(handle))
    }

    /// Arrow's C data interface, for `pyarrow.record_batch(batch)` and `polars.DataFrame(batch)`.
    ///
    /// The columns are `sample_id` and `valid`, the tensors as `arrow.fixed_shape_tensor`, then the unmapped columns. They
    /// are views, not copies. Batches of a loader with a `device` do not have it.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema; // best effort by the protocol: the consumer casts
        let batch = call(py, || self.batch.to_record_batch())?;
        let (schema, array) = batch_capsules(py, batch)?;
        PyTuple::new(py, [schema, array])
    }

    /// The schema of `__arrow_c_array__`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let batch = self.batch.to_record_batch().map_err(|error| raise(py, &error))?;
        Ok(batch_capsules(py, batch)?.0)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.batch)
    }
}
