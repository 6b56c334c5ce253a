//! One rank's share of one global step, as a mapping from column to values.

use crate::arrow_c::batch_capsules;
use crate::errors::{call, config, raise};
use crate::process;
use crate::tensor::Tensor;
use crate::values::list;
use feedstock::Element;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// What dicts with ids hold beside the data set's columns.
const OWN_NAMES: [&str; 2] = ["sample_ids", "valid"];

/// One rank's share of one global step: a mapping from column to `Tensor` (numbers) or list (all else).
///
/// It holds one slot of the pipeline, or one buffer of its device, until it, and every view taken from it, is gone.
#[pyclass(frozen, mapping, module = "feedstock")]
pub(crate) struct Batch {
    batch: feedstock::Batch,
    /// A child of it has neither the device nor the threads of a batch that was made for one.
    process: u32,
}

impl Batch {
    pub(crate) fn new(batch: feedstock::Batch) -> Self {
        Self { batch, process: std::process::id() }
    }

    /// An error in a child, where the batch was made for a device.
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
        let on_host = along.filter(|name| !on_device.contains(name)).collect::<Vec<_>>();
        mapped.chain(on_device).chain(on_host).collect()
    }

    /// Feedstock's own columns of ids and flags, where the batch is on a device.
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

    /// As tensors where that is possible, made by `view` (`numpy` or `torch`), else as lists.
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

    /// As [`views`](Self::views), with room for the names that are feedstock's own.
    fn views_beside_ids<'py>(&self, py: Python<'py>, view: &str) -> PyResult<Bound<'py, PyDict>> {
        match self.names().iter().find(|name| OWN_NAMES.contains(&name.as_str())) {
            None => self.views(py, view),
            Some(name) => Err(config(
                py,
                format!(
                    "the data set's column '{name}' has a name that feedstock's own needs beside it; leave it out with \
                     Dataset.columns([...]), or take batches as they are (output=\"batch\")"
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
    /// The epoch that it belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch()
    }

    /// The first global position of its step.
    #[getter]
    fn position(&self) -> u64 {
        self.batch.position().0
    }

    /// The first global position of the step after it.
    #[getter]
    fn next_position(&self) -> u64 {
        self.batch.next_position().0
    }

    /// Rows, padding and substitutes included.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.len()
    }

    /// The sample that each row stands for: numpy uint64 [rows].
    #[getter]
    fn sample_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ids = Tensor::of_ids("sample_ids", self.batch.sample_ids(), Element::U64)?;
        Bound::new(py, ids)?.call_method0("numpy")
    }

    /// numpy bool [rows]: False for padding and for substitutes of unusable samples, which losses leave out.
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

    /// Columns, not rows: see `num_rows`.
    fn __len__(&self) -> usize {
        self.names().len()
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<String>().is_ok_and(|name| self.names().contains(&name))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.names())?.try_iter()?.into_any())
    }

    /// The columns' names: the mapped ones first.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyDict>().call_method1("fromkeys", (self.names(),))?.call_method0("keys")
    }

    /// The columns' values, in the order of `keys()`.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.names().iter().map(|name| self.column(py, name)).collect()
    }

    /// Pairs of name and value, in the order of `keys()`.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        self.names().into_iter().map(|name| self.column(py, &name).map(|value| (name, value))).collect()
    }

    /// The column `name`, or `default` where there is none.
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

    /// A dict of numpy arrays (views) and lists; `ids=True` adds "sample_ids" (uint64) and "valid" (bool).
    #[pyo3(signature = (*, ids = false))]
    fn numpy<'py>(&self, py: Python<'py>, ids: bool) -> PyResult<Bound<'py, PyDict>> {
        if !ids {
            return self.views(py, "numpy");
        }
        let views = self.views_beside_ids(py, "numpy")?;
        views.set_item("sample_ids", self.sample_ids(py)?)?;
        views.set_item("valid", self.valid(py)?)?;
        Ok(views)
    }

    /// A dict of torch tensors (views) and lists; `ids=True` adds "sample_ids" (int64) and "valid" (bool).
    #[pyo3(signature = (*, ids = false))]
    fn torch<'py>(&self, py: Python<'py>, ids: bool) -> PyResult<Bound<'py, PyDict>> {
        if !ids {
            return self.views(py, "torch");
        }
        let views = self.views_beside_ids(py, "torch")?;
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

    /// Says that `stream` (a torch.cuda.Stream, or CUDA's number of one) uses the batch, beside the stream for which its
    /// tensors were taken: it waits for the data, and the memory is not used again before it has passed the place where
    /// the last view is dropped. Nothing for a batch in host memory.
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_process(py)?;
        let number = stream.getattr_opt("cuda_stream")?.unwrap_or_else(|| stream.clone());
        let handle = feedstock::StreamHandle(number.extract::<u64>()?);
        call(py, || self.batch.use_on(handle))
    }

    /// Arrow's C data interface: `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)`. The columns `sample_id` and
    /// `valid`, the tensors as `arrow.fixed_shape_tensor`, then the columns that ride along; views, not copies. Not of a loader with a `device`, which takes columns one by one.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema; // best effort, says the protocol: the consumer casts
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
