//! A column of numbers: memory that numpy, torch and others view in place, the host's or a device's.

use crate::dlpack::{self, Code, ElementType, Lent};
use crate::errors::{call, config};
use crate::process::Own;
use feedstock::{Element, Numbers};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::borrow::Cow;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A column of a batch as a tensor on the CPU, or on the loader's device: rows first.
///
/// `numpy()`, `torch()` and `__dlpack__` return views of the batch's memory and copy nothing. The memory is not used for
/// another batch while a view is alive. Memory of a device is reused only after the streams that used it have passed that
/// point.
#[pyclass(frozen, module = "feedstock")]
pub(crate) struct Tensor {
    name: String,
    element: Element,
    lent: Lent,
    lengths: Option<Vec<usize>>,
    padded_axis: Option<usize>,
    /// On a device: the tensor that registers streams.
    on_device: Option<Own<feedstock::device::DeviceTensor>>,
}

/// Returns the type in DLPack's terms.
fn described(element: Element) -> PyResult<ElementType> {
    let code = match element {
        Element::Bool => Code::Bool,
        Element::I8 | Element::I16 | Element::I32 | Element::I64 => Code::Int,
        Element::U8 | Element::U16 | Element::U32 | Element::U64 => Code::UInt,
        Element::F16 | Element::F32 | Element::F64 => Code::Float,
        Element::BF16 => Code::Bfloat,
        other => return Err(PyBufferError::new_err(format!("tensors of {other:?} are not supported"))),
    };
    let bits = u8::try_from(element.bytes() * 8).unwrap_or(u8::MAX);
    Ok(ElementType { code, bits })
}

/// Numbers that borrowers may write.
struct Cells<T>(Box<[UnsafeCell<T>]>);

// SAFETY: only borrowers of the memory read or write the cells, and they synchronize among themselves.
unsafe impl<T: Send> Sync for Cells<T> {}

impl<T> Cells<T> {
    fn new(values: impl Iterator<Item = T>) -> Arc<Self> {
        Arc::new(Self(values.map(UnsafeCell::new).collect()))
    }

    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX) // memory is smaller than that
}

impl Tensor {
    /// Makes a tensor of a mapped column in its slot.
    pub(crate) fn of_slot(tensor: &feedstock::Tensor) -> PyResult<Self> {
        let dtype = tensor.dtype();
        let element = Element::of_mapped(dtype);
        let element = element
            .ok_or_else(|| PyBufferError::new_err(format!("tensors of {dtype:?} are not supported")))?;
        let (start, owner) = (tensor.as_ptr().as_ptr(), Arc::new(tensor.clone()));
        let mut this = Self::plain(tensor.name(), start, element, &tensor.shape(), owner)?;
        (this.lengths, this.padded_axis) = (tensor.lengths().map(<[usize]>::to_vec), tensor.padded_axis());
        Ok(this)
    }

    /// Makes a tensor of a column of a batch on a device.
    pub(crate) fn of_device(tensor: &feedstock::device::DeviceTensor) -> PyResult<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "an address of this machine")]
        let start = std::ptr::with_exposed_provenance_mut(tensor.address() as usize);
        let owner = Arc::new(tensor.clone());
        let mut this = Self::plain(tensor.name(), start, tensor.element(), tensor.shape(), owner)?;
        this.lent.strides = Some(tensor.strides().iter().copied().map(signed).collect());
        this.lent.device = dlpack::device(tensor.place());
        (this.lengths, this.padded_axis) = (tensor.lengths().map(<[usize]>::to_vec), tensor.padded_axis());
        this.on_device = Some(Own::new(tensor.clone()));
        Ok(this)
    }

    /// Makes a tensor of an unmapped column of numbers.
    pub(crate) fn of_numbers(name: &str, numbers: &Numbers) -> PyResult<Self> {
        let (element, shape) = (numbers.element(), numbers.shape().to_vec());
        match numbers.bytes() {
            Cow::Owned(flags) => Self::of_bytes(name, element, &shape, flags),
            Cow::Borrowed(bytes) => {
                // Gathered for this batch, so that only the caller reads and writes it.
                let start = bytes.as_ptr().cast_mut();
                Self::plain(name, start, element, &shape, Arc::new(numbers.clone()))
            }
        }
    }

    /// Makes a tensor of flags, one byte each.
    pub(crate) fn of_flags(name: &str, flags: &[bool]) -> PyResult<Self> {
        let bytes = flags.iter().map(|&flag| u8::from(flag)).collect();
        Self::of_bytes(name, Element::Bool, &[flags.len()], bytes)
    }

    fn of_bytes(name: &str, element: Element, shape: &[usize], bytes: Vec<u8>) -> PyResult<Self> {
        let cells = Cells::new(bytes.into_iter());
        Self::plain(name, cells.start(), element, shape, cells)
    }

    /// Makes a tensor of sample ids: unsigned or, for torch, whose unsigned support is limited, signed.
    pub(crate) fn of_ids(name: &str, ids: &[feedstock::SampleId], element: Element) -> PyResult<Self> {
        let cells = Cells::new(ids.iter().map(|id| id.0));
        Self::plain(name, cells.start(), element, &[ids.len()], cells)
    }

    fn plain(
        name: &str,
        start: *mut u8,
        element: Element,
        shape: &[usize],
        owner: Arc<dyn std::any::Any + Send + Sync>,
    ) -> PyResult<Self> {
        let shape = shape.iter().copied().map(signed).collect();
        let lent =
            Lent { start, element: described(element)?, shape, strides: None, device: dlpack::HOST, owner };
        Ok(Self { name: name.to_owned(), element, lent, lengths: None, padded_axis: None, on_device: None })
    }

    /// Returns whether the tensor is in host memory.
    fn is_on_host(&self) -> bool {
        self.lent.device == dlpack::HOST
    }

    /// Makes the consumer's stream wait for the data, and the memory's next use wait for the stream. `stream` is that of
    /// DLPack's protocol.
    fn hand_to_stream(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(tensor) = &self.on_device else { return Ok(()) };
        let tensor = tensor.get(py)?;
        if self.is_on_host() {
            return Ok(());
        }
        let stream = match stream.map(|stream| stream.extract::<i64>()).transpose()? {
            None => 1, // by the protocol: the legacy default stream
            Some(-1) => {
                return Err(PyBufferError::new_err(
                    "stream must be the number of the stream that uses the tensor; got -1: without it, feedstock would use \
                     the memory again too early",
                ));
            }
            Some(0) => {
                return Err(PyBufferError::new_err(
                    "stream must be None or above 0; got 0, which is ambiguous: use 1 for the legacy default stream",
                ));
            }
            Some(handle) => handle.cast_unsigned(),
        };
        call(py, || tensor.use_on(feedstock::device::StreamHandle(stream)))
    }
}

#[pymethods]
impl Tensor {
    /// The column's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Lengths of the axes, rows first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.lent.shape)
    }

    /// The element type in numpy's and torch's spelling: `uint8`, `float32`, `int64` …
    #[getter]
    fn dtype(&self) -> &'static str {
        self.element.name()
    }

    /// The lengths of the rows along `padded_axis` (samples, frames, tokens), or the number of images of each row; None if all
    /// rows have one length.
    #[getter]
    fn lengths(&self) -> Option<Vec<usize>> {
        self.lengths.clone()
    }

    /// The axis along which short rows are padded; None if all rows have one length, and for lists of images: the first axis
    /// has the images of all rows.
    #[getter]
    fn padded_axis(&self) -> Option<usize> {
        self.padded_axis
    }

    /// The size of the tensor in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        let elements: i64 = self.lent.shape.iter().product();
        usize::try_from(elements).unwrap_or(0) * usize::from(self.lent.element.bits / 8)
    }

    fn __len__(&self) -> usize {
        self.lent.shape.first().map_or(0, |&rows| usize::try_from(rows).unwrap_or(0))
    }

    /// Returns the DLPack capsule. For a tensor on a device, `stream` (its CUDA handle as a number; None for the legacy default
    /// stream) waits for the data, and the memory is not used again before the stream has passed the point where the last
    /// view is dropped.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.is_on_host() && (dl_device.is_some_and(|device| device != dlpack::HOST) || stream.is_some()) {
            return Err(PyBufferError::new_err(
                "the tensor is in host memory: dl_device must be (1, 0), and stream None",
            ));
        }
        if dl_device.is_some_and(|device| device != self.lent.device) {
            return Err(PyBufferError::new_err(format!("the tensor is on {}; copy it first", self.device())));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "copy=True is not supported: feedstock returns views; copy the result",
            ));
        }
        self.hand_to_stream(py, stream.as_ref())?;
        dlpack::capsule(py, &self.lent, max_version)
    }

    /// Returns DLPack's device: (1, 0) for the CPU, (2, n) for CUDA device n.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.lent.device
    }

    /// The tensor's device: `cpu`, `cuda:0` …
    #[getter]
    fn device(&self) -> String {
        match self.lent.device {
            dlpack::HOST => "cpu".to_owned(),
            (_, ordinal) => format!("cuda:{ordinal}"),
        }
    }

    /// Elements from one entry of each axis to the next: those of dense rows, or of images in channels-last layout.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let lent = &self.lent;
        PyTuple::new(py, lent.strides.clone().unwrap_or_else(|| dlpack::row_major(&lent.shape)))
    }

    /// Returns the tensor as a numpy array: a writable view.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        if !this.is_on_host() {
            let (name, device) = (&this.name, this.device());
            let message = format!(
                "'{name}' is on {device}, and numpy supports host memory only; use torch().cpu().numpy()"
            );
            return Err(config(slf.py(), message));
        }
        if this.lent.element.code == Code::Bfloat {
            let message = format!(
                "'{}' is bfloat16, which numpy does not support; use torch().float().numpy()",
                this.name
            );
            return Err(config(slf.py(), message));
        }
        slf.py().import("numpy")?.call_method1("from_dlpack", (slf,))
    }

    /// `numpy.asarray(tensor)`.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::numpy(slf)?;
        let options = PyDict::new(slf.py());
        if let Some(dtype) = dtype {
            options.set_item("dtype", dtype)?;
        }
        if let Some(copy) = copy {
            options.set_item("copy", copy)?;
        }
        match options.is_empty() {
            true => Ok(array),
            false => slf.py().import("numpy")?.call_method("array", (array,), Some(&options)),
        }
    }

    /// Returns the tensor as a torch.Tensor: a view. On a device, for torch's current stream there.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let torch = slf.py().import("feedstock._device")?.call_method0("import_torch")?;
        torch.call_method1("from_dlpack", (slf,))
    }

    fn __repr__(&self) -> String {
        let lengths = match (&self.lengths, self.padded_axis) {
            (None, _) => "",
            (Some(_), None) => ", images of all rows",
            (Some(_), Some(_)) => ", padded",
        };
        let (name, dtype, shape, on) = (&self.name, self.element.name(), &self.lent.shape, self.device());
        match self.is_on_host() {
            true => format!("Tensor({name}: {dtype} {shape:?}{lengths})"),
            false => format!("Tensor({name}: {dtype} {shape:?}{lengths} on {on})"),
        }
    }
}
