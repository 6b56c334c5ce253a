//! Second-order recursive filters: the coefficients of Robert Bristow-Johnson's cookbook and SoX's `band`, as torchaudio's
//! `*_biquad` functions.

use super::clip::Clip;
use super::parameters::single;
use super::step::WaveOp;
use crate::check::check_range;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The narrowest and the widest filter.
const QUALITIES: [f64; 2] = [1e-3, 1e3];

/// The strongest gain of a band, in decibels.
const MAX_GAIN_DB: f64 = 100.0;

/// The default quality factor, torchaudio's.
pub(crate) fn default_q() -> f64 {
    0.707
}

/// Kinds of filters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Lowpass,
    Highpass,
    Bandpass {
        /// Whether the gain at the skirts is constant, with `Q` at the peak. Otherwise, the peak's gain is 0 dB.
        const_skirt_gain: bool,
    },
    Bandreject,
    Allpass,
    /// One pole and its mirror image, whose bandwidth in Hz is the frequency divided by `Q`.
    Band {
        /// Whether the gain suits noise, and not sounds with a pitch.
        noise: bool,
    },
    Equalizer,
    Bass,
    Treble,
}

/// A filter for one sample rate, whose frequency and gain are drawn.
pub(crate) struct Biquad {
    pub(crate) kind: Kind,
    pub(crate) sample_rate: u32,
    /// Least and greatest frequency in Hz.
    pub(crate) frequency: [f64; 2],
    /// Least and greatest gain in decibels, of the kinds that have one.
    pub(crate) gain: [f64; 2],
    pub(crate) q: f64,
}

impl Biquad {
    /// Checks the parameters; `name` is that of the frequency.
    ///
    /// # Errors
    /// `BadConfig` for a frequency above half of the sample rate, and for other numbers out of bounds.
    pub(crate) fn checked(self, name: &str) -> Result<Self> {
        let nyquist = f64::from(self.sample_rate) / 2.0;
        let [low, high] = self.frequency;
        if !(low > 0.0 && low <= high && high < nyquist) {
            return Err(Error::config(format!(
                "{name} must be above 0 and below half of the sample rate, {nyquist} Hz here; got {low}..{high}"
            )));
        }
        check_range("gain", self.gain, -MAX_GAIN_DB, MAX_GAIN_DB)?;
        if !(QUALITIES[0]..=QUALITIES[1]).contains(&self.q) {
            let [least, most] = QUALITIES;
            return Err(Error::config(format!("Q must be {least} … {most}; got {}", self.q)));
        }
        Ok(self)
    }

    /// Returns b0, b1, b2, a1 and a2, all divided by a0.
    fn coefficients(&self, frequency: f64, gain: f64) -> [f64; 5] {
        let angle = std::f64::consts::TAU * frequency / f64::from(self.sample_rate);
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let alpha = sin / 2.0 / self.q;
        let amplitude = libm::pow(10.0, gain / 40.0);
        let plain = [1.0 + alpha, -2.0 * cos, 1.0 - alpha];
        // Both shelves; the treble's is the bass's mirrored at a quarter of the sample rate.
        let shelf = |cos: f64, mirrored: f64| {
            let (below, above) = ((amplitude - 1.0) * cos, (amplitude + 1.0) * cos);
            let slope = 2.0 * amplitude.sqrt() * alpha;
            let sum = amplitude + 1.0;
            let difference = amplitude - 1.0;
            (
                [
                    amplitude * (sum - below + slope),
                    mirrored * 2.0 * amplitude * (difference - above),
                    amplitude * (sum - below - slope),
                ],
                [sum + below + slope, mirrored * -2.0 * (difference + above), sum + below - slope],
            )
        };
        let (b, [a0, a1, a2]) = match self.kind {
            Kind::Lowpass => ([(1.0 - cos) / 2.0, 1.0 - cos, (1.0 - cos) / 2.0], plain),
            Kind::Highpass => ([f64::midpoint(1.0, cos), -1.0 - cos, f64::midpoint(1.0, cos)], plain),
            Kind::Bandpass { const_skirt_gain } => {
                let peak = if const_skirt_gain { sin / 2.0 } else { alpha };
                ([peak, 0.0, -peak], plain)
            }
            Kind::Bandreject => ([1.0, -2.0 * cos, 1.0], plain),
            Kind::Allpass => ([plain[2], plain[1], plain[0]], plain),
            Kind::Band { noise } => {
                let a2 = libm::exp(-angle / self.q);
                let (sum, rest) = (1.0 + a2, 1.0 - a2);
                let share = 2.0 * cos / sum;
                let a1 = -2.0 * a2 * share;
                // torchaudio has 1 − a1² / 4a2 for a pitch; here, a2 may be 0.
                let squared = match noise {
                    true => (sum * sum - a1 * a1) * rest / sum,
                    false => (1.0 - a2 * share * share) * rest * rest,
                };
                ([squared.max(0.0).sqrt(), 0.0, 0.0], [1.0, a1, a2])
            }
            Kind::Equalizer => (
                [1.0 + alpha * amplitude, -2.0 * cos, 1.0 - alpha * amplitude],
                [1.0 + alpha / amplitude, -2.0 * cos, 1.0 - alpha / amplitude],
            ),
            Kind::Bass => shelf(cos, 1.0),
            Kind::Treble => shelf(-cos, -1.0),
        };
        [b[0] / a0, b[1] / a0, b[2] / a0, a1 / a0, a2 / a0]
    }
}

impl WaveOp for Biquad {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        let frequency = generator.uniform(self.frequency[0], self.frequency[1]);
        let gain = generator.uniform(self.gain[0], self.gain[1]);
        filter(clip.wave(), self.coefficients(frequency, gain));
        Ok(())
    }
}

/// Filters in double precision (direct form II, transposed), from silence, and limits the result to −1 … 1.
fn filter(wave: &mut [f32], [b0, b1, b2, a1, a2]: [f64; 5]) {
    let (mut first, mut second) = (0.0, 0.0);
    for sample in wave {
        let x = f64::from(*sample);
        let y = b0 * x + first;
        first = b1 * x - a1 * y + second;
        second = b2 * x - a2 * y;
        *sample = single(y.clamp(-1.0, 1.0));
    }
}
