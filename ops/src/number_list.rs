//! The numbers of one sample's list: boxes, keypoints.

use feedstock_base::{Error, Result};

/// The numbers of one sample's list, which is flat or a list of lists of equal lengths.
///
/// ```
/// use feedstock_ops::NumberList;
///
/// let of_two_boxes = [1.0, 2.0, 30.0, 40.0, 5.0, 6.0, 7.0, 8.0];
/// let flat = NumberList { values: &of_two_boxes, each: None };
/// let nested = NumberList { values: &of_two_boxes, each: Some(4) };
/// assert_ne!(flat, nested);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberList<'a> {
    /// All numbers, those of the first inner list first.
    pub values: &'a [f64],
    /// The numbers of each inner list; `None` for a flat list, and for an empty one.
    pub each: Option<usize>,
}

impl<'a> NumberList<'a> {
    /// Returns groups of `count` finite numbers, each of them a `what`. Inner lists must have whole groups.
    ///
    /// # Errors
    /// `BadSample` for another count, NaN or infinity.
    #[cfg(feature = "image")]
    pub(crate) fn in_groups_of(
        self,
        count: usize,
        what: &str,
    ) -> Result<impl ExactSizeIterator<Item = &'a [f64]>> {
        let plural = if what == "box" { "boxes".to_owned() } else { format!("{what}s") };
        let length = self.each.unwrap_or(self.values.len());
        if !length.is_multiple_of(count) {
            return Err(Error::bad_sample(format!(
                "a list of {length} numbers is not a list of {plural}, which have {count} each"
            )));
        }
        if let Some(at) = self.values.iter().position(|value| !value.is_finite()) {
            let (index, value) = (at / count, self.values[at]);
            return Err(Error::bad_sample(format!(
                "{what} {index} has a number that is not finite: {value}"
            )));
        }
        Ok(self.values.chunks_exact(count))
    }
}
