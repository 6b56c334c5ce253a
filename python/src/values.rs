//! Columns without a tensor type, as lists of plain Python values.

use crate::errors::exception;
use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Arc;

/// Returns `array` as a list of `str`, `bytes`, `bool`, `int`, `float`, lists and dicts of these; `None` for missing values. Dates,
/// times and durations are texts of ISO 8601, decimals are texts of digits, and maps are lists of `{"key": …, "value": …}`.
pub(crate) fn list<'py>(py: Python<'py>, name: &str, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let refuse = || {
        let message = format!(
            "column '{name}' of type {} cannot be converted to Python values; read it through Arrow: pyarrow.record_batch(batch)",
            array.data_type()
        );
        exception(py, "ConfigError", message)
    };
    let cast_to = |data_type: &DataType| cast(array, data_type).map_err(|_| refuse());
    match array.data_type() {
        DataType::Null => PyList::new(py, (0..array.len()).map(|_| py.None())),
        DataType::Boolean => PyList::new(py, array.as_boolean().iter()),
        DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter()),
        DataType::LargeUtf8 | DataType::Utf8View => list(py, name, &cast_to(&DataType::Utf8)?),
        DataType::Binary => {
            let bytes =
                array.as_binary::<i32>().iter().map(|value| value.map(|value| PyBytes::new(py, value)));
            PyList::new(py, bytes.collect::<Vec<_>>())
        }
        DataType::BinaryView => {
            let values = array.as_binary_view().iter();
            PyList::new(
                py,
                values.map(|value| value.map(|value| PyBytes::new(py, value))).collect::<Vec<_>>(),
            )
        }
        DataType::LargeBinary | DataType::FixedSizeBinary(_) => list(py, name, &cast_to(&DataType::Binary)?),
        DataType::UInt64 => PyList::new(py, array.as_primitive::<UInt64Type>().iter()),
        data_type if data_type.is_integer() => {
            PyList::new(py, cast_to(&DataType::Int64)?.as_primitive::<Int64Type>().iter())
        }
        data_type if data_type.is_floating() => {
            PyList::new(py, cast_to(&DataType::Float64)?.as_primitive::<Float64Type>().iter())
        }
        DataType::Dictionary(_, values) => list(py, name, &cast_to(values)?),
        DataType::List(_) => {
            let lists = array.as_list::<i32>().iter();
            let lists = lists.map(|values| values.map(|values| list(py, name, &values)).transpose());
            PyList::new(py, lists.collect::<PyResult<Vec<_>>>()?)
        }
        DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            list(py, name, &cast_to(&DataType::List(field.clone()))?)
        }
        DataType::Struct(_) => structs(py, name, array),
        DataType::Map(..) => list(py, name, &(Arc::new(ListArray::from(array.as_map().clone())) as ArrayRef)),
        data_type if data_type.is_temporal() || data_type.is_decimal() => {
            list(py, name, &cast_to(&DataType::Utf8)?)
        }
        _ => Err(refuse()),
    }
}

fn structs<'py>(py: Python<'py>, name: &str, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let array = array.as_struct();
    let children: Vec<(&str, Bound<'py, PyList>)> = array
        .fields()
        .iter()
        .zip(array.columns())
        .map(|(field, column)| {
            Ok((field.name().as_str(), list(py, &format!("{name}.{}", field.name()), column)?))
        })
        .collect::<PyResult<_>>()?;
    let rows = (0..array.len()).map(|row| {
        if array.is_null(row) {
            return Ok(py.None().into_bound(py));
        }
        let entry = PyDict::new(py);
        for (field, values) in &children {
            entry.set_item(field, values.get_item(row)?)?;
        }
        entry.into_bound_py_any(py)
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
