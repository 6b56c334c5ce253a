//! A set of sample ids, as users choose samples one by one.

use crate::digest::Digest;
use crate::packed::{deflated, inflated};
use feedstock_base::{Error, Result, SampleId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::sync::Arc;

/// Maximum number of ids in a text from another process: 512 MiB in memory.
const MAX_IDS: u64 = 1 << 26;

/// Different sample ids, sorted; 8 bytes each. As text, the differences of neighbours are deflated: 1 to 3 bytes an id.
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Packed {
    samples: u64,
    ids: String,
}

impl Serialize for SampleSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        let bytes: Vec<u8> = self
            .0
            .iter()
            .flat_map(|id| {
                let difference = id - before;
                before = *id;
                difference.to_le_bytes()
            })
            .collect();
        Packed { samples: self.0.len() as u64, ids: deflated(&bytes) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SampleSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Packed { samples, ids } = Packed::deserialize(deserializer)?;
        unpacked(samples, &ids).map(Self).map_err(|why| de::Error::custom(format!("a set of samples: {why}")))
    }
}

fn unpacked(samples: u64, text: &str) -> Result<Arc<[u64]>, String> {
    if samples > MAX_IDS {
        return Err(format!("it has {samples} ids; at most {MAX_IDS} are sent"));
    }
    let bytes = inflated(text, 8 * samples)?;
    if bytes.len() as u64 != 8 * samples {
        return Err("its length differs from the stated one".into());
    }
    let mut before: Option<u64> = None;
    let ids = bytes.as_chunks().0.iter().map(|difference| {
        let difference = u64::from_le_bytes(*difference);
        let id = before
            .map_or(Some(difference), |before| before.checked_add(difference).filter(|id| *id > before));
        before = id;
        id.ok_or_else(|| "its ids do not rise".to_owned())
    });
    ids.collect()
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
            let text = serde_json::to_string(&set).unwrap();
            let sent: SampleSet = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(sent.ids().map(|id| id.0).collect::<BTreeSet<_>>(), ids);
        }
    }

    #[test]
    fn texts_that_are_no_sets_are_refused() {
        let text = |ids: &[u64], samples: u64| {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            serde_json::json!({ "samples": samples, "ids": deflated(&bytes) })
        };
        assert!(serde_json::from_value::<SampleSet>(text(&[3, 1], 2)).is_ok());
        for (differences, samples) in [
            (&[3, 0][..], 2), // an id twice
            (&[3, u64::MAX], 2),
            (&[3, 1], 1),
            (&[3, 1], 3),
            (&[3, 1], 1 << 40),
        ] {
            let refused = serde_json::from_value::<SampleSet>(text(differences, samples));
            assert!(refused.is_err(), "{differences:?} {samples}");
        }
    }
}
