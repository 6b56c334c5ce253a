//! Which probe read the durations of a catalog.

use serde::{Deserialize, Serialize};

/// Which probe read the durations of a catalog, as the catalog stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Probed {
    /// Unknown: the release that stored it did not record this.
    #[default]
    Unknown,
    /// No probe: the data set states its durations, has no audio, or was opened without a probe.
    Nothing,
    /// A probe of this version.
    By(u32),
}
