//! Reads and checks parameters that ops of every kind share.

use serde::{Deserialize, Deserializer};

use feedstock_base::{Error, Result};

/// Checks a range's order and bounds.
pub(crate) fn check_range(name: &str, [low, high]: [f64; 2], least: f64, most: f64) -> Result<()> {
    if low <= high && low >= least && high <= most {
        return Ok(());
    }
    let bounds = match least > 0.0 && least <= f64::MIN_POSITIVE {
        true => format!("above 0 and at most {most}"),
        false => format!("within {least} … {most}"),
    };
    Err(Error::config(format!("{name} must be a range {bounds}; got {low}..{high}")))
}

/// Checks a probability.
pub(crate) fn check_probability(probability: f64) -> Result<()> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(());
    }
    Err(Error::config(format!("probability must be 0 … 1; got {probability}")))
}

/// Reads `lo..hi`, `[lo, hi]`, or one number for both.
pub(crate) fn range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 2], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or a range as 0.5..1.5")]
    enum Form {
        One(f64),
        Two([f64; 2]),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(value) => [value; 2],
        Form::Two(range) => range,
    })
}

/// Reads `lo..hi`, `[lo, hi]`, or one number x for −x … x.
pub(crate) fn symmetric_range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 2], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or a range as -10..10")]
    enum Form {
        One(f64),
        Two([f64; 2]),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(value) => [-value, value],
        Form::Two(range) => range,
    })
}
