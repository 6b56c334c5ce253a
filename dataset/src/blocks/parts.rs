//! Reads blocks of a mix or a concatenation from its parts, with the columns of the whole.

use super::BlockReader;
use crate::catalog::{DATASET, Union};
use crate::format::widen;
use crate::held::{held_type, named};
use crate::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, StringViewBuilder, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use std::ops::Range;
use std::sync::Arc;

/// Reads the chosen columns of a union, with one reader for each part.
pub(super) struct UnionReader {
    union: Arc<Union>,
    schema: SchemaRef,
    readers: Vec<(BlockReader, Vec<Source>)>,
}

/// Where a column of a part's rows comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// A column of the part's reader.
    Read(usize),
    /// The part lacks it.
    Null,
    /// The name of the part.
    Name,
}

impl UnionReader {
    /// Creates a reader of `columns` of the union, through the parts' disk caches if `cached`.
    pub(super) fn new(union: &Arc<Union>, columns: &[usize], schema: SchemaRef, cached: bool) -> Self {
        let readers = union.parts().iter().map(|part| {
            let mut read = Vec::new();
            let sources =
                columns.iter().zip(schema.fields()).map(|(&column, field)| match part.columns[column] {
                    Some(own) => {
                        read.push(own);
                        Source::Read(read.len() - 1)
                    }
                    None if field.name() == DATASET => Source::Name,
                    None => Source::Null,
                });
            let sources: Vec<Source> = sources.collect();
            let stored = &part.stored;
            let cache = stored.cache.clone().filter(|_| cached);
            (BlockReader::new(stored.catalog.clone(), stored.storage.clone(), cache, read), sources)
        });
        Self { readers: readers.collect(), union: union.clone(), schema }
    }

    /// Reads rows of one unit: object, unit and first row are numbered as in the union.
    pub(super) async fn read(
        &self,
        (object, unit, first_row): (u32, u32, u64),
        samples: Range<u64>,
        next_use: u64,
    ) -> Result<RecordBatch> {
        let at = self.union.part_of(samples.start);
        let (part, (reader, sources)) = (&self.union.parts()[at], &self.readers[at]);
        let rows = usize::try_from(samples.end - samples.start)
            .map_err(|_| Error::config("a block has more rows than memory has addresses"))?;
        let read = if reader.schema().fields().is_empty() {
            Vec::new()
        } else {
            let place = (object - part.first_object, unit - part.first_unit, first_row);
            let samples = samples.start - part.first_sample..samples.end - part.first_sample;
            reader.read_place(place, samples, next_use).await?.columns().to_vec() // text as views
        };
        let arrays = sources.iter().zip(self.schema.fields()).map(|(source, field)| match source {
            Source::Read(column) => held(&read[*column], field.data_type(), rows),
            Source::Null => Ok(new_null_array(&held_type(field.data_type()), rows)),
            Source::Name => {
                let mut names = StringViewBuilder::with_capacity(rows).with_deduplicate_strings();
                (0..rows).for_each(|_| names.append_value(&part.name));
                Ok(Arc::new(names.finish()) as ArrayRef)
            }
        });
        let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
        named(&self.schema, arrays, rows)
    }
}

/// Converts a part's column to the type in which the union holds it. Nested types that differ are widened to the declared
/// type first.
fn held(column: &ArrayRef, declared: &DataType, rows: usize) -> Result<ArrayRef> {
    let kind = held_type(declared);
    let held = match column.data_type() {
        own if own.is_nested() && held_type(own) != kind => {
            cast(&widen(Some(column), declared, rows)?, &kind)
        }
        DataType::Null => Ok(new_null_array(&kind, rows)),
        _ => cast(column, &kind),
    };
    held.map_err(bug)
}

fn bug(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "a part's rows do not fit the union").with_source(error)
}
