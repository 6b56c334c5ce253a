//! What a chain's geometry does to one sample, as a list of motions.

use super::super::geometry::{Axis, Rect, Size};
use super::super::in_place::InPlace;
use super::super::stages::{Stage, Stages, shown_of_boxes};
use super::super::step::{CropByBoxes, Step};
use super::super::warp::Mapping;
use crate::seed::{BoxCrop, SampleSeed};
use feedstock_base::Result;

/// One motion of the image, and the size of the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Motion {
    pub(super) kind: Kind,
    pub(super) size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Multiplies x and y.
    Scale([f64; 2]),
    /// Adds to x and y: a crop or padding.
    Shift([f64; 2]),
    /// Cuts this rectangle out, and drops boxes whose centre is not in it.
    CropByBoxes(Rect),
    /// Exchanges the sides of an image, which keeps its size.
    Flip(Axis),
    /// Maps homogeneous coordinates by a matrix, in rows.
    Warp([[f64; 3]; 3]),
    /// As `Warp`, onto an image that has room for all of the source.
    Turn([[f64; 3]; 3]),
}

impl Motion {
    /// Returns where a point goes. A flip mirrors at the middle of the image.
    pub(super) fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        match self.kind {
            Kind::Scale([by_x, by_y]) => [x * by_x, y * by_y],
            Kind::Shift([by_x, by_y]) => [x + by_x, y + by_y],
            Kind::CropByBoxes(rect) => [x - f64::from(rect.x), y - f64::from(rect.y)],
            Kind::Flip(Axis::Horizontal) => [f64::from(self.size.width) - x, y],
            Kind::Flip(Axis::Vertical) => [x, f64::from(self.size.height) - y],
            Kind::Warp(rows) | Kind::Turn(rows) => {
                let [x, y, depth] = rows.map(|[a, b, c]| a * x + b * y + c);
                [x / depth, y / depth]
            }
        }
    }

    /// Returns the matrix of the motion, in rows, for homogeneous coordinates.
    pub(super) fn matrix(&self) -> [[f64; 3]; 3] {
        let [[scale_x, scale_y], [by_x, by_y]] = match self.kind {
            Kind::Scale(by) => [by, [0.0; 2]],
            Kind::Shift(by) => [[1.0; 2], by],
            Kind::CropByBoxes(rect) => [[1.0; 2], [-f64::from(rect.x), -f64::from(rect.y)]],
            Kind::Flip(Axis::Horizontal) => [[-1.0, 1.0], [f64::from(self.size.width), 0.0]],
            Kind::Flip(Axis::Vertical) => [[1.0, -1.0], [0.0, f64::from(self.size.height)]],
            Kind::Warp(rows) | Kind::Turn(rows) => return rows,
        };
        [[scale_x, 0.0, by_x], [0.0, scale_y, by_y], [0.0, 0.0, 1.0]]
    }

    /// True if parts of the image may end outside of the result.
    pub(super) fn loses_parts(&self) -> bool {
        matches!(self.kind, Kind::Shift(_) | Kind::CropByBoxes(_) | Kind::Warp(_))
    }

    /// True if boxes are cut off at the result's edges. After a turn, only what was outside of the image before is.
    pub(super) fn cuts_boxes_off(&self) -> bool {
        self.loses_parts() || matches!(self.kind, Kind::Turn(_))
    }
}

/// Returns the matrix that takes places of the source to those of the result: the inverse of `mapping`, up to a factor.
fn forward(mapping: Mapping) -> [[f64; 3]; 3] {
    let [a, b, c, d, e, f, g, h] = match mapping {
        Mapping::Affine([a, b, c, d, e, f]) => [a, b, c, d, e, f, 0.0, 0.0],
        Mapping::Perspective(coefficients) => coefficients,
    };
    [
        [e - f * h, c * h - b, b * f - c * e],
        [f * g - d, a - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ]
}

impl Stages {
    /// Returns what the chain does to an image of size `image` that draws from `seed`.
    ///
    /// # Errors
    /// `BadSample` for a size that an op cannot work on, as for the image.
    pub(super) fn motions(&self, image: Size, seed: SampleSeed) -> Result<Vec<Motion>> {
        Ok(walk(&self.list, image, seed)?.motions)
    }

    /// Returns the op that crops by boxes, with its index in the chain, and how the image gets there; `None` without such an op.
    ///
    /// # Errors
    /// As [`motions`](Self::motions).
    pub(super) fn crop_by_boxes(&self, image: Size, seed: SampleSeed) -> Result<Option<BeforeCrop<'_>>> {
        for (at, Stage { index, step }) in self.list.iter().enumerate() {
            if let Step::CropByBoxes(op) = step {
                let Walk { size, motions } = walk(&self.list[..at], image, seed)?;
                return Ok(Some(BeforeCrop { op: &**op, index: *index, size, motions }));
            }
        }
        Ok(None)
    }
}

/// A crop by boxes, and what is before it.
pub(super) struct BeforeCrop<'a> {
    pub(super) op: &'a dyn CropByBoxes,
    pub(super) index: usize,
    pub(super) size: Size,
    pub(super) motions: Vec<Motion>,
}

/// Returns what some stages do to an image of size `image`.
fn walk(stages: &[Stage], image: Size, seed: SampleSeed) -> Result<Walk> {
    let mut walk = Walk { size: image, motions: Vec::new() };
    for Stage { index, step } in stages {
        match step {
            Step::Resize(op) => walk.scale(op.target(walk.size, &mut seed.op(*index))?),
            Step::Crop(op) => {
                if op.is_idle(walk.size, &mut seed.op(*index)) {
                    continue;
                }
                let (padded, [top, left]) = op.padded(walk.size, &mut seed.op(*index))?;
                if padded != walk.size {
                    walk.shift([f64::from(left), f64::from(top)], padded);
                }
                let rect = op.rect(padded, &mut seed.op(*index));
                walk.shift([-f64::from(rect.x), -f64::from(rect.y)], rect.size());
            }
            Step::ResizedCrop(op) => {
                let rect = op.draw(walk.size, &mut seed.op(*index));
                walk.shift([-f64::from(rect.x), -f64::from(rect.y)], rect.size());
                walk.scale(op.size());
            }
            Step::CropByBoxes(_) => {
                // As torchvision, an image that stays whole cuts no box off.
                if seed.box_crop() != Some(BoxCrop::Whole) {
                    let rect = shown_of_boxes(walk.size, seed)?;
                    walk.add(Kind::CropByBoxes(rect), rect.size());
                }
            }
            Step::Turn(op) => {
                let (mapping, to) = op.draw(walk.size, &mut seed.op(*index))?;
                walk.add(Kind::Turn(forward(mapping)), to);
            }
            Step::InPlace(step) => walk.in_place(step, *index, seed),
        }
    }
    Ok(walk)
}

struct Walk {
    size: Size,
    motions: Vec<Motion>,
}

impl Walk {
    fn scale(&mut self, to: Size) {
        let by = [
            f64::from(to.width) / f64::from(self.size.width),
            f64::from(to.height) / f64::from(self.size.height),
        ];
        self.add(Kind::Scale(by), to);
    }

    fn shift(&mut self, by: [f64; 2], to: Size) {
        self.add(Kind::Shift(by), to);
    }

    fn add(&mut self, kind: Kind, size: Size) {
        self.size = size;
        self.motions.push(Motion { kind, size });
    }

    fn in_place(&mut self, step: &InPlace, index: usize, seed: SampleSeed) {
        let generator = &mut seed.op(index);
        match step {
            InPlace::Mirror(op) => {
                if op.draw(generator) {
                    self.add(Kind::Flip(op.axis()), self.size);
                }
            }
            InPlace::Pixels(_) => {}
            InPlace::Warp(op) => {
                if let Some(mapping) = op.draw(self.size, generator) {
                    self.add(Kind::Warp(forward(mapping)), self.size);
                }
            }
            InPlace::Group(group) => {
                for (inner, step) in group.chosen(generator) {
                    self.in_place(step, *inner, seed.within(index));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::warp;
    use super::*;

    #[test]
    fn warps_forward_are_the_inverse_of_what_images_read() {
        let size = Size { height: 48, width: 64 };
        let moved = warp::Move { angle: 30.0, translate: [3.0, -7.0], scale: 1.3, shear: [9.0, -4.0] };
        let corners = [[5.0, 2.0], [60.0, 9.0], [50.0, 40.0], [1.0, 44.0]];
        let mappings = [
            warp::rotate(77.0, [20.0, 11.0]),
            warp::affine(moved, [32.0, 24.0]),
            warp::perspective(size, corners).unwrap(),
        ];
        for mapping in mappings {
            let motion = Motion { kind: Kind::Warp(forward(mapping)), size };
            for place in [[0.0, 0.0], [63.5, 12.25], [-10.0, 100.0]] {
                let (x, y) = mapping.at(place[0], place[1]);
                let [x, y] = motion.point([x, y]);
                assert!((x - place[0]).abs() < 1e-9 && (y - place[1]).abs() < 1e-9, "{mapping:?}: {x}, {y}");
            }
        }
    }
}
