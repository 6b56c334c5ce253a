//! The rest of an epoch that began with other data: the samples that were left, in their old order.
//!
//! ```text
//! epoch e of the old data   ●●●●●●●│○○○○○○○○○○      delivered │ left
//!                                  └─ by identity ─▶ ○○○○○○○○○   the plan of the new data: epoch e
//!                                                    epochs e+1 … of the new data, unchanged
//! ```
//! The list is explicit, because no arithmetic over the new data produces it: 14 bytes for each sample that was left.

use crate::cursor::Carried;
use crate::extent::Extent;
use crate::planned::{PlannedSample, RowKey};
use feedstock_base::{BlockId, Error, Lane, Position, Result, SampleId};
use std::sync::Arc;

/// A sample that is left of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its index in the catalog.
    pub sample: SampleId,
    /// Its lane.
    pub lane: Lane,
    /// How often the epoch has drawn the sample before.
    pub pass: u64,
}

/// The rest of one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Rest {
    pub(crate) epoch: u64,
    pub(crate) carried: Vec<Carried>,
    pub(crate) samples: Vec<u64>,
    pub(crate) lanes: Vec<u16>,
    /// Empty if all are 0, as without weights and in everything but mixes whose parts repeat.
    pub(crate) passes: Vec<u32>,
}

impl Rest {
    /// Makes the rest of `epoch` from the samples of `left`, in this order. `carried` has the orders that the epoch began with,
    /// the oldest first.
    ///
    /// # Errors
    /// `BadConfig` for 2³² samples or more, since their positions have no index.
    pub fn new(epoch: u64, carried: Vec<Carried>, left: &[Left]) -> Result<Self> {
        if u32::try_from(left.len()).is_err() {
            return Err(Error::config(format!(
                "{} samples are left of the epoch; after a change of the data, at most 2^32 - 1 can be carried over: begin \
                 the next epoch instead",
                left.len()
            )));
        }
        let pass = |left: &Left| u32::try_from(left.pass).unwrap_or(u32::MAX);
        let repeats = left.iter().any(|left| left.pass > 0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only the sharing of blocks among ranks depends on it"
        )]
        Ok(Self {
            epoch,
            carried,
            samples: left.iter().map(|left| left.sample.0).collect(),
            lanes: left.iter().map(|left| left.lane.0 as u16).collect(),
            passes: if repeats { left.iter().map(pass).collect() } else { Vec::new() },
        })
    }

    /// Returns the epoch that it is the rest of.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the orders that the epoch began with, the oldest first.
    pub fn carried(&self) -> &[Carried] {
        &self.carried
    }

    /// Returns the number of samples that are left.
    pub fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Whether no sample is left: the epoch is over.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the samples from `position` on, in the form that [`Rest::new`] takes.
    ///
    /// ```
    /// use feedstock_base::{Lane, Position, SampleId};
    /// use feedstock_plan::{Left, Rest};
    ///
    /// let left = [5, 2, 9].map(|sample| Left { sample: SampleId(sample), lane: Lane(0), pass: 0 });
    /// let rest = Rest::new(3, Vec::new(), &left)?;
    /// assert_eq!((rest.epoch(), rest.len()), (3, 3));
    /// assert_eq!(rest.left_from(Position(1)), left[1..]); // if the data change once more
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn left_from(&self, position: Position) -> Vec<Left> {
        (index(position.0).min(self.samples.len())..self.samples.len()).map(|at| self.left(at)).collect()
    }

    fn left(&self, at: usize) -> Left {
        Left {
            sample: SampleId(self.samples[at]),
            lane: Lane(self.lanes[at].into()),
            pass: self.passes.get(at).copied().unwrap_or(0).into(),
        }
    }
}

/// The rest of an epoch over the blocks of a plan.
#[derive(Debug)]
pub(crate) struct RestFacts {
    rest: Arc<Rest>,
    block_starts: Arc<[u64]>,
    lanes: u32,
    /// All positions, by block, then ascending.
    by_block: Vec<u32>,
}

/// The order of the rest of an epoch.
#[derive(Debug, Clone)]
pub(crate) struct RestOrder(pub(crate) Arc<RestFacts>);

impl RestFacts {
    pub(crate) fn new(rest: Arc<Rest>, block_starts: Arc<[u64]>, lanes: u32) -> Result<Self> {
        let samples = block_starts.last().copied().unwrap_or(0);
        if let Some(sample) = rest.samples.iter().find(|sample| **sample >= samples) {
            return Err(Error::config(format!(
                "the rest of the epoch has a sample {sample}, but the data set has {samples} samples: it is another data set"
            )));
        }
        #[expect(clippy::cast_possible_truncation, reason = "Rest::new bounds their number")]
        let mut by_block: Vec<u32> = (0..rest.samples.len() as u32).collect();
        by_block.sort_by_cached_key(|at| block_of(&block_starts, rest.samples[*at as usize]));
        Ok(Self { rest, block_starts, lanes, by_block })
    }

    pub(crate) fn rest(&self) -> &Arc<Rest> {
        &self.rest
    }

    fn block(&self, at: u32) -> BlockId {
        block_of(&self.block_starts, self.rest.samples[at as usize])
    }
}

impl RestOrder {
    pub(crate) fn sample_at(&self, position: u64) -> PlannedSample {
        let left = self.0.rest.left(index(position));
        let block = block_of(&self.0.block_starts, left.sample.0);
        #[expect(clippy::cast_possible_truncation, reason = "a block's samples are counted in u32")]
        let row = (left.sample.0 - self.0.block_starts[block.0 as usize]) as u32;
        PlannedSample {
            sample: left.sample,
            block,
            row,
            pass: left.pass,
            lane: Lane(left.lane.0 % self.0.lanes),
            turn: block.0.into(),
        }
    }

    pub(crate) fn row_key(&self, position: u64) -> RowKey {
        RowKey { lane: self.0.rest.lanes[index(position)].into(), part: 0, entry: position }
    }

    /// Returns the positions of an extent's samples, ascending.
    pub(crate) fn positions_of(&self, extent: Extent) -> Vec<u64> {
        let mut positions: Vec<u64> = self.positions_in(extent).collect();
        positions.sort_unstable(); // those of two blocks, one after the other
        positions
    }

    pub(crate) fn earliest_position(&self, extent: Extent) -> Option<u64> {
        self.positions_in(extent).min()
    }

    /// Returns the positions of an extent's samples, block by block.
    fn positions_in(&self, extent: Extent) -> impl Iterator<Item = u64> + '_ {
        let (facts, samples) = (&self.0, extent.range());
        let last = block_of(&facts.block_starts, samples.end.saturating_sub(1));
        let start = facts.by_block.partition_point(|at| facts.block(*at) < extent.block);
        let of_blocks = facts.by_block[start..].iter().take_while(move |at| facts.block(**at) <= last);
        of_blocks
            .filter(move |at| samples.contains(&facts.rest.samples[**at as usize]))
            .map(|at| u64::from(*at))
    }
}

fn block_of(starts: &[u64], sample: u64) -> BlockId {
    #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
    BlockId((starts.partition_point(|start| *start <= sample) - 1) as u32)
}

#[expect(clippy::cast_possible_truncation, reason = "the samples are listed in memory")]
fn index(n: u64) -> usize {
    n as usize
}
