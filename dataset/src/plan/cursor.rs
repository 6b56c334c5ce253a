//! All that a checkpoint needs.

use crate::{Error, Position, Result};
use serde::{Deserialize, Serialize};

/// What the order depends on. Equal fingerprints mean the same order, sample for sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The version of the order's arithmetic.
    pub version: u32,
    /// The catalog's content hash: names, sizes, ETags, blocks.
    pub catalog: u64,
    /// A hash of the filter's text and of the samples that it keeps; 0 without a filter.
    pub filter: u64,
    /// `none`, `window` or `full`.
    pub shuffle: super::ShuffleKind,
    /// The seed of the order.
    pub seed: u64,
    /// C, the number of lanes.
    pub lanes: u32,
    /// W, the shuffle window in samples.
    pub window: u64,
}

/// A place in the order of samples over all epochs; about 150 bytes of JSON.
///
/// It holds no rank, world size, batch size or worker: any of them may be different when it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The order that the position belongs to.
    pub fingerprint: Fingerprint,
    /// Epochs finished.
    pub epoch: u64,
    /// The first position not yet delivered.
    pub position: Position,
    /// A hash of the ops, which are not part of the order: a change is told, not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<u64>,
}

impl Cursor {
    /// The same place, with the hash of the ops that ran.
    #[must_use]
    pub fn with_ops(mut self, ops: u64) -> Self {
        self.ops = Some(ops);
        self
    }

    /// The hash of a text that describes ops.
    pub fn hash_ops(description: &str) -> u64 {
        super::random::hash_text(description)
    }
}

impl Fingerprint {
    /// Refuses a foreign fingerprint and names the first field that differs.
    pub fn check(&self, found: &Self) -> Result<()> {
        let hex = |hash: u64| format!("{hash:016x}");
        let fields = [
            (
                "plan version",
                self.version.to_string(),
                found.version.to_string(),
                "load it with the release that saved it",
            ),
            (
                "catalog",
                hex(self.catalog),
                hex(found.catalog),
                "the data set's files changed since, or it is another data set",
            ),
            (
                "filter",
                hex(self.filter),
                hex(found.filter),
                "open the data set with the filter it was saved with",
            ),
            (
                "shuffle",
                format!("{:?}", self.shuffle),
                format!("{:?}", found.shuffle),
                "use the saved kind of shuffle",
            ),
            ("seed", self.seed.to_string(), found.seed.to_string(), "use the saved seed"),
            ("lanes", self.lanes.to_string(), found.lanes.to_string(), "set lanes to the saved number"),
            (
                "window",
                self.window.to_string(),
                found.window.to_string(),
                "set window to the saved number of samples",
            ),
        ];
        for (field, here, there, advice) in fields {
            if here != there {
                return Err(Error::config(format!(
                    "the cursor belongs to another order: its {field} is {there}, this pipeline's is {here}; {advice}"
                )));
            }
        }
        Ok(())
    }
}
