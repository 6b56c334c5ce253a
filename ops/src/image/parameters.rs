//! Reads and checks parameters that several image ops share.

use serde::{Deserialize, Deserializer};

use feedstock_base::{Error, Result};

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

/// Checks a point in pixels.
pub(crate) fn check_point(name: &str, point: Option<[f64; 2]>) -> Result<()> {
    match point {
        Some(point) if !point.iter().all(|value| value.is_finite()) => {
            Err(Error::config(format!("{name} must be two finite numbers; got {point:?}")))
        }
        _ => Ok(()),
    }
}
