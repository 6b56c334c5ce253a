//! What happens to samples that cannot be decoded.

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::SampleId;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The skipped samples that a report lists. Further ones are only counted (8,192 × about 200 bytes = 1.6 MiB).
const LISTED_SKIPS: usize = 8192;

/// What happens to a sample that cannot be decoded.
///
/// ```
/// # use feedstock_dataset::{Rank, SampleId};
/// # use feedstock_ops::{decode_image, resize};
/// # use feedstock_trainer_bridge::{BatchSize, Dataset, OnError};
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # for index in 0..3 {
/// #     std::fs::write(folder.path().join(format!("{index}.jpg")), feedstock_synth::picture(1, index).0).unwrap();
/// # }
/// # std::fs::write(folder.path().join("3.jpg"), "<html>404</html>").unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 0.jpg to 2.jpg, and HTML: 3.jpg
/// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
/// let mut batches = pipeline.clone().on_error(OnError::Skip { max_fraction: 0.5 }).rank(Rank::new(0, 1)).start()?;
/// let batch = batches.next().unwrap()?;
/// assert_eq!(batch.valid(), [true, true, true, false]);
/// assert_eq!(batch["image"].row(3), batch["image"].row(2)); // a copy of the nearest good row
/// assert_eq!(batches.skip_report().samples[0].sample, SampleId(3));
///
/// let error = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap().unwrap_err(); // OnError::Raise
/// assert!(error.message().contains("3.jpg"));
/// assert_eq!(error.sample_context().unwrap().sample, SampleId(3));
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Stop with the sample's name and id.
    #[default]
    Raise,
    /// Fill its row with a copy of the batch's nearest good row, mark it `valid = false`, and list it in the
    /// [`SkipReport`].
    Skip {
        /// Stop once more than this fraction of the rank's samples of an epoch was skipped, 0.0 to 1.0.
        max_fraction: f64,
    },
}

impl OnError {
    /// Skips up to one sample in a hundred. More would be a broken data set, not broken samples.
    pub const fn skip() -> Self {
        Self::Skip { max_fraction: 0.01 }
    }

    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Skip { max_fraction } if !(0.0..=1.0).contains(&max_fraction) => {
                let message = format!("max_fraction must be 0.0 to 1.0; got {max_fraction}");
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            _ => Ok(()),
        }
    }
}

/// A sample that was skipped, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The sample.
    pub sample: SampleId,
    /// The epoch.
    pub epoch: u64,
    /// The error, which names file and sample.
    pub reason: String,
}

/// Samples skipped by a rank so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkipReport {
    /// Their number.
    pub count: u64,
    /// The first 8,192 of them, in delivery order.
    pub samples: Vec<Skipped>,
}

impl SkipReport {
    /// Adds the samples that a later run of the same loader skipped. Samples in both count once.
    pub(crate) fn merge(&mut self, later: Self) {
        let unlisted = later.count - later.samples.len() as u64;
        let known: HashSet<(u64, SampleId)> = self.samples.iter().map(|s| (s.epoch, s.sample)).collect();
        self.add(later.samples.into_iter().filter(|s| !known.contains(&(s.epoch, s.sample))).collect());
        self.count += unlisted;
    }

    /// Returns the number of listed samples of `epoch`.
    pub(crate) fn listed_in(&self, epoch: u64) -> u64 {
        self.samples.iter().filter(|skipped| skipped.epoch == epoch).count() as u64
    }

    pub(crate) fn add(&mut self, skipped: Vec<Skipped>) {
        self.count += skipped.len() as u64;
        let room = LISTED_SKIPS - self.samples.len();
        self.samples.extend(skipped.into_iter().take(room));
    }
}

/// Returns, for each row, the row whose content it takes: itself, or for a bad row its nearest good neighbour. `None` if no
/// row is good.
pub(crate) fn sources(rows: usize, bad: &[usize]) -> Vec<Option<usize>> {
    let is_good = |row: &usize| bad.binary_search(row).is_err();
    let good: Vec<usize> = (0..rows).filter(is_good).collect();
    let nearest = |row: usize| good.iter().copied().min_by_key(|good| good.abs_diff(row));
    (0..rows).map(|row| if is_good(&row) { Some(row) } else { nearest(row) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_rows_take_their_nearest_good_neighbour() {
        assert_eq!(sources(5, &[0, 3]), [Some(1), Some(1), Some(2), Some(2), Some(4)]);
        assert_eq!(sources(2, &[0, 1]), [None, None]);
        assert_eq!(sources(2, &[]), [Some(0), Some(1)]);
    }
}
