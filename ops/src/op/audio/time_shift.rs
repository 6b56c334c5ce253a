//! `time_shift`: moves the audio clip in time.

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::step::WaveOp;
use crate::check::{check_probability, check_range};
use crate::seed::Generator;
use feedstock_base::Result;

/// The longest shift: an hour.
const MAX_SECONDS: f64 = 3600.0;

/// Moves the audio clip by a shift drawn uniformly: later where it is positive. The length stays.
///
/// Samples that leave at one end come back at the other, as `numpy.roll`, or become silence with `wrap=false`. Shifts are
/// rounded to whole samples.
///
/// ```
/// use feedstock_ops::audio::{ShiftUnit, TimeShift};
/// use feedstock_ops::{ChainSpec, decode_audio};
///
/// let op = TimeShift::new([-0.1, 0.1]).unit(ShiftUnit::Seconds).wrap(false);
/// let text = "decode_audio,time_shift:0.1:unit=seconds:wrap=false";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from([decode_audio(), op.into()]));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TimeShift {
    /// Least and greatest shift, in `unit`; one number d is −d … d. Default −0.5 … 0.5.
    #[serde(default = "default_shift", deserialize_with = "crate::check::symmetric_range")]
    pub shift: [f64; 2],
    /// What `shift` is in: shares of the audio clip, −1 … 1 (default), or seconds, −3600 … 3600.
    #[serde(default)]
    pub unit: ShiftUnit,
    /// Whether samples that leave at one end come back at the other; default true.
    #[serde(default = "yes")]
    pub wrap: bool,
    /// 0 … 1; default 1.
    #[serde(default = "one")]
    pub probability: f64,
}

/// What the shift of [`TimeShift`] is in.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShiftUnit {
    /// Shares of the audio clip's length.
    #[default]
    Share,
    /// Seconds.
    Seconds,
}

fn default_shift() -> [f64; 2] {
    [-0.5, 0.5]
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

impl Default for TimeShift {
    fn default() -> Self {
        Self::new(default_shift())
    }
}

impl TimeShift {
    /// Moves by a share of the audio clip within `shift`, `[least, greatest]`.
    pub fn new(shift: [f64; 2]) -> Self {
        Self { shift, unit: ShiftUnit::default(), wrap: yes(), probability: one() }
    }

    /// Sets what the shift is in.
    #[must_use]
    pub fn unit(self, unit: ShiftUnit) -> Self {
        Self { unit, ..self }
    }

    /// Sets whether samples come back at the other end.
    #[must_use]
    pub fn wrap(self, wrap: bool) -> Self {
        Self { wrap, ..self }
    }

    /// Sets the probability, 0 … 1.
    #[must_use]
    pub fn probability(self, probability: f64) -> Self {
        Self { probability, ..self }
    }
}

impl AudioOp for TimeShift {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let most = if self.unit == ShiftUnit::Share { 1.0 } else { MAX_SECONDS };
        check_range("shift", self.shift, -most, most)?;
        check_probability(self.probability)?;
        compiler.wave(self.clone())
    }
}

impl WaveOp for TimeShift {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        if !generator.chance(self.probability) {
            return Ok(());
        }
        let whole = match self.unit {
            ShiftUnit::Share => clip.len() as f64,
            ShiftUnit::Seconds => f64::from(clip.sample_rate()),
        };
        let samples = (generator.uniform(self.shift[0], self.shift[1]) * whole).round_ties_even();
        #[expect(clippy::cast_possible_truncation, reason = "an hour of 2³² samples a second is below 2⁴⁴")]
        shift(clip.wave(), samples as i64, self.wrap);
        Ok(())
    }
}

/// Moves the samples to later places, or with a negative `by` to earlier ones.
fn shift(wave: &mut [f32], by: i64, wrap: bool) {
    let distance = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
    if wave.is_empty() {
        return;
    }
    if !wrap && distance >= wave.len() {
        return wave.fill(0.0);
    }
    let places = distance % wave.len();
    if by >= 0 {
        wave.rotate_right(places);
    } else {
        wave.rotate_left(places);
    }
    if !wrap {
        let kept = wave.len() - places;
        let emptied = if by >= 0 { &mut wave[..places] } else { &mut wave[kept..] };
        emptied.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_at_its_place() {
        for (length, by) in [(7, 0), (7, 3), (7, -3), (7, 7), (7, -9), (7, 30), (1, 1), (1, -5), (0, 2)] {
            let wave: Vec<f32> = (1..=length).map(|i: u8| f32::from(i)).collect();
            for wrap in [true, false] {
                let mut shifted = wave.clone();
                shift(&mut shifted, by, wrap);
                for (place, got) in (0_i64..).zip(&shifted) {
                    let from = place - by;
                    let count = i64::from(length);
                    let inside = (0..count).contains(&from);
                    let expected = if wrap || inside {
                        wave[usize::try_from(from.rem_euclid(count)).unwrap()]
                    } else {
                        0.0
                    };
                    assert_eq!(*got, expected, "{length} by {by}, wrap {wrap}, place {place}");
                }
            }
        }
    }
}
