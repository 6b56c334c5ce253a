//! The audio clips of a catalog whose codecs are not decoded, as their headers state.

use super::{Catalog, Content};
use crate::SampleId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most samples of one codec that a catalog names; it counts all. 1,000 are 6 KB of JSON. A filter that leaves all of them
/// out usually leaves out the codec.
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
    /// The number of samples, selected or not.
    pub samples: u64,
    /// The first of them in catalog order, at most 1,000.
    pub first: Vec<SampleId>,
}

/// Counts the codecs while headers are read, in catalog order.
#[derive(Default)]
pub(crate) struct UnsupportedTally(BTreeMap<&'static str, (u64, Vec<SampleId>)>);

impl UnsupportedTally {
    pub(crate) fn add(&mut self, sample: u64, codec: Option<&'static str>) {
        let Some(codec) = codec else { return };
        let (samples, first) = self.0.entry(codec).or_default();
        *samples += 1;
        if first.len() < NAMED {
            first.push(SampleId(sample));
        }
    }

    pub(crate) fn finish(self, column: &str) -> Vec<UnsupportedAudio> {
        let named = |(codec, (samples, first)): (&str, (u64, Vec<SampleId>))| UnsupportedAudio {
            column: column.to_owned(),
            codec: codec.to_owned(),
            samples,
            first,
        };
        self.0.into_iter().map(named).collect()
    }
}

impl UnsupportedAudio {
    /// Returns a note: the codec, the number of samples, and the first of them.
    pub(crate) fn describe(&self, catalog: &Catalog) -> String {
        format!(
            "{} {} of the codec {}, which is not decoded: {}",
            self.samples,
            if self.samples == 1 { "audio clip is" } else { "audio clips are" },
            self.codec,
            self.examples(catalog)
        )
    }

    /// Returns the names of the first samples, three at most, of the catalog whose ids they have: `a.m4a, b.m4a, c.m4a …`.
    pub fn examples(&self, catalog: &Catalog) -> String {
        let names = self.first.iter().take(EXAMPLES).map(|sample| catalog.describe_sample(*sample));
        let names: Vec<String> = names.collect();
        let more = if self.samples > names.len() as u64 { " …" } else { "" };
        format!("{}{more}", names.join(", "))
    }
}

impl Catalog {
    /// Returns the audio clips whose codecs are not decoded, with the sample ids of this catalog.
    pub(crate) fn unsupported_audio(&self) -> Vec<UnsupportedAudio> {
        let Content::Union(union) = &self.content else { return self.unsupported.clone() };
        let of_parts = union.parts().iter().flat_map(|part| {
            let mut found = part.stored.catalog.unsupported_audio();
            found.iter_mut().flat_map(|codec| &mut codec.first).for_each(|id| id.0 += part.first_sample);
            found
        });
        of_parts.collect()
    }
}
