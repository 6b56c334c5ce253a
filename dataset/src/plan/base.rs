//! The base order: what later stages of the plan are built on.

use super::ShuffleKind;
use super::mixed::{MixedFacts, MixedOrder, Stop};
use super::plain::{PlainFacts, PlainOrder, PlannedSample};
use super::rest::RestOrder;
use crate::{BlockId, SampleId};
use std::sync::Arc;

/// What the base order of every epoch is computed from.
#[derive(Debug, Clone)]
pub(super) enum Base {
    /// One data set.
    Plain(Arc<PlainFacts>),
    /// A weighted mix of several.
    Mixed(Arc<MixedFacts>),
}

/// The base order of one epoch.
#[derive(Debug, Clone)]
pub(super) enum BaseOrder {
    Plain(PlainOrder),
    Mixed(MixedOrder),
    /// What is left of an epoch that began with other data.
    Rest(RestOrder),
}

/// Where a row stands among the rows of a step: by lane, then by part, then by entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    /// Of a mix: as a fraction of the part's lanes, × 2³².
    pub(super) lane: u64,
    pub(super) part: usize,
    pub(super) entry: u64,
}

impl Base {
    /// Positions in an epoch.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Plain(facts) => facts.lanes.samples,
            Self::Mixed(facts) => facts.len,
        }
    }

    /// Whether an epoch never ends.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self, Self::Mixed(facts) if facts.stop == Stop::Never)
    }

    /// The samples that take part, in catalog order.
    pub(super) fn selected(&self) -> Box<dyn Iterator<Item = SampleId> + '_> {
        match self {
            Self::Plain(facts) => Box::new(facts.selected()),
            Self::Mixed(facts) => Box::new(facts.selected()),
        }
    }

    /// Whether the filter keeps a sample.
    pub(super) fn is_selected(&self, sample: SampleId) -> bool {
        match self {
            Self::Plain(facts) => facts.is_selected(sample),
            Self::Mixed(facts) => facts.is_selected(sample),
        }
    }

    /// Samples before each block, and their total last.
    pub(super) fn block_starts(&self) -> Arc<[u64]> {
        match self {
            Self::Plain(facts) => facts.block_starts.clone(),
            Self::Mixed(facts) => facts.block_starts(),
        }
    }

    /// Selected samples of `block`.
    pub(super) fn selected_in(&self, block: BlockId) -> u64 {
        match self {
            Self::Plain(facts) => facts.selected_in(block),
            Self::Mixed(facts) => facts.selected_in(block),
        }
    }

    /// Samples shuffled among each other, in whole windows of all lanes; `None` where nothing or everything is.
    pub(super) fn window(&self) -> Option<u64> {
        let whole = |facts: &PlainFacts| {
            (facts.kind == ShuffleKind::Window).then(|| facts.lanes.window * facts.lanes.lanes)
        };
        match self {
            Self::Plain(facts) => whole(facts),
            Self::Mixed(facts) => facts.parts.iter().map(|part| whole(&part.facts)).sum(),
        }
    }

    pub(super) fn epoch(&self, epoch: u64) -> BaseOrder {
        match self {
            Self::Plain(facts) => BaseOrder::Plain(PlainOrder::new(facts.clone(), epoch)),
            Self::Mixed(facts) => BaseOrder::Mixed(MixedOrder::new(facts.clone(), epoch)),
        }
    }
}

impl BaseOrder {
    /// The sample at `position`, which must be one.
    pub(super) fn sample_at(&mut self, position: u64) -> PlannedSample {
        match self {
            Self::Plain(order) => order.sample_at(position),
            Self::Mixed(order) => order.sample_at(position),
            Self::Rest(order) => order.sample_at(position),
        }
    }

    /// Where `position`'s row stands among those of its step.
    pub(super) fn row_key(&mut self, position: u64) -> RowKey {
        match self {
            Self::Plain(order) => {
                let lanes = order.facts.lanes.lanes;
                RowKey { lane: position % lanes, part: 0, entry: position / lanes }
            }
            Self::Mixed(order) => order.row_key(position),
            Self::Rest(order) => order.row_key(position),
        }
    }

    /// Which pass over `block`'s data set is under way at `position`: 0 but in a mix, whose parts may repeat.
    pub(super) fn pass_at(&mut self, block: BlockId, position: u64) -> u64 {
        match self {
            Self::Plain(_) | Self::Rest(_) => 0,
            Self::Mixed(order) => order.pass_at(block, position),
        }
    }

    /// The positions of `block`'s selected samples in one pass, ascending; `None` where the epoch ends before it.
    pub(super) fn positions_in_pass(&mut self, block: BlockId, pass: u64) -> Option<Vec<u64>> {
        match self {
            Self::Plain(order) => (pass == 0).then(|| order.positions_of(block)),
            Self::Mixed(order) => order.positions_in_pass(block, pass),
            Self::Rest(order) => (pass == 0).then(|| order.positions_of(block)),
        }
    }

    /// A position no later than `block`'s first of one pass; `None` where it has none.
    pub(super) fn earliest_in_pass(&mut self, block: BlockId, pass: u64) -> Option<u64> {
        match self {
            Self::Plain(order) => {
                if pass == 0 {
                    order.earliest_position(block)
                } else {
                    None
                }
            }
            Self::Mixed(order) => order.earliest_in_pass(block, pass),
            Self::Rest(order) => {
                if pass == 0 {
                    order.earliest_position(block)
                } else {
                    None
                }
            }
        }
    }
}
