//! The matrix of what a chain does to one sample.

use super::motion::Motion;

/// Returns the matrix, in rows, that takes places of the image to where `motions` move them, in homogeneous coordinates. Its last
/// number is 1, unless that place is at infinity.
pub(super) fn of(motions: &[Motion]) -> [[f64; 3]; 3] {
    let identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    let matrix = motions.iter().fold(identity, |before, motion| product(motion.matrix(), before));
    let scale = matrix[2][2];
    if scale == 0.0 { matrix } else { matrix.map(|row| row.map(|value| value / scale)) }
}

/// Returns the matrix that applies `first`, then `then`.
fn product(then: [[f64; 3]; 3], first: [[f64; 3]; 3]) -> [[f64; 3]; 3] {
    then.map(|row| {
        std::array::from_fn(|column| row.iter().zip(first).map(|(value, other)| value * other[column]).sum())
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::geometry::{Axis, Rect, Size};
    use super::super::motion::Kind;
    use super::*;

    #[test]
    fn the_matrix_moves_places_as_the_motions_do() {
        let size = Size { height: 40, width: 60 };
        let kinds = [
            Kind::Scale([0.5, 2.0]),
            Kind::Shift([-3.0, 4.5]),
            Kind::Flip(Axis::Horizontal),
            Kind::CropByBoxes(Rect { x: 2, y: 7, width: 60, height: 40 }),
            Kind::Warp([[1.5, 0.2, 3.0], [-0.1, 1.2, 5.0], [0.001, -0.002, 2.0]]),
            Kind::Turn([[0.0, 1.0, 0.0], [-1.0, 0.0, 60.0], [0.0, 0.0, 1.0]]),
            Kind::Flip(Axis::Vertical),
        ];
        let motions = kinds.map(|kind| Motion { kind, size });
        for count in 0..=motions.len() {
            let matrix = of(&motions[..count]);
            assert_eq!(matrix[2][2], 1.0);
            for place in [[0.0, 0.0], [12.5, 3.0], [59.0, 41.0]] {
                let moved = motions[..count].iter().fold(place, |place, motion| motion.point(place));
                let [x, y, depth] = matrix.map(|[a, b, c]| a * place[0] + b * place[1] + c);
                let found = [x / depth, y / depth];
                assert!(found.iter().zip(moved).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}, {moved:?}");
            }
        }
    }
}
