//! Maps the columns of a file to the columns of the catalog.
//!
//! A payload is encoded bytes: a binary column, or Hugging Face's `struct<bytes: binary, path: string>`. The struct becomes a
//! payload of the same name and a text column `<name>_path`. Its older child `sampling_rate` becomes `<name>_sampling_rate`.
//! Everything else is metadata and keeps its type.

use super::names::{CLASS_NAMES_KEY, SAMPLE_ID};
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, GenericByteViewBuilder, StructArray};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{BinaryViewType, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// Where a catalog column is in the file's own schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A top-level column.
    Column(usize),
    /// The `bytes` of a struct, and the index of that child.
    Bytes(usize, usize),
    /// The `path` or `sampling_rate` of a struct, and the index of that child.
    Beside(usize, usize),
}

impl Origin {
    pub(crate) fn top_level(self) -> usize {
        match self {
            Self::Column(i) | Self::Bytes(i, _) | Self::Beside(i, _) => i,
        }
    }

    /// The leaf's path in a Parquet schema, for projections.
    pub(crate) fn child(self) -> Option<usize> {
        match self {
            Self::Column(_) => None,
            Self::Bytes(_, child) | Self::Beside(_, child) => Some(child),
        }
    }
}

/// The catalog's columns and where each comes from.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    /// Metadata columns, then payload columns.
    pub(crate) schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) payload: Vec<String>,
}

/// Maps a file's schema; `class_names` has the names of the classes of integer label columns.
pub(crate) fn map_columns(source: &Schema, class_names: &HashMap<String, Vec<String>>) -> Result<Mapping> {
    let mut metadata: Vec<(FieldRef, Origin)> = Vec::new();
    let mut payload: Vec<(FieldRef, Origin)> = Vec::new();
    for (i, field) in source.fields().iter().enumerate() {
        if let Some((bytes, children)) = encoded_struct(field) {
            payload.push((payload_field(field.name()), Origin::Bytes(i, bytes)));
            for (place, child) in children.iter().enumerate().filter(|(place, _)| *place != bytes) {
                let name = format!("{}_{}", field.name(), child.name());
                if source.index_of(&name).is_err() {
                    let child = Field::new(name, child.data_type().clone(), true);
                    metadata.push((Arc::new(child), Origin::Beside(i, place)));
                }
            }
        } else if is_binary(field.data_type()) {
            payload.push((payload_field(field.name()), Origin::Column(i)));
        } else {
            let names = class_names.get(field.name());
            metadata.push((label_field(field, names.map(Vec::as_slice))?, Origin::Column(i)));
        }
    }
    if metadata.iter().chain(&payload).any(|(field, _)| field.name() == SAMPLE_ID) {
        return Err(Error::config(format!(
            "the data set has a column named {}, which is reserved for the catalog; rename it",
            SAMPLE_ID
        )));
    }
    let names = payload.iter().map(|(f, _)| f.name().clone()).collect();
    let (fields, origins): (Vec<_>, Vec<_>) = metadata.into_iter().chain(payload).unzip();
    Ok(Mapping { schema: Arc::new(Schema::new(fields)), origins, payload: names })
}

pub(crate) fn payload_field(name: &str) -> FieldRef {
    Arc::new(Field::new(name, DataType::BinaryView, true))
}

/// Returns the field without foreign metadata, and with its class names if it has any.
pub(crate) fn label_field(field: &Field, names: Option<&[String]>) -> Result<FieldRef> {
    let mut metadata = HashMap::new();
    if let Some(names) = names {
        let names = serde_json::to_string(names)
            .map_err(|e| Error::new(ErrorKind::Bug, "class names are not JSON").with_source(e))?;
        metadata.insert(CLASS_NAMES_KEY.to_owned(), names);
    }
    Ok(Arc::new(field.clone().with_metadata(metadata)))
}

fn is_binary(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Returns whether values of this type are lists of encoded bytes, which are metadata until a map reads them.
pub(crate) fn is_list_of_encoded(kind: &DataType) -> bool {
    match kind {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_binary(item.data_type()) || encoded_struct(item).is_some()
        }
        _ => false,
    }
}

/// For a `struct<bytes, path>`, returns the index of `bytes` and all children. `path` may be missing and `sampling_rate` may
/// be present; any other child makes it another struct.
fn encoded_struct(field: &Field) -> Option<(usize, &Fields)> {
    let DataType::Struct(children) = field.data_type() else { return None };
    let (bytes, child) = children.find("bytes")?;
    let known = children.iter().all(|c| matches!(c.name().as_str(), "bytes" | "path" | "sampling_rate"));
    (is_binary(child.data_type()) && known).then_some((bytes, children))
}

/// Rejects files whose schemas differ; even `int32` in one and `int64` in another would be silently mixed data.
pub(crate) fn same_schema(first: &Schema, this: &Schema, this_name: &str, first_name: &str) -> Result<()> {
    let is_same = |(a, b): (&FieldRef, &FieldRef)| {
        a.name() == b.name() && a.data_type() == b.data_type() && a.is_nullable() == b.is_nullable()
    };
    if first.fields().len() == this.fields().len() && first.fields().iter().zip(this.fields()).all(is_same) {
        return Ok(()); // the search for a difference, by name, is slow with many columns
    }
    let difference = first
        .fields()
        .iter()
        .find_map(|field| match this.field_with_name(field.name()) {
            Err(_) => Some(format!("{} is missing", field.name())),
            Ok(other) if other.data_type() != field.data_type() => Some(format!(
                "{} is {} in the first and {} in the second",
                field.name(),
                other.data_type(),
                field.data_type()
            )),
            Ok(other) if other.is_nullable() != field.is_nullable() => {
                Some(format!("{} may be null in only one of them", field.name()))
            }
            Ok(_) => None,
        })
        .or_else(|| {
            let new = this.fields().iter().find(|f| first.field_with_name(f.name()).is_err())?;
            Some(format!("{} is new", new.name()))
        })
        .or_else(|| {
            let order = |s: &Schema| s.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
            (order(first) != order(this)).then(|| "the columns are in another order".to_owned())
        });
    match difference {
        None => Ok(()),
        Some(difference) => Err(Error::config(format!(
            "schemas differ between files: {this_name} against {first_name}: {difference}; a data set has one \
             schema, so rewrite the files or open them separately"
        ))),
    }
}

/// Returns the file's schema with every payload read as views.
pub(crate) fn view_schema(source: &Schema) -> SchemaRef {
    let fields: Vec<FieldRef> = source
        .fields()
        .iter()
        .map(|field| {
            if is_binary(field.data_type()) {
                return Arc::new(field.as_ref().clone().with_data_type(DataType::BinaryView));
            }
            let Some((bytes, children)) = encoded_struct(field) else { return field.clone() };
            let mut children: Vec<FieldRef> = children.iter().cloned().collect();
            children[bytes] = Arc::new(children[bytes].as_ref().clone().with_data_type(DataType::BinaryView));
            Arc::new(field.as_ref().clone().with_data_type(DataType::Struct(Fields::from(children))))
        })
        .collect();
    Arc::new(Schema::new_with_metadata(fields, source.metadata().clone()))
}

/// Picks the catalog's columns `wanted` from a batch read from the file. They are found by name, because the batch may hold
/// only some of the file's columns and of its structs' children.
pub(crate) fn pick(
    batch: &RecordBatch,
    source: &Schema,
    mapping: &Mapping,
    wanted: &[usize],
) -> Result<RecordBatch> {
    let mut columns = Vec::with_capacity(wanted.len());
    for &column in wanted {
        let origin = mapping.origins[column];
        let field = source.field(origin.top_level());
        let array = batch.column_by_name(field.name()).ok_or_else(|| missing(field.name()))?;
        let array = match (origin.child(), field.data_type()) {
            (Some(child), DataType::Struct(children)) => child_of(array, children[child].name())?,
            _ => array.clone(),
        };
        let is_payload = *mapping.schema.field(column).data_type() == DataType::BinaryView;
        columns.push(if is_payload { Arc::new(as_views(&array)?) as ArrayRef } else { array });
    }
    // Texts may have been read as views.
    let typed = |(&column, array): (&usize, &ArrayRef)| {
        mapping.schema.field(column).clone().with_data_type(array.data_type().clone())
    };
    let schema = Schema::new(wanted.iter().zip(&columns).map(typed).collect::<Vec<Field>>());
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).map_err(bug)
}

/// Returns a struct's child, null wherever the struct is.
fn child_of(array: &ArrayRef, name: &str) -> Result<ArrayRef> {
    let parent: &StructArray = array.as_struct_opt().ok_or_else(|| missing(name))?;
    let child = parent.column_by_name(name).ok_or_else(|| missing(name))?;
    let Some(nulls) = parent.nulls().filter(|n| n.null_count() > 0) else { return Ok(child.clone()) };
    let nulls = NullBuffer::union(Some(nulls), child.nulls());
    let data = child.to_data().into_builder().nulls(nulls).build().map_err(bug)?;
    Ok(arrow::array::make_array(data))
}

/// Converts any binary array to views; `Binary` and `LargeBinary` below 4 GiB keep their buffer.
fn as_views(array: &ArrayRef) -> Result<BinaryViewArray> {
    match array.data_type() {
        DataType::BinaryView => Ok(array.as_binary_view().clone()),
        DataType::Binary => Ok(BinaryViewArray::from(array.as_binary::<i32>())),
        DataType::LargeBinary => Ok(BinaryViewArray::from(array.as_binary::<i64>())),
        other => Err(Error::new(ErrorKind::Bug, format!("a payload column came back as {other}"))),
    }
}

/// Makes an array of one payload a row, each a view into the bytes that storage delivered; `None` is null.
pub(crate) fn views_of(rows: &[Option<Bytes>]) -> Result<BinaryViewArray> {
    let mut builder = GenericByteViewBuilder::<BinaryViewType>::with_capacity(rows.len());
    for row in rows {
        let Some(bytes) = row else {
            builder.append_null();
            continue;
        };
        let length = u32::try_from(bytes.len())
            .map_err(|_| Error::config(format!("a payload of {} bytes; the limit is 4 GiB", bytes.len())))?;
        let block = builder.append_block(Buffer::from(bytes.clone()));
        builder.try_append_view(block, 0, length).map_err(bug)?;
    }
    Ok(builder.finish())
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::Bug, format!("column {name} was not read"))
}

pub(crate) fn bug(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "columns do not fit their schema").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BinaryArray, StringArray};

    #[test]
    fn a_null_struct_is_a_null_payload_and_nothing_is_copied() {
        let bytes =
            BinaryArray::from_opt_vec(vec![Some(b"0123456789abcdef"), Some(b"hidden under a null"), None]);
        let held = bytes.values().as_ptr();
        let children = Fields::from(vec![
            Field::new("bytes", DataType::Binary, true),
            Field::new("path", DataType::Utf8, true),
        ]);
        let paths = StringArray::from(vec![Some("a.jpg"), Some("b.jpg"), Some("c.jpg")]);
        let nulls = NullBuffer::from(vec![true, false, true]);
        let image = StructArray::new(children.clone(), vec![Arc::new(bytes), Arc::new(paths)], Some(nulls));
        let source = Schema::new(vec![Field::new("image", DataType::Struct(children), true)]);
        let batch = RecordBatch::try_new(Arc::new(source.clone()), vec![Arc::new(image)]).unwrap();
        let mapping = map_columns(&source, &HashMap::new()).unwrap();
        assert_eq!(mapping.payload, ["image"]);
        let picked = pick(&batch, &source, &mapping, &[0, 1]).unwrap();
        let path = picked.column_by_name("image_path").unwrap().as_string::<i32>();
        let image = picked.column_by_name("image").unwrap().as_binary_view();
        assert_eq!((image.is_null(0), image.is_null(1), image.is_null(2)), (false, true, true));
        assert_eq!((path.value(0), path.is_null(1), path.value(2)), ("a.jpg", true, "c.jpg"));
        assert_eq!(image.data_buffers()[0].as_ptr(), held);
    }
}
