//! Converts lines to samples of the subbands: alias reduction, and the inverse MDCT with its windows and overlap.
//!
//! All subbands are processed together, directly by the definitions. Each cosine is used for sixteen of them at once.

use std::f64::consts::PI;
use std::sync::LazyLock;

use super::scale::{Row, Rows, SUBBAND_LINES, SUBBANDS};
use super::side_info::Block;
use super::tables::ALIAS;

/// Half of a long transform's outputs. Each half mirrors itself.
const HALF: usize = SUBBAND_LINES / 2;

/// Cosines and windows.
struct Transforms {
    /// Weights of a butterfly: for the kept value and for the exchanged one.
    butterflies: [(f32, f32); 8],
    /// Outputs 0 … 8 and 18 … 26 of the long transform, by lines. The others mirror them.
    long: [[f32; SUBBAND_LINES]; 2 * HALF],
    /// Windows of a long block, of one before short ones and of one after them.
    windows: [[f32; 2 * SUBBAND_LINES]; 3],
    /// Outputs of the short transform by lines, windowed.
    short: [[f32; 6]; 12],
}

#[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
static TRANSFORMS: LazyLock<Transforms> = LazyLock::new(|| {
    let long = |unique: usize, line: usize| {
        let output = if unique < HALF { unique } else { unique + HALF };
        libm::cos(PI / 72.0 * ((2 * output + 19) * (2 * line + 1)) as f64) as f32
    };
    let sine = |at: usize, of: usize| libm::sin(PI / of as f64 * (at as f64 + 0.5));
    let short = |output: usize, line: usize| {
        let cosine = libm::cos(PI / 24.0 * ((2 * output + 7) * (2 * line + 1)) as f64);
        (cosine * sine(output, 12)) as f32
    };
    let start = |at: usize| match at {
        0..18 => sine(at, 36),
        18..24 => 1.0,
        24..30 => sine(at - 18, 12),
        _ => 0.0,
    };
    let butterfly = |c: f64| {
        let length = (1.0 + c * c).sqrt();
        ((1.0 / length) as f32, (c / length) as f32)
    };
    Transforms {
        butterflies: ALIAS.map(butterfly),
        long: std::array::from_fn(|unique| std::array::from_fn(|line| long(unique, line))),
        windows: [
            std::array::from_fn(|at| sine(at, 36) as f32),
            std::array::from_fn(|at| start(at) as f32),
            std::array::from_fn(|at| start(2 * SUBBAND_LINES - 1 - at) as f32),
        ],
        short: std::array::from_fn(|output| std::array::from_fn(|line| short(output, line))),
    }
});

/// The state that one granule leaves to the next.
#[derive(Default)]
pub(super) struct Hybrid {
    overlap: Rows,
}

impl Hybrid {
    pub(super) fn reset(&mut self) {
        self.overlap = Rows::default();
    }

    /// Returns the start of a granule, to which its channels are added.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Rows {
        std::mem::take(&mut self.overlap)
    }

    /// Adds a channel of `block`s to `samples`. Changes `rows`.
    #[inline(always)]
    pub(super) fn add(&mut self, block: Block, rows: &mut Rows, samples: &mut Rows) {
        let transforms = &*TRANSFORMS;
        let window = match block {
            Block::Short => return self.add_short(&transforms.short, rows, samples),
            Block::Long => &transforms.windows[0],
            Block::Start => &transforms.windows[1],
            Block::Stop => &transforms.windows[2],
        };
        for (line, (stays, changes)) in transforms.butterflies.into_iter().enumerate() {
            let (above, below) = (rows[line], rows[SUBBAND_LINES - 1 - line]);
            for subband in 0..SUBBANDS - 1 {
                rows[SUBBAND_LINES - 1 - line][subband] =
                    below[subband] * stays - above[subband + 1] * changes;
                rows[line][subband + 1] = above[subband + 1] * stays + below[subband] * changes;
            }
        }
        for at in 0..HALF {
            let first = sum(&transforms.long[at], rows);
            let second = sum(&transforms.long[HALF + at], rows);
            let mirrored = SUBBAND_LINES - 1 - at;
            add(&mut samples[at], &first, window[at]);
            add(&mut samples[mirrored], &first, -window[mirrored]);
            add(&mut self.overlap[at], &second, window[SUBBAND_LINES + at]);
            add(&mut self.overlap[mirrored], &second, window[SUBBAND_LINES + mirrored]);
        }
    }

    #[inline(always)]
    fn add_short(&mut self, short: &[[f32; 6]; 12], rows: &Rows, samples: &mut Rows) {
        for window in 0..3 {
            let lines: [Row; 6] = std::array::from_fn(|line| rows[3 * line + window]);
            for (output, cosines) in short.iter().enumerate() {
                let value = sum(cosines, &lines);
                let at = 6 + 6 * window + output;
                match samples.get_mut(at) {
                    Some(row) => add(row, &value, 1.0),
                    None => add(&mut self.overlap[at - SUBBAND_LINES], &value, 1.0),
                }
            }
        }
    }
}

/// Returns the sum of the rows times their cosines.
#[inline(always)]
fn sum(cosines: &[f32], rows: &[Row]) -> Row {
    let mut total = Row::default();
    for (cosine, row) in cosines.iter().zip(rows) {
        add(&mut total, row, *cosine);
    }
    total
}

#[inline(always)]
fn add(total: &mut Row, row: &Row, weight: f32) {
    for (total, value) in total.iter_mut().zip(row) {
        *total += value * weight;
    }
}
