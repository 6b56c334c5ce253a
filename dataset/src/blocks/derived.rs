//! Reads blocks of a catalog with other columns: those of its base, and values in memory by sample number.

use super::BlockReader;
use crate::catalog::{ColumnValues, Derived, DerivedColumn};
use crate::held::named;
use crate::{DiskCache, Error, ErrorKind, Result, Storage};
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use std::ops::Range;

/// Reads the chosen columns of a derived catalog.
pub(super) struct DerivedReader {
    schema: SchemaRef,
    /// Reads the columns of the base.
    reader: BlockReader,
    sources: Vec<Source>,
}

/// Where a column of the rows comes from.
enum Source {
    /// The next column of the base's reader.
    Read,
    Values(ColumnValues),
}

impl DerivedReader {
    /// Creates a reader of `columns` of the derived catalog.
    pub(super) fn new(
        derived: &Derived,
        columns: &[usize],
        schema: SchemaRef,
        (storage, cache): (Storage, Option<DiskCache>),
    ) -> Self {
        let sources = columns.iter().map(|&column| match derived.column(column) {
            DerivedColumn::Base(_) => Source::Read,
            DerivedColumn::Values(values) => Source::Values(values.clone()),
        });
        let sources = sources.collect();
        let reader = BlockReader::new(derived.base().clone(), storage, cache, derived.of_base(columns));
        Self { schema, reader, sources }
    }

    /// Reads rows of one unit; the place is that of the base.
    pub(super) async fn read(
        &self,
        place: (u32, u32, u64),
        samples: Range<u64>,
        next_use: u64,
    ) -> Result<RecordBatch> {
        let rows = usize::try_from(samples.end - samples.start)
            .map_err(|_| Error::config("a block has more rows than memory has addresses"))?;
        let read = match self.reader.schema().fields().is_empty() {
            true => Vec::new(), // values in memory need no I/O
            false => self.reader.read_place(place, samples.clone(), next_use).await?.columns().to_vec(),
        };
        let mut read = read.into_iter();
        let arrays = self.sources.iter().map(|source| match source {
            Source::Values(values) => values.of(&samples),
            Source::Read => {
                read.next().ok_or_else(|| Error::new(ErrorKind::Bug, "a column of the base was not read"))
            }
        });
        let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
        named(&self.schema, arrays, rows)
    }
}
