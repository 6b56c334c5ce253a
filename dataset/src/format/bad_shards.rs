//! Shards that cannot be catalogued: an error, or left out.

use super::{Cataloguing, Sources};
use crate::{ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What happens to a shard (a Parquet or IPC file, a WebDataset tar) that cannot be catalogued: its footer or headers are
/// damaged, or a tar has a member that is no valid JSON, label or text, or two of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadShards {
    /// Opening the data set is an error that names the shard.
    #[default]
    Raise,
    /// Leaves it out, with a warning and a note of the catalog ([`crate::Catalog::notes`]). The identity of the data set
    /// then differs from that of the whole, so a cursor of one does not fit the other. Ranks compare what they opened: if
    /// one could read the shard and another could not, both end with an error. Other failures (no access, a storage that
    /// does not answer) stay errors.
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

impl Cataloguing<'_> {
    /// What was read of the object `index` of `sources`; `None` where it cannot be catalogued and was taken out of them.
    pub(super) fn unless_bad<T>(
        &self,
        read: Result<T>,
        index: usize,
        sources: &mut Sources,
    ) -> Result<Option<T>> {
        let error = match read {
            Ok(read) => return Ok(Some(read)),
            Err(error) => error,
        };
        let is_last = sources.objects.len() == 1;
        if self.open.bad_shards == BadShards::Raise || error.kind() != ErrorKind::BadConfig || is_last {
            return Err(error);
        }
        sources.objects.remove(index);
        let name = sources.names.remove(index);
        tracing::warn!(uri = sources.uri, "shard {name} is left out (bad_shards=skip): {error}");
        sources.notes.push(format!("shard {name} is left out, because it cannot be catalogued: {error}"));
        Ok(None)
    }
}
