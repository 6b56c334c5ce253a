//! Which columns certainly have missing values, as statistics prove without reading a value.
//!
//! Parquet footers count nulls for each row group, and tables in memory know their count. Other formats prove nothing. Neither
//! does a count if a filter keeps only some of the counted samples.

use super::{Catalog, Content};
use arrow::array::Array;
use arrow::buffer::BooleanBuffer;

impl Catalog {
    /// Whether some of the samples that `kept` keeps (`None`: all) certainly have no value in `column`.
    pub(crate) fn proves_nulls(&self, column: &str, kept: Option<&BooleanBuffer>) -> bool {
        if let Content::Union(union) = &self.content {
            return union.proves_nulls(column, kept);
        }
        if let Content::Derived(derived) = &self.content {
            return self.schema.index_of(column).is_ok_and(|at| derived.proves_nulls(at, kept));
        }
        if kept.is_some_and(|kept| kept.count_set_bits() < kept.len()) {
            return false;
        }
        let has_nulls = |array: Option<&dyn Array>| array.is_some_and(|array| array.null_count() > 0);
        self.null_columns.iter().any(|name| name == column)
            || match &self.content {
                Content::Located(table) => table
                    .chunks()
                    .any(|(_, chunk)| has_nulls(chunk.metadata.column_by_name(column).map(AsRef::as_ref))),
                Content::Units { added: Some(added), .. } => {
                    has_nulls(added.rows().column_by_name(column).map(AsRef::as_ref))
                }
                Content::Units { added: None, .. } | Content::Union(_) | Content::Derived(_) => false,
            }
    }
}
