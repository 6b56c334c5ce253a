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
    /// It is left out, with a warning and a note of the catalog ([`crate::Catalog::notes`]). The data set is then another
    /// one than the whole: its identity, and so its cursors, differ. Ranks compare what they opened, so that one that
    /// could read the shard and one that could not end with an error. What fails for another reason (no access, a
    /// storage that does not answer) is an error still.
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
    /// What was read of the object `index` of `sources`; `None` where it is damaged and was taken out of them.
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
        sources.notes.push(format!("shard {name} is left out, for it is damaged: {error}"));
        Ok(None)
    }
}
