//! A set of sample ids, as users choose samples one by one.

use crate::deflated::{deflated, inflated};
use crate::digest::Digest;
use feedstock_base::{Error, Result, SampleId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Different sample ids, sorted; 8 bytes each.
///
/// ```
/// use feedstock_base::SampleId;
/// use feedstock_plan::SampleSet;
///
/// let set = SampleSet::new([7, 2, 5].map(SampleId))?;
/// assert_eq!(set.ids().collect::<Vec<_>>(), [2, 5, 7].map(SampleId));
/// let error = SampleSet::new([7, 2, 7].map(SampleId)).unwrap_err();
/// assert_eq!(error.message(), "sample 7 is listed twice; list each sample once");
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SampleSet(Arc<[u64]>);

impl SampleSet {
    /// Collects ids in any sequence.
    ///
    /// # Errors
    /// `BadConfig` for an id that is listed twice.
    pub fn new(ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        let mut ids: Vec<u64> = ids.into_iter().map(|sample| sample.0).collect();
        ids.sort_unstable();
        match ids.array_windows().find(|[a, b]| a == b) {
            Some([twice, _]) => {
                Err(Error::config(format!("sample {twice} is listed twice; list each sample once")))
            }
            None => Ok(Self(ids.into())),
        }
    }

    /// Returns the ids, rising.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = SampleId> + ExactSizeIterator + '_ {
        self.0.iter().copied().map(SampleId)
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no ids.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the digest of its ids.
    pub fn digest(&self) -> Digest {
        self.ids().collect()
    }
}

impl fmt::Debug for SampleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleSet({})", self.digest())
    }
}

/// A set of sample ids as text: the deflated differences of neighbours, 1 to 3 bytes an id.
///
/// It is unpacked only when the number of samples is known, so a short text from another process does not take much memory.
///
/// ```
/// use feedstock_base::SampleId;
/// use feedstock_plan::{PackedSet, SampleSet};
///
/// let set = SampleSet::new([7, 2, 5].map(SampleId))?;
/// let packed = PackedSet::of(&set);
/// assert_eq!(packed.unpack(8)?, set);
/// assert!(packed.unpack(2).is_err()); // of a data set of 2 samples
/// # Ok::<(), feedstock_base::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedSet {
    samples: u64,
    ids: String,
}

impl PackedSet {
    /// Returns the set as text.
    pub fn of(set: &SampleSet) -> Self {
        let mut before = 0;
        let differences = set.0.iter().flat_map(|id| {
            let difference = id - before;
            before = *id;
            difference.to_le_bytes()
        });
        Self { samples: set.0.len() as u64, ids: deflated(&differences.collect::<Vec<u8>>()) }
    }

    /// Returns the set, which has at most `most` ids.
    ///
    /// # Errors
    /// `BadConfig` for more ids, and for a text that is not a set.
    pub fn unpack(&self, most: u64) -> Result<SampleSet> {
        let wrong = |why: String| Error::config(format!("a set of samples: {why}"));
        if self.samples > most {
            return Err(wrong(format!("it has {} ids, but there are only {most} samples", self.samples)));
        }
        let bytes = inflated(&self.ids, self.samples.saturating_mul(8)).map_err(wrong)?;
        if bytes.len() as u64 != self.samples.saturating_mul(8) {
            return Err(wrong("its length differs from the stated one".into()));
        }
        let mut before: Option<u64> = None;
        let ids = bytes.as_chunks().0.iter().map(|difference| {
            let difference = u64::from_le_bytes(*difference);
            let id = before
                .map_or(Some(difference), |before| before.checked_add(difference).filter(|id| *id > before));
            before = id;
            id.ok_or_else(|| wrong("its ids do not rise".into()))
        });
        ids.collect::<Result<Arc<[u64]>>>().map(SampleSet)
    }

    /// Returns the digest of its ids as text; that of no ids for a text that is not a set.
    pub fn digest(&self) -> String {
        self.unpack(self.samples).map_or_else(|_| Digest::default(), |set| set.digest()).to_string()
    }
}

impl fmt::Debug for PackedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedSet({} ids)", self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_is_the_same_after_it_was_sent(ids in prop::collection::btree_set(any::<u64>(), 0..300)) {
            let set = SampleSet::new(ids.iter().rev().copied().map(SampleId)).unwrap();
            let text = serde_json::to_string(&PackedSet::of(&set)).unwrap();
            let sent: PackedSet = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(serde_json::to_string(&sent).unwrap(), text, "names of recipes hash the text");
            let sent = sent.unpack(u64::MAX).unwrap();
            prop_assert_eq!(sent.ids().map(|id| id.0).collect::<BTreeSet<_>>(), ids);
        }
    }

    #[test]
    fn texts_that_are_no_sets_are_refused() {
        let packed = |ids: &[u64], samples: u64| {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            PackedSet { samples, ids: deflated(&bytes) }
        };
        assert!(packed(&[3, 1], 2).unpack(2).is_ok());
        for (differences, samples) in [
            (&[3, 0][..], 2), // an id twice
            (&[3, u64::MAX], 2),
            (&[3, 1], 1),
            (&[3, 1], 3),
            (&[3, 1], u64::MAX),
        ] {
            assert!(packed(differences, samples).unpack(u64::MAX).is_err(), "{differences:?} {samples}");
        }
        assert!(packed(&[3, 1], 2).unpack(1).is_err(), "more ids than samples");
        assert!(PackedSet { samples: 2, ids: "no base64".into() }.unpack(9).is_err());
    }
}
