//! The plan that is simulated, and the bytes of its samples.

use crate::recipe::{ByLength, RecipeSpec};
use crate::run::walk::Walk;
use feedstock_dataset::{
    Access, BadShards, DataHashes, DatasetSpec, Durations, Plan, PlanInput, Position, Rank, SampleId,
    Shuffle, SourceSpec, StepShape, StepSize, Tail, TarHeaders,
};
use feedstock_ops::{DType, Layout, TensorSpec, Warning, Warnings};
use std::sync::Arc;

pub(super) const SAMPLES: u64 = 600;
pub(super) const BATCH: u64 = 24;
pub(super) const EPOCHS: u64 = 3;
pub(super) const SLOTS: usize = 3;

/// Pseudo-random numbers for the faults' times: splitmix64, as the order's own.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

pub(super) fn plan() -> Plan {
    let input = PlanInput {
        block_starts: (0..=SAMPLES / 20).map(|block| block * 20).collect(),
        selection: None,
        data: DataHashes { identity: 1, blocks: 1, legacy: 1 },
        filter: None,
        encoded_bytes: SAMPLES * 1000,
        access: Access::Blocks,
    };
    Plan::new(input, &Shuffle::seeded(5).window(200).lanes(8)).unwrap()
}

pub(super) fn shape() -> StepShape {
    StepShape { size: StepSize::Rows(BATCH), rank: Rank::new(0, 1), tail: Tail::Pad }
}

/// From this step of the first epoch on.
pub(super) fn walk(step: u64) -> Walk {
    Walk::new(plan(), shape(), None, (0, Position(step * BATCH)), Some(EPOCHS))
}

/// A fixed tensor of 40 bytes, and a ragged one.
pub(super) fn specs() -> Arc<[TensorSpec]> {
    let fixed = TensorSpec::new(DType::U8, [40], Layout::T);
    [fixed, TensorSpec::new(DType::U8, [0], Layout::T).ragged(0)].into()
}

/// The bytes of a sample's column in an epoch.
pub(super) fn bytes(epoch: u64, sample: SampleId, column: usize) -> Vec<u8> {
    let length = if column == 0 { 40 } else { (sample.0 % 7) as usize };
    (0..length).map(|i| (epoch * 31 + sample.0 * 7 + i as u64 + column as u64) as u8).collect()
}

pub(super) fn spec() -> RecipeSpec {
    let source = SourceSpec::Uri {
        uri: "memory://simulated".into(),
        layout: None,
        split: None,
        durations: Durations::Never,
        block_bytes: 1 << 20,
        bad_shards: BadShards::Raise,
        tar_headers: TarHeaders::Open,
        pair: Default::default(),
        annotations: None,
    };
    let dataset = DatasetSpec {
        source,
        filter: None,
        steps: Vec::new(),
        joined: Vec::new(),
        columns: None,
        name: None,
    };
    RecipeSpec {
        dataset,
        maps: Vec::new(),
        shuffle: Shuffle::none(),
        by_length: ByLength::default(),
        seed: 0,
        rest: None,
        functions: None,
    }
}

/// Every seventh sample is unusual.
pub(super) fn warnings(sample: SampleId) -> Warnings {
    sample.0.is_multiple_of(7).then_some(Warning::EndUnknown).into_iter().collect()
}
