//! Bounding boxes.

use serde::{Deserialize, Serialize};

use super::super::geometry::Size;
use super::motion::{Kind, Motion};
use crate::number_list::NumberList;
use feedstock_base::{Error, Result};

/// Numbers of a box.
const SIDES: usize = 4;

/// Bounding boxes of an image, and which of them the result keeps.
///
/// A box is the smallest one around its corners after each op, cut off at the image's edges, as with torchvision's
/// `ClampBoundingBoxes` and `SanitizeBoundingBoxes`. A box is dropped if it is smaller than the limits, if nothing of it is in
/// the image after some op, or if its width or height is negative.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Boxes {
    /// What the four numbers are, in the column and in the result.
    pub format: BoxFormat,
    /// Coordinates are shares of the image's width and height, in the column and in the result; default false: pixels.
    #[serde(default)]
    pub normalized: bool,
    /// The least width and height, in pixels of the result; default 1.
    #[serde(default = "one")]
    pub min_size: f64,
    /// The least area, in square pixels of the result; default 1.
    #[serde(default = "one")]
    pub min_area: f64,
    /// The least share of the box's area that is in the result, 0 … 1; default 0, which drops no box. Each op that cuts parts off
    /// multiplies the share by the area after it over the area before it, both of the box that was left by earlier ops.
    #[serde(default)]
    pub min_visibility: f64,
}

fn one() -> f64 {
    1.0
}

/// What the four numbers of a box are.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height, as in COCO.
    Xywh,
    /// The centre's x and y, width, height, as YOLO's.
    Cxcywh,
}

impl BoxFormat {
    fn to_corners(self, [a, b, c, d]: [f64; SIDES]) -> [f64; SIDES] {
        match self {
            Self::Xyxy => [a, b, c, d],
            Self::Xywh => [a, b, a + c, b + d],
            Self::Cxcywh => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
        }
    }

    fn of_corners(self, [left, top, right, bottom]: [f64; SIDES]) -> [f64; SIDES] {
        match self {
            Self::Xyxy => [left, top, right, bottom],
            Self::Xywh => [left, top, right - left, bottom - top],
            Self::Cxcywh => [(left + right) / 2.0, (top + bottom) / 2.0, right - left, bottom - top],
        }
    }
}

impl Boxes {
    /// Boxes in pixels, of at least 1 × 1 pixel in the result.
    pub fn new(format: BoxFormat) -> Self {
        Self { format, normalized: false, min_size: one(), min_area: one(), min_visibility: 0.0 }
    }

    /// Sets whether coordinates are shares of width and height.
    #[must_use]
    pub fn normalized(self, normalized: bool) -> Self {
        Self { normalized, ..self }
    }

    /// The least width and height, in pixels of the result.
    #[must_use]
    pub fn min_size(self, pixels: f64) -> Self {
        Self { min_size: pixels, ..self }
    }

    /// The least area, in square pixels of the result.
    #[must_use]
    pub fn min_area(self, area: f64) -> Self {
        Self { min_area: area, ..self }
    }

    /// The least share of the box's area that is in the result.
    #[must_use]
    pub fn min_visibility(self, share: f64) -> Self {
        Self { min_visibility: share, ..self }
    }

    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in [("min_size", self.min_size), ("min_area", self.min_area)] {
            if !(0.0..=f64::MAX).contains(&value) {
                return Err(Error::config(format!("{name} must be a finite number >= 0; got {value}")));
            }
        }
        match (0.0..=1.0).contains(&self.min_visibility) {
            true => Ok(()),
            false => Err(Error::config(format!("min_visibility must be 0 … 1; got {}", self.min_visibility))),
        }
    }

    /// Returns the boxes that are kept, each with its index, after `motions` of an image of size `image`.
    ///
    /// # Errors
    /// `BadSample` for numbers that are not boxes.
    pub(super) fn follow(
        &self,
        given: NumberList<'_>,
        image: Size,
        motions: &[Motion],
    ) -> Result<Vec<(usize, [f64; SIDES])>> {
        let result = motions.last().map_or(image, |motion| motion.size);
        let mut kept = Vec::new();
        for (index, corners) in self.corners(given, image)?.enumerate() {
            if let Some(corners) = self.follow_one(corners, motions, result) {
                let sides = self.format.of_corners(corners);
                kept.push((index, self.scaled(sides, result, |value, side| value / side)));
            }
        }
        Ok(kept)
    }

    /// Returns the corners of the boxes that are left after `motions`, of any size.
    ///
    /// # Errors
    /// `BadSample` for numbers that are not boxes.
    pub(super) fn moved(
        &self,
        given: NumberList<'_>,
        image: Size,
        motions: &[Motion],
    ) -> Result<Vec<[f64; SIDES]>> {
        let moved = |corners| Some(moved(corners, motions)?.0);
        Ok(self.corners(given, image)?.filter_map(moved).collect())
    }

    /// Returns left, top, right and bottom of each box, in pixels.
    fn corners(&self, given: NumberList<'_>, image: Size) -> Result<impl Iterator<Item = [f64; SIDES]>> {
        if let Some(each) = given.each.filter(|each| *each != SIDES) {
            return Err(Error::bad_sample(format!(
                "a box must have {SIDES} numbers; got {each}; correct the file or set on_error=skip"
            )));
        }
        let groups = given.in_groups_of(SIDES, "box")?;
        Ok(groups.map(move |numbers| {
            let mut sides = [0.0; SIDES];
            sides.copy_from_slice(numbers);
            self.format.to_corners(self.scaled(sides, image, |value, side| value * side))
        }))
    }

    fn follow_one(&self, corners: [f64; SIDES], motions: &[Motion], result: Size) -> Option<[f64; SIDES]> {
        let (shown, share) = moved(corners, motions)?;
        let (shown, share) = cut_off(shown, share, result)?;
        let [width, height] = lengths(shown);
        let is_large = width >= self.min_size && height >= self.min_size && area(shown) >= self.min_area;
        (is_large && share >= self.min_visibility).then_some(shown)
    }

    fn scaled(&self, sides: [f64; SIDES], size: Size, scale: fn(f64, f64) -> f64) -> [f64; SIDES] {
        if !self.normalized {
            return sides;
        }
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        let [a, b, c, d] = sides;
        [scale(a, width), scale(b, height), scale(c, width), scale(d, height)]
    }
}

/// Returns what is inside of the image after `motions`, and its share of the box. `None` if the box is lost.
fn moved(corners: [f64; SIDES], motions: &[Motion]) -> Option<([f64; SIDES], f64)> {
    let [width, height] = lengths(corners);
    if width < 0.0 || height < 0.0 {
        return None;
    }
    let (mut shown, mut share) = (corners, 1.0);
    for motion in motions {
        if let Kind::CropByBoxes(rect) = motion.kind
            && !rect.has_centre_of(shown)
        {
            return None;
        }
        shown = around(shown, motion);
        if motion.cuts_boxes_off() {
            (shown, share) = cut_off(shown, share, motion.size)?;
        }
    }
    Some((shown, share))
}

fn lengths([left, top, right, bottom]: [f64; SIDES]) -> [f64; 2] {
    [right - left, bottom - top]
}

fn area(corners: [f64; SIDES]) -> f64 {
    let [width, height] = lengths(corners);
    width * height
}

/// Cuts a box off at the image's edges, and multiplies `share` by the share of its area that is left. A box without an area keeps
/// its share. `None` if nothing is left of the box.
fn cut_off(corners: [f64; SIDES], share: f64, size: Size) -> Option<([f64; SIDES], f64)> {
    let (inside, before) = (clamped(corners, size)?, area(corners));
    Some((inside, if before > 0.0 { share * (area(inside) / before) } else { share }))
}

/// Returns the smallest box around the corners of a box after a motion.
fn around([left, top, right, bottom]: [f64; SIDES], motion: &Motion) -> [f64; SIDES] {
    let corners = [[left, top], [right, top], [right, bottom], [left, bottom]].map(|at| motion.point(at));
    let fold = |axis: usize, pick: fn(f64, f64) -> f64| {
        corners[1..].iter().fold(corners[0][axis], |found, corner| pick(found, corner[axis]))
    };
    [fold(0, f64::min), fold(1, f64::min), fold(0, f64::max), fold(1, f64::max)]
}

/// Cuts a box off at the image's edges. `None` if nothing is left of it.
fn clamped(corners: [f64; SIDES], size: Size) -> Option<[f64; SIDES]> {
    let limits = [f64::from(size.width), f64::from(size.height)];
    let inside = std::array::from_fn(|side| corners[side].clamp(0.0, limits[side % 2]));
    let (before, after) = (lengths(corners), lengths(inside));
    let is_lost = |axis: usize| after[axis] <= 0.0 && before[axis] > 0.0;
    let is_outside = |axis: usize| corners[axis] > limits[axis] || corners[axis + 2] < 0.0;
    // A point that a warp moved to infinity has no place.
    let is_finite = corners.iter().all(|side| side.is_finite());
    (is_finite && !(0..2).any(|axis| is_lost(axis) || is_outside(axis))).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::super::motion::Kind;
    use super::*;

    const IMAGE: Size = Size { height: 50, width: 100 };

    fn shift(x: f64, y: f64, size: Size) -> Motion {
        Motion { kind: Kind::Shift([x, y]), size }
    }

    fn follow(boxes: &Boxes, values: &[f64], motions: &[Motion]) -> Vec<(usize, [f64; 4])> {
        boxes.follow(NumberList { values, each: Some(4) }, IMAGE, motions).unwrap()
    }

    #[test]
    fn boxes_are_cut_off_and_dropped_by_size_area_and_share() {
        // A crop of 40 × 40 from (30, 5).
        let crop = [shift(-30.0, -5.0, Size::from(40))];
        let values = [
            [20.0, 10.0, 50.0, 20.0].as_slice(), // 20 of 30 columns are left
            &[0.0, 0.0, 30.0, 50.0],             // touches the edge
            &[35.0, 6.0, 35.5, 9.0],             // half a column
            &[69.0, 44.0, 90.0, 49.0],           // one pixel is left
            &[60.0, 20.0, 50.0, 30.0],           // right of left
            &[40.0, 20.0, 40.0, 30.0],           // no width
        ]
        .concat();
        let plain = follow(&Boxes::new(BoxFormat::Xyxy), &values, &crop);
        assert_eq!(plain, [(0, [0.0, 5.0, 20.0, 15.0]), (3, [39.0, 39.0, 40.0, 40.0])]);

        let indices = |boxes: Boxes| -> Vec<usize> {
            follow(&boxes, &values, &crop).into_iter().map(|(index, _)| index).collect()
        };
        let boxes = || Boxes::new(BoxFormat::Xyxy);
        assert_eq!(indices(boxes().min_size(0.0).min_area(0.0)), [0, 2, 3, 5]);
        assert_eq!(indices(boxes().min_size(0.5).min_area(1.5)), [0, 2]);
        assert_eq!(indices(boxes().min_visibility(0.66)), [0]);
        assert!(indices(boxes().min_visibility(0.67)).is_empty());
    }

    #[test]
    fn formats_and_shares_are_those_of_the_column() {
        let resize = [Motion { kind: Kind::Scale([0.5, 2.0]), size: Size { height: 100, width: 50 } }];
        for (format, given, expected) in [
            (BoxFormat::Xyxy, [10.0, 20.0, 40.0, 25.0], [5.0, 40.0, 20.0, 50.0]),
            (BoxFormat::Xywh, [10.0, 20.0, 30.0, 5.0], [5.0, 40.0, 15.0, 10.0]),
            (BoxFormat::Cxcywh, [25.0, 22.5, 30.0, 5.0], [12.5, 45.0, 15.0, 10.0]),
        ] {
            assert_eq!(follow(&Boxes::new(format), &given, &resize), [(0, expected)]);
            let shares = |[a, b, c, d]: [f64; 4], [width, height]: [f64; 2]| {
                [a / width, b / height, c / width, d / height]
            };
            let normalized = Boxes::new(format).normalized(true);
            let found = follow(&normalized, &shares(given, [100.0, 50.0]), &resize);
            let expected = shares(expected, [50.0, 100.0]);
            assert!(found[0].1.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        }
    }

    #[test]
    fn what_left_the_image_does_not_come_back() {
        let crop = shift(-50.0, 0.0, Size::from(50));
        let back = shift(50.0, 0.0, Size { height: 50, width: 100 });
        let boxes = Boxes::new(BoxFormat::Xyxy).min_visibility(0.4);
        let found = follow(&boxes, &[10.0, 0.0, 40.0, 9.0, 40.0, 0.0, 60.0, 9.0], &[crop, back]);
        assert_eq!(found, [(1, [50.0, 0.0, 60.0, 9.0])]);
    }

    #[test]
    fn a_warp_after_a_crop_moves_what_the_crop_left() {
        // The crop leaves a quarter of the box. Its left side would be beyond the horizon of the warp.
        let (crop, cut) = (shift(-50.0, 0.0, Size::from(50)), [20.0, 0.0, 60.0, 40.0]);
        let rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.05, 0.0, 1.0]];
        let warp = Motion { kind: Kind::Warp(rows), size: Size::from(50) };
        let kept = |share| {
            let boxes = Boxes::new(BoxFormat::Xyxy).min_visibility(share);
            follow(&boxes, &cut, &[crop, warp])
        };
        assert_eq!(kept(0.25), [(0, [0.0, 0.0, 10.0 / 1.5, 40.0])]);
        assert!(kept(0.26).is_empty());
        // Shares of several ops are multiplied: a quarter, and half of it.
        let again = shift(-5.0, 0.0, Size::from(50));
        let boxes = Boxes::new(BoxFormat::Xyxy).min_visibility(0.126);
        assert!(follow(&boxes, &cut, &[crop, again]).is_empty());
        assert_eq!(follow(&boxes.min_visibility(0.125), &cut, &[crop, again]), [(0, [0.0, 0.0, 5.0, 40.0])]);
    }

    #[test]
    fn without_a_least_share_boxes_of_any_size_are_kept() {
        // The area overflows, and the shares of the crops underflow.
        let huge = Motion { kind: Kind::Scale([1e160, 1e160]), size: IMAGE };
        let crop = shift(0.0, 0.0, IMAGE);
        let boxes = Boxes::new(BoxFormat::Xyxy);
        let values = [0.0, 0.0, 9.0, 9.0];
        assert_eq!(follow(&boxes, &values, &[huge, crop]), [(0, [0.0, 0.0, 100.0, 50.0])]);
        assert!(follow(&boxes.min_visibility(1e-9), &values, &[huge, crop]).is_empty());
    }

    #[test]
    fn parts_outside_of_the_source_are_cut_off_where_the_result_ends() {
        let values = [-5.0, 10.0, 20.0, 60.0];
        assert_eq!(follow(&Boxes::new(BoxFormat::Xyxy), &values, &[]), [(0, [0.0, 10.0, 20.0, 50.0])]);
        let pad = shift(3.0, 4.0, Size { height: 58, width: 106 });
        assert_eq!(follow(&Boxes::new(BoxFormat::Xyxy), &values, &[pad]), [(0, [0.0, 14.0, 23.0, 58.0])]);
    }

    #[test]
    fn numbers_that_are_not_boxes_are_bad_samples() {
        let boxes = Boxes::new(BoxFormat::Xyxy);
        let refuse = |values: &[f64], each| {
            boxes.follow(NumberList { values, each }, IMAGE, &[]).unwrap_err().message().to_owned()
        };
        assert_eq!(
            refuse(&[0.0; 5], None),
            "a list of 5 numbers is not a list of boxes, which have 4 each; correct the file or set on_error=skip"
        );
        assert_eq!(
            refuse(&[0.0; 10], Some(5)),
            "a box must have 4 numbers; got 5; correct the file or set on_error=skip"
        );
        assert!(
            refuse(&[0.0, 0.0, 1.0, f64::NAN], None).starts_with("box 0 has a number that is not finite")
        );
        assert_eq!(
            refuse(&[0.0, 0.0, 1.0, -1e39], None),
            "box 0 has a number that is too large for float32: -1e39; correct the file or set on_error=skip"
        );
        assert!(refuse(&[0.0], None).starts_with("a list of 1 number is not"));
        let none = NumberList { values: &[], each: None };
        assert!(boxes.follow(none, IMAGE, &[]).unwrap().is_empty());
    }

    #[test]
    fn limits_are_checked() {
        let refuse = |boxes: Boxes| boxes.check().unwrap_err().message().to_owned();
        let boxes = || Boxes::new(BoxFormat::Xyxy);
        assert_eq!(refuse(boxes().min_size(-1.0)), "min_size must be a finite number >= 0; got -1");
        assert_eq!(refuse(boxes().min_area(f64::NAN)), "min_area must be a finite number >= 0; got NaN");
        assert_eq!(refuse(boxes().min_visibility(1.5)), "min_visibility must be 0 … 1; got 1.5");
    }
}
