//! Which probe read the durations of a catalog.

use serde::{Deserialize, Serialize};

/// Which probe read durations of a catalog, as the catalog stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Probed {
    /// A release stored it that did not note this.
    #[default]
    Unknown,
    /// None: the data set states its durations, has no audio, or no probe was to be asked.
    Nothing,
    /// The probe of this version.
    By(u32),
}
