//! The columns of blocks: which of them are mapped, and which ride along into batches as Arrow arrays.

use crate::images::is_list_of_images;
use crate::run::job::Map;
use crate::value::is_mappable;
use crate::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use feedstock_dataset::{Block, Dataset, declared_array};
use std::sync::Arc;

/// Checks that there is something to map in each of `columns`.
///
/// # Errors
/// `BadConfig` for a column that is not in the schema, or holds neither encoded bytes, lists of images nor text.
pub(crate) fn check_mapped<'a>(schema: &Schema, columns: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let named = |wanted: fn(&DataType) -> bool| {
        let fields = schema.fields().iter().filter(|field| wanted(field.data_type()));
        fields.map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
    };
    for column in columns {
        let problem = match schema.field_with_name(column) {
            Ok(field) if is_mappable(field.data_type()) || is_list_of_images(field.data_type()) => continue,
            Ok(field) => format!("column '{column}' cannot be mapped: it holds {}", field.data_type()),
            Err(_) => format!("column '{column}' cannot be mapped: it does not exist"),
        };
        let mut message = format!(
            "{problem}; this data set has encoded bytes in: {}; text in: {}",
            named(|data_type| *data_type == DataType::BinaryView),
            named(|data_type| is_mappable(data_type) && *data_type != DataType::BinaryView)
        );
        let lists = named(is_list_of_images);
        if !lists.is_empty() {
            message.push_str("; lists of images in: ");
            message.push_str(&lists);
        }
        return Err(Error::config(message));
    }
    Ok(())
}

/// The columns that ride along, after checking that every map has a column to read: all but the payloads and lists of images that
/// were mapped and what a result of the same name replaces.
pub(crate) fn unmapped(schema: &SchemaRef, dataset: &Dataset, maps: &[Map]) -> Result<SchemaRef> {
    let catalog = dataset.catalog();
    check_mapped(schema, maps.iter().filter(|map| !map.chain.annotates()).map(|map| map.column.as_str()))?;
    let consumes = |map: &Map| catalog.is_payload(&map.column) || map.chain.reads_lists();
    let rides =
        |name: &str| maps.iter().all(|map| map.output != name && (map.column != name || !consumes(map)));
    let rest = schema.fields().iter().filter(|field| rides(field.name()));
    Ok(Arc::new(Schema::new(rest.cloned().collect::<Vec<_>>())))
}

/// Rows picked from several blocks, in order.
pub(crate) fn gather(sources: &[(Arc<Block>, usize)], columns: &SchemaRef) -> Result<RecordBatch> {
    let mut blocks: Vec<&Arc<Block>> = Vec::new();
    let mut indices = Vec::with_capacity(sources.len());
    for (block, row) in sources {
        // Rows come by lane, so a block repeats in runs and a backward search is short.
        let at = blocks.iter().rposition(|known| Arc::ptr_eq(known, block)).unwrap_or_else(|| {
            blocks.push(block);
            blocks.len() - 1
        });
        indices.push((at, *row));
    }
    let bug = |e: ArrowError| Error::bug(format!("cannot gather a batch's columns: {e}"));
    let arrays = columns.fields().iter().map(|field| {
        let parts: Vec<&dyn Array> = blocks
            .iter()
            .map(|block| block.rows.column_by_name(field.name()).map(|array| &**array))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::bug(format!("a block lacks column {}", field.name())))?;
        compact(interleave(&parts, &indices).map_err(bug)?, field.data_type())
    });
    let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(sources.len()));
    RecordBatch::try_new_with_options(columns.clone(), arrays, &options).map_err(bug)
}

/// A copy of the type `declared` that holds its own bytes: views would keep whole blocks alive beyond the budget. Blocks hold
/// texts as views, which are written out here.
fn compact(array: ArrayRef, declared: &DataType) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        held if held != declared => declared_array(&array, declared)?,
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        _ => array,
    })
}
