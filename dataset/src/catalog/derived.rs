//! A catalog with other columns than the one that it is made from: renamed columns, and columns whose values are in memory.
//!
//! ```text
//! columns   base 0 │ base 1, under another name │ values │ base 2       blocks, samples and objects are those of the base
//! ```
//! The base is the catalog of one stored data set or of a union, never a derived one, so a chain of calls is one level deep.
//! Columns of the base are found by their index: names may be swapped, or given to other columns.
//! Cost: the values, and 8 bytes a sample for each table that is looked up. Texts are held once, as views.

use super::{Catalog, Content, VIEW_BYTES, index};
use crate::Result;
use crate::catalog::columns::bug;
use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::take;
use arrow::datatypes::{FieldRef, Schema};
use std::ops::Range;
use std::sync::Arc;

/// The columns of a derived catalog, and the catalog that has its blocks.
#[derive(Clone)]
pub(crate) struct Derived {
    base: Arc<Catalog>,
    columns: Vec<DerivedColumn>,
}

/// Where a column of a derived catalog is found.
#[derive(Clone)]
pub(crate) enum DerivedColumn {
    /// In the base: the index of a column.
    Base(usize),
    /// In memory.
    Values(ColumnValues),
}

/// The values of a column for all samples, in catalog order.
#[derive(Clone)]
pub(crate) struct ColumnValues {
    values: ArrayRef,
    /// For each sample, the row of `values`; null if it has none. Without it, there is one row a sample.
    rows: Option<UInt64Array>,
}

impl ColumnValues {
    /// Returns a column with one value a sample.
    pub(crate) fn of_samples(values: ArrayRef) -> Self {
        Self { values, rows: None }
    }

    /// Returns a column in which each sample has the value in its row of `values`.
    pub(crate) fn looked_up(values: ArrayRef, rows: UInt64Array) -> Self {
        Self { values, rows: Some(rows) }
    }

    /// Returns the values of a run of samples.
    pub(crate) fn of(&self, samples: &Range<u64>) -> Result<ArrayRef> {
        let (start, count) = (index(samples.start), index(samples.end - samples.start));
        match &self.rows {
            None => Ok(self.values.slice(start, count)),
            Some(rows) => take(&self.values, &rows.slice(start, count), None).map_err(bug),
        }
    }

    /// Whether a sample that `kept` keeps (`None`: any) has no value.
    fn has_nulls(&self, kept: Option<&BooleanBuffer>) -> bool {
        let is_null = |sample: usize| match &self.rows {
            None => self.values.is_null(sample),
            Some(rows) => rows.is_null(sample) || self.values.is_null(index(rows.value(sample))),
        };
        match kept {
            Some(kept) => kept.set_indices().any(is_null),
            None => (0..self.rows.as_ref().map_or(self.values.len(), Array::len)).any(is_null),
        }
    }

    /// Returns the bytes that a row of a fetched block takes in addition to the values.
    fn bytes_per_row(&self) -> u64 {
        if self.rows.is_some() { VIEW_BYTES } else { 0 }
    }
}

impl Derived {
    pub(crate) fn base(&self) -> &Arc<Catalog> {
        &self.base
    }

    pub(crate) fn column(&self, column: usize) -> &DerivedColumn {
        &self.columns[column]
    }

    /// Returns the name that a column has in the base; `None` if it is not there.
    pub(crate) fn base_name(&self, column: usize) -> Option<&str> {
        match self.columns[column] {
            DerivedColumn::Base(own) => Some(self.base.schema.field(own).name()),
            DerivedColumn::Values(_) => None,
        }
    }

    /// Returns which of these columns are columns of the base, by their index there.
    pub(crate) fn of_base(&self, columns: &[usize]) -> Vec<usize> {
        let base = columns.iter().filter_map(|&column| match self.columns[column] {
            DerivedColumn::Base(own) => Some(own),
            DerivedColumn::Values(_) => None,
        });
        base.collect()
    }

    /// Returns the bytes of a row of a fetched block that the base does not count.
    pub(crate) fn bytes_per_row(&self) -> u64 {
        let bytes = self.columns.iter().map(|column| match column {
            DerivedColumn::Base(_) => 0,
            DerivedColumn::Values(values) => values.bytes_per_row(),
        });
        bytes.sum()
    }

    /// Whether some of the samples that `kept` keeps certainly have no value in a column.
    pub(crate) fn proves_nulls(&self, column: usize, kept: Option<&BooleanBuffer>) -> bool {
        match &self.columns[column] {
            DerivedColumn::Base(own) => self.base.proves_nulls(self.base.schema.field(*own).name(), kept),
            DerivedColumn::Values(values) => values.has_nulls(kept),
        }
    }
}

impl Catalog {
    /// Returns this catalog with these columns: metadata, then payloads. Indices are those of this catalog.
    pub(crate) fn derived(self: &Arc<Self>, columns: Vec<(FieldRef, DerivedColumn)>) -> Self {
        let base = self.base();
        let (fields, columns): (Vec<FieldRef>, Vec<DerivedColumn>) = columns.into_iter().unzip();
        let columns = columns.into_iter().map(|column| match (&self.content, column) {
            (Content::Derived(own), DerivedColumn::Base(at)) => own.columns[at].clone(),
            (_, column) => column,
        });
        let derived = Derived { base: base.clone(), columns: columns.collect() };
        let named = |known: &[String]| -> Vec<String> {
            let is_known = |column: &DerivedColumn| match column {
                DerivedColumn::Base(at) => known.contains(base.schema.field(*at).name()),
                DerivedColumn::Values(_) => false,
            };
            let found = fields.iter().zip(&derived.columns).filter(|(_, column)| is_known(column));
            found.map(|(field, _)| field.name().clone()).collect()
        };
        Self {
            uri: base.uri.clone(),
            layout: base.layout,
            block_bytes: base.block_bytes,
            objects: base.objects.clone(),
            blocks: base.blocks.clone().with_memory_per_sample(derived.bytes_per_row()),
            payload: named(&base.payload),
            audio: named(&base.audio),
            notes: base.notes.clone(),
            listing_notes: base.listing_notes,
            null_columns: Vec::new(),
            hashes: base.hashes,
            listing: base.listing,
            is_resumed: base.is_resumed,
            probed: base.probed,
            unsupported: Vec::new(),
            schema: Arc::new(Schema::new(fields)),
            content: Content::Derived(derived),
        }
    }

    /// Returns the catalog that has the blocks: itself, unless it is derived.
    pub(crate) fn base(self: &Arc<Self>) -> &Arc<Self> {
        match &self.content {
            Content::Derived(derived) => derived.base(),
            Content::Located(_) | Content::Units { .. } | Content::Union(_) => self,
        }
    }

    /// Whether columns were added to, or renamed in, a mix or a concatenation.
    pub(crate) fn is_derived_union(&self) -> bool {
        matches!(&self.content, Content::Derived(derived) if matches!(derived.base.content, Content::Union(_)))
    }

    /// Returns the name of a column in the catalog that has the blocks; `None` if it is not there.
    pub(crate) fn stored_name<'a>(&'a self, column: &'a str) -> Option<&'a str> {
        let Content::Derived(derived) = &self.content else { return Some(column) };
        derived.base_name(self.schema.index_of(column).ok()?)
    }
}
