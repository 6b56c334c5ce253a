//! The base order, on which later stages of the plan build.

use crate::extent::Extent;
use crate::mixed::{MixedFacts, MixedOrder, Stop};
use crate::plain::{PlainFacts, PlainOrder};
use crate::planned::{PlannedSample, RowKey};
use crate::rest::RestOrder;
use crate::shuffle::ShuffleKind;
use feedstock_base::{BlockId, SampleId};
use std::sync::Arc;

/// The input of the base order of every epoch.
#[derive(Debug, Clone)]
pub(crate) enum Base {
    /// One data set.
    Plain(Arc<PlainFacts>),
    /// A weighted mix of several.
    Mixed(Arc<MixedFacts>),
}

/// The base order of one epoch.
#[derive(Debug, Clone)]
pub(crate) enum BaseOrder {
    Plain(PlainOrder),
    Mixed(MixedOrder),
    /// The rest of an epoch that began with other data.
    Rest(RestOrder),
}

impl Base {
    /// Returns the number of positions in an epoch.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Plain(facts) => facts.lanes.samples,
            Self::Mixed(facts) => facts.len,
        }
    }

    /// Whether an epoch never ends.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(self, Self::Mixed(facts) if facts.stop == Stop::Never)
    }

    /// Returns the samples that take part, in catalog order.
    pub(crate) fn selected(&self) -> Box<dyn Iterator<Item = SampleId> + '_> {
        match self {
            Self::Plain(facts) => Box::new(facts.selected()),
            Self::Mixed(facts) => Box::new(facts.selected()),
        }
    }

    /// Whether the filter keeps a sample.
    pub(crate) fn is_selected(&self, sample: SampleId) -> bool {
        match self {
            Self::Plain(facts) => facts.is_selected(sample),
            Self::Mixed(facts) => facts.is_selected(sample),
        }
    }

    /// Returns the samples before each block, and their total last.
    pub(crate) fn block_starts(&self) -> Arc<[u64]> {
        match self {
            Self::Plain(facts) => facts.block_starts.clone(),
            Self::Mixed(facts) => facts.block_starts(),
        }
    }

    /// Returns the number of selected samples of `block`.
    pub(crate) fn selected_in(&self, block: BlockId) -> u64 {
        match self {
            Self::Plain(facts) => facts.selected_in(block),
            Self::Mixed(facts) => facts.selected_in(block),
        }
    }

    /// Returns the extent that is fetched for a selected sample of `block`. `continues` states whether one request can read over the
    /// end of a block.
    pub(crate) fn extent_of(
        &self,
        block: BlockId,
        sample: SampleId,
        continues: &impl Fn(BlockId) -> bool,
    ) -> Extent {
        match self {
            Self::Plain(facts) => facts.extent_of(block, sample, continues),
            Self::Mixed(facts) => facts.extent_of(block, sample, continues),
        }
    }

    /// Returns the number of selected samples of an extent.
    pub(crate) fn selected_of(&self, extent: Extent) -> u64 {
        match self {
            Self::Plain(facts) => facts.selected_of(extent),
            Self::Mixed(facts) => facts.selected_of(extent),
        }
    }

    /// Returns the number of samples that are shuffled among each other, in whole windows of all lanes; `None` if nothing or
    /// everything is shuffled.
    pub(crate) fn window(&self) -> Option<u64> {
        let whole = |facts: &PlainFacts| {
            (facts.kind == ShuffleKind::Window).then(|| facts.lanes.window * facts.lanes.lanes)
        };
        match self {
            Self::Plain(facts) => whole(facts),
            Self::Mixed(facts) => facts.parts.iter().map(|part| whole(&part.facts)).sum(),
        }
    }

    pub(crate) fn epoch(&self, epoch: u64) -> BaseOrder {
        match self {
            Self::Plain(facts) => BaseOrder::Plain(PlainOrder::new(facts.clone(), epoch)),
            Self::Mixed(facts) => BaseOrder::Mixed(MixedOrder::new(facts.clone(), epoch)),
        }
    }
}

impl BaseOrder {
    /// Returns the sample at `position`, which must exist.
    pub(crate) fn sample_at(&mut self, position: u64) -> PlannedSample {
        match self {
            Self::Plain(order) => order.sample_at(position),
            Self::Mixed(order) => order.sample_at(position),
            Self::Rest(order) => order.sample_at(position),
        }
    }

    /// Returns the key that sorts `position`'s row among those of its step.
    pub(crate) fn row_key(&mut self, position: u64) -> RowKey {
        match self {
            Self::Plain(order) => {
                let lanes = order.facts.lanes.lanes;
                RowKey { lane: position % lanes, part: 0, entry: position / lanes }
            }
            Self::Mixed(order) => order.row_key(position),
            Self::Rest(order) => order.row_key(position),
        }
    }

    /// Returns the pass over the extent's data set at `position`: 0 except in a mix, whose parts may repeat.
    pub(crate) fn pass_at(&mut self, extent: Extent, position: u64) -> u64 {
        match self {
            Self::Plain(_) | Self::Rest(_) => 0,
            Self::Mixed(order) => order.pass_at(extent.block, position),
        }
    }

    /// Returns the positions of an extent's selected samples in one pass, ascending; `None` if the epoch ends before it.
    pub(crate) fn positions_in_pass(&mut self, extent: Extent, pass: u64) -> Option<Vec<u64>> {
        match self {
            Self::Plain(order) => (pass == 0).then(|| order.positions_of(extent)),
            Self::Mixed(order) => order.positions_in_pass(extent, pass),
            Self::Rest(order) => (pass == 0).then(|| order.positions_of(extent)),
        }
    }

    /// Returns a position no later than the extent's first of one pass; `None` if it has none.
    pub(crate) fn earliest_in_pass(&mut self, extent: Extent, pass: u64) -> Option<u64> {
        match self {
            Self::Plain(order) => {
                if pass == 0 {
                    order.earliest_position(extent)
                } else {
                    None
                }
            }
            Self::Mixed(order) => order.earliest_in_pass(extent, pass),
            Self::Rest(order) => {
                if pass == 0 {
                    order.earliest_position(extent)
                } else {
                    None
                }
            }
        }
    }
}
