//! The values that chains read: encoded bytes and text.

use crate::Error;
use arrow::array::{Array, AsArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use std::fmt::Display;

/// Returns the error for a value that a chain cannot use.
pub(crate) fn unusable(problem: impl Display) -> Error {
    Error::bad_sample(format!("{problem}; correct the file or set on_error=skip"))
}

/// Returns the encoded bytes or the text of one row, or what is wrong with them. Text may be empty, encoded bytes may not.
pub(crate) fn value<'a>(rows: &'a RecordBatch, column: &str, row: usize) -> Result<&'a [u8], &'static str> {
    let array = rows.column_by_name(column).ok_or("the block lacks the column")?;
    if array.is_null(row) {
        return Err("the value is null");
    }
    match array.data_type() {
        DataType::BinaryView => match array.as_binary_view().value(row) {
            [] => Err("the value is empty (0 bytes)"),
            bytes => Ok(bytes),
        },
        DataType::Utf8 => Ok(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => Ok(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => Ok(array.as_string_view().value(row).as_bytes()),
        _ => Err("the column holds neither bytes nor text"),
    }
}

/// Returns whether a chain can read values of this type.
pub(crate) fn is_mappable(data_type: &DataType) -> bool {
    matches!(data_type, DataType::BinaryView | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}
