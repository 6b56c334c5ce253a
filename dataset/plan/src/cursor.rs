//! The cursor: all that a checkpoint needs.

use crate::mixed::Mixing;
use crate::random::hash_text;
use crate::shuffle::{BLOCKS_VERSION, PIECES_VERSION, ShuffleKind};
use crate::size::StepSize;
use feedstock_base::{Error, Position, Result};
use serde::{Deserialize, Serialize};

/// The input that the order depends on. Equal fingerprints mean the same order, sample for sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The version of the order's arithmetic: 2 if it permutes pieces, else 1.
    pub version: u32,
    /// The data set's identity; in cursors without `blocks`, which releases before 0.2 saved, it is
    /// [`DataHashes::legacy`](crate::DataHashes::legacy).
    pub catalog: u64,
    /// How the samples are cut into blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// A hash of the text of the filter, or of all steps that select samples, and of the samples that they keep; 0
    /// without steps.
    pub filter: u64,
    /// The steps that select samples, such as `filter.take(100)`, for errors: `filter` has a hash of them. None if only
    /// filters select.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
    /// `none`, `window` or `full`.
    pub shuffle: ShuffleKind,
    /// The seed of the order.
    pub seed: u64,
    /// C, the number of lanes.
    pub lanes: u32,
    /// W, the shuffle window in samples.
    pub window: u64,
    /// k, the selected samples of a piece; none if blocks or nothing are permuted, and in a full shuffle. In a mix it is the
    /// number that was requested for all parts, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<u64>,
    /// How samples are bucketed by length; none in cursors that were saved without bucketing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucketing: Option<Bucketing>,
    /// How data sets are mixed; none in cursors of one data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixing: Option<Mixing>,
}

/// The parts of a bucketed order that a cursor must agree with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bucketing {
    /// The version of the bucketing's arithmetic.
    pub version: u32,
    /// The column of the lengths.
    pub column: String,
    /// Samples of a macro-window, before it is rounded up to whole groups.
    pub window: u64,
    /// The size of the groups. It may change on resume, which adopts the cursor's.
    pub group: StepSize,
    /// A hash of the lengths.
    pub lengths: u64,
}

/// A place in the order of samples over all epochs; about 150 bytes of JSON, 300 for a bucketed order, and up to 200 more for
/// a selection by other steps than filters.
///
/// It holds no rank, world size, batch size or worker: any of them may be different when it is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// The order that the position belongs to.
    pub fingerprint: Fingerprint,
    /// The number of finished epochs.
    pub epoch: u64,
    /// The first position not yet delivered.
    pub position: Position,
    /// A hash of the ops, which are not part of the order: a change is logged, not rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<u64>,
    /// For an epoch that began with other data: the orders that it began with, the oldest first. The position then counts
    /// the samples that were left. Otherwise empty, and left out of the JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<Carried>,
}

/// An order in which an epoch began, and the position that it reached before the data changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// The order.
    pub fingerprint: Fingerprint,
    /// The first position that it did not deliver; after an earlier change, counted among the samples that were left then.
    pub position: Position,
}

impl Cursor {
    /// Returns the same place, with the hash of the ops that ran.
    #[must_use]
    pub fn with_ops(mut self, ops: u64) -> Self {
        self.ops = Some(ops);
        self
    }

    /// Hashes a text that describes ops.
    ///
    /// ```
    /// # use feedstock_base::Position;
    /// # use feedstock_plan::{Cursor, Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::seeded(7))?;
    /// let cursor = plan.cursor(0, Position(4)).with_ops(Cursor::hash_ops("decode,resize=224x224"));
    /// assert_ne!(cursor.ops, Some(Cursor::hash_ops("decode,resize=256x256"))); // worth a warning
    /// plan.check(&cursor)?; // ops are not part of the order
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn hash_ops(description: &str) -> u64 {
        hash_text(description)
    }
}

const FILTER_ADVICE: &str = "open the data set with the filter it was saved with";
const SELECTION_ADVICE: &str = "select samples by the calls of the saved run, with the same arguments";

impl Fingerprint {
    /// Returns how samples are shuffled: `windows of 2440 samples in pieces of 2, 64 lanes`.
    ///
    /// ```
    /// # use feedstock_plan::{Access, Plan, Shuffle};
    /// # use feedstock_plan::{DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let access = Access::Ranges;
    /// # let input = PlanInput { access, block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8 * 110_000 };
    /// let describe = |shuffle| Plan::new(input.clone(), &shuffle).map(|plan| plan.fingerprint().describe_shuffle());
    /// assert_eq!(describe(Shuffle::full(7))?, "a full shuffle, 8 lanes");
    /// assert_eq!(describe(Shuffle::seeded(7))?, "windows of 8 samples in pieces of 2, 1 lane");
    /// assert_eq!(describe(Shuffle::seeded(7).blocks())?, "windows of 8 samples in blocks, 1 lane");
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn describe_shuffle(&self) -> String {
        let unit = match (self.piece, self.version) {
            (Some(samples), _) => format!("pieces of {samples}"),
            (None, PIECES_VERSION) => "pieces or blocks".to_owned(), // of a mix
            (None, _) => "blocks".to_owned(),
        };
        let kind = match self.shuffle {
            ShuffleKind::None => "the catalog's order".to_owned(),
            ShuffleKind::Full => "a full shuffle".to_owned(),
            ShuffleKind::Window => format!("windows of {} samples in {unit}", self.window),
        };
        format!("{kind}, {} lane{}", self.lanes, if self.lanes == 1 { "" } else { "s" })
    }

    /// Whether blocks are permuted; of a mix, those of all parts.
    pub fn permutes_blocks(&self) -> bool {
        self.shuffle == ShuffleKind::Window && self.version == BLOCKS_VERSION
    }

    /// Whether pieces of any number of samples are permuted; of a mix, those of at least one part.
    pub fn permutes_pieces(&self) -> bool {
        self.version == PIECES_VERSION
    }

    /// Whether `found` is of the same data. All other fields may differ, even the cut into blocks.
    pub fn is_of_same_data(&self, found: &Self) -> bool {
        let data = |print: &Self| print.mixing.as_ref().and_then(|mixing| mixing.data);
        found.blocks.is_some() && (self.catalog, data(self)) == (found.catalog, data(found))
    }

    /// Whether both are bucketed by the same column but with different lengths.
    pub fn has_other_lengths(&self, found: &Self) -> bool {
        match (&self.bucketing, &found.bucketing) {
            (Some(here), Some(there)) => here.column == there.column && here.lengths != there.lengths,
            _ => false,
        }
    }

    /// Rejects a fingerprint that differs in a setting of the caller, and names the setting. What follows from the data may
    /// differ: the catalog, which samples a filter keeps, numbers of lanes, windows, lengths.
    ///
    /// ```
    /// # use feedstock_plan::{Plan, Shuffle};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let saved = Plan::new(input.clone(), &Shuffle::seeded(7))?;
    /// let grown = PlanInput { data: DataHashes { identity: 2, ..data }, ..input };
    /// let plan = Plan::new(grown, &Shuffle::seeded(7))?;
    /// assert!(plan.fingerprint().check(saved.fingerprint()).is_err()); // the data differ,
    /// plan.fingerprint().check_settings(saved.fingerprint())?; // and no setting does
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    pub fn check_settings(&self, found: &Self) -> Result<()> {
        let (selects, selected) = self.differing_selections(found);
        differs("selection", &selects, &selected, SELECTION_ADVICE)?;
        if (self.filter == 0) != (found.filter == 0) {
            differs("filter", &hex(self.filter), &hex(found.filter), FILTER_ADVICE)?;
        }
        let (seed, kind) = (found.seed, found.shuffle);
        let mut derived = Self { seed, shuffle: kind, version: found.version, ..self.clone() };
        derived.mixing.clone_from(&found.mixing);
        derived.bucketing.clone_from(&found.bucketing);
        if let (Some(here), Some(there)) = (&self.mixing, &mut derived.mixing) {
            (there.parts, there.data) = (here.parts, here.data);
        }
        if let (Some(here), Some(there)) = (&self.bucketing, &mut derived.bucketing) {
            (there.window, there.lengths, there.group) = (here.window, here.lengths, here.group);
        }
        self.check(&derived)
    }

    /// Rejects another fingerprint and names the first field that differs.
    pub fn check(&self, found: &Self) -> Result<()> {
        let (here, there) = (self.version.to_string(), found.version.to_string());
        let advice = match (self.version, found.version) {
            (PIECES_VERSION, BLOCKS_VERSION) => "shuffle blocks (Shuffle::blocks) in the saved window",
            (BLOCKS_VERSION, PIECES_VERSION) => "shuffle pieces of the saved size (Shuffle::piece)",
            _ => "load it with the release that saved it",
        };
        differs("plan version", &here, &there, advice)?;
        self.check_mixing(found)?;
        let (selects, selected) = self.differing_selections(found);
        let fields = [
            (
                "catalog",
                hex(self.catalog),
                hex(found.catalog),
                match found.blocks {
                    Some(_) => "files were added, removed or replaced since, or it is another data set",
                    None => {
                        "files changed since, were copied or touched (a release before 0.2 saved the cursor, and \
                         its cursors do not fit copies), or it is another data set"
                    }
                },
            ),
            (
                "cut into blocks",
                self.blocks.map_or(String::new(), hex),
                found.blocks.map_or(String::new(), hex),
                "open the data set with the saved block_bytes; releases before 0.2 made blocks of more than 256 files",
            ),
            ("selection", selects, selected, SELECTION_ADVICE),
            ("filter", hex(self.filter), hex(found.filter), FILTER_ADVICE),
            (
                "shuffle",
                format!("{:?}", self.shuffle),
                format!("{:?}", found.shuffle),
                "use the saved kind of shuffle",
            ),
            ("seed", self.seed.to_string(), found.seed.to_string(), "use the saved seed"),
            ("lanes", self.lanes.to_string(), found.lanes.to_string(), "set lanes to the saved number"),
            (
                "window",
                self.window.to_string(),
                found.window.to_string(),
                "set window to the saved number of samples",
            ),
            (
                "piece",
                self.piece.unwrap_or_default().to_string(),
                found.piece.unwrap_or_default().to_string(),
                "set piece to the saved number of samples",
            ),
        ];
        for (field, here, there, advice) in fields {
            differs(field, &here, &there, advice)?;
        }
        let parts = |print: &Self| print.mixing.as_ref().map_or(String::new(), |mixing| hex(mixing.parts));
        let advice = "one of the parts changed since, or the parts are in another order";
        differs("mixed data sets", &parts(self), &parts(found), advice)?;
        self.check_bucketing(found)
    }

    /// Returns both selections in words, which are empty if the steps are the same.
    fn differing_selections(&self, found: &Self) -> (String, String) {
        let shown = |print: &Self| match (&print.selection, print.filter) {
            // Equal hashes are equal selections, however the parts of a concatenation are nested.
            _ if self.selection == found.selection || self.filter == found.filter => String::new(),
            (Some(steps), _) => steps.clone(),
            (None, 0) => "all samples".to_owned(),
            (None, _) => "filter".to_owned(),
        };
        (shown(self), shown(found))
    }

    fn check_mixing(&self, found: &Self) -> Result<()> {
        let parts = |mixing: &Option<Mixing>| {
            mixing.as_ref().map_or("off".to_owned(), |mixing| format!("of {} parts", mixing.quotas.len()))
        };
        differs("mixing", &parts(&self.mixing), &parts(&found.mixing), "mix the saved data sets")?;
        let (Some(here), Some(there)) = (&self.mixing, &found.mixing) else { return Ok(()) };
        let fields = [
            (
                "mixing version",
                here.version.to_string(),
                there.version.to_string(),
                "load it with the release that saved it",
            ),
            (
                "mixing weights",
                format!("{:?}", here.quotas),
                format!("{:?}", there.quotas),
                "use the saved weights, in the saved order",
            ),
            (
                "mixing stop",
                format!("{:?}", here.stop),
                format!("{:?}", there.stop),
                "end epochs as they were",
            ),
        ];
        fields.iter().try_for_each(|(field, here, there, advice)| differs(field, here, there, advice))
    }

    fn check_bucketing(&self, found: &Self) -> Result<()> {
        let column = |bucketing: &Option<Bucketing>| {
            bucketing.as_ref().map_or("off".to_owned(), |bucketing| format!("by {}", bucketing.column))
        };
        let (here, there) = (column(&self.bucketing), column(&found.bucketing));
        differs("bucketing", &here, &there, "bucket by the saved column, or not at all if it is off")?;
        let (Some(here), Some(there)) = (&self.bucketing, &found.bucketing) else { return Ok(()) };
        let fields = [
            (
                "bucketing version",
                here.version.to_string(),
                there.version.to_string(),
                "load it with the release that saved it",
            ),
            (
                "bucketing window",
                here.window.to_string(),
                there.window.to_string(),
                "set the bucketing window to the saved number of samples",
            ),
            (
                "lengths",
                format!("{:016x}", here.lengths),
                format!("{:016x}", there.lengths),
                "the lengths that samples are bucketed by changed since, perhaps because another release reads durations \
                 from audio headers differently; the saved order cannot be made again: load the state with \
                 on_change=next_epoch",
            ),
            (
                "bucketing group",
                format!("{:?}", here.group),
                format!("{:?}", there.group),
                "continue with the saved groups (Plan::regrouped_as)",
            ),
        ];
        fields.iter().try_for_each(|(field, here, there, advice)| differs(field, here, there, advice))
    }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

fn differs(field: &str, here: &str, there: &str, advice: &str) -> Result<()> {
    if here == there {
        return Ok(());
    }
    Err(Error::config(format!(
        "the cursor belongs to another order: its {field} is {there}, this pipeline's is {here}; {advice}"
    )))
}
