//! What a rewrite did.

use feedstock_dataset::{Digest, SampleId};
use feedstock_ops::image::Unmarked;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Samples named in the report at most; the rest are counted. 1,000 names of 200 bytes are 200 KB of state.
pub(super) const NAMED_SAMPLES: usize = 1_000;

/// An image that could not be read and was copied unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSample {
    /// Its id in the source.
    pub sample: SampleId,
    /// Its object and row.
    pub name: String,
    /// Why it could not be read.
    pub reason: String,
}

/// What a rewrite did, earlier runs of the same rewrite included.
#[derive(Debug, Clone, PartialEq)]
pub struct RewriteReport {
    /// Samples written.
    pub samples: u64,
    /// Shards written.
    pub shards: u64,
    /// Of these, shards that an earlier run had written.
    pub resumed_shards: u64,
    /// Bytes of the shards.
    pub file_bytes: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Samples whose image was shrunk.
    pub shrunk: u64,
    /// Samples whose image got restart markers.
    pub restarted: u64,
    /// Samples whose image should have got them and did not, by reason.
    pub unmarked: BTreeMap<Unmarked, u64>,
    /// Samples whose image should have been changed but could not be read.
    pub kept_samples: u64,
    /// The first 1,000 of them.
    pub kept: Vec<KeptSample>,
    /// The digest of the source's sample ids: equal to the plan's.
    pub ids: Digest,
    /// Everything was read back and is what was written.
    pub verified: bool,
}
