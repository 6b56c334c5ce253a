//! Replaces `cuda.rs` in builds without the feature `cuda`: there is no device.

use super::open::Device;
use crate::Result;
use std::sync::Arc;

/// Returns the reason why this build has no device.
pub(crate) fn open(_ordinal: u32) -> Result<Result<Arc<Device>, String>> {
    Ok(Err("this feedstock was built without the feature `cuda`".to_owned()))
}
