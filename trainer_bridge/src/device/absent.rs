//! In place of `cuda.rs` where feedstock was built without the feature `cuda`: there is no device.

use super::open::Found;
use crate::Result;

/// CUDA's device `ordinal`: never there.
pub(crate) fn find(_ordinal: u32) -> Result<Found> {
    Ok(Found::Absent("this feedstock was built without the feature `cuda`".to_owned()))
}
