//! The numbers of one sample's list: boxes, keypoints.

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
