//! Numbers as text, for workers: differences, deflated, in base64. The rest of an epoch takes about 4 bytes a sample.

use crate::cursor::Carried;
use crate::deflated::{deflated, inflated};
use crate::rest::Rest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Maximum number of samples in a text from another process: 900 MiB in memory.
const MAX_SAMPLES: u64 = 1 << 26;
/// A sample's index, its lane and its pass.
const SAMPLE_BYTES: u64 = 8 + 2 + 4;

/// The form that is sent to workers.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Packed {
    epoch: u64,
    carried: Vec<Carried>,
    samples: u64,
    columns: String,
}

impl From<&Rest> for Packed {
    fn from(rest: &Rest) -> Self {
        let mut bytes = Vec::new();
        let mut before = 0u64;
        for sample in &rest.samples {
            bytes.extend(sample.wrapping_sub(before).to_le_bytes());
            before = *sample;
        }
        bytes.extend(rest.lanes.iter().flat_map(|lane| lane.to_le_bytes()));
        bytes.extend(rest.passes.iter().flat_map(|pass| pass.to_le_bytes()));
        Self {
            epoch: rest.epoch,
            samples: rest.samples.len() as u64,
            carried: rest.carried.clone(),
            columns: deflated(&bytes),
        }
    }
}

impl TryFrom<Packed> for Rest {
    type Error = String;

    fn try_from(packed: Packed) -> Result<Self, String> {
        let Packed { epoch, carried, samples, columns } = packed;
        if samples > MAX_SAMPLES {
            return Err(format!(
                "the rest of an epoch has {samples} samples; at most {MAX_SAMPLES} are sent"
            ));
        }
        let bytes = inflated(&columns, samples * SAMPLE_BYTES)
            .map_err(|why| format!("the rest of an epoch: {why}"))?;
        let samples = usize::try_from(samples).map_err(|e| e.to_string())?;
        let (ids, others) = bytes.split_at_checked(8 * samples).ok_or("the rest of an epoch is cut off")?;
        let (lanes, passes) =
            others.split_at_checked(2 * samples).ok_or("the rest of an epoch is cut off")?;
        if !passes.is_empty() && passes.len() != 4 * samples {
            return Err("the rest of an epoch has columns of different lengths".into());
        }
        let mut before = 0u64;
        let ids = ids.as_chunks().0.iter().map(|difference| {
            before = before.wrapping_add(u64::from_le_bytes(*difference));
            before
        });
        Ok(Self {
            epoch,
            carried,
            samples: ids.collect(),
            lanes: lanes.as_chunks().0.iter().map(|lane| u16::from_le_bytes(*lane)).collect(),
            passes: passes.as_chunks().0.iter().map(|pass| u32::from_le_bytes(*pass)).collect(),
        })
    }
}

impl Serialize for Rest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Packed::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Packed::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::Left;
    use feedstock_base::{Lane, SampleId};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_rest_is_the_same_after_it_was_sent(
            rows in prop::collection::vec((any::<u64>(), any::<u16>(), 0u64..3), 0..300), epoch: u64,
        ) {
            let left = rows.iter().map(|&(sample, lane, pass)| {
                Left { sample: SampleId(sample), lane: Lane(lane.into()), pass }
            });
            let rest = Rest::new(epoch, Vec::new(), &left.collect::<Vec<_>>()).unwrap();
            let text = serde_json::to_string(&rest).unwrap();
            prop_assert_eq!(serde_json::from_str::<Rest>(&text).unwrap(), rest);
        }
    }

    #[test]
    fn texts_that_lie_about_their_length_are_refused() {
        let left = [Left { sample: SampleId(7), lane: Lane(1), pass: 0 }; 100];
        let text = serde_json::to_value(Rest::new(0, Vec::new(), &left).unwrap()).unwrap();
        for (field, value) in [("samples", 99u64), ("samples", 101), ("samples", 1 << 40)] {
            let mut text = text.clone();
            text[field] = value.into();
            assert!(serde_json::from_value::<Rest>(text).is_err(), "{field} {value}");
        }
        let mut cut = text;
        cut["columns"] = "AAAA".into();
        assert!(serde_json::from_value::<Rest>(cut).is_err());
    }
}
