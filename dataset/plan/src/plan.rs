//! The order of a data set, for every epoch.

use crate::base::Base;
use crate::counters::Counters;
use crate::cursor::{Cursor, Fingerprint};
use crate::digest::Digest;
use crate::extent::Extent;
use crate::facts::Facts;
use crate::input::PlanInput;
use crate::mixed::{self, MixedFacts, Mixing, Stop};
use crate::order::EpochOrder;
use crate::plain::PlainFacts;
use crate::quotas::{PartName, quotas, rounded};
use crate::random;
use crate::selection::Selection;
use crate::shuffle::{self, BLOCKS_VERSION, PIECES_VERSION, Shuffle, ShuffleKind};
use arrow_buffer::BooleanBuffer;
use feedstock_base::{BlockId, Error, Position, Result, SampleId};
use std::sync::Arc;

/// The order of a data set for every epoch. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) facts: Arc<Facts>,
    pub(crate) counters: Arc<Counters>,
}

impl Plan {
    /// Makes the plan for these blocks.
    ///
    /// ```
    /// # use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Selection, Shuffle};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input.clone(), &Shuffle::seeded(7).lanes(2))?;
    /// assert_eq!((plan.len(), plan.fingerprint().lanes), (8, 2));
    ///
    /// let nothing = Selection::from_bools(vec![false; 8].into(), &input.block_starts);
    /// let error = Plan::new(PlanInput { selection: Some(nothing), ..input }, &Shuffle::none()).unwrap_err();
    /// assert_eq!(error.message(), "no sample is selected: the data set is empty or the filter keeps nothing");
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if nothing is selected, or if lanes or window are out of range.
    pub fn new(input: PlanInput, shuffle: &Shuffle) -> Result<Self> {
        let sample_bytes = shuffle::sample_bytes(&input.block_starts, input.encoded_bytes);
        let (data, filter) = (input.data, input.hash_filter());
        let (base, window) = PlainFacts::new(input, shuffle)?;
        let piece = base.piece.filter(|_| base.kind == ShuffleKind::Window);
        let fingerprint = Fingerprint {
            version: if piece.is_some() { PIECES_VERSION } else { BLOCKS_VERSION },
            catalog: data.identity,
            blocks: Some(data.blocks),
            filter,
            selection: None,
            shuffle: base.kind,
            seed: shuffle.seed(),
            lanes: base.lanes.count(),
            window,
            piece,
            bucketing: None,
            mixing: None,
        };
        Ok(Self::from_base(Base::Plain(Arc::new(base)), sample_bytes, fingerprint, (data.legacy, None)))
    }

    /// Makes the plan of a weighted mix. It consists of cycles of 2ᵏ positions (1,024 to 65,536), and each part has exactly its
    /// share of every cycle.
    ///
    /// Block and sample ids continue from part to part. W, the shuffle's window, is shared out by weight, so that the mix
    /// holds no more in memory than one data set would; each part has separate lanes. `catalog` and `blocks` of the
    /// fingerprint are those of the first part; the others are in [`Mixing`].
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Access, DataHashes, Plan, PlanInput, Shuffle, Stop};
    /// # let part = |samples: u64| PlanInput {
    /// #     block_starts: [0, samples].into(),
    /// #     selection: None,
    /// #     data: DataHashes { identity: samples, blocks: 1, legacy: 1 },
    /// #     filter: None,
    /// #     encoded_bytes: samples * 1_000,
    /// #     access: Access::Blocks,
    /// # };
    /// let parts = vec![(part(1_000), 3.0), (part(5_000), 1.0)]; // samples 0 to 999, and 1,000 to 5,999
    /// let mix = Plan::mixed(parts, Stop::AllExhausted, &Shuffle::seeded(7))?;
    /// let mut order = mix.epoch(0);
    /// let cycle = (0..1_024).map(|p| order.sample_at(Position(p)).sample.0);
    /// assert_eq!(cycle.filter(|sample| *sample < 1_000).count(), 768); // exactly three quarters of a cycle
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new), and `BadConfig` for a weight that is not a finite number above zero, one that is too small to
    /// get a place, and no parts at all.
    pub fn mixed(parts: Vec<(PlanInput, f64)>, stop: Stop, shuffle: &Shuffle) -> Result<Self> {
        Self::mixed_named(parts, stop, shuffle, &|part| format!("part {part}"))
    }

    /// As [`mixed`](Self::mixed), with names for the parts in errors.
    ///
    /// # Errors
    /// As [`mixed`](Self::mixed).
    pub fn mixed_named(
        parts: Vec<(PlanInput, f64)>,
        stop: Stop,
        shuffle: &Shuffle,
        name: PartName<'_>,
    ) -> Result<Self> {
        if parts.is_empty() {
            return Err(Error::config("a mix must have at least 1 data set; got none"));
        }
        let is_repeated = |input: &PlanInput| input.selection.as_ref().is_some_and(Selection::is_repeated);
        if let Some(part) = parts.iter().position(|(input, _)| is_repeated(input)) {
            return Err(Error::config(format!("{}: samples of a mix cannot have weights", name(part))));
        }
        let weights: Vec<f64> = parts.iter().map(|(_, weight)| *weight).collect();
        let quotas = quotas(&weights, name)?;
        let cycle: u64 = quotas.iter().sum();
        let bytes = parts.iter().zip(&quotas).map(|((input, _), quota)| {
            u128::from(shuffle::sample_bytes(&input.block_starts, input.encoded_bytes)) * u128::from(*quota)
        });
        let sample_bytes = u64::try_from(bytes.sum::<u128>() / u128::from(cycle)).unwrap_or(u64::MAX).max(1);
        let data = parts[0].0.data;
        let (mut facts, mut filters) = (Vec::new(), Vec::new());
        let (mut words, mut legacy_words, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        let (mut lanes, mut window, mut pieces) = (0u32, 0u64, false);
        for (index, ((input, _), quota)) in parts.into_iter().zip(&quotas).enumerate() {
            let part_filter = input.hash_filter();
            identities.push(input.data.identity);
            words.extend([input.data.identity, input.data.blocks, part_filter]);
            legacy_words.extend([input.data.legacy, part_filter]);
            filters.push(part_filter);
            let shuffle = shuffle.of_part(index, (*quota, cycle), &input, sample_bytes);
            let (part, part_window) = PlainFacts::new(input, &shuffle)
                .map_err(|e| e.context(format!("{} in the mix", name(index))))?;
            for words in [&mut words, &mut legacy_words] {
                words.extend([part.lanes.lanes, part_window, part.lanes.samples]);
                words.extend(part.piece.filter(|_| part.kind == ShuffleKind::Window));
            }
            pieces |= part.kind == ShuffleKind::Window && part.piece.is_some();
            (lanes, window) = (lanes.saturating_add(part.lanes.count()), window + part_window);
            facts.push((part, *quota));
        }
        let fingerprint = Fingerprint {
            version: if pieces { PIECES_VERSION } else { BLOCKS_VERSION },
            catalog: data.identity,
            blocks: Some(data.blocks),
            filter: if filters.iter().all(|filter| *filter == 0) { 0 } else { random::hash(&filters) },
            selection: None,
            shuffle: shuffle.kind(),
            seed: shuffle.seed(),
            lanes,
            window,
            piece: shuffle.piece_samples(),
            bucketing: None,
            mixing: Some(Mixing {
                version: mixed::VERSION,
                quotas,
                stop,
                parts: random::hash(&words),
                data: Some(Mixing::hash_of(&identities)),
            }),
        };
        let shuffled = shuffle.kind() != ShuffleKind::None;
        let base = MixedFacts::new(facts, shuffle.seed(), shuffled, stop);
        let legacy = (data.legacy, Some(random::hash(&legacy_words)));
        Ok(Self::from_base(Base::Mixed(Arc::new(base)), sample_bytes, fingerprint, legacy))
    }

    /// Validates the weights of a mix. Returns (part, requested share, actual share) of every part whose share was rounded by
    /// more than 1 %.
    ///
    /// ```
    /// # use feedstock_plan::Plan;
    /// let name = |part: usize| ["speech", "noise"][part].to_owned();
    /// assert_eq!(Plan::check_weights(&[0.9, 0.1], &name)?, []); // within 1 %
    ///
    /// let rounded = Plan::check_weights(&[1.0, 0.000_04], &name)?;
    /// assert_eq!((rounded[0].0, rounded[0].2), (1, 3.0 / 65_536.0)); // 2.6 places of the longest cycle become 3
    ///
    /// let error = Plan::check_weights(&[1.0, -1.0], &name).unwrap_err();
    /// assert_eq!(error.message(), "the weight of noise in the mix must be a finite number > 0; got -1");
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`mixed`](Self::mixed), for the weights.
    pub fn check_weights(weights: &[f64], name: PartName<'_>) -> Result<Vec<(usize, f64, f64)>> {
        Ok(rounded(weights, &quotas(weights, name)?))
    }

    fn from_base(
        base: Base,
        sample_bytes: u64,
        fingerprint: Fingerprint,
        legacy: (u64, Option<u64>),
    ) -> Self {
        let (continued, lengths, bucketing, rest) = (None, None, None, None);
        Self::of(Facts { base, sample_bytes, continued, lengths, bucketing, rest, fingerprint, legacy })
    }

    /// Makes the plan of these facts, of which no step was counted yet.
    pub(crate) fn of(facts: Facts) -> Self {
        Self { facts: Arc::new(facts), counters: Arc::default() }
    }

    /// Makes the plan of these facts with a change.
    pub(crate) fn with(self, change: impl FnOnce(&mut Facts)) -> Self {
        let mut facts = Arc::unwrap_or_clone(self.facts);
        change(&mut facts);
        Self::of(facts)
    }

    /// Returns N, the number of selected samples; for a mix, the number of positions in an epoch.
    #[expect(clippy::len_without_is_empty, reason = "a plan without samples is rejected")]
    pub fn len(&self) -> u64 {
        self.facts.base.len()
    }

    /// Returns the positions in `epoch`: [`len`](Self::len), except for one that continues after a change of its data.
    pub fn len_of(&self, epoch: u64) -> u64 {
        self.facts.len_of(epoch)
    }

    /// Returns the distance of epochs where positions are counted over all of them: at least the positions of any epoch.
    pub fn stride(&self) -> u64 {
        self.rest().map_or(0, |rest| rest.len()).max(self.len())
    }

    /// Returns what a cursor must agree with.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.facts.fingerprint
    }

    /// Returns the order of one epoch.
    ///
    /// ```
    /// # use feedstock_base::{Position, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let samples = |plan: &Plan, epoch| -> Vec<SampleId> {
    ///     let mut order = plan.epoch(epoch);
    ///     (0..plan.len()).map(|position| order.sample_at(Position(position)).sample).collect()
    /// };
    /// let shuffled = Plan::new(input.clone(), &Shuffle::seeded(7))?;
    /// assert_eq!(samples(&shuffled, 3), samples(&shuffled, 3));
    /// assert_ne!(samples(&shuffled, 3), samples(&shuffled, 4)); // each epoch has another order
    /// assert_eq!(samples(&Plan::new(input, &Shuffle::none())?, 4), (0..8).map(SampleId).collect::<Vec<_>>());
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.facts.clone(), epoch)
    }

    /// Returns a cursor at `position` of `epoch`.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Cursor, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input.clone(), &Shuffle::seeded(7))?;
    /// let saved = serde_json::to_string(&plan.cursor(2, Position(5))).unwrap();
    ///
    /// let cursor: Cursor = serde_json::from_str(&saved).unwrap(); // in another process, later
    /// plan.check(&cursor)?;
    /// assert_eq!((cursor.epoch, cursor.position), (2, Position(5)));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn cursor(&self, epoch: u64, position: Position) -> Cursor {
        let carried = self.rest().filter(|rest| rest.epoch() == epoch);
        let carried = carried.map_or_else(Vec::new, |rest| rest.carried().to_vec());
        Cursor { fingerprint: self.facts.fingerprint.clone(), epoch, position, ops: None, carried }
    }

    /// Returns the same fingerprint; one of this plan's data from a release before 0.2 is converted to the current form.
    pub fn in_current_form(&self, found: &Fingerprint) -> Fingerprint {
        let (mut found, own) = (found.clone(), &self.facts.fingerprint);
        let parts = found.mixing.as_ref().map(|mixing| mixing.parts);
        if found.blocks.is_none() && (found.catalog, parts) == self.facts.legacy {
            (found.catalog, found.blocks) = (own.catalog, own.blocks);
            if let (Some(found), Some(own)) = (&mut found.mixing, &own.mixing) {
                (found.parts, found.data) = (own.parts, own.data);
            }
        }
        found
    }

    /// Whether `cursor` is of the same data. The rest of its order may differ.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let saved = Plan::new(input.clone(), &Shuffle::seeded(7))?.cursor(0, Position(4));
    /// assert!(Plan::new(input.clone(), &Shuffle::full(8))?.is_of_same_data(&saved)); // only the order differs
    ///
    /// let grown = PlanInput { data: DataHashes { identity: 2, ..data }, ..input };
    /// assert!(!Plan::new(grown, &Shuffle::seeded(7))?.is_of_same_data(&saved));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn is_of_same_data(&self, cursor: &Cursor) -> bool {
        self.facts.fingerprint.is_of_same_data(&self.in_current_form(&cursor.fingerprint))
    }

    /// Returns the start of the epoch after the cursor's, in this order: for a cursor whose data changed since. A cursor at the
    /// start of an epoch, of which nothing was delivered, keeps that epoch.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let saved = Plan::new(input.clone(), &Shuffle::seeded(7))?.cursor(2, Position(5));
    /// let grown = PlanInput { block_starts: [0, 4, 9].into(), data: DataHashes { identity: 2, ..data }, ..input };
    /// let plan = Plan::new(grown.clone(), &Shuffle::seeded(7))?;
    /// let next = plan.next_epoch_of(&saved)?;
    /// assert_eq!((next.epoch, next.position), (3, Position(0)));
    ///
    /// assert!(Plan::new(grown, &Shuffle::seeded(8))?.next_epoch_of(&saved).is_err()); // no data set changes a seed
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a cursor whose seed, shuffle, mix or bucketing differs, which no change of the data explains.
    pub fn next_epoch_of(&self, cursor: &Cursor) -> Result<Cursor> {
        self.facts.fingerprint.check_settings(&cursor.fingerprint)?;
        let begun = cursor.position > Position(0) || !cursor.carried.is_empty();
        let epoch = cursor.epoch.saturating_add(u64::from(begun));
        self.check_epoch(epoch)?;
        Ok(Cursor { ops: cursor.ops, ..self.cursor(epoch, Position(0)) })
    }

    /// Rejects a cursor of another order, naming the field that differs, or one past the epoch's end.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input.clone(), &Shuffle::seeded(7))?;
    /// let other = Plan::new(input, &Shuffle::seeded(8))?.cursor(0, Position(4));
    /// assert_eq!(
    ///     plan.check(&other).unwrap_err().message(),
    ///     "the cursor belongs to another order: its seed is 8, this pipeline's is 7; use the saved seed"
    /// );
    /// let late = plan.cursor(0, Position(9));
    /// assert_eq!(plan.check(&late).unwrap_err().message(), "the cursor's position 9 is past the epoch's 8 samples");
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn check(&self, cursor: &Cursor) -> Result<()> {
        self.facts.fingerprint.check(&self.in_current_form(&cursor.fingerprint))?;
        self.check_epoch(cursor.epoch)?;
        self.check_carried(cursor)?;
        let len = self.len_of(cursor.epoch);
        if cursor.position.0 > len {
            let position = cursor.position;
            return Err(Error::config(format!(
                "the cursor's position {position} is past the epoch's {len} samples"
            )));
        }
        Ok(())
    }

    /// Rejects an epoch whose positions, counted over all epochs, are past 2⁶⁴. With 10⁹ samples that is after 18 billion
    /// epochs. For a mix without end, whose only epoch is the one it starts with, it is after 2,045.
    ///
    /// ```
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?;
    /// plan.check_epoch(1 << 60)?; // 2⁶⁰ epochs of 8 samples
    /// assert!(plan.check_epoch(1 << 61).unwrap_err().message().contains("is past the last that can be counted"));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` that names the last epoch that can be counted.
    pub fn check_epoch(&self, epoch: u64) -> Result<()> {
        let last = (u64::MAX / self.stride()).saturating_sub(2); // the next one must have an end too
        if epoch > last {
            return Err(Error::config(format!(
                "epoch {epoch} is past the last that can be counted with {} positions an epoch, which is {last}; start \
                 with an earlier one",
                self.stride()
            )));
        }
        Ok(())
    }

    /// Returns the digest of every draw, which is every selected sample once unless samples have weights; computed from the selection, not from the order. It is that of a whole
    /// epoch, except in a mix, where [`EpochOrder::digest`] walks what an epoch draws.
    ///
    /// ```
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?;
    /// assert_eq!(plan.epoch(0).digest(0..8), plan.digest());
    /// let mut halves = plan.epoch(5).digest(0..4); // what two ranks delivered
    /// halves.merge(&plan.epoch(5).digest(4..8));
    /// assert_eq!(halves, plan.digest());
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn digest(&self) -> Digest {
        self.facts.digest()
    }

    /// Returns the number of selected samples of `block`.
    pub fn selected_in(&self, block: BlockId) -> u64 {
        self.facts.base.selected_in(block)
    }

    /// Returns the number of selected samples of an extent.
    pub(crate) fn selected_of(&self, extent: Extent) -> u64 {
        self.facts.base.selected_of(extent)
    }

    /// Returns the extent that is fetched for a selected sample of `block`.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, SampleId};
    /// # use feedstock_plan::{Extent, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let extent = |shuffle| Plan::new(input.clone(), &shuffle).map(|plan| plan.extent_of(BlockId(1), SampleId(6)));
    /// assert_eq!(extent(Shuffle::none())?, Extent::new(BlockId(1), 4..8)); // the block
    /// assert_eq!(extent(Shuffle::full(7))?, Extent::new(BlockId(1), 6..7)); // the sample
    /// assert_eq!(extent(Shuffle::seeded(7).piece(3))?, Extent::new(BlockId(1), 6..8)); // the third piece
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn extent_of(&self, block: BlockId, sample: SampleId) -> Extent {
        let facts = &self.facts;
        let continues =
            |block: BlockId| facts.continued.as_ref().is_some_and(|bits| bits.value(block.0 as usize));
        facts.base.extent_of(block, sample, &continues)
    }

    /// Returns the same order, in which a piece that begins in one block and ends in the next is fetched at once where the first
    /// of them is `continued`. One bit a block states whether a request can read over its end: whether the next block goes on in
    /// the same object. Pieces are fetched block by block otherwise.
    ///
    /// ```
    /// # use feedstock_base::{BlockId, SampleId};
    /// # use feedstock_plan::{Extent, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::seeded(7).piece(3))?; // of two blocks of 4
    /// assert_eq!(plan.extent_of(BlockId(1), SampleId(5)), Extent::new(BlockId(1), 4..6));
    ///
    /// let plan = plan.with_continued_blocks(vec![true, false].into());
    /// assert_eq!(plan.extent_of(BlockId(1), SampleId(5)), Extent::new(BlockId(0), 3..6));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is not one bit for each block.
    #[must_use]
    pub fn with_continued_blocks(self, continued: BooleanBuffer) -> Self {
        let blocks = self.facts.base.block_starts().len() - 1;
        assert_eq!(continued.len(), blocks, "one bit for each block");
        self.with(|facts| facts.continued = Some(continued))
    }

    /// Returns the same order, with a name for its selection in the fingerprint: for errors about cursors of other selections.
    #[must_use]
    pub fn with_selection_named(self, steps: String) -> Self {
        self.with(|facts| facts.fingerprint.selection = Some(steps))
    }

    /// Whether several data sets are mixed.
    pub fn is_mix(&self) -> bool {
        matches!(self.facts.base, Base::Mixed(_))
    }

    /// Whether an epoch never ends ([`Stop::Never`]). Its length is then 2⁵³, which JSON and doubles hold exactly and no run
    /// reaches.
    ///
    /// ```
    /// # use feedstock_plan::{Plan, Shuffle, Stop};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let mix = Plan::mixed(vec![(input.clone(), 1.0), (input, 2.0)], Stop::Never, &Shuffle::seeded(7))?;
    /// assert!(mix.is_mix() && mix.is_endless());
    /// assert_eq!(mix.len(), 1 << 53);
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn is_endless(&self) -> bool {
        self.facts.base.is_endless()
    }
}
