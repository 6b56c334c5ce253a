//! Keypoints.

use serde::{Deserialize, Serialize};

use super::super::geometry::{Axis, Size};
use super::motion::{Kind, Motion};
use crate::number_list::NumberList;
use feedstock_base::{Error, Result};

/// Numbers of a point in the result: x, y, visibility.
const NUMBERS: usize = 3;

/// Points of an image, with visibilities.
///
/// A list of points has 2 numbers (x, y) or 3 (x, y, visibility) each. A flat list, and each list of an object, has 3 numbers
/// a point, as in COCO. The result has x, y and visibility of every point, one after another; the visibility of (x, y) is 1. A
/// point that is outside of the image, at first or after some op, has visibility 0, and its coordinates are still moved.
///
/// As in torchvision, a horizontal flip takes x to width − 1 − x, and a vertical flip takes y to height − 1 − y.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Keypoints {
    /// Points that a horizontal flip exchanges, such as left and right eye, by their indices in an object; default: none.
    #[serde(default)]
    pub flip_pairs: Vec<[usize; 2]>,
}

impl Keypoints {
    /// Keypoints of which a horizontal flip exchanges none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the pairs of points that a horizontal flip exchanges.
    #[must_use]
    pub fn flip_pairs(self, flip_pairs: impl Into<Vec<[usize; 2]>>) -> Self {
        Self { flip_pairs: flip_pairs.into() }
    }

    pub(super) fn check(&self) -> Result<()> {
        let mut points: Vec<usize> = self.flip_pairs.concat();
        points.sort_unstable();
        match points.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                let point = pair[0];
                Err(Error::config(format!(
                    "flip_pairs must name each point once; point {point} is in them twice"
                )))
            }
        }
    }

    /// Returns x, y and visibility of each point after `motions` of an image of size `image`.
    ///
    /// # Errors
    /// `BadSample` for numbers that are not points, and for objects without a point of `flip_pairs`.
    pub(super) fn follow(
        &self,
        given: NumberList<'_>,
        image: Size,
        motions: &[Motion],
    ) -> Result<Vec<[f64; NUMBERS]>> {
        let (numbers, object) = match given.each {
            Some(2) => (2, given.values.len() / 2),
            Some(NUMBERS) | None => (NUMBERS, given.values.len() / NUMBERS),
            Some(each) => (NUMBERS, each / NUMBERS),
        };
        let points = given.in_groups_of(numbers, "point")?;
        let mut points: Vec<[f64; NUMBERS]> = points
            .map(|point| [point[0], point[1], point.get(2).copied().unwrap_or(1.0)])
            .map(|[x, y, visibility]| [x, y, if is_inside([x, y], image) { visibility } else { 0.0 }])
            .collect();
        for object in points.chunks_exact_mut(object.max(1)) {
            self.check_object(object.len())?;
            motions.iter().for_each(|motion| self.follow_object(object, motion));
        }
        Ok(points)
    }

    fn check_object(&self, points: usize) -> Result<()> {
        match self.flip_pairs.as_flattened().iter().find(|point| **point >= points) {
            None => Ok(()),
            Some(point) => Err(Error::bad_sample(format!(
                "flip_pairs name point {point}, and an object has {points} points"
            ))),
        }
    }

    fn follow_object(&self, points: &mut [[f64; NUMBERS]], motion: &Motion) {
        for point in points.iter_mut() {
            let [x, y] = moved([point[0], point[1]], motion);
            let is_visible = !motion.loses_parts() || is_inside([x, y], motion.size);
            *point = [x, y, if is_visible { point[2] } else { 0.0 }];
        }
        if motion.kind == Kind::Flip(Axis::Horizontal) {
            self.flip_pairs.iter().for_each(|[one, other]| points.swap(*one, *other));
        }
    }
}

fn moved(at: [f64; 2], motion: &Motion) -> [f64; 2] {
    let [x, y] = motion.point(at);
    match motion.kind {
        Kind::Flip(Axis::Horizontal) => [x - 1.0, y],
        Kind::Flip(Axis::Vertical) => [x, y - 1.0],
        _ => [x, y],
    }
}

fn is_inside([x, y]: [f64; 2], size: Size) -> bool {
    (0.0..f64::from(size.width)).contains(&x) && (0.0..f64::from(size.height)).contains(&y)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { height: 50, width: 100 };
    const FLIP: Motion = Motion { kind: Kind::Flip(Axis::Horizontal), size: SIZE };

    fn follow(
        keypoints: &Keypoints,
        values: &[f64],
        each: Option<usize>,
        motions: &[Motion],
    ) -> Vec<[f64; 3]> {
        keypoints.follow(NumberList { values, each }, SIZE, motions).unwrap()
    }

    #[test]
    fn points_outside_are_not_visible_and_stay_so() {
        let crop = Motion { kind: Kind::Shift([-10.0, 0.0]), size: Size::from(20) };
        let back = Motion { kind: Kind::Shift([10.0, 0.0]), size: SIZE };
        let values = [9.0, 3.0, 10.0, 3.0, 29.5, 19.0, 30.0, 0.0];
        let found = follow(&Keypoints::new(), &values, Some(2), &[crop, back]);
        assert_eq!(found, [[9.0, 3.0, 0.0], [10.0, 3.0, 1.0], [29.5, 19.0, 1.0], [30.0, 0.0, 0.0]]);
    }

    #[test]
    fn a_turn_that_shows_all_of_the_image_hides_no_point() {
        // By 90 degrees: (x, y) goes to (y, 100 − x).
        let rows = [[0.0, 1.0, 0.0], [-1.0, 0.0, 100.0], [0.0, 0.0, 1.0]];
        let turned = Size { height: 100, width: 50 };
        let values = [0.0, 7.0, 99.5, 0.0, 100.0, 3.0]; // on the left edge, at the top, outside
        let points = |kind| follow(&Keypoints::new(), &values, Some(2), &[Motion { kind, size: turned }]);
        let expected = [[7.0, 100.0, 1.0], [0.0, 0.5, 1.0], [3.0, 0.0, 0.0]];
        assert_eq!(points(Kind::Turn(rows)), expected);
        assert_eq!(points(Kind::Warp(rows))[0], [7.0, 100.0, 0.0]);
    }

    #[test]
    fn a_horizontal_flip_exchanges_pairs_in_each_object() {
        let keypoints = Keypoints::new().flip_pairs([[0, 2]]);
        let values =
            [1.0, 2.0, 2.0, 10.0, 3.0, 1.0, 99.0, 4.0, 0.0, 5.0, 5.0, 1.0, 6.0, 6.0, 1.0, 7.0, 7.0, 2.0];
        let of_two = follow(&keypoints, &values, Some(9), &[FLIP]);
        let expected = [
            [0.0, 4.0, 0.0],
            [89.0, 3.0, 1.0],
            [98.0, 2.0, 2.0],
            [92.0, 7.0, 2.0],
            [93.0, 6.0, 1.0],
            [94.0, 5.0, 1.0],
        ];
        assert_eq!(of_two, expected);
        let of_one = follow(&keypoints, &values, None, &[FLIP]);
        assert_eq!((of_one[0], of_one[2], of_one[5]), (expected[0], expected[2], [92.0, 7.0, 2.0]));
        assert_eq!(follow(&keypoints, &values, Some(3), &[FLIP]), of_one);
        let upended = Motion { kind: Kind::Flip(Axis::Vertical), size: SIZE };
        assert_eq!(follow(&keypoints, &values, Some(9), &[upended])[0], [1.0, 47.0, 2.0]);
    }

    #[test]
    fn numbers_that_are_not_points_are_bad_samples() {
        let keypoints = Keypoints::new().flip_pairs([[0, 3]]);
        let refuse = |values: &[f64], each| {
            keypoints.follow(NumberList { values, each }, SIZE, &[]).unwrap_err().message().to_owned()
        };
        assert_eq!(refuse(&[1.0; 6], Some(2)), "flip_pairs name point 3, and an object has 3 points");
        assert!(
            refuse(&[1.0; 8], None).starts_with("a list of 8 numbers is not a list of points, which have 3")
        );
        assert!(refuse(&[1.0; 8], Some(4)).starts_with("a list of 4 numbers"));
        assert!(refuse(&[f64::INFINITY; 12], None).starts_with("point 0 has a number that is not finite"));
        assert!(follow(&keypoints, &[], None, &[FLIP]).is_empty());
        let twice = Keypoints::new().flip_pairs([[0, 1], [1, 2]]);
        assert!(twice.check().unwrap_err().message().ends_with("point 1 is in them twice"));
    }
}
