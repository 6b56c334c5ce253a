//! Values of queries as text.

use super::super::failure::{Failure, Outcome};
use arrow::array::RecordBatch;
use arrow::util::display::array_value_to_string;

/// Returns all values of a query's result as text, row by row.
pub(super) fn cells(batches: &[RecordBatch]) -> Outcome<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| array_value_to_string(column, row));
            let cells: Result<Vec<String>, _> = cells.collect();
            rows.push(cells.map_err(|e| Failure::bug(format!("a query's value cannot be printed: {e}")))?);
        }
    }
    Ok(rows)
}
