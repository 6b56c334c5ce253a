//! The types in which blocks hold text and nested bytes: views, whatever type the schema declares.
//!
//! A Parquet dictionary stores a value once, however many rows have it, and views share it. Arrays of offsets would repeat
//! it for each row: a thousand times the memory if all rows have one long text, or all lists one image. So values stay in
//! views from the file to the batch, where the rows of a step are converted to the declared types.

use crate::catalog::columns::bug;
use crate::{Error, Result};
use arrow::array::types::ByteViewType;
use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteViewArray, GenericStringBuilder, OffsetSizeTrait, StringViewArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::sync::Arc;

/// Returns the type in which blocks of Parquet files and of unions hold a column of type `declared`.
///
/// Bytes are views in nested types only: the schemas of files declare other bytes as views already.
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
    let held = match field.data_type() {
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        other => held_type(other),
    };
    Arc::new(field.as_ref().clone().with_data_type(held))
}

/// Returns a file's schema with the types in which blocks hold its columns.
pub(crate) fn held_schema(source: &Schema) -> SchemaRef {
    let fields = source.fields().iter().map(|field| {
        let held = held_type(field.data_type());
        Arc::new(field.as_ref().clone().with_data_type(held))
    });
    let fields: Vec<FieldRef> = fields.collect();
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
/// If the values of a column exceed the 2 GiB that its type can hold.
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
/// `BadConfig` if its texts or bytes exceed the 2 GiB that the type can hold.
pub fn declared_array(column: &ArrayRef, declared: &DataType) -> Result<ArrayRef> {
    match (column.data_type(), declared) {
        (held, declared) if held == declared => Ok(column.clone()),
        (DataType::Utf8View, DataType::Utf8) => written_out::<i32>(column.as_string_view()),
        (DataType::Utf8View, DataType::LargeUtf8) => written_out::<i64>(column.as_string_view()),
        _ => {
            check_nested(column, declared)?;
            cast(column, declared).map_err(bug)
        }
    }
}

/// Checks that the views in a nested column fit the arrays of the declared type, because `cast` panics if they do not.
fn check_nested(held: &ArrayRef, declared: &DataType) -> Result<()> {
    match (held.data_type(), declared) {
        (DataType::Utf8View, DataType::Utf8) => view_bytes::<i32, _>(held.as_string_view()).map(|_| ()),
        (DataType::BinaryView, DataType::Binary) => view_bytes::<i32, _>(held.as_binary_view()).map(|_| ()),
        (DataType::List(_), DataType::List(item)) => {
            check_nested(held.as_list::<i32>().values(), item.data_type())
        }
        (DataType::LargeList(_), DataType::LargeList(item)) => {
            check_nested(held.as_list::<i64>().values(), item.data_type())
        }
        (DataType::FixedSizeList(..), DataType::FixedSizeList(item, _)) => {
            check_nested(held.as_fixed_size_list().values(), item.data_type())
        }
        (DataType::Map(..), DataType::Map(entries, _)) => {
            let held: ArrayRef = Arc::new(held.as_map().entries().clone());
            check_nested(&held, entries.data_type())
        }
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let mut children = held.as_struct().columns().iter().zip(fields);
            children.try_for_each(|(child, field)| check_nested(child, field.data_type()))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of all values, each counted whenever it is used.
///
/// # Errors
/// `BadConfig` if an array of offsets `O` cannot hold them.
fn view_bytes<O: OffsetSizeTrait, T: ByteViewType>(values: &GenericByteViewArray<T>) -> Result<usize> {
    let bytes = values.iter().flatten().map(|value| AsRef::<[u8]>::as_ref(value).len()).sum();
    match O::from_usize(bytes) {
        Some(_) => Ok(bytes),
        None => Err(Error::config(format!(
            "{} values of {bytes} bytes in all, over the 2 GiB of one array; lower the batch size",
            values.len()
        ))),
    }
}

fn written_out<O: OffsetSizeTrait>(texts: &StringViewArray) -> Result<ArrayRef> {
    let bytes = view_bytes::<O, _>(texts)?;
    let mut array = GenericStringBuilder::<O>::with_capacity(texts.len(), bytes);
    texts.iter().for_each(|text| array.append_option(text));
    Ok(Arc::new(array.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        BinaryArray, LargeBinaryArray, ListArray, StringArray, StringViewBuilder, StructArray,
    };
    use arrow::buffer::OffsetBuffer;

    fn list_of(items: ArrayRef, lengths: &[usize]) -> ArrayRef {
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths.iter().copied()), items, None))
    }

    #[test]
    fn nested_bytes_return_to_their_declared_type() {
        let values = vec![Some(&b"a value of more than twelve bytes"[..]), None, Some(b"b")];
        for items in [
            Arc::new(BinaryArray::from(values.clone())) as ArrayRef,
            Arc::new(LargeBinaryArray::from(values.clone())),
        ] {
            let field = Arc::new(Field::new("bytes", items.data_type().clone(), true));
            let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, items.clone())]));
            for lists in [list_of(items, &[2, 1]), list_of(structs, &[2, 1])] {
                let kind = held_type(lists.data_type());
                assert!(format!("{kind}").contains("BinaryView"), "{kind}");
                let held = cast(&lists, &kind).unwrap();
                assert_eq!(&declared_array(&held, lists.data_type()).unwrap(), &lists);
            }
        }
        assert_eq!(held_type(&DataType::Binary), DataType::Binary, "it is not nested");
    }

    #[test]
    fn nested_values_over_2_gib_are_refused_before_they_are_copied() {
        let value = "x".repeat(1 << 20);
        let texts = {
            let mut texts = StringViewBuilder::new().with_deduplicate_strings();
            (0..2048).for_each(|_| texts.append_value(&value));
            texts.finish()
        };
        for (items, declared) in [
            (Arc::new(texts.clone().to_binary_view()) as ArrayRef, DataType::Binary),
            (Arc::new(texts) as ArrayRef, DataType::Utf8),
        ] {
            let list = |kind| DataType::List(Arc::new(Field::new("item", kind, true)));
            let held = list_of(items, &[2048]);
            let error = declared_array(&held, &list(declared)).unwrap_err();
            let message =
                "2048 values of 2147483648 bytes in all, over the 2 GiB of one array; lower the batch size";
            assert_eq!(error.message(), message);
        }
    }

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
