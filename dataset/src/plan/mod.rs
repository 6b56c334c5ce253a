//! The plan: which sample stands at which position of which epoch. Pure arithmetic: no I/O, no clock.
//!
//! ```text
//! blocks ──permute by epoch──▶ block order ──cut──▶ C lanes ──shuffle windows──▶ position p = entry p/C of lane p%C
//! ```
//! 1. The blocks are permuted with a hash of (seed, epoch) and their selected samples concatenated.
//! 2. That *block order* is cut into C contiguous spans whose lengths differ by at most one: the lanes.
//! 3. Inside a lane each run of ⌈W/C⌉ entries is permuted with (seed, epoch, lane, window).
//! 4. Position p is entry ⌊p/C⌋ of lane p mod C; a global step is a run of positions, cut into ranks by lane.
//!
//! Every process computes the same order from the same few words, so nobody has to coordinate.
//! Memory is O(blocks); a filter adds one bit a sample.

mod cursor;
mod digest;
mod keyed;
mod lanes;
mod order;
mod random;
mod selection;
mod shuffle;
mod step;

pub use cursor::{Cursor, Fingerprint};
pub use digest::Digest;
pub use order::{EpochOrder, PlannedSample};
pub use selection::Selection;
pub use shuffle::{Shuffle, ShuffleKind};
pub use step::{PlannedRow, Step, StepShape, Tail};

use crate::{BlockId, Dataset, Error, Position, Result, SampleId};
use lanes::Lanes;
use std::sync::Arc;

/// The version of this arithmetic; a change that moves any sample raises it.
const PLAN_VERSION: u32 = 1;

/// The order of a data set for every epoch. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan(Arc<Facts>);

/// What a plan is computed from.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// Samples before each block, and their total last: one entry more than blocks.
    pub block_starts: Arc<[u64]>,
    /// The samples that take part; `None` for all.
    pub selection: Option<Selection>,
    /// The catalog's content hash.
    pub catalog_hash: u64,
    /// The filter's text, for the fingerprint.
    pub filter: Option<String>,
    /// Encoded bytes of all blocks, from which the default window follows.
    pub encoded_bytes: u64,
}

#[derive(Debug)]
struct Facts {
    kind: ShuffleKind,
    seed: u64,
    lanes: Lanes,
    block_starts: Arc<[u64]>,
    selected_starts: Arc<[u64]>,
    selection: Option<Selection>,
    fingerprint: Fingerprint,
}

impl Plan {
    /// The plan for these blocks.
    ///
    /// # Errors
    /// `BadConfig` where nothing is selected, or where lanes or window are out of range.
    pub fn new(input: PlanInput, shuffle: &Shuffle) -> Result<Self> {
        let selected_starts = match &input.selection {
            Some(selection) => selection.starts().clone(),
            None => input.block_starts.clone(),
        };
        assert_eq!(selected_starts.len(), input.block_starts.len(), "the selection belongs to these blocks");
        let samples = selected_starts.last().copied().unwrap_or(0);
        if samples == 0 {
            return Err(Error::config(
                "no sample is selected: the data set is empty or the filter keeps nothing",
            ));
        }
        let (lanes, window) = shuffle.resolve(samples, &input)?;
        let fingerprint = Fingerprint {
            version: PLAN_VERSION,
            catalog: input.catalog_hash,
            filter: match (&input.filter, &input.selection) {
                (None, None) => 0,
                (text, kept) => random::hash(&[
                    random::hash_text(text.as_deref().unwrap_or_default()),
                    kept.as_ref().map_or(0, Selection::hash),
                ]),
            },
            shuffle: shuffle.kind(),
            seed: shuffle.seed(),
            lanes,
            window,
        };
        let lanes = Lanes { samples, lanes: u64::from(lanes), window: window.div_ceil(u64::from(lanes)) };
        Ok(Self(Arc::new(Facts {
            kind: shuffle.kind(),
            seed: shuffle.seed(),
            lanes,
            block_starts: input.block_starts,
            selected_starts,
            selection: input.selection,
            fingerprint,
        })))
    }

    /// N, the number of selected samples.
    #[expect(clippy::len_without_is_empty, reason = "a plan without samples is refused")]
    pub fn len(&self) -> u64 {
        self.0.lanes.samples
    }

    /// What a cursor must agree with.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.fingerprint
    }

    /// The order of one epoch.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.clone(), epoch)
    }

    /// A cursor at `position` of `epoch`.
    pub fn cursor(&self, epoch: u64, position: Position) -> Cursor {
        Cursor { fingerprint: self.0.fingerprint.clone(), epoch, position, ops: None }
    }

    /// Refuses a cursor of another order, naming the field that differs, or one past the epoch's end.
    pub fn check(&self, cursor: &Cursor) -> Result<()> {
        self.0.fingerprint.check(&cursor.fingerprint)?;
        if cursor.epoch == u64::MAX {
            return Err(Error::config("the cursor's epoch is past the last that can be counted"));
        }
        if cursor.position.0 > self.len() {
            let (position, len) = (cursor.position, self.len());
            return Err(Error::config(format!(
                "the cursor's position {position} lies past the epoch's {len} samples"
            )));
        }
        Ok(())
    }

    /// The digest of one whole epoch, computed from the selection, not from the order.
    pub fn digest(&self) -> Digest {
        let facts = &self.0;
        let all = 0..facts.block_starts.last().copied().unwrap_or(0);
        let kept =
            all.map(SampleId).filter(|&s| facts.selection.as_ref().is_none_or(|kept| kept.contains(s)));
        kept.collect()
    }

    /// Selected samples of `block`.
    pub fn selected_in(&self, block: BlockId) -> u64 {
        let b = block.0 as usize;
        self.0.selected_starts[b + 1] - self.0.selected_starts[b]
    }

    /// Whether every sample is drawn on its own, so that reading whole blocks would waste most of each.
    pub fn reads_single_samples(&self) -> bool {
        self.0.kind == ShuffleKind::Full
    }

    fn facts(&self) -> &Arc<Facts> {
        &self.0
    }
}

impl Facts {
    /// The `nth` selected sample in catalog order.
    fn nth_selected(&self, nth: u64) -> PlannedSample {
        let block = self.selected_starts.partition_point(|&start| start <= nth) - 1;
        #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
        self.nth_in_block(BlockId(block as u32), nth - self.selected_starts[block])
    }

    /// The `nth` selected sample of `block`.
    fn nth_in_block(&self, block: BlockId, nth: u64) -> PlannedSample {
        let start = self.block_starts[block.0 as usize];
        let sample = match &self.selection {
            None => start + nth,
            Some(selection) => selection.nth_from(start, nth),
        };
        #[expect(clippy::cast_possible_truncation, reason = "a block's samples are counted in u32")]
        PlannedSample { sample: SampleId(sample), block, row: (sample - start) as u32 }
    }
}

impl Dataset {
    /// The order of this data set's selected samples under `shuffle`.
    ///
    /// # Errors
    /// `BadConfig` where the filter keeps nothing, or where lanes or window are out of range.
    pub fn plan(&self, shuffle: &Shuffle) -> Result<Plan> {
        let catalog = self.catalog();
        #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
        let blocks = catalog.blocks() as u32;
        let input = PlanInput {
            block_starts: catalog.block_starts().into(),
            selection: self.selection().cloned(),
            catalog_hash: catalog.content_hash(),
            filter: self.filter_sql().map(str::to_owned),
            encoded_bytes: (0..blocks).map(|id| catalog.block(BlockId(id)).bytes).sum(),
        };
        Plan::new(input, shuffle)
    }
}
