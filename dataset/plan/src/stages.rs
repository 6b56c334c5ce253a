//! Later stages of a plan: lengths, bucketing, and counting steps that have to be walked.

use crate::bucket::{BucketFacts, VERSION};
use crate::cursor::{Bucketing, Cursor, Fingerprint};
use crate::facts::KnownLengths;
use crate::lengths::Lengths;
use crate::plan::Plan;
use crate::shuffle::{ShuffleKind, default_window};
use crate::size::StepSize;
use crate::step::StepShape;
use feedstock_base::{Error, Position, Result, SampleId};
use std::sync::Arc;

impl Plan {
    /// Returns the same order with the lengths of its samples, so that steps can be bounded by a total.
    ///
    /// ```
    /// # use feedstock_base::SampleId;
    /// # use feedstock_plan::{Lengths, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let seconds = Lengths::new("duration", vec![1.0, 2.5, 12.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    /// let plan = Plan::new(input, &Shuffle::none())?.with_lengths(&seconds)?;
    /// assert_eq!(plan.longest(), Some(("duration", SampleId(2), 12.0)));
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a selected sample without a length that is finite and not negative.
    pub fn with_lengths(self, lengths: &Lengths) -> Result<Self> {
        let longest = lengths.longest(self.facts.base.selected(), &|sample| format!("sample {sample}"))?;
        let Some(longest) = longest else { return Ok(self) }; // a plan without samples is rejected
        let lengths = Some(KnownLengths { lengths: lengths.clone(), longest });
        Ok(self.with(|facts| facts.lengths = lengths))
    }

    /// Returns the order with samples of similar length next to each other; the module's documentation has the arithmetic.
    /// Cursors of a bucketed order hold positions of it.
    ///
    /// `window` is the number of samples of a macro-window, up to 2³² − 1, rounded up to whole groups. Default: the shuffle's
    /// window, aligned with the lanes' windows; without one, or with a full shuffle, the samples of 512 MiB of encoded bytes.
    /// Larger windows bucket better and hold more blocks. `group` is the size of the steps that will be requested.
    ///
    /// A step's samples are all short or all long:
    ///
    /// ```
    /// # use feedstock_base::{Position, Rank};
    /// # use feedstock_plan::{Lengths, Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let tokens = [3.0, 90.0, 4.0, 80.0, 85.0, 2.0, 95.0, 5.0];
    /// let lengths = Lengths::new("tokens", tokens.to_vec());
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?.bucketed(&lengths, Some(8), StepSize::Rows(4))?;
    /// let shape = StepShape { size: StepSize::Rows(4), rank: Rank::new(0, 1), tail: Tail::Drop };
    /// let mut order = plan.epoch(0);
    /// for step in order.steps(Position(0), &shape) {
    ///     let long = step.rows.iter().filter(|row| tokens[row.sample.0 as usize] > 50.0).count();
    ///     assert!(long == 0 || long == 4);
    /// }
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for lengths that do not fit the samples, a window or group out of range, and a sample that alone
    /// exceeds a group's total.
    pub fn bucketed(self, lengths: &Lengths, window: Option<u64>, group: StepSize) -> Result<Self> {
        group.check()?;
        let plan = self.with_lengths(lengths)?;
        let facts = &plan.facts;
        let window = match window {
            Some(window) => window.min(plan.len()),
            None => plan.default_bucket_window(),
        };
        if window == 0 {
            return Err(Error::config("the bucketing window must be at least 1 sample; got 0"));
        }
        let bucketing = Bucketing {
            version: VERSION,
            column: lengths.column().to_owned(),
            window,
            group,
            lengths: hash_lengths(lengths),
        };
        let mut fingerprint = facts.fingerprint.clone();
        fingerprint.bucketing = Some(bucketing);
        plan.with_fingerprint(fingerprint)
    }

    /// Returns the order that `cursor` belongs to: this one, or, if it is bucketed and the cursor's groups have another size,
    /// this one with those groups. So the batch size and the world size may change on resume: the order stays the saved one,
    /// and only its cut into steps is new.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Lengths, Plan, Shuffle, StepSize};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let lengths = Lengths::new("tokens", (0..8).map(|n| n as f32).collect());
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?;
    /// let saved = plan.clone().bucketed(&lengths, Some(8), StepSize::Rows(4))?;
    /// let now = plan.bucketed(&lengths, Some(8), StepSize::Rows(2))?; // half the batch size
    ///
    /// let resumed = now.regrouped_as(&saved.cursor(0, Position(4)))?;
    /// assert_eq!(resumed.fingerprint(), saved.fingerprint()); // so no sample repeats or is lost
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`check`](Self::check): `BadConfig` if anything else differs.
    pub fn regrouped_as(&self, cursor: &Cursor) -> Result<Self> {
        let mut fingerprint = self.facts.fingerprint.clone();
        let mut foreign = self.in_current_form(&cursor.fingerprint);
        if let (Some(here), Some(there)) = (&fingerprint.bucketing, &mut foreign.bucketing) {
            there.group = here.group;
        }
        fingerprint.check(&foreign)?; // before making groups that belong to another data set
        let plan = match (&mut fingerprint.bucketing, &cursor.fingerprint.bucketing) {
            (Some(here), Some(there)) if here.group != there.group => {
                there.group.check()?;
                here.group = there.group;
                self.clone().with_fingerprint(fingerprint)?
            }
            _ => self.clone(),
        };
        plan.check(cursor)?;
        Ok(plan)
    }

    /// Returns the same base order without bucketing; its lengths stay known.
    #[must_use]
    pub fn without_bucketing(&self) -> Self {
        self.clone().with(|facts| {
            facts.bucketing = None;
            facts.fingerprint.bucketing = None;
        })
    }

    /// Returns how many steps are left in `epoch` from `position` on: see
    /// [`EpochOrder::steps_left`](crate::EpochOrder::steps_left). Clones share the memory of what was walked.
    pub fn steps_left(&self, epoch: u64, position: Position, shape: &StepShape) -> u64 {
        self.counters.steps_left(&self.facts, epoch, position, shape)
    }

    /// Returns the lengths' column, the longest selected sample and its length, if lengths are known.
    pub fn longest(&self) -> Option<(&str, SampleId, f32)> {
        let known = self.facts.lengths.as_ref()?;
        Some((known.lengths.column(), known.longest.0, known.longest.1))
    }

    /// Returns the lengths of all samples, if known.
    pub fn lengths(&self) -> Option<&Lengths> {
        self.facts.lengths.as_ref().map(|known| &known.lengths)
    }

    /// Returns the plan with the bucketing of the fingerprint.
    fn with_fingerprint(self, fingerprint: Fingerprint) -> Result<Self> {
        let facts = &self.facts;
        let (Some(bucketing), Some(known)) = (&fingerprint.bucketing, &facts.lengths) else {
            return Ok(self.with(|facts| facts.fingerprint = fingerprint));
        };
        let (sample, longest) = known.longest;
        if let StepSize::Total { total, .. } = bucketing.group
            && bucketing.group.rows_of(longest) == 0
        {
            return Err(Error::config(format!(
                "sample {sample}: its {column} of {longest} alone exceeds the groups' total of {total}; filter longer \
                 samples out (`{column} <= {total}`) or raise the total",
                column = bucketing.column
            )));
        }
        let whole = match bucketing.group {
            StepSize::Rows(rows) => bucketing.window.div_ceil(rows).checked_mul(rows),
            StepSize::Total { .. } => Some(bucketing.window),
        };
        let window = whole.filter(|window| *window <= u64::from(u32::MAX)).ok_or_else(|| {
            Error::config(format!(
                "a bucketing window of {} samples, rounded up to groups of {}, must be at most 2³² − 1",
                bucketing.window,
                bucketing.group.max_rows()
            ))
        })?;
        let bucketing = BucketFacts::new(
            (window, bucketing.group),
            known.lengths.values().clone(),
            fingerprint.shuffle != ShuffleKind::None,
            facts.base.len(),
            facts.base.window(),
        );
        Ok(self.with(|facts| (facts.bucketing, facts.fingerprint) = (Some(Arc::new(bucketing)), fingerprint)))
    }

    fn default_bucket_window(&self) -> u64 {
        let facts = &self.facts;
        let bytes_say = default_window(facts.sample_bytes).min(u64::from(u32::MAX));
        facts.base.window().unwrap_or(bytes_say).min(self.len())
    }
}

/// Hashes all lengths.
fn hash_lengths(lengths: &Lengths) -> u64 {
    let bits = |length: f32| u64::from(if length.is_nan() { f32::NAN } else { length }.to_bits());
    crate::random::hash_all(
        lengths.values().len() as u64,
        lengths.values().iter().map(|&length| bits(length)),
    )
}
