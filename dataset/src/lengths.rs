//! The lengths of samples (seconds, frames, tokens), for plans that bucket by them or bound a batch's total.

use crate::catalog::project;
use crate::{Dataset, Error, Result, SampleId};
use std::fmt;
use std::sync::Arc;

/// One length for every sample of a catalog, selected or not. Cheap to clone.
///
/// Costs four bytes a sample: 40 MB for ten million clips. A length is kept as `f32`, rounded
/// down: 12 s are exact to a microsecond.
#[derive(Clone, PartialEq)]
pub struct Lengths {
    column: Arc<str>,
    values: Arc<[f32]>,
}

impl Lengths {
    /// Lengths by sample id, for all samples of the catalog. Unselected ones may be anything.
    pub fn new(column: &str, values: Vec<f32>) -> Self {
        let values = values.into_iter().map(|length| length + 0.0).collect(); // −0 becomes 0: bits are compared
        Self { column: column.into(), values }
    }

    /// The column they were read from.
    pub fn column(&self) -> &str {
        &self.column
    }

    /// The lengths, by sample id; NaN where there is none.
    pub fn values(&self) -> &Arc<[f32]> {
        &self.values
    }

    /// The longest of these samples and its length; `None` of none.
    ///
    /// # Errors
    /// `BadConfig` for the first sample whose length is missing, negative or infinite.
    pub(crate) fn longest(
        &self,
        samples: impl Iterator<Item = SampleId>,
        name: &dyn Fn(SampleId) -> String,
    ) -> Result<Option<(SampleId, f32)>> {
        let mut longest: Option<(SampleId, f32)> = None;
        for sample in samples {
            let length = usize::try_from(sample.0).ok().and_then(|at| self.values.get(at)).copied();
            let length = match length {
                Some(length) if length.is_finite() && length >= 0.0 => length,
                other => {
                    let column = &self.column;
                    let what = match other {
                        Some(length) if !length.is_nan() => format!("{column} is {length}"),
                        _ => format!("{column} is null"),
                    };
                    return Err(Error::config(format!(
                        "{}: {what}, no length to batch by; filter such samples out, as with `{column} is not null \
                         and {column} >= 0`",
                        name(sample)
                    )));
                }
            };
            if longest.is_none_or(|(_, most)| length > most) {
                longest = Some((sample, length));
            }
        }
        Ok(longest)
    }
}

impl fmt::Debug for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lengths").field("column", &self.column).field("samples", &self.values.len()).finish()
    }
}

impl Dataset {
    /// Reads the numeric `column` of all samples as lengths: `duration`, a token count.
    ///
    /// Only that column is read; where it is not in the catalog's memory that is one pass over it.
    ///
    /// # Errors
    /// `BadConfig` for a column that is unknown or not numeric, and for a selected sample whose length is null, NaN,
    /// negative or infinite (the message names it and how to filter it out); storage's errors.
    pub async fn lengths(&self, column: &str) -> Result<Lengths> {
        let catalog = self.catalog().clone();
        let field = catalog.schema().field(project(catalog.schema(), &[column])?[0]).clone();
        if !field.data_type().is_numeric() {
            return Err(Error::config(format!(
                "column {column} is {}, not a number, so it gives no lengths",
                field.data_type()
            )));
        }
        let lengths = Lengths::new(column, crate::filter::numbers(self, column).await?);
        let selected = (0..catalog.samples()).map(SampleId);
        let selected = selected.filter(|&s| self.selection().is_none_or(|kept| kept.contains(s)));
        lengths.longest(selected, &|sample| catalog.describe_sample(sample))?;
        Ok(lengths)
    }
}
