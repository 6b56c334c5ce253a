//! The lengths of samples (seconds, frames, tokens), for plans that bucket by them or bound a batch's total.

use feedstock_base::{Error, Result, SampleId};
use std::fmt;
use std::sync::Arc;

/// One length for every sample of a catalog, selected or not. Cheap to clone.
///
/// It takes four bytes a sample: 40 MB for ten million audio clips. A length is stored as `f32`, rounded down: 12 s are exact
/// to a microsecond.
#[derive(Clone, PartialEq)]
pub struct Lengths {
    column: Arc<str>,
    values: Arc<[f32]>,
}

impl Lengths {
    /// Lengths by sample id, for all samples of the catalog. Those of unselected samples may have any value.
    pub fn new(column: &str, values: Vec<f32>) -> Self {
        let values = values.into_iter().map(|length| length + 0.0).collect(); // −0 becomes 0: bits are compared
        Self { column: column.into(), values }
    }

    /// Returns the column that they were read from.
    pub fn column(&self) -> &str {
        &self.column
    }

    /// Returns the lengths, by sample id; NaN for a missing one.
    pub fn values(&self) -> &Arc<[f32]> {
        &self.values
    }

    /// Returns the longest of these samples and its length; `None` without samples.
    ///
    /// ```
    /// use feedstock_base::SampleId;
    /// use feedstock_plan::Lengths;
    ///
    /// let seconds = Lengths::new("duration", vec![3.0, 8.5, f32::NAN]);
    /// let name = |sample: SampleId| format!("clips.tsv row {sample}");
    /// assert_eq!(seconds.longest([SampleId(0), SampleId(1)].into_iter(), &name)?, Some((SampleId(1), 8.5)));
    /// assert_eq!(
    ///     seconds.longest([SampleId(2)].into_iter(), &name).unwrap_err().message(),
    ///     "clips.tsv row 2: duration is null, which is not a length to batch by; filter such samples out, as with \
    ///      `duration is not null and duration >= 0`"
    /// );
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for the first sample whose length is missing, negative or infinite.
    pub fn longest(
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
                        "{}: {what}, which is not a length to batch by; filter such samples out, as with `{column} is not \
                         null and {column} >= 0`",
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
