//! What happens to shards that cannot be catalogued.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What happens to a shard (a Parquet or IPC file, a WebDataset tar) that cannot be catalogued. Its footer or headers are
/// damaged, or a tar has a member with invalid JSON, label or text, or two members of the same name.
///
/// Cataloguing reads footers, message headers, page headers of large row groups that are cut, and headers of tars. Damage
/// in pages, in the values of a record batch or in a payload is found when a block is read. It ends the epoch with an
/// error, whatever this option is; samples that do not decode have a separate policy.
///
/// ```
/// use feedstock_dataset::BadShards;
///
/// assert_eq!(BadShards::default(), BadShards::Raise);
/// assert_eq!("skip".parse(), Ok(BadShards::Skip));
/// assert_eq!("drop".parse::<BadShards>(), Err("must be raise or skip; got drop".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadShards {
    /// Opening the data set is an error that names the shard.
    #[default]
    Raise,
    /// Leaves it out, with a warning and a note of the catalog ([`crate::Catalog::notes`]). Parquet and IPC files whose
    /// schema differs from that of most files are left out, too; among equally frequent schemas, that of the first file
    /// counts. The identity of the data set then differs from that of the whole, so a cursor of one does not fit the other.
    /// Ranks compare what they opened: if one could read the shard and another could not, both end with an error. Other
    /// failures (no access, a storage that does not answer or cannot be read) stay errors, and so does a data set without a
    /// readable shard.
    Skip,
}

impl BadShards {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for BadShards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "raise" => Ok(Self::Raise),
            "skip" => Ok(Self::Skip),
            _ => Err(format!("must be raise or skip; got {text}")),
        }
    }
}
