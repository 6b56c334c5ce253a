//! Reads and checks parameters of speech ops.

use serde::{Deserialize, Deserializer};

use feedstock_base::{Error, Result};

/// The longest time that a parameter may have: an hour, six times `decode_audio`'s default limit.
const MAX_SECONDS: f64 = 3600.0;

/// Samples of one waveform, and elements of one row: 1 GiB of f32, 18 hours at 16 kHz.
pub(crate) const MAX_ELEMENTS: usize = 1 << 28;

/// Reads a list, or one number.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or a list as 1/2/3")]
    enum Form {
        One(f64),
        Many(Vec<f64>),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(value) => vec![value],
        Form::Many(values) => values,
    })
}

/// Checks a length of time.
pub(crate) fn check_seconds(seconds: f64) -> Result<()> {
    if seconds > 0.0 && seconds <= MAX_SECONDS {
        return Ok(());
    }
    Err(Error::config(format!("seconds must be above 0 and at most {MAX_SECONDS}; got {seconds}")))
}

/// Returns the number of samples nearest to `seconds` (checked), at least one.
pub(crate) fn samples(seconds: f64, sample_rate: u32) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an hour of 2³² samples a second is below 2⁴⁴"
    )]
    let samples = (seconds * f64::from(sample_rate)).round() as usize;
    samples.max(1)
}

/// Rounds a parameter or an intermediate result from f64 to single precision.
#[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
pub(crate) fn single(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_the_nearest_count() {
        assert_eq!(samples(0.1, 44_100), 4410);
        assert_eq!(samples(30.0, 16_000), 480_000);
        assert_eq!(samples(1e-9, 8_000), 1);
        assert!(
            check_seconds(0.0).is_err() && check_seconds(f64::NAN).is_err() && check_seconds(1e9).is_err()
        );
    }
}
