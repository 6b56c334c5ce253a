//! The order of a data set, for every epoch.

use crate::base::Base;
use crate::counters::Counters;
use crate::cursor::{Cursor, Fingerprint};
use crate::digest::Digest;
use crate::facts::Facts;
use crate::input::PlanInput;
use crate::mixed::{self, MixedFacts, Mixing, PartName, Stop};
use crate::order::EpochOrder;
use crate::plain::PlainFacts;
use crate::random;
use crate::shuffle::{self, Shuffle, ShuffleKind};
use feedstock_base::{BlockId, Error, Position, Result};
use std::sync::Arc;

/// The version of this arithmetic; a change that moves any sample raises it.
const PLAN_VERSION: u32 = 1;

/// The order of a data set for every epoch. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) facts: Arc<Facts>,
    pub(crate) counters: Arc<Counters>,
}

impl Plan {
    /// Makes the plan for these blocks.
    ///
    /// # Errors
    /// `BadConfig` if nothing is selected, or if lanes or window are out of range.
    pub fn new(input: PlanInput, shuffle: &Shuffle) -> Result<Self> {
        let sample_bytes = shuffle::sample_bytes(&input.block_starts, input.encoded_bytes);
        let (data, filter) = (input.data, input.hash_filter());
        let (base, window) = PlainFacts::new(input, shuffle)?;
        let fingerprint = Fingerprint {
            version: PLAN_VERSION,
            catalog: data.identity,
            blocks: Some(data.blocks),
            filter,
            shuffle: shuffle.kind(),
            seed: shuffle.seed(),
            lanes: base.lanes.count(),
            window,
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
        let weights: Vec<f64> = parts.iter().map(|(_, weight)| *weight).collect();
        let quotas = mixed::quotas(&weights, name)?;
        let cycle: u64 = quotas.iter().sum();
        let bytes = parts.iter().zip(&quotas).map(|((input, _), quota)| {
            u128::from(shuffle::sample_bytes(&input.block_starts, input.encoded_bytes)) * u128::from(*quota)
        });
        let sample_bytes = u64::try_from(bytes.sum::<u128>() / u128::from(cycle)).unwrap_or(u64::MAX).max(1);
        let data = parts[0].0.data;
        let (mut facts, mut filters) = (Vec::new(), Vec::new());
        let (mut words, mut legacy_words, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        let (mut lanes, mut window) = (0u32, 0u64);
        for (index, ((input, _), quota)) in parts.into_iter().zip(&quotas).enumerate() {
            let part_filter = input.hash_filter();
            identities.push(input.data.identity);
            words.extend([input.data.identity, input.data.blocks, part_filter]);
            legacy_words.extend([input.data.legacy, part_filter]);
            filters.push(part_filter);
            let shuffle = shuffle.of_part(index, (*quota, cycle), sample_bytes);
            let (part, part_window) = PlainFacts::new(input, &shuffle)
                .map_err(|e| e.context(format!("{} in the mix", name(index))))?;
            for words in [&mut words, &mut legacy_words] {
                words.extend([part.lanes.lanes, part_window, part.lanes.samples]);
            }
            (lanes, window) = (lanes.saturating_add(part.lanes.count()), window + part_window);
            facts.push((part, *quota));
        }
        let fingerprint = Fingerprint {
            version: PLAN_VERSION,
            catalog: data.identity,
            blocks: Some(data.blocks),
            filter: if filters.iter().all(|filter| *filter == 0) { 0 } else { random::hash(&filters) },
            shuffle: shuffle.kind(),
            seed: shuffle.seed(),
            lanes,
            window,
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
    /// # Errors
    /// As [`mixed`](Self::mixed), for the weights.
    pub fn check_weights(weights: &[f64], name: PartName<'_>) -> Result<Vec<(usize, f64, f64)>> {
        Ok(mixed::rounded(weights, &mixed::quotas(weights, name)?))
    }

    fn from_base(
        base: Base,
        sample_bytes: u64,
        fingerprint: Fingerprint,
        legacy: (u64, Option<u64>),
    ) -> Self {
        let (lengths, bucketing, rest) = (None, None, None);
        Self::of(Facts { base, sample_bytes, lengths, bucketing, rest, fingerprint, legacy })
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
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.facts.clone(), epoch)
    }

    /// Returns a cursor at `position` of `epoch`.
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
    pub fn is_of_same_data(&self, cursor: &Cursor) -> bool {
        self.facts.fingerprint.is_of_same_data(&self.in_current_form(&cursor.fingerprint))
    }

    /// Returns the start of the epoch after the cursor's, in this order: for a cursor whose data changed since. A cursor at the
    /// start of an epoch, of which nothing was delivered, keeps that epoch.
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

    /// Returns the digest of every selected sample once, computed from the selection, not from the order. It is that of a whole
    /// epoch, except in a mix, where [`EpochOrder::digest`] walks what an epoch draws.
    pub fn digest(&self) -> Digest {
        self.facts.digest()
    }

    /// Returns the number of selected samples of `block`.
    pub fn selected_in(&self, block: BlockId) -> u64 {
        self.facts.base.selected_in(block)
    }

    /// Whether every sample is drawn separately, so that reading whole blocks would waste most of each.
    pub fn reads_single_samples(&self) -> bool {
        self.facts.fingerprint.shuffle == ShuffleKind::Full
    }

    /// Whether several data sets are mixed.
    pub fn is_mix(&self) -> bool {
        matches!(self.facts.base, Base::Mixed(_))
    }

    /// Whether an epoch never ends ([`Stop::Never`]). Its length is then 2⁵³, which JSON and doubles hold exactly and no run
    /// reaches.
    pub fn is_endless(&self) -> bool {
        self.facts.base.is_endless()
    }
}
