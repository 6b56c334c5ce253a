//! A digest of a multiset of sample ids that does not depend on their order.

use crate::random::scatter;
use feedstock_base::SampleId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Count and sum of scattered ids: equal for equal multisets, and different otherwise except with probability 2⁻⁶⁴.
///
/// Digests of parts add up, so ranks can compare their sum with the plan's.
///
/// ```
/// use feedstock_base::SampleId;
/// use feedstock_plan::Digest;
///
/// let digest = |samples: &[u64]| samples.iter().map(|&sample| SampleId(sample)).collect::<Digest>();
/// assert_eq!(digest(&[4, 1, 7]), digest(&[7, 4, 1])); // the order does not count
/// assert_ne!(digest(&[4, 1, 7]), digest(&[4, 1, 1]));
/// let mut sum = digest(&[4]);
/// sum.merge(&digest(&[1, 7]));
/// assert_eq!(sum, digest(&[1, 4, 7]));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// The number of ids added.
    pub samples: u64,
    sum: u64,
    sum_of_squares: u64,
}

impl Digest {
    /// Adds one sample.
    pub fn add(&mut self, sample: SampleId) {
        let scattered = scatter(sample.0);
        self.samples += 1;
        self.sum = self.sum.wrapping_add(scattered);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(scattered.wrapping_mul(scattered | 1));
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.sum = self.sum.wrapping_add(other.sum);
        self.sum_of_squares = self.sum_of_squares.wrapping_add(other.sum_of_squares);
    }
}

impl FromIterator<SampleId> for Digest {
    fn from_iter<I: IntoIterator<Item = SampleId>>(samples: I) -> Self {
        let mut digest = Self::default();
        samples.into_iter().for_each(|sample| digest.add(sample));
        digest
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}{:016x}", self.samples, self.sum, self.sum_of_squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_a_lost_a_doubled_and_a_swapped_sample_but_no_order() {
        let of = |ids: &[u64]| ids.iter().map(|&id| SampleId(id)).collect::<Digest>();
        assert_eq!(of(&[1, 2, 3]), of(&[3, 1, 2]));
        for other in [&[1, 2][..], &[1, 2, 3, 3], &[1, 2, 4], &[1, 1, 3], &[]] {
            assert_ne!(of(&[1, 2, 3]), of(other));
        }
        let mut parts = of(&[1]);
        parts.merge(&of(&[2, 3]));
        assert_eq!(parts, of(&[1, 2, 3]));
    }
}
