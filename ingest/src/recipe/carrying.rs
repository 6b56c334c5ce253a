//! The rest of an epoch that began with other data.

use super::Recipe;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Carried, Cursor, Dataset, Left, Plan, Rest, StepShape};
use std::sync::Arc;

impl Recipe {
    /// Returns the same recipe with the rest of `epoch`, which began with the orders `carried`, the oldest first. The rest is
    /// the samples that those orders had left, in their order, as far as the data set still has them and its filter keeps
    /// them. Reads the catalogs of the earlier data; blocks while it does.
    ///
    /// # Errors
    /// `Gone` where such a catalog is not kept; `BadConfig` where a cursor is of another seed, shuffle, mix or bucketing.
    pub fn carrying(&self, epoch: u64, carried: Vec<Carried>, shape: &StepShape) -> Result<Self> {
        let mut left: Vec<Left> = Vec::new();
        let mut before: Option<Dataset> = None;
        for (at, Carried { fingerprint, position }) in carried.iter().enumerate() {
            let dataset = futures::executor::block_on(self.dataset.as_of(fingerprint))?;
            let then = self.as_saved(fingerprint).over(dataset.clone());
            let plan = then.whole_plan(shape).map_err(as_they_were)?;
            left = match before {
                None => {
                    let cursor = Cursor { fingerprint: fingerprint.clone(), ..plan.cursor(epoch, *position) };
                    plan.left_after(&cursor)?
                }
                Some(older) => {
                    plan.fingerprint().check_settings(fingerprint)?;
                    let found = still_there(&left, &older, &dataset, &plan)?;
                    Rest::new(epoch, carried[..at].to_vec(), &found)?.left_from(*position)
                }
            };
            before = Some(dataset);
        }
        let plan = self.whole_plan(shape)?;
        if let Some(older) = before {
            let of = left.len();
            left = still_there(&left, &older, &self.dataset, &plan)?;
            if left.len() < of {
                tracing::warn!(
                    "{} of the {of} samples that were left of epoch {epoch} are left out: their files were removed or \
                     replaced, or the filter no longer keeps them",
                    of - left.len()
                );
            }
        }
        let rest = Rest::new(epoch, carried, &left)?;
        Ok(Self { rest: Some(Arc::new(rest)), ..self.clone() })
    }

    /// The same over another version of the data.
    fn over(&self, dataset: Dataset) -> Self {
        Self { dataset, rest: None, lengths: Arc::default(), ..self.clone() }
    }
}

/// Adds what to do if a file of the former data was removed.
fn as_they_were(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Gone => error.with_note(
            " (of the data as they were when the state was saved; lengths that are columns of the files need all files of \
             then: without them, load the state with on_change=next_epoch)",
        ),
        _ => error,
    }
}

/// Those of `left`, samples of `older`, that `newer` has and whose filter keeps, as its samples. Steps that count samples
/// (`take`, `skip`, weights) keep others in `newer`; those of `older` have selected these.
fn still_there(left: &[Left], older: &Dataset, newer: &Dataset, plan: &Plan) -> Result<Vec<Left>> {
    let same = futures::executor::block_on(newer.samples_of(older))?;
    let found = left.iter().filter_map(|left| Some(Left { sample: same.newer(left.sample)?, ..*left }));
    let counts_samples = plan.fingerprint().selection.is_some();
    Ok(found.filter(|left| counts_samples || plan.is_selected(left.sample)).collect())
}
