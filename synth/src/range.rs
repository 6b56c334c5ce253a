//! Ranges of options.

use crate::{Error, Result};

/// Checks that `value` is from `least` to `most`.
pub(crate) fn in_range(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::config(format!("{name} must be from {least} to {most}; got {value}")))
}
