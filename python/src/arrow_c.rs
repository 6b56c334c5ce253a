//! Arrow's C data interface in capsules: <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use arrow::array::{Array, StructArray};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow::record_batch::{RecordBatch, RecordBatchIterator};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;

/// Returns a batch as the pair of capsules (schema, array) that `__arrow_c_array__` returns.
pub(crate) fn batch_capsules<'py>(
    py: Python<'py>,
    batch: RecordBatch,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let schema = FFI_ArrowSchema::try_from(batch.schema().as_ref()).map_err(bug)?;
    let array = FFI_ArrowArray::new(&StructArray::from(batch).to_data());
    Ok((capsule(py, schema, c"arrow_schema")?, capsule(py, array, c"arrow_array")?))
}

/// Returns batches of one schema as the capsule that `__arrow_c_stream__` returns.
pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    schema: arrow::datatypes::SchemaRef,
    batches: Vec<RecordBatch>,
) -> PyResult<Bound<'py, PyAny>> {
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    capsule(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}

/// Returns a capsule that owns one of Arrow's C structs. A consumer moves the content out and marks the struct as released.
/// Dropping the struct then does nothing; otherwise it releases the content.
fn capsule<'py, T>(py: Python<'py>, value: T, name: &'static CStr) -> PyResult<Bound<'py, PyAny>> {
    unsafe extern "C" fn free<T>(capsule: *mut ffi::PyObject) {
        // SAFETY: made below, under the name that it still has, from a box of T.
        unsafe {
            let name = ffi::PyCapsule_GetName(capsule);
            drop(Box::from_raw(ffi::PyCapsule_GetPointer(capsule, name).cast::<T>()));
        }
    }
    let value = Box::into_raw(Box::new(value));
    // SAFETY: the pointer is not null, the name is static, and `free` fits both.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(value.cast(), name.as_ptr(), Some(free::<T>)))
    }
}

fn bug(error: arrow::error::ArrowError) -> PyErr {
    Python::attach(|py| {
        crate::errors::exception(py, "InternalError", format!("cannot export to Arrow: {error}"))
    })
}
