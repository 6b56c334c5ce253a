//! Columns of columnar files that are not in the files: durations read from the headers of audio clips.
//!
//! They come after the files' metadata columns and before the payloads. They take 8 bytes a sample in memory and in the
//! stored catalog.

use crate::{Error, ErrorKind, Result};
use arrow::array::ArrayRef;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use std::ops::Range;
use std::sync::Arc;

/// Where a column of the catalog is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundIn {
    /// In the files: a column of [`crate::format::columns::Mapping`].
    File(usize),
    /// Among the added columns.
    Added(usize),
}

/// The added columns of all samples, in catalog order.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    rows: RecordBatch,
    /// The index of the first of them among the catalog's columns.
    at: usize,
}

impl Added {
    pub(crate) fn new(rows: RecordBatch, at: usize) -> Self {
        Self { rows, at }
    }

    pub(crate) fn rows(&self) -> &RecordBatch {
        &self.rows
    }

    pub(crate) fn place(&self, column: usize) -> FoundIn {
        match column.checked_sub(self.at) {
            None => FoundIn::File(column),
            Some(i) if i < self.rows.num_columns() => FoundIn::Added(i),
            Some(_) => FoundIn::File(column - self.rows.num_columns()),
        }
    }

    /// Returns one added column of a run of samples.
    pub(crate) fn column(&self, column: usize, samples: &Range<u64>) -> ArrayRef {
        #[expect(clippy::cast_possible_truncation, reason = "samples of an in-memory batch")]
        let (start, rows) = (samples.start as usize, (samples.end - samples.start) as usize);
        self.rows.column(column).slice(start, rows)
    }

    /// Returns the catalog's schema: the files' schema with these columns.
    pub(crate) fn within(&self, files: &Schema) -> SchemaRef {
        let mut fields: Vec<FieldRef> = files.fields().iter().cloned().collect();
        fields.splice(self.at..self.at, self.rows.schema().fields().iter().cloned());
        Arc::new(Schema::new(fields))
    }

    /// Returns the files' part of a catalog's schema.
    pub(crate) fn without(&self, catalog: &Schema) -> Result<SchemaRef> {
        let files: Vec<usize> =
            (0..catalog.fields().len()).filter(|&c| matches!(self.place(c), FoundIn::File(_))).collect();
        let schema = catalog.project(&files).map_err(|e| {
            Error::new(ErrorKind::Bug, "the added columns are not in the schema").with_source(e)
        })?;
        Ok(Arc::new(schema))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Float64Array;
    use arrow::datatypes::{DataType, Field};

    #[test]
    fn added_columns_stand_between_metadata_and_payload() {
        let field = |name: &str| Field::new(name, DataType::Float64, true);
        let rows = RecordBatch::try_new(
            Arc::new(Schema::new(vec![field("duration")])),
            vec![Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))],
        )
        .unwrap();
        let added = Added::new(rows, 2);
        let files = Schema::new(vec![field("a"), field("b"), field("audio")]);
        let catalog = added.within(&files);
        assert_eq!(catalog.field(2).name(), "duration");
        assert_eq!(added.without(&catalog).unwrap().fields(), files.fields());
        let places: Vec<FoundIn> = (0..4).map(|c| added.place(c)).collect();
        assert_eq!(places, [FoundIn::File(0), FoundIn::File(1), FoundIn::Added(0), FoundIn::File(2)]);
        assert_eq!(
            added.column(0, &(1..3)).as_ref(),
            &Float64Array::from(vec![2.0, 3.0]) as &dyn arrow::array::Array
        );
    }
}
