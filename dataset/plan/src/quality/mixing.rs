//! What is in one batch: labels, pairs from one shard, and how far samples moved.

use super::sampled::{SampledStep, SampledSteps};
use crate::plan::Plan;
use feedstock_base::{BlockId, SampleId};

/// The labels of a batch, as means over the sampled batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelMix {
    /// The entropy of the labels' shares in a batch, in bits: 0 for batches of one label, log₂ n for n labels in equal shares.
    pub entropy_bits: f64,
    /// Different labels in a batch.
    pub labels: f64,
}

impl SampledSteps {
    /// Returns the labels of global batches, from the first `steps` sampled steps. `label` gives a code for the label of a
    /// sample; equal labels have equal codes.
    pub fn global_labels(&self, steps: usize, label: &impl Fn(SampleId) -> u64) -> LabelMix {
        let batches = self.steps.iter().take(steps).map(|step| codes(step, 0..step.rows.len(), label));
        LabelMix::of(batches)
    }

    /// Returns the labels of the ranks' batches: each rank's share of a step is one.
    pub fn rank_labels(&self, steps: usize, label: &impl Fn(SampleId) -> u64) -> LabelMix {
        let steps = self.steps.iter().take(steps);
        let batches = steps.flat_map(|step| {
            self.shares(step.rows.len())
                .filter(|share| !share.is_empty())
                .map(|share| codes(step, share, label))
        });
        LabelMix::of(batches)
    }

    /// Returns the share of the pairs of samples in a global batch that come from one shard, 0 … 1. `shard` gives the shard of
    /// a block. `None` if no sampled step has two rows.
    pub fn same_shard_pairs(&self, shard: &impl Fn(BlockId) -> u32) -> Option<f64> {
        let (mut sum, mut steps) = (0.0, 0u64);
        for step in self.steps.iter().filter(|step| step.rows.len() > 1) {
            let mut shards: Vec<u64> = step.rows.iter().map(|row| shard(row.block).into()).collect();
            let rows = shards.len() as f64;
            let pairs: f64 = counts(&mut shards).map(|n| n * (n - 1.0)).sum();
            sum += pairs / (rows * (rows - 1.0));
            steps += 1;
        }
        (steps > 0).then(|| sum / steps as f64)
    }

    /// Returns how far samples move, on average: |position − rank in the catalog| ÷ samples. A full shuffle has ⅓, the
    /// catalog's order 0. `None` for a mix, whose positions do not correspond to the catalog's.
    ///
    /// `plan` must be the plan that was sampled. With a filter, a sample's rank is exact to within its block.
    pub fn displacement(&self, plan: &Plan) -> Option<f64> {
        if plan.is_mix() {
            return None;
        }
        let mut rows: Vec<_> = self.steps.iter().flat_map(|step| &step.rows).collect();
        rows.sort_unstable_by_key(|row| row.block);
        let (mut block, mut before, mut selected) = (BlockId(0), 0, 0);
        let mut moved = 0.0;
        for row in &rows {
            if (block, selected) == (BlockId(0), 0) {
                selected = plan.selected_in(block);
            }
            while block < row.block {
                before += selected;
                block = BlockId(block.0 + 1);
                selected = plan.selected_in(block);
            }
            let rank = before + u64::from(row.row).min(selected.saturating_sub(1));
            moved += rank.abs_diff(row.position) as f64;
        }
        (!rows.is_empty()).then(|| moved / rows.len() as f64 / plan.len() as f64)
    }
}

impl LabelMix {
    /// Returns the means over batches, each given by the codes of its labels.
    fn of(batches: impl Iterator<Item = Vec<u64>>) -> Self {
        let (mut bits, mut labels, mut number) = (0.0, 0.0, 0.0);
        for mut codes in batches {
            let rows = codes.len() as f64;
            // Sorted, so that the sum is the same whichever codes name the same groups.
            let mut groups: Vec<f64> = counts(&mut codes).collect();
            groups.sort_unstable_by(f64::total_cmp);
            for n in groups {
                bits -= n / rows * (n / rows).log2();
                labels += 1.0;
            }
            number += 1.0;
        }
        let number = f64::max(number, 1.0);
        Self { entropy_bits: bits / number, labels: labels / number }
    }
}

fn codes(step: &SampledStep, rows: std::ops::Range<usize>, label: &impl Fn(SampleId) -> u64) -> Vec<u64> {
    step.rows[rows].iter().map(|row| label(row.sample)).collect()
}

/// Returns how often each value occurs.
fn counts(values: &mut [u64]) -> impl Iterator<Item = f64> + '_ {
    values.sort_unstable();
    values.chunk_by(|a, b| a == b).map(|equal| equal.len() as f64)
}
