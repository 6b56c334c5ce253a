//! The input of the orders of all epochs.

use crate::base::Base;
use crate::bucket::BucketFacts;
use crate::cursor::Fingerprint;
use crate::digest::Digest;
use crate::lengths::Lengths;
use crate::rest::{Rest, RestFacts};
use arrow_buffer::BooleanBuffer;
use feedstock_base::SampleId;
use std::sync::Arc;

/// Values that a plan has computed once.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) base: Base,
    /// Encoded bytes of a sample, on average.
    pub(crate) sample_bytes: u64,
    /// The blocks whose end one request can read over; `None` for none.
    pub(crate) continued: Option<BooleanBuffer>,
    pub(crate) lengths: Option<KnownLengths>,
    pub(crate) bucketing: Option<Arc<BucketFacts>>,
    /// The replacement of one epoch, of which a part was delivered before the data changed.
    pub(crate) rest: Option<Arc<RestFacts>>,
    pub(crate) fingerprint: Fingerprint,
    /// What cursors of releases before 0.2 have instead: `catalog`, and `mixing.parts` of a mix.
    pub(crate) legacy: (u64, Option<u64>),
}

/// Lengths for all selected samples, and the longest of those.
#[derive(Debug, Clone)]
pub(crate) struct KnownLengths {
    pub(crate) lengths: Lengths,
    pub(crate) longest: (SampleId, f32),
}

impl Facts {
    /// Returns the number of positions in an epoch.
    pub(crate) fn len(&self) -> u64 {
        self.base.len()
    }

    /// Returns the positions in `epoch`: [`len`](Self::len), except for one that continues after a change of its data.
    pub(crate) fn len_of(&self, epoch: u64) -> u64 {
        self.rest().filter(|rest| rest.epoch() == epoch).map_or_else(|| self.len(), |rest| rest.len())
    }

    /// Returns the rest that replaces one epoch.
    pub(crate) fn rest(&self) -> Option<&Arc<Rest>> {
        self.rest.as_ref().map(|facts| facts.rest())
    }

    /// Whether an epoch never ends.
    pub(crate) fn is_endless(&self) -> bool {
        self.base.is_endless()
    }

    /// Returns the digest of every selected sample once.
    pub(crate) fn digest(&self) -> Digest {
        self.base.selected().collect()
    }
}
