//! Reads a list of numbers as boxes or points.

use crate::number_list::NumberList;
use feedstock_base::{Error, Result};

/// What to do about a list of wrong numbers.
const NEXT: &str = "; correct the file or set on_error=skip";

impl<'a> NumberList<'a> {
    /// Returns groups of `count` numbers, each of them a `what`. Inner lists must have whole groups.
    ///
    /// # Errors
    /// `BadSample` for another count, NaN, infinity, and numbers that are too large for f32.
    pub(super) fn in_groups_of(
        self,
        count: usize,
        what: &str,
    ) -> Result<impl ExactSizeIterator<Item = &'a [f64]>> {
        let plural = if what == "box" { "boxes".to_owned() } else { format!("{what}s") };
        let length = self.each.unwrap_or(self.values.len());
        if !length.is_multiple_of(count) {
            let numbers = if length == 1 { "number" } else { "numbers" };
            return Err(Error::bad_sample(format!(
                "a list of {length} {numbers} is not a list of {plural}, which have {count} each{NEXT}"
            )));
        }
        // Results are in single precision. NaN does not compare.
        let fits = |value: &f64| value.abs() <= f64::from(f32::MAX);
        if let Some(at) = self.values.iter().position(|value| !fits(value)) {
            let (index, value) = (at / count, self.values[at]);
            let problem = if value.is_finite() { "too large for float32" } else { "not finite" };
            return Err(Error::bad_sample(format!(
                "{what} {index} has a number that is {problem}: {value:e}{NEXT}"
            )));
        }
        Ok(self.values.chunks_exact(count))
    }
}
