//! Noise with the spectrum of photographs, made once and combined in a new way for every image.
//!
//! The amplitude of natural images falls as 1/f (D. J. Field, "Relations between the statistics of natural images and
//! the response properties of cortical cells", JOSA A 4, 1987), which means equal energy in every octave. A tile is
//! therefore a pyramid: start with one value, then repeatedly double the side with a smooth interpolation and add new
//! white noise of the same strength.
//!
//! Only additions and multiplications are used, so that a tile has the same bits on every machine.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::sync::OnceLock;

/// Side of a tile, in pixels; it repeats seamlessly. With 1024, an image of ImageNet's usual size never repeats a
/// part of a tile.
pub(crate) const SIDE: usize = 1024;
/// Tiles for lightness and for the two colour differences.
pub(crate) const PLANES: usize = 3;
/// Stored value of one standard deviation.
pub(crate) const ONE_SIGMA: f32 = 512.0;
const TILES_SEED: u64 = 0x6665_6564_7374_6f63; // "feedstoc"

/// The noise tiles: 3 planes × 1024 rows × 2048 values of i16, 12 MiB. Each row is stored twice, so that any window
/// is contiguous.
pub(crate) struct Tiles {
    planes: [Vec<i16>; PLANES],
}

/// A position on a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offset {
    pub(crate) x: usize,
    pub(crate) y: usize,
}

impl Tiles {
    /// Returns the tiles that all painters share. The first call makes them, in about 0.1 s.
    pub(crate) fn shared() -> &'static Tiles {
        static TILES: OnceLock<Tiles> = OnceLock::new();
        TILES.get_or_init(Tiles::new)
    }

    fn new() -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(TILES_SEED);
        Self { planes: std::array::from_fn(|_| doubled_rows(&pyramid(&mut rng))) }
    }

    /// Returns up to `SIDE` values of row `y` of `plane`, from `offset` on. All coordinates are modulo `SIDE`.
    pub(crate) fn row(&self, plane: usize, offset: Offset, x: usize, y: usize) -> &[i16] {
        let column = (offset.x + x) % SIDE;
        let start = ((offset.y + y) % SIDE) * 2 * SIDE + column;
        &self.planes[plane][start..start + SIDE]
    }
}

fn doubled_rows(tile: &[f32]) -> Vec<i16> {
    let mut rows = Vec::with_capacity(2 * tile.len());
    for row in tile.chunks_exact(SIDE) {
        for _ in 0..2 {
            #[expect(clippy::cast_possible_truncation, reason = "float to int saturates; 64 sigma fit")]
            rows.extend(row.iter().map(|value| (value * ONE_SIGMA) as i16));
        }
    }
    rows
}

/// Makes one seamless tile of `SIDE`² values with mean 0 and variance 1.
fn pyramid(rng: &mut Xoshiro256PlusPlus) -> Vec<f32> {
    let mut side = 2;
    let mut level: Vec<f32> = (0..side * side).map(|_| gauss(rng)).collect();
    while side < SIDE {
        level = double(&level, side);
        side *= 2;
        for value in &mut level {
            *value += gauss(rng);
        }
    }
    standardise(&mut level);
    level
}

/// Doubles the side, by the four-point interpolation (−1, 9, 9, −1)/16 along each axis, wrapping around.
fn double(level: &[f32], side: usize) -> Vec<f32> {
    let mut wide = vec![0.0; 2 * side * side];
    for y in 0..side {
        let row = &level[y * side..(y + 1) * side];
        for x in 0..side {
            let at = |step: usize| row[(x + step) % side];
            wide[y * 2 * side + 2 * x] = at(0);
            wide[y * 2 * side + 2 * x + 1] = between(at(side - 1), at(0), at(1), at(2));
        }
    }
    let width = 2 * side;
    let mut tall = vec![0.0; 2 * side * width];
    for y in 0..side {
        for x in 0..width {
            let at = |step: usize| wide[((y + step) % side) * width + x];
            tall[2 * y * width + x] = at(0);
            tall[(2 * y + 1) * width + x] = between(at(side - 1), at(0), at(1), at(2));
        }
    }
    tall
}

fn between(before: f32, left: f32, right: f32, after: f32) -> f32 {
    (9.0 * (left + right) - before - after) / 16.0
}

/// Returns an approximately normal value of variance 1: the sum of four uniform values. A logarithm's last bit would
/// depend on libm.
fn gauss(rng: &mut Xoshiro256PlusPlus) -> f32 {
    let word = rng.next_u64();
    let sum = (0..4).map(|part| f32::from((word >> (16 * part) & 0xffff) as u16) / 65536.0).sum::<f32>();
    (sum - 2.0) * 3.0_f32.sqrt()
}

fn standardise(values: &mut [f32]) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
    let variance = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / variance.sqrt();
    for value in values {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is intended")]
        let standard = ((f64::from(*value) - mean) * scale) as f32;
        *value = standard;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Energy of the differences between neighbouring box means, per octave: equal for a 1/f amplitude.
    #[test]
    fn every_octave_has_about_the_same_energy() {
        let tile = pyramid(&mut Xoshiro256PlusPlus::seed_from_u64(3));
        let mut level: Vec<f64> = tile.iter().map(|&value| f64::from(value)).collect();
        let mut side = SIDE;
        let mut energies = Vec::new();
        while side > 16 {
            let half = side / 2;
            let mut next = vec![0.0; half * half];
            let mut energy = 0.0;
            for y in 0..half {
                for x in 0..half {
                    let four = [(0, 0), (1, 0), (0, 1), (1, 1)]
                        .map(|(dx, dy)| level[(2 * y + dy) * side + 2 * x + dx]);
                    let mean = four.iter().sum::<f64>() / 4.0;
                    energy += four.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
                    next[y * half + x] = mean;
                }
            }
            energies.push(energy / (side * side) as f64);
            level = next;
            side = half;
        }
        // White noise would fall by a factor of 4 per octave: 1024 from the first to the last.
        for pair in energies.windows(2) {
            assert!((0.6..1.7).contains(&(pair[1] / pair[0])), "energies by octave: {energies:?}");
        }
    }

    #[test]
    fn rows_wrap_without_a_seam() {
        let tiles = Tiles::shared();
        let whole = tiles.row(0, Offset { x: 0, y: 7 }, 0, 0);
        let moved = tiles.row(0, Offset { x: 1000, y: 7 }, 0, SIDE);
        assert_eq!(whole[..1000], moved[24..]);
        assert_eq!(whole[1000..], moved[..24]);
    }
}
