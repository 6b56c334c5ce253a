//! What a chain's geometry does to one sample, as a list of motions.

use super::super::geometry::{Axis, Size};
use super::super::in_place::InPlace;
use super::super::stages::{Stage, Stages};
use super::super::step::Step;
use super::super::warp::Mapping;
use crate::seed::SampleSeed;
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
    /// Exchanges the sides of an image, which keeps its size.
    Flip(Axis),
    /// Maps homogeneous coordinates by a matrix, in rows.
    Warp([[f64; 3]; 3]),
}

impl Motion {
    /// Returns where a point goes. A flip mirrors at the middle of the image.
    pub(super) fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        match self.kind {
            Kind::Scale([by_x, by_y]) => [x * by_x, y * by_y],
            Kind::Shift([by_x, by_y]) => [x + by_x, y + by_y],
            Kind::Flip(Axis::Horizontal) => [f64::from(self.size.width) - x, y],
            Kind::Flip(Axis::Vertical) => [x, f64::from(self.size.height) - y],
            Kind::Warp(rows) => {
                let [x, y, depth] = rows.map(|[a, b, c]| a * x + b * y + c);
                [x / depth, y / depth]
            }
        }
    }

    /// True if parts of the image may end outside of the result.
    pub(super) fn loses_parts(&self) -> bool {
        matches!(self.kind, Kind::Shift(_) | Kind::Warp(_))
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
        let mut walk = Walk { size: image, motions: Vec::new() };
        for Stage { index, step } in &self.list {
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
                Step::InPlace(step) => walk.in_place(step, *index, seed),
            }
        }
        Ok(walk.motions)
    }
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
