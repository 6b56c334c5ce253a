//! Checks parameters that several image ops share.

use feedstock_base::{Error, Result};

/// Checks a point in pixels.
pub(crate) fn check_point(name: &str, point: Option<[f64; 2]>) -> Result<()> {
    match point {
        Some(point) if !point.iter().all(|value| value.is_finite()) => {
            Err(Error::config(format!("{name} must be two finite numbers; got {point:?}")))
        }
        _ => Ok(()),
    }
}
