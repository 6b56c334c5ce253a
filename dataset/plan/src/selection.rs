//! Which samples a filter keeps: one bit a sample, and a prefix sum a block.

use arrow_buffer::BooleanBuffer;
use std::ops::Range;
use std::sync::Arc;

/// The samples that take part, by block.
///
/// It takes one bit a sample of the catalog and eight bytes a block.
#[derive(Debug, Clone)]
pub struct Selection {
    bits: BooleanBuffer,
    /// `selected_starts[b]`: selected samples before block `b`; one more entry than blocks.
    selected_starts: Arc<[u64]>,
}

impl Selection {
    /// Keeps sample `i` where `bits[i]` is true; `block_starts` are the catalog's (one more than blocks).
    ///
    /// ```
    /// use feedstock_base::SampleId;
    /// use feedstock_plan::Selection;
    ///
    /// let kept = Selection::from_bools(vec![true, false, true, false].into(), &[0, 2, 4]); // two blocks of two
    /// assert_eq!(kept.len(), 2);
    /// assert!(kept.contains(SampleId(2)) && !kept.contains(SampleId(3)));
    /// ```
    ///
    /// # Panics
    /// If `bits` does not hold one bit for each sample of the catalog.
    pub fn from_bools(bits: BooleanBuffer, block_starts: &[u64]) -> Self {
        assert_eq!(Some(bits.len() as u64), block_starts.last().copied(), "one bit for each sample");
        let mut selected_starts = Vec::with_capacity(block_starts.len());
        selected_starts.push(0);
        let mut total = 0;
        for block in block_starts.windows(2) {
            let (start, len) = (index(block[0]), index(block[1] - block[0]));
            total += bits.slice(start, len).count_set_bits() as u64;
            selected_starts.push(total);
        }
        Self { bits, selected_starts: selected_starts.into() }
    }

    /// Returns the samples that both keep.
    ///
    /// ```
    /// use feedstock_plan::Selection;
    ///
    /// let blocks = [0, 4];
    /// let long = Selection::from_bools(vec![true, true, false, false].into(), &blocks);
    /// let english = Selection::from_bools(vec![true, false, true, false].into(), &blocks);
    /// assert_eq!(long.and(&english, &blocks).bits().set_indices().collect::<Vec<_>>(), [0]);
    /// ```
    ///
    /// # Panics
    /// If the two come from different catalogs.
    #[must_use]
    pub fn and(&self, other: &Self, block_starts: &[u64]) -> Self {
        Self::from_bools(&self.bits & &other.bits, block_starts)
    }

    /// Returns one bit a sample of the catalog.
    pub fn bits(&self) -> &BooleanBuffer {
        &self.bits
    }

    /// Returns the number of samples kept.
    pub fn len(&self) -> u64 {
        self.selected_starts.last().copied().unwrap_or(0)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the sample with this id is kept.
    pub fn contains(&self, sample: feedstock_base::SampleId) -> bool {
        self.bits.value(index(sample.0))
    }

    /// Returns a hash of the kept samples.
    pub(crate) fn hash(&self) -> u64 {
        let words: Vec<u64> = self.bits.bit_chunks().iter_padded().collect();
        crate::random::hash(&words)
    }

    /// Returns the number of kept samples of a range.
    pub(crate) fn count(&self, samples: Range<u64>) -> u64 {
        let (start, end) = (index(samples.start), index(samples.end));
        self.bits.slice(start, end - start).count_set_bits() as u64
    }

    /// Returns the run around `sample` of the `count` kept samples from `first` on, where a gap of more than `gap` samples that
    /// are left out begins another run.
    pub(crate) fn near(&self, first: u64, count: u64, sample: u64, gap: u64) -> Range<u64> {
        let from = index(first);
        let kept = self.bits.slice(from, self.bits.len() - from);
        let mut run = first..first;
        for at in kept.set_indices().take(index(count)).map(|at| first + at as u64) {
            if at > run.end + gap {
                if run.contains(&sample) {
                    break;
                }
                run.start = at;
            }
            run.end = at + 1;
        }
        run
    }

    pub(crate) fn starts(&self) -> &Arc<[u64]> {
        &self.selected_starts
    }

    /// Returns the id of the `nth` kept sample at or after `start`, which must exist.
    pub(crate) fn nth_from(&self, start: u64, nth: u64) -> u64 {
        let (mut at, mut left) = (index(start), nth);
        while at < self.bits.len() {
            let len = (self.bits.len() - at).min(64);
            let word = self.bits.slice(at, len);
            let ones = word.count_set_bits() as u64;
            if left < ones {
                return word.set_indices().nth(index(left)).map_or(u64::MAX, |i| (at + i) as u64);
            }
            left -= ones;
            at += len;
        }
        unreachable!("the prefix sums promise a kept sample here");
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sample counts are held in memory as bits, so they fit")]
fn index(n: u64) -> usize {
    n as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nth_finds_what_a_scan_finds(bits in prop::collection::vec(any::<bool>(), 1..400), cut in 0usize..400) {
            let cut = cut.min(bits.len());
            let starts = [0, cut as u64, bits.len() as u64];
            let selection = Selection::from_bools(BooleanBuffer::from(bits.clone()), &starts);
            for block in 0..2 {
                let (from, to) = (starts[block] as usize, starts[block + 1] as usize);
                let kept: Vec<u64> = (from..to).filter(|&i| bits[i]).map(|i| i as u64).collect();
                prop_assert_eq!(selection.starts()[block + 1] - selection.starts()[block], kept.len() as u64);
                for (nth, &sample) in kept.iter().enumerate() {
                    prop_assert_eq!(selection.nth_from(from as u64, nth as u64), sample);
                }
            }
        }
    }
}
