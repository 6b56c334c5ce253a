//! Checks of parameters that ops of every kind share.

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
