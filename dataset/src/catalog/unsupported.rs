//! The audio clips of a catalog whose codecs are not decoded, as their headers state.

use super::columns::bug;
use super::{Catalog, Content};
use crate::{Result, SampleId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most samples of one codec that a catalog names; it counts all. 1,000 are 6 KB of JSON. They are evenly spread, so a filter
/// that leaves all of them out leaves out nearly all of the codec's samples.
const NAMED: usize = 1000;
/// Samples that a note names.
const EXAMPLES: usize = 3;

/// Audio clips of one codec that is not decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsupportedAudio {
    /// The column.
    pub column: String,
    /// The codec's name: `ALAC`.
    pub codec: String,
    /// The number of samples whose headers name it, selected or not.
    pub samples: u64,
    /// The number of audio clips in the column whose headers were read; `None` if all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<u64>,
    /// These samples in catalog order; of more than 1,000, from 500 to 1,000 that are evenly spread.
    #[serde(alias = "first")]
    pub named: Vec<SampleId>,
}

/// Counts the codecs while headers are read, in catalog order.
#[derive(Default)]
pub(crate) struct UnsupportedTally(BTreeMap<&'static str, Tally>);

/// The samples of one codec.
#[derive(Default)]
struct Tally {
    samples: u64,
    /// Every 2^`halved`-th of them.
    named: Vec<SampleId>,
    halved: u32,
}

impl UnsupportedTally {
    pub(crate) fn add(&mut self, sample: u64, codec: Option<&'static str>) {
        let Some(codec) = codec else { return };
        let tally = self.0.entry(codec).or_default();
        if tally.samples.is_multiple_of(1 << tally.halved) {
            if tally.named.len() == NAMED {
                let mut nth = 0..;
                tally.named.retain(|_| nth.next().is_some_and(|nth| nth % 2 == 0));
                tally.halved += 1;
            }
            tally.named.push(SampleId(sample));
        }
        tally.samples += 1;
    }

    pub(crate) fn finish(self, column: &str, sampled: Option<u64>) -> Vec<UnsupportedAudio> {
        let named = |(codec, tally): (&str, Tally)| UnsupportedAudio {
            column: column.to_owned(),
            codec: codec.to_owned(),
            samples: tally.samples,
            sampled,
            named: tally.named,
        };
        self.0.into_iter().map(named).collect()
    }
}

impl UnsupportedAudio {
    /// Returns a note: the codec, the number of samples, and the first of them.
    pub(crate) fn describe(&self, catalog: &Catalog) -> String {
        let (what, are) = if self.samples == 1 { ("audio clip", "is") } else { ("audio clips", "are") };
        let counted = match self.sampled {
            Some(sampled) => format!("of {sampled} audio clips in '{}', {}", self.column, self.samples),
            None => format!("{} {what}", self.samples),
        };
        format!(
            "{counted} {are} of the codec {}, which is not decoded: {}",
            self.codec,
            self.examples(catalog)
        )
    }

    /// Returns the names of the first samples, three at most, of the catalog whose ids they have: `a.m4a, b.m4a, c.m4a …`.
    pub fn examples(&self, catalog: &Catalog) -> String {
        let names = self.named.iter().take(EXAMPLES).map(|sample| catalog.describe_sample(*sample));
        let names: Vec<String> = names.collect();
        let more = if self.samples > names.len() as u64 { " …" } else { "" };
        format!("{}{more}", names.join(", "))
    }
}

impl Catalog {
    /// Returns the indices of the columns of audio.
    ///
    /// # Errors
    /// `Bug` if the schema lacks one.
    pub(crate) fn audio_indices(&self) -> Result<Vec<usize>> {
        self.audio.iter().map(|name| self.schema.index_of(name).map_err(bug)).collect()
    }

    /// Returns the audio clips whose codecs are not decoded, with the sample ids of this catalog.
    pub(crate) fn unsupported_audio(&self) -> Vec<UnsupportedAudio> {
        if let Content::Derived(derived) = &self.content {
            return self.renamed_audio(derived);
        }
        let Content::Union(union) = &self.content else { return self.unsupported.clone() };
        let of_parts = union.parts().iter().flat_map(|part| {
            let mut found = part.stored.catalog.unsupported_audio();
            found.iter_mut().flat_map(|codec| &mut codec.named).for_each(|id| id.0 += part.first_sample);
            found
        });
        of_parts.collect()
    }

    /// Returns the audio clips of the base whose codecs are not decoded, under the names that their columns have here.
    fn renamed_audio(&self, derived: &super::Derived) -> Vec<UnsupportedAudio> {
        let mut found = derived.base().unsupported_audio();
        for codec in &mut found {
            let is_column = |at: &usize| derived.base_name(*at) == Some(codec.column.as_str());
            if let Some(at) = (0..self.schema.fields().len()).find(is_column) {
                codec.column.clone_from(self.schema.field(at).name());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_samples_those_that_are_named_are_evenly_spread() {
        let mut tally = UnsupportedTally::default();
        (0..10_000).for_each(|sample| tally.add(3 * sample, Some("ALAC")));
        let [alac] = &tally.finish("audio", None)[..] else { panic!("one codec") };
        assert_eq!(alac.samples, 10_000);
        let expected: Vec<SampleId> = (0..10_000).step_by(16).map(|sample| SampleId(3 * sample)).collect();
        assert_eq!(alac.named, expected);
    }
}
