//! The proof of exactly-once delivery: the planned samples, compared with the delivered ones.

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Digest, SampleId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one rank was to deliver in one epoch, and what it delivered. Ledgers of several ranks can be merged.
///
/// `planned` is computed by walking the plan again, `delivered` from the batches that were delivered.
///
/// ```
/// # use feedstock_dataset::Rank;
/// # use feedstock_trainer_bridge::{BatchSize, Dataset, Ledger, Result};
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
/// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::global(4)).epochs(1);
/// let ledger = |rank| -> Result<Ledger> {
///     let mut batches = pipeline.rank(Rank::new(rank, 2)).start()?;
///     batches.by_ref().try_for_each(|batch| batch.map(drop))?;
///     Ok(batches.ledger())
/// };
/// let mut all = ledger(0)?;
/// assert_eq!(all.delivered.samples, 8);
/// all.merge(&ledger(1)?);
/// assert_eq!(all.delivered, pipeline.plan(Rank::new(0, 1))?.digest()); // no sample is missing or doubled
/// all.check()?;
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
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
