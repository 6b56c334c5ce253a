//! Later stages of a plan: lengths, bucketing, and the counting of steps that have to be walked.

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
    /// The same order with the lengths of its samples known, so that steps can be bounded by a total.
    ///
    /// # Errors
    /// `BadConfig` for a selected sample without a length that is finite and not negative.
    pub fn with_lengths(self, lengths: &Lengths) -> Result<Self> {
        let longest = lengths.longest(self.facts.base.selected(), &|sample| format!("sample {sample}"))?;
        let Some(longest) = longest else { return Ok(self) }; // a plan without samples is refused
        let lengths = Some(KnownLengths { lengths: lengths.clone(), longest });
        Ok(self.with(|facts| facts.lengths = lengths))
    }

    /// The order with samples of like length next to each other: see the module's documentation for the arithmetic.
    /// Cursors of a bucketed order hold positions of it.
    ///
    /// `window`: samples of a macro-window; up to 2³² − 1, rounded up to whole groups. Default: the shuffle's window,
    /// made to begin and end with the lanes' own; without one, or for a full shuffle, what 512 MiB of encoded bytes
    /// span. Larger windows bucket better and hold more blocks. `group`: the size of the steps that will be asked for.
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
            return Err(Error::config("a bucketing window of 0 samples holds nothing; use at least 1"));
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

    /// The order that `cursor` belongs to: this one, or, where it is bucketed and the cursor's groups have another
    /// size, this one with those groups. So the batch size and the world size may change on resume: the order is the
    /// saved one, and only its cutting into steps is new.
    ///
    /// # Errors
    /// As [`check`](Self::check): `BadConfig` where anything else differs.
    pub fn regrouped_as(&self, cursor: &Cursor) -> Result<Self> {
        let mut fingerprint = self.facts.fingerprint.clone();
        let mut foreign = self.in_current_form(&cursor.fingerprint);
        if let (Some(here), Some(there)) = (&fingerprint.bucketing, &mut foreign.bucketing) {
            there.group = here.group;
        }
        fingerprint.check(&foreign)?; // before groups are made that belong to another data set
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

    /// The same base order without bucketing; its lengths stay known.
    #[must_use]
    pub fn without_bucketing(&self) -> Self {
        self.clone().with(|facts| {
            facts.bucketing = None;
            facts.fingerprint.bucketing = None;
        })
    }

    /// How many steps are left in `epoch` from `position` on: see [`EpochOrder::steps_left`](crate::EpochOrder::steps_left). What was walked is
    /// remembered, and shared by clones.
    pub fn steps_left(&self, epoch: u64, position: Position, shape: &StepShape) -> u64 {
        self.counters.steps_left(&self.facts, epoch, position, shape)
    }

    /// The lengths' column, the longest selected sample and its length, where lengths are known.
    pub fn longest(&self) -> Option<(&str, SampleId, f32)> {
        let known = self.facts.lengths.as_ref()?;
        Some((known.lengths.column(), known.longest.0, known.longest.1))
    }

    /// The lengths of all samples, where they are known.
    pub fn lengths(&self) -> Option<&Lengths> {
        self.facts.lengths.as_ref().map(|known| &known.lengths)
    }

    /// The plan whose bucketing the fingerprint says.
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
                "a bucketing window of {} samples in groups of {} is over 2³² − 1",
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

/// A hash of all lengths.
fn hash_lengths(lengths: &Lengths) -> u64 {
    let bits = |length: f32| u64::from(if length.is_nan() { f32::NAN } else { length }.to_bits());
    crate::random::hash_all(
        lengths.values().len() as u64,
        lengths.values().iter().map(|&length| bits(length)),
    )
}
