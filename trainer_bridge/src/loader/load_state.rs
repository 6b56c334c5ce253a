//! Continuing from a saved state, also with data that changed since.

use super::Loader;
use crate::pipeline::Pipeline;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Carried, Cursor, Fingerprint, Plan, Position};
use std::str::FromStr;

/// What [`Loader::load_state_with`] does if the data changed since the state was saved.
///
/// ```
/// use feedstock_trainer_bridge::OnChange;
///
/// assert_eq!("remap".parse(), Ok(OnChange::Remap));
/// assert_eq!("ignore".parse::<OnChange>(), Err("must be error, next_epoch or remap; got ignore".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Returns an error that names what changed.
    #[default]
    Error,
    /// Begins the next epoch, with the current data. Samples of the saved epoch that were not delivered are left out. A state
    /// at an epoch's start loses nothing.
    NextEpoch,
    /// Finishes the epoch with its remaining samples that still exist, in their old order. The next epoch has the current data.
    /// A sample still exists if a file of the same name and size has it at the same place. Needs the catalog of the old data,
    /// which is kept for 30 days, and 14 bytes of memory for each remaining sample.
    Remap,
}

impl FromStr for OnChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "next_epoch" => Ok(Self::NextEpoch),
            "remap" => Ok(Self::Remap),
            _ => Err(format!("must be error, next_epoch or remap; got {text}")),
        }
    }
}

impl Loader {
    /// Continues where `cursor` was taken, with any rank, world size or batch size.
    ///
    /// ```
    /// # use feedstock_dataset::{Rank, Shuffle};
    /// # use feedstock_trainer_bridge::{BatchSize, Dataset};
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(0, 1))?;
    /// loader.next().unwrap()?;
    /// let saved = loader.state();
    /// let next = loader.next().unwrap()?.sample_ids().to_vec();
    ///
    /// let mut resumed = pipeline.loader(Rank::new(0, 1))?;
    /// resumed.load_state(saved.clone())?;
    /// assert_eq!(resumed.next().unwrap()?.sample_ids(), next);
    ///
    /// let mut other = pipeline.shuffle(Shuffle::seeded(8)).loader(Rank::new(0, 1))?;
    /// assert!(other.load_state(saved).unwrap_err().message().contains("its seed is 7, this pipeline's is 8"));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a cursor of another order, naming the field that differs. The loader then keeps its position.
    pub fn load_state(&mut self, cursor: Cursor) -> Result<()> {
        self.load_state_with(cursor, OnChange::Error)
    }

    /// As [`load_state`](Self::load_state), with a choice for data that changed since `cursor` was saved: files added,
    /// removed or replaced. A copy of the data, or other times and inodes, do not count as a change.
    ///
    /// # Errors
    /// As [`load_state`](Self::load_state). [`OnChange::NextEpoch`] and [`OnChange::Remap`] still reject what changed data
    /// do not explain: another seed, shuffle, mix or bucketing; and data sets that are selected by ids, which name other samples
    /// after a change. `Gone` if the catalog of the data with which the epoch began
    /// is no longer kept. That applies to [`OnChange::Remap`], and to a state saved later in an epoch that was remapped.
    pub fn load_state_with(&mut self, cursor: Cursor, on_change: OnChange) -> Result<()> {
        let plan = self.pipeline.as_saved(&cursor).plan(self.rank)?;
        let has_other_lengths = plan.fingerprint().has_other_lengths(&cursor.fingerprint);
        let cursor = match plan.is_of_same_data(&cursor) {
            true if has_other_lengths && on_change == OnChange::NextEpoch => {
                self.after_change(&plan, cursor, on_change)? // the same files, whose durations another release reads differently
            }
            true => cursor,
            false => self.after_change(&plan, cursor, on_change)?,
        };
        self.note_order(&cursor.fingerprint);
        let pipeline = self.pipeline_of(&cursor)?;
        self.restart(pipeline, cursor, self.rank)?;
        self.end_untold = false;
        Ok(())
    }

    /// Logs that the saved order is kept, if a new run would have another.
    fn note_order(&self, saved: &Fingerprint) {
        let own = self.plan.fingerprint();
        if (own.shuffle, own.piece, own.window, own.lanes)
            != (saved.shuffle, saved.piece, saved.window, saved.lanes)
        {
            tracing::info!(
                "the saved order is kept ({}); a new run of this pipeline would have another ({})",
                saved.describe_shuffle(),
                own.describe_shuffle()
            );
        }
    }

    /// Returns the pipeline with the order of `cursor`. It includes the rest of an epoch that began with other data.
    fn pipeline_of(&self, cursor: &Cursor) -> Result<Pipeline> {
        let known = self.pipeline.rest().map(|rest| (rest.epoch(), rest.carried()));
        match cursor.carried.is_empty() {
            true if known.is_none_or(|(epoch, _)| epoch < cursor.epoch) => Ok(self.pipeline.clone()),
            true => Ok(self.pipeline.carrying_nothing()),
            false if known == Some((cursor.epoch, cursor.carried.as_slice())) => Ok(self.pipeline.clone()),
            false => self.pipeline.carrying(cursor.epoch, cursor.carried.clone(), self.rank),
        }
    }

    /// Returns the cursor to continue from, for a cursor of data that have changed since.
    fn after_change(&self, plan: &Plan, cursor: Cursor, on_change: OnChange) -> Result<Cursor> {
        let dataset = self.pipeline.dataset();
        if on_change != OnChange::Error && dataset.selects_by_id() {
            return Err(Error::new(
                ErrorKind::BadConfig,
                "the data set changed since the state was saved, so the ids of select name other samples; select by a filter \
                 on a column, or begin a new run with ids of the current data",
            ));
        }
        let changes = || {
            let changes = futures::executor::block_on(dataset.changes_since(&cursor.fingerprint));
            changes.map_or_else(String::new, |changes| format!(" ({changes})"))
        };
        match on_change {
            OnChange::Error => {
                let error = plan.check(&cursor).err();
                let message = error.map_or_else(String::new, |error| error.to_string());
                let advice = "to finish its epoch with the remaining samples that still exist, load it with \
                              on_change=remap; to leave them out, with on_change=next_epoch";
                Err(Error::new(ErrorKind::BadConfig, format!("{message}{}; {advice}", changes())))
            }
            OnChange::NextEpoch => {
                let next = plan.next_epoch_of(&cursor)?;
                let left_out = match next.epoch == cursor.epoch {
                    true => String::new(),
                    false => format!(
                        "the samples of epoch {} after position {} are left out; ",
                        cursor.epoch, cursor.position
                    ),
                };
                tracing::warn!(
                    "the data set changed since the state was saved{}: {left_out}epoch {} begins",
                    changes(),
                    next.epoch
                );
                Ok(next)
            }
            OnChange::Remap if cursor.position == Position(0) && cursor.carried.is_empty() => {
                Ok(plan.next_epoch_of(&cursor)?) // nothing of it was delivered
            }
            OnChange::Remap => {
                plan.fingerprint().check_settings(&cursor.fingerprint)?;
                tracing::warn!(
                    "the data set changed since the state was saved{}: epoch {} continues with the remaining samples that \
                     still exist",
                    changes(),
                    cursor.epoch
                );
                let Cursor { fingerprint, epoch, position, ops, mut carried } = cursor;
                carried.push(Carried { fingerprint, position });
                Ok(Cursor { ops, carried, ..plan.cursor(epoch, Position(0)) })
            }
        }
    }
}
