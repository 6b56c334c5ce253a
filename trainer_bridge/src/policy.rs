//! What happens to samples that cannot be decoded.

use crate::slots::Slot;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::SampleId;
use serde::{Deserialize, Serialize};

/// Skipped samples that a report lists; further ones are only counted (8,192 × about 200 bytes = 1.6 MiB).
const LISTED_SKIPS: usize = 8192;

/// What to do about a sample that cannot be decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Stop with the sample's name and id.
    #[default]
    Raise,
    /// Fill its row with a copy of the batch's nearest good row, mark it `valid = false`, and list it in the
    /// [`SkipReport`].
    Skip {
        /// Stop once more than this share of the rank's samples of an epoch was skipped, 0.0 to 1.0.
        max_fraction: f64,
    },
}

impl OnError {
    /// Skip up to one sample in a hundred: more is a broken data set, not broken samples.
    pub const fn skip() -> Self {
        Self::Skip { max_fraction: 0.01 }
    }

    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Skip { max_fraction } if !(0.0..=1.0).contains(&max_fraction) => {
                let message = format!("on_error=skip: max_fraction {max_fraction} is outside 0.0 to 1.0");
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
    /// How many.
    pub count: u64,
    /// The first 8,192 of them, in delivery order.
    pub samples: Vec<Skipped>,
}

impl SkipReport {
    pub(crate) fn add(&mut self, skipped: Vec<Skipped>) {
        self.count += skipped.len() as u64;
        let room = LISTED_SKIPS - self.samples.len();
        self.samples.extend(skipped.into_iter().take(room));
    }
}

/// Replaces bad rows by their nearest good neighbour and returns, by row, the row whose columns it takes.
///
/// Without a good row, bad rows become zeros and keep their own columns.
pub(crate) fn substitute(slot: &mut Slot, rows: usize, bad: &[usize]) -> Vec<usize> {
    let mut sources: Vec<usize> = (0..rows).collect();
    let good: Vec<usize> = sources.iter().copied().filter(|row| bad.binary_search(row).is_err()).collect();
    for &row in bad {
        match good.iter().min_by_key(|good| good.abs_diff(row)) {
            Some(&nearest) => {
                slot.copy_row(nearest, row);
                sources[row] = nearest;
            }
            None => slot.clear_row(row),
        }
    }
    sources
}
