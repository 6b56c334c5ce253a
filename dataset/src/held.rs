//! The types in which blocks hold text: views, whatever type the schema declares.
//!
//! A Parquet dictionary stores a text once, however many rows have it, and views share it. Arrays of offsets would repeat
//! it for each row: a thousand times the memory if all rows have one long text. So text stays in views from the file to the
//! batch, where the rows of a step are converted to the declared types.

use crate::catalog::columns::bug;
use crate::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray, GenericStringBuilder, OffsetSizeTrait, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::sync::Arc;

/// Returns the type in which blocks of Parquet files and of unions hold a column of type `declared`.
pub(crate) fn held_type(declared: &DataType) -> DataType {
    let field = |field: &FieldRef| held_field(field);
    match declared {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

fn held_field(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(held_type(field.data_type())))
}

/// Returns a file's schema with the types in which blocks hold its columns.
pub(crate) fn held_schema(source: &Schema) -> SchemaRef {
    let fields: Vec<FieldRef> = source.fields().iter().map(held_field).collect();
    Arc::new(Schema::new_with_metadata(fields, source.metadata().clone()))
}

/// Names the columns as in `declared`; they keep their types.
pub(crate) fn named(declared: &Schema, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let fields = declared.fields().iter().zip(&columns);
    let fields: Vec<Field> =
        fields.map(|(f, column)| f.as_ref().clone().with_data_type(column.data_type().clone())).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).map_err(bug)
}

/// Converts the rows to the types of `declared`.
///
/// # Errors
/// If the texts of a column exceed the 2 GiB that its type can hold.
pub(crate) fn as_declared(rows: &RecordBatch, declared: &SchemaRef) -> Result<RecordBatch> {
    let columns = rows.columns().iter().zip(declared.fields());
    let columns =
        columns.map(|(column, field)| declared_array(column, field.data_type())).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(declared.clone(), columns, &options).map_err(bug)
}

/// Converts a column to its declared type.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, AsArray, StringViewArray};
/// use arrow::datatypes::DataType;
///
/// let held: ArrayRef = Arc::new(StringViewArray::from(vec![Some("cat"), None]));
/// let declared = feedstock_dataset::declared_array(&held, &DataType::Utf8)?;
/// assert_eq!(declared.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("cat"), None]);
/// # Ok::<(), feedstock_dataset::Error>(())
/// ```
///
/// # Errors
/// `BadConfig` if its texts exceed the 2 GiB that the type can hold.
pub fn declared_array(column: &ArrayRef, declared: &DataType) -> Result<ArrayRef> {
    match (column.data_type(), declared) {
        (held, declared) if held == declared => Ok(column.clone()),
        (DataType::Utf8View, DataType::Utf8) => written_out::<i32>(column.as_string_view()),
        (DataType::Utf8View, DataType::LargeUtf8) => written_out::<i64>(column.as_string_view()),
        _ => cast(column, declared).map_err(bug),
    }
}

fn written_out<O: OffsetSizeTrait>(texts: &StringViewArray) -> Result<ArrayRef> {
    let bytes: usize = texts.iter().flatten().map(str::len).sum();
    if O::from_usize(bytes).is_none() {
        return Err(Error::config(format!(
            "{} texts of {bytes} bytes in all, over the 2 GiB of one array; lower the batch size",
            texts.len()
        )));
    }
    let mut array = GenericStringBuilder::<O>::with_capacity(texts.len(), bytes);
    texts.iter().for_each(|text| array.append_option(text));
    Ok(Arc::new(array.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ListArray, StringArray, StructArray};
    use arrow::buffer::OffsetBuffer;

    #[test]
    fn nested_text_returns_to_its_declared_type() {
        let texts = StringArray::from(vec![Some("a text of more than twelve bytes"), None, Some("b")]);
        let field = Arc::new(Field::new("text", DataType::Utf8, true));
        let items = StructArray::from(vec![(field, Arc::new(texts.clone()) as ArrayRef)]);
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        let lists = ListArray::new(item, OffsetBuffer::from_lengths([2, 1]), Arc::new(items), None);
        let schema = Arc::new(Schema::new(vec![Field::new("list", lists.data_type().clone(), true)]));
        let held = cast(&lists, &held_type(lists.data_type())).unwrap();
        let inner = held.as_list::<i32>().values().as_struct().column(0).clone();
        assert_eq!(inner.as_string_view(), &StringViewArray::from(&texts));
        let rows = named(&schema, vec![held], 2).unwrap();
        assert_ne!(rows.schema(), schema);
        let back = as_declared(&rows, &schema).unwrap();
        assert_eq!(back.column(0).as_list::<i32>(), &lists);
    }
}
