//! The proof of exactly-once delivery: the planned samples, compared with the delivered ones.

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Digest, SampleId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one rank was to deliver in one epoch, and what it delivered. Ledgers of several ranks can be merged.
///
/// `planned` is computed by walking the plan again, `delivered` from the batches that were delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The epoch.
    pub epoch: u64,
    /// The samples that the plan assigns to these ranks, without padding.
    pub planned: Digest,
    /// The samples that were delivered, with substituted ones, without padding.
    pub delivered: Digest,
    /// Rows of padding that were delivered.
    pub padded: u64,
    /// Samples that were replaced because they could not be decoded.
    pub substituted: u64,
}

impl Ledger {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, planned: Digest::default(), delivered: Digest::default(), padded: 0, substituted: 0 }
    }

    pub(crate) fn deliver(&mut self, sample: SampleId, padding: bool) {
        match padding {
            true => self.padded += 1,
            false => self.delivered.add(sample),
        }
    }

    /// Adds another rank's ledger of the same epoch.
    pub fn merge(&mut self, other: &Self) {
        self.planned.merge(&other.planned);
        self.delivered.merge(&other.delivered);
        self.padded += other.padded;
        self.substituted += other.substituted;
    }

    /// Whether every planned sample was delivered exactly once.
    pub fn is_exact(&self) -> bool {
        self.planned == self.delivered
    }

    /// Returns an error unless [`is_exact`](Self::is_exact).
    pub fn check(&self) -> Result<()> {
        match self.is_exact() {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Bug, format!("the epoch was not delivered exactly once: {self}")))
            }
        }
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "epoch {}: {} planned, {} delivered, {} padded, {} substituted, digest {} {} {}",
            self.epoch,
            self.planned.samples,
            self.delivered.samples,
            self.padded,
            self.substituted,
            self.delivered,
            if self.is_exact() { "=" } else { "≠" },
            self.planned,
        )
    }
}
