//! Replaces `cuda` in builds without the feature `cuda`: there is no device.

use super::Found;
use feedstock_base::Result;
use std::path::PathBuf;

/// Returns why this build has no device.
pub(crate) fn find(_ordinal: u32, _kernels: Option<PathBuf>) -> Result<Found> {
    Ok(Found::Absent("this feedstock was built without the feature `cuda`".to_owned()))
}
