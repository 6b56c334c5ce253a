//! Converts samples of the subbands to every second sample of the audio clip: ISO 11172-3, 2.4.3.2 and figure A.2.
//!
//! ```text
//! 16 subband samples ─▶ × cosines ─▶ 32 values, kept for 16 rounds ─▶ × window, summed ─▶ 16 of 32 samples
//! ```
//! With silent upper subbands, everything above a quarter of the sample rate is silent, so every second sample has all the
//! information. Only the values that those samples need are computed.

use std::f64::consts::PI;
use std::sync::LazyLock;

use super::scale::{Row, Rows, SUBBANDS};
use super::tables::SYNTHESIS_WINDOW;

/// The rounds over which a sample is summed.
const ROUNDS: usize = 16;

/// Samples of a granule at half the rate.
pub(super) const HALF_SAMPLES: usize = 288;

/// Values of a round: for its even and its odd ages.
type Values = [Row; 2];

/// Cosines and windows for the even samples, or the odd ones.
struct Parity {
    /// By subband. The second one is for odd times, when samples of odd subbands are negated.
    cosines: [[Values; SUBBANDS]; 2],
    /// By age.
    windows: [Row; ROUNDS],
}

static PARITIES: LazyLock<[Parity; 2]> = LazyLock::new(|| [Parity::new(0), Parity::new(1)]);

impl Parity {
    fn new(parity: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
        let cosine = |odd_time: usize, subband: usize, age: usize, at: usize| {
            let sign = if odd_time * subband % 2 == 1 { -1.0 } else { 1.0 };
            let angle = (16 + 32 * age + 2 * at + parity) * (2 * subband + 1);
            (sign * libm::cos(PI / 64.0 * angle as f64)) as f32
        };
        let window = |at: usize| {
            let value = match at {
                0..=256 => SYNTHESIS_WINDOW[at],
                _ if at.is_multiple_of(64) => SYNTHESIS_WINDOW[512 - at],
                _ => -SYNTHESIS_WINDOW[512 - at],
            };
            value as f32 / 65_536.0
        };
        use std::array::from_fn;
        Self {
            cosines: from_fn(|odd| from_fn(|k| from_fn(|age| from_fn(|at| cosine(odd, k, age, at))))),
            windows: from_fn(|age| from_fn(|at| window(32 * age + 2 * at + parity))),
        }
    }
}

/// The rounds from which samples are made.
#[derive(Default)]
pub(super) struct Synthesis {
    rounds: [Values; ROUNDS],
    /// The latest round.
    newest: usize,
}

impl Synthesis {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the even or odd samples of a granule, from the first `subbands` subbands.
    #[inline(always)]
    pub(super) fn run(&mut self, rows: &Rows, subbands: usize, odd: bool) -> [f32; HALF_SAMPLES] {
        let parity = &PARITIES[usize::from(odd)];
        let mut samples = [0.0; HALF_SAMPLES];
        for (time, (row, out)) in rows.iter().zip(samples.chunks_exact_mut(SUBBANDS)).enumerate() {
            self.newest = (self.newest + ROUNDS - 1) % ROUNDS;
            let cosines = &parity.cosines[time % 2];
            let mut values = Values::default();
            for (subband, cosines) in row[..subbands].iter().zip(cosines) {
                for (values, cosines) in values.iter_mut().zip(cosines) {
                    for (value, cosine) in values.iter_mut().zip(cosines) {
                        *value += subband * cosine;
                    }
                }
            }
            self.rounds[self.newest] = values;
            let mut sums = Row::default();
            for (age, window) in parity.windows.iter().enumerate() {
                let values = &self.rounds[(self.newest + age) % ROUNDS][age % 2];
                for ((sum, value), weight) in sums.iter_mut().zip(values).zip(window) {
                    *sum += value * weight;
                }
            }
            out.copy_from_slice(&sums);
        }
        samples
    }
}
