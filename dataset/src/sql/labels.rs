//! The labels of some samples, as codes that are equal where the labels are.
//!
//! Only the runs that hold the samples are read: row groups, record batches, parts of the table of samples. Of a run, only
//! the label column is read.

use super::scan::Run;
use super::table::metadata_runs;
use crate::catalog::Catalog;
use crate::open::Opened;
use crate::{BlockReader, Error, ErrorKind, Result, SampleId};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use futures::{StreamExt, TryStreamExt, stream};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Runs that are read at a time. Storage may limit its requests to fewer.
const RUNS_AT_A_TIME: usize = 32;

/// The code of a missing label.
const NULL: u64 = 0x6E75_6C6C_6E75_6C6C; // "nullnull"

/// The labels of some samples.
pub(crate) struct Labels {
    ids: Vec<u64>,
    codes: Vec<u64>,
}

/// A run to read, and the requested samples in it, as a range of their ids.
type Wanted = (Run, Range<usize>);

/// Whether values of this type are labels: texts, integers and flags.
pub(crate) fn are_labels(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean => true,
        DataType::Dictionary(_, values) => are_labels(values),
        other => other.is_integer(),
    }
}

/// Returns the number of runs that must be read for these samples; `ids` rise.
pub(crate) fn runs_with(catalog: &Catalog, ids: &[u64]) -> usize {
    wanted(catalog, ids).len()
}

/// Reads the labels of the samples `ids`, which rise, from the column with this index.
pub(crate) async fn labels(opened: &Arc<Opened>, column: usize, ids: Vec<u64>) -> Result<Labels> {
    let catalog = &opened.catalog;
    let reader = &BlockReader::new(catalog.clone(), opened.storage.clone(), None, vec![column]);
    let runs = wanted(catalog, &ids);
    let reads = stream::iter(runs).map(|(run, range)| async move {
        let (first, rows) = reader.fetch_run(run.blocks).await?;
        Ok::<_, Error>((first, rows.column(0).clone(), range))
    });
    let mut reads = reads.buffer_unordered(RUNS_AT_A_TIME);
    let mut codes = vec![NULL; ids.len()];
    while let Some((first, column, range)) = reads.try_next().await? {
        let values = Codes::of(&column)?;
        for (id, code) in ids[range.clone()].iter().zip(&mut codes[range]) {
            let row = usize::try_from(id - first).map_err(|_| bug("a sample is not in its run"))?;
            *code = values.code(row);
        }
    }
    drop(reads);
    Ok(Labels { ids, codes })
}

impl Labels {
    /// Returns the code of a sample's label. A sample that was not read has no label.
    pub(crate) fn code(&self, sample: SampleId) -> u64 {
        self.ids.binary_search(&sample.0).map_or(NULL, |at| self.codes[at])
    }
}

/// Returns the runs that hold the samples `ids`, which rise.
fn wanted(catalog: &Catalog, ids: &[u64]) -> Vec<Wanted> {
    let starts = catalog.block_starts();
    let mut found = Vec::new();
    let mut at = 0;
    for run in metadata_runs(catalog) {
        let end = starts[run.blocks.end as usize];
        let here = ids[at..].partition_point(|id| *id < end);
        if here > 0 {
            found.push((run, at..at + here));
            at += here;
        }
    }
    found
}

/// The values of one run's label column.
enum Codes {
    Signed(ArrayRef),
    Unsigned(ArrayRef),
    Text(ArrayRef),
}

impl Codes {
    fn of(column: &ArrayRef) -> Result<Self> {
        let values = match column.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let to =
            |kind: &DataType| cast(column, kind).map_err(|e| bug("labels cannot be cast").with_source(e));
        Ok(match values {
            kind if kind.is_unsigned_integer() => Self::Unsigned(to(&DataType::UInt64)?),
            kind if kind.is_integer() || *kind == DataType::Boolean => Self::Signed(to(&DataType::Int64)?),
            _ => Self::Text(to(&DataType::Utf8View)?),
        })
    }

    fn code(&self, row: usize) -> u64 {
        match self {
            Self::Signed(array) | Self::Unsigned(array) | Self::Text(array) if array.is_null(row) => NULL,
            Self::Signed(array) => array.as_primitive::<Int64Type>().value(row).cast_unsigned(),
            Self::Unsigned(array) => array.as_primitive::<UInt64Type>().value(row),
            Self::Text(array) => {
                let mut hasher = DefaultHasher::new();
                array.as_string_view().value(row).hash(&mut hasher);
                hasher.finish()
            }
        }
    }
}

fn bug(what: &str) -> Error {
    Error::new(ErrorKind::Bug, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, DictionaryArray, Int16Array, StringArray, UInt64Array};
    use arrow::datatypes::Int32Type;

    /// Whether rows 0 and 1 have equal codes, and rows 0 and 2.
    fn equal(column: ArrayRef) -> (bool, bool) {
        assert!(are_labels(column.data_type()));
        let codes = Codes::of(&column).unwrap();
        (codes.code(0) == codes.code(1), codes.code(0) == codes.code(2))
    }

    #[test]
    fn codes_are_equal_where_labels_are() {
        let texts: DictionaryArray<Int32Type> = ["cat", "cat", "dog"].into_iter().collect();
        let columns: [ArrayRef; 6] = [
            Arc::new(StringArray::from(vec!["cat", "cat", "dog"])),
            Arc::new(texts),
            Arc::new(Int16Array::from(vec![-3, -3, 4])),
            Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX, 0])),
            Arc::new(BooleanArray::from(vec![true, true, false])),
            Arc::new(StringArray::from(vec![None, None, Some("")])),
        ];
        for column in columns {
            assert_eq!(equal(column), (true, false));
        }
        assert!(!are_labels(&DataType::Float32) && !are_labels(&DataType::BinaryView));
    }
}
