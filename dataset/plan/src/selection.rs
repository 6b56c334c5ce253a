//! Which samples take part, and how often in an epoch: one bit a sample, and a prefix sum a block.
//!
//! An epoch *draws* samples: each once, or as often as weights state. Draws are numbered in catalog order, those of one sample
//! one after another:
//!
//! ```text
//! samples   0  1  2  3 │ 4  5        bits     1 0 1 1 │ 1 0        draws     2 - 1 1 │ 3 -
//! numbers   0, 1 – 2, 3 │ 4, 5, 6                                  ends      2   3 4 │ 7
//! ```

use crate::sample_set::SampleSet;
use arrow_buffer::bit_iterator::BitIndexIterator;
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use feedstock_base::SampleId;
use std::ops::Range;
use std::sync::Arc;

/// The samples that take part, by block.
///
/// It takes one bit a sample of the catalog and eight bytes a block; with weights, eight bytes a kept sample more.
#[derive(Debug, Clone)]
pub struct Selection {
    bits: BooleanBuffer,
    /// `selected_starts[b]`: draws before block `b`; one more entry than blocks.
    selected_starts: Arc<[u64]>,
    /// How often samples are drawn; `None` for once each.
    repeats: Option<Arc<Repeats>>,
}

/// How often each kept sample is drawn.
#[derive(Debug)]
struct Repeats {
    /// Kept samples before each block, and their total last.
    kept_starts: Vec<u64>,
    /// Draws of each kept sample and of all before it: rises.
    ends: Vec<u64>,
}

impl Repeats {
    /// Returns the draws before a kept sample, which is numbered among the kept ones.
    fn start(&self, kept: u64) -> u64 {
        kept.checked_sub(1).map_or(0, |last| self.ends[index(last)])
    }

    /// Returns the number of kept samples whose first draw is before `draw`.
    fn begun_before(&self, draw: u64) -> u64 {
        match draw {
            0 => 0,
            // The first one begins at draw 0, each other one where the one before it ends.
            draw => (1 + self.ends.partition_point(|&end| end < draw)).min(self.ends.len()) as u64,
        }
    }
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
        Self { bits, selected_starts: selected_starts.into(), repeats: None }
    }

    /// Draws each kept sample as often as stated: `draws` has a number for each of them, in catalog order; 0 leaves it out.
    ///
    /// ```
    /// use feedstock_plan::Selection;
    ///
    /// let blocks = [0, 2, 4];
    /// let kept = Selection::from_bools(vec![true, true, false, true].into(), &blocks);
    /// let drawn = kept.repeated(vec![3, 0, 2], &blocks);
    /// assert_eq!((kept.len(), drawn.len()), (3, 5));
    /// assert_eq!(drawn.bits().set_indices().collect::<Vec<_>>(), [0, 3]);
    /// ```
    ///
    /// # Panics
    /// If there is not one number for each kept sample, or if they sum to 2⁶⁴ or more.
    #[must_use]
    pub fn repeated(&self, mut draws: Vec<u64>, block_starts: &[u64]) -> Self {
        assert_eq!(draws.len(), self.bits.count_set_bits(), "one number for each kept sample");
        let mut bits = BooleanBufferBuilder::new(self.bits.len());
        bits.append_buffer(&self.bits);
        for (at, _) in self.bits.set_indices().zip(&draws).filter(|(_, draws)| **draws == 0) {
            bits.set_bit(at, false);
        }
        let mut total = 0u64;
        draws.retain_mut(|draws| {
            let is_drawn = *draws > 0;
            total = total.checked_add(*draws).unwrap_or_else(|| unreachable!("2⁶⁴ draws"));
            *draws = total;
            is_drawn
        });
        let kept = Self::from_bools(bits.finish(), block_starts);
        let repeats = Repeats { kept_starts: kept.selected_starts.to_vec(), ends: draws };
        let starts = repeats.kept_starts.iter().map(|kept| repeats.start(*kept)).collect();
        Self { bits: kept.bits, selected_starts: starts, repeats: Some(Arc::new(repeats)) }
    }

    /// Whether samples may be drawn more than once.
    pub fn is_repeated(&self) -> bool {
        self.repeats.is_some()
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
    /// If the two come from different catalogs, or if samples are [`repeated`](Self::repeated).
    #[must_use]
    pub fn and(&self, other: &Self, block_starts: &[u64]) -> Self {
        assert!(!self.is_repeated() && !other.is_repeated(), "samples are repeated last");
        Self::from_bools(&self.bits & &other.bits, block_starts)
    }

    /// Keeps all samples.
    pub fn all(block_starts: &[u64]) -> Self {
        let samples = index(block_starts.last().copied().unwrap_or(0));
        Self::from_bools(BooleanBuffer::new_set(samples), block_starts)
    }

    /// Keeps the samples of a set; `None` if it has ids that the catalog does not have.
    pub fn of_set(set: &SampleSet, block_starts: &[u64]) -> Option<Self> {
        let samples = block_starts.last().copied().unwrap_or(0);
        if set.ids().next_back().is_some_and(|last| last.0 >= samples) {
            return None;
        }
        let mut bits = BooleanBufferBuilder::new(index(samples));
        bits.append_n(index(samples), false);
        set.ids().for_each(|sample| bits.set_bit(index(sample.0), true));
        Some(Self::from_bools(bits.finish(), block_starts))
    }

    /// Returns the first `n` of the kept samples, in catalog order; all of them if there are fewer.
    ///
    /// ```
    /// use feedstock_plan::Selection;
    ///
    /// let blocks = [0, 2, 5];
    /// let kept = Selection::from_bools(vec![true, false, true, true, true].into(), &blocks);
    /// let ids = |selection: Selection| selection.bits().set_indices().collect::<Vec<_>>();
    /// assert_eq!(ids(kept.take(2, &blocks)), [0, 2]);
    /// assert_eq!(ids(kept.skip(2, &blocks)), [3, 4]);
    /// assert_eq!((kept.take(9, &blocks).len(), kept.skip(9, &blocks).len()), (4, 0));
    /// ```
    ///
    /// # Panics
    /// If it comes from another catalog, or if samples are [`repeated`](Self::repeated).
    #[must_use]
    pub fn take(&self, n: u64, block_starts: &[u64]) -> Self {
        self.within(0..self.end_of_first(n, block_starts), block_starts)
    }

    /// Returns the kept samples without the first `n` of them, in catalog order; [`take`](Self::take) has an example.
    ///
    /// # Panics
    /// If it comes from another catalog, or if samples are [`repeated`](Self::repeated).
    #[must_use]
    pub fn skip(&self, n: u64, block_starts: &[u64]) -> Self {
        self.within(self.end_of_first(n, block_starts)..self.bits.len() as u64, block_starts)
    }

    /// Returns the id after the first `n` kept samples.
    fn end_of_first(&self, n: u64, block_starts: &[u64]) -> u64 {
        assert!(!self.is_repeated(), "samples are repeated last");
        match n {
            0 => 0,
            n if n >= self.len() => self.bits.len() as u64,
            n => {
                let block = self.selected_starts.partition_point(|&start| start < n) - 1;
                self.nth_from(block_starts[block], n - 1 - self.selected_starts[block]) + 1
            }
        }
    }

    /// Returns the kept samples with ids in a range.
    fn within(&self, ids: Range<u64>, block_starts: &[u64]) -> Self {
        let (start, end, samples) = (index(ids.start), index(ids.end), self.bits.len());
        let mut bits = BooleanBufferBuilder::new(samples);
        bits.append_n(start, false);
        bits.append_buffer(&self.bits.slice(start, end - start));
        bits.append_n(samples - end, false);
        Self::from_bools(bits.finish(), block_starts)
    }

    /// Returns the ids of the first and the last kept sample; `None` if nothing is kept.
    pub fn bounds(&self) -> Option<(SampleId, SampleId)> {
        let first = self.bits.set_indices().next()?;
        let words = (0..self.bits.len().div_ceil(64)).rev();
        let last = words.map(|word| {
            let at = 64 * word;
            let set = self.bits.slice(at, (self.bits.len() - at).min(64));
            set.set_indices().last().map(|bit| at + bit)
        });
        let last = last.flatten().next()?;
        Some((SampleId(first as u64), SampleId(last as u64)))
    }

    /// Returns one bit a sample of the catalog.
    pub fn bits(&self) -> &BooleanBuffer {
        &self.bits
    }

    /// Returns the number of draws: of samples kept, unless they are [`repeated`](Self::repeated).
    pub fn len(&self) -> u64 {
        self.selected_starts.last().copied().unwrap_or(0)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the sample with this id is kept.
    pub fn contains(&self, sample: SampleId) -> bool {
        self.bits.value(index(sample.0))
    }

    /// Returns the draws with these numbers: the samples, in catalog order, one for each draw.
    ///
    /// ```
    /// use feedstock_base::SampleId;
    /// use feedstock_plan::Selection;
    ///
    /// let blocks = [0, 2, 4];
    /// let kept = Selection::from_bools(vec![true, false, true, true].into(), &blocks);
    /// assert_eq!(kept.range(1..9).collect::<Vec<_>>(), [SampleId(2), SampleId(3)]);
    /// assert_eq!(kept.repeated(vec![2, 0, 3], &blocks).range(1..3).collect::<Vec<_>>(), [SampleId(0), SampleId(3)]);
    /// ```
    pub fn range(&self, numbers: Range<u64>) -> Box<dyn Iterator<Item = SampleId> + '_> {
        let start = numbers.start.min(self.len());
        let count = index(numbers.end.min(self.len()).saturating_sub(start));
        if self.is_repeated() || count == 0 {
            return Box::new(self.draws().skip(index(start)).take(count));
        }
        let from = index(self.nth_from(0, start));
        let kept =
            BitIndexIterator::new(self.bits.inner(), self.bits.offset() + from, self.bits.len() - from);
        Box::new(kept.take(count).map(move |at| SampleId((from + at) as u64)))
    }

    /// Returns a hash of the kept samples, and of how often they are drawn.
    pub(crate) fn hash(&self) -> u64 {
        let words: Vec<u64> = self.bits.bit_chunks().iter_padded().collect();
        let bits = crate::random::hash(&words);
        match &self.repeats {
            None => bits,
            Some(repeats) => crate::random::hash(&[bits, crate::random::hash(&repeats.ends)]),
        }
    }

    /// Returns all draws, in their sequence.
    pub(crate) fn draws(&self) -> impl Iterator<Item = SampleId> + '_ {
        (0u64..).zip(self.bits.set_indices()).flat_map(|(kept, sample)| {
            let times =
                self.repeats.as_ref().map_or(1, |repeats| repeats.start(kept + 1) - repeats.start(kept));
            std::iter::repeat_n(SampleId(sample as u64), index(times))
        })
    }

    /// Returns the sample of the `nth` draw of a block, which must exist, and how often it was drawn before.
    pub(crate) fn draw(&self, block: usize, block_start: u64, nth: u64) -> (u64, u64) {
        let Some(repeats) = &self.repeats else { return (self.nth_from(block_start, nth), 0) };
        let draw = self.selected_starts[block] + nth;
        let kept = repeats.begun_before(draw + 1) - 1;
        (self.nth_from(block_start, kept - repeats.kept_starts[block]), draw - repeats.start(kept))
    }

    /// Returns the number of draws before `sample`, which is in the block or at its end.
    pub(crate) fn draws_before(&self, block: usize, block_start: u64, sample: u64) -> u64 {
        let kept = self.count(block_start..sample);
        match &self.repeats {
            None => self.selected_starts[block] + kept,
            Some(repeats) => repeats.start(repeats.kept_starts[block] + kept),
        }
    }

    /// Returns the first sample whose first draw is in `draws`, and the number of such samples. At least one must be, and the first
    /// of them is in `block` or after it.
    pub(crate) fn begun_in(&self, draws: Range<u64>, block: usize, block_start: u64) -> (u64, u64) {
        let (first, end, before) = match &self.repeats {
            None => (draws.start, draws.end, self.selected_starts[block]),
            Some(repeats) => {
                let begun = |draw| repeats.begun_before(draw);
                (begun(draws.start), begun(draws.end), repeats.kept_starts[block])
            }
        };
        (self.nth_from(block_start, first - before), end - first)
    }

    /// Returns the number of kept samples of a range.
    fn count(&self, samples: Range<u64>) -> u64 {
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
        fn take_and_skip_cut_the_kept_samples(
            bits in prop::collection::vec(any::<bool>(), 1..400), cut in 0usize..400, n in 0usize..420,
        ) {
            let starts = [0, cut.min(bits.len()) as u64, bits.len() as u64];
            let kept: Vec<usize> = (0..bits.len()).filter(|&i| bits[i]).collect();
            let selection = Selection::from_bools(BooleanBuffer::from(bits), &starts);
            let ids = |selection: &Selection| selection.bits().set_indices().collect::<Vec<_>>();
            let (first, rest) = (selection.take(n as u64, &starts), selection.skip(n as u64, &starts));
            prop_assert_eq!(ids(&first), &kept[..n.min(kept.len())]);
            prop_assert_eq!(ids(&rest), &kept[n.min(kept.len())..]);
            prop_assert_eq!(first.len() + rest.len(), kept.len() as u64);
            let bounds = kept.first().zip(kept.last()).map(|(&a, &b)| (SampleId(a as u64), SampleId(b as u64)));
            prop_assert_eq!(selection.bounds(), bounds);
            let set = SampleSet::new(kept.iter().map(|&id| SampleId(id as u64))).unwrap();
            prop_assert_eq!(ids(&Selection::of_set(&set, &starts).unwrap()), kept);
        }

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
