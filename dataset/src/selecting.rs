//! Selecting samples: each call keeps some of the samples that the calls before it keep.

use crate::dataset::Composition;
use crate::sql::names::renamed;
use crate::steps::{SelectionStep, and, joined, shown, text, with_step};
use crate::{Dataset, Error, Result, SampleId, Selection};
use feedstock_plan::{PackedSet, SampleSet};
use std::sync::Arc;

impl Dataset {
    /// Keeps the samples for which the SQL expression is true; successive filters are ANDed.
    ///
    /// The expression may use the catalog's columns (see [`Catalog::schema`]), `sample_id`, DataFusion's functions and
    /// those of [`OpenOptions::functions`].
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?;
    /// let cats = dataset.clone().filter("class = 'cat'").await?.filter("path like '%2.jpg'").await?;
    /// assert_eq!((cats.len(), cats.filter_sql().as_deref()), (1, Some("(class = 'cat') AND (path like '%2.jpg')")));
    ///
    /// let error = dataset.filter("class = 'bird'").await.unwrap_err();
    /// assert!(error.message().starts_with("the filter `class = 'bird'` keeps none of the 3 samples"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an invalid expression (the message lists the columns) and for one that keeps no sample.
    pub async fn filter(self, sql: &str) -> Result<Self> {
        self.check_before_weights("filter")?;
        let bits = crate::sql::evaluate(&self.opened, sql).await?;
        let starts = self.opened.catalog.block_starts();
        let mut selection = Selection::from_bools(bits, starts);
        if let Some(before) = &self.selection {
            selection = before.and(&selection, starts);
        }
        self.with(SelectionStep::Filter(sql.to_owned()), selection, || format!("the filter `{sql}`"))
    }

    /// Keeps the first `n` of the selected samples, in catalog order, or all of them if there are fewer.
    ///
    /// Calls apply in their sequence: `filter`, then `take` keeps the first samples that the filter keeps; `take`, then `filter`
    /// filters the first samples. The catalog's order is that of objects by name and of samples in them. Shuffles come later.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, SampleId};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // cat/1.jpg, cat/2.jpg, dog/3.jpg
    /// assert_eq!(dataset.clone().take(2)?.len(), 2);
    /// assert_eq!(dataset.clone().take(1_000)?.len(), 3);
    /// let second = dataset.clone().skip(1)?.take(1)?;
    /// assert!(second.selection().unwrap().contains(SampleId(1)));
    ///
    /// let error = dataset.skip(3).unwrap_err();
    /// assert!(error.message().starts_with("skip(3) keeps none of the 3 samples"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for 0, and for a mix, whose samples are drawn by weight: take them from its parts.
    pub fn take(self, n: u64) -> Result<Self> {
        if n == 0 {
            return Err(Error::config("take: the number of samples must be at least 1; got 0"));
        }
        let kept = self.in_order("take")?.take(n, self.opened.catalog.block_starts());
        self.with(SelectionStep::Take(n), kept, || format!("take({n})"))
    }

    /// Leaves out the first `n` of the selected samples, in catalog order. [`take`](Self::take) has an example. 0 changes
    /// nothing.
    ///
    /// # Errors
    /// `BadConfig` if no sample is left, and for a mix.
    pub fn skip(self, n: u64) -> Result<Self> {
        let before = self.in_order("skip")?;
        if n == 0 {
            return Ok(self);
        }
        let kept = before.skip(n, self.opened.catalog.block_starts());
        self.with(SelectionStep::Skip(n), kept, || format!("skip({n})"))
    }

    /// Keeps the samples with these ids, in any sequence. The order of an epoch does not depend on theirs.
    ///
    /// A sample's id is its place in the catalog, from 0 on: `sample_id` in SQL, `sample_ids` of batches, and what skip reports
    /// state. In a mix or a concatenation, ids continue from part to part. Other files, or another `block_bytes` for some
    /// layouts, are another catalog with other ids.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, SampleId};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // 3 samples
    /// assert_eq!(dataset.clone().select([2, 0].map(SampleId))?.len(), 2);
    ///
    /// let error = dataset.clone().select([0, 3].map(SampleId)).unwrap_err();
    /// assert!(error.message().starts_with("select: there is no sample 3; the ids are 0 to 2"));
    /// let error = dataset.filter("class = 'dog'").await?.select([SampleId(0)]).unwrap_err();
    /// assert!(error.message().starts_with("select: sample 0 is left out by an earlier step"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no ids, an id that is listed twice, one that the catalog does not have, and one that an earlier step left
    /// out; the message names it.
    pub fn select(self, ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        let set = SampleSet::new(ids).map_err(|e| e.context("select"))?;
        if set.is_empty() {
            return Err(Error::config("select: there must be at least 1 id; got none"));
        }
        let packed = PackedSet::of(&set);
        self.select_set(&set, packed)
    }

    fn select_set(self, set: &SampleSet, packed: PackedSet) -> Result<Self> {
        self.check_before_weights("select")?;
        let starts = self.opened.catalog.block_starts();
        let Some(selection) = Selection::of_set(set, starts) else {
            let last = self.opened.catalog.samples() - 1;
            let unknown = set.ids().find(|id| id.0 > last).unwrap_or(SampleId(last));
            return Err(Error::config(format!(
                "select: there is no sample {unknown}; the ids are 0 to {last} in {}",
                self.uri()
            )));
        };
        if let Some(before) = &self.selection
            && let Some(out) = set.ids().find(|id| !before.contains(*id))
        {
            return Err(Error::config(format!(
                "select: sample {out} is left out by an earlier step of the selection; select before filtering, or leave \
                 it out"
            )));
        }
        self.with(SelectionStep::Select(packed), selection, || "select".to_owned())
    }

    /// Returns the selection as one SQL expression over this catalog: the filters, bounds of `sample_id` for `take` and
    /// `skip`, and the ids of `select`; not weights. Columns have the names of this catalog, also in filters before `rename`.
    /// Selections of the parts of a mix or a concatenation apply in addition.
    pub fn filter_sql(&self) -> Option<String> {
        let mut all: Option<String> = None;
        let add = |all: &mut Option<String>, sql: String| {
            *all = Some(all.take().map_or_else(|| sql.clone(), |all| and(&all, &sql)));
        };
        let mut is_cut = false;
        for step in self.steps.iter() {
            match step {
                SelectionStep::Filter(sql) => add(&mut all, sql.clone()),
                SelectionStep::Take(_) | SelectionStep::Skip(_) => is_cut = true,
                SelectionStep::Rename(names) => all = all.map(|sql| renamed(&sql, names)),
                SelectionStep::Weights { .. }
                | SelectionStep::Balanced(_)
                | SelectionStep::WithColumn { .. }
                | SelectionStep::Join { .. } => {}
                SelectionStep::Select(set) => {
                    let set = set.unpack(self.catalog().samples()).ok(); // it was unpacked before
                    let ids: Vec<String> =
                        set.iter().flat_map(SampleSet::ids).map(|id| id.to_string()).collect();
                    add(&mut all, format!("sample_id in ({})", ids.join(", ")));
                }
            }
        }
        if let Some((first, last)) = self.selection().filter(|_| is_cut).and_then(Selection::bounds) {
            add(&mut all, format!("sample_id between {first} and {last}"));
        }
        all
    }

    /// Applies steps that were described; `others` are the data sets of the joins among them.
    ///
    /// # Errors
    /// As those of the steps; `BadConfig` if a join's other data set has other values than the one that was described.
    pub(crate) async fn applied(mut self, steps: &[SelectionStep], others: &[Self]) -> Result<Self> {
        let mut others = others.iter();
        for step in steps {
            self = match step {
                SelectionStep::Filter(sql) => self.filter(sql).await?,
                SelectionStep::Take(samples) => self.take(*samples)?,
                SelectionStep::Skip(samples) => self.skip(*samples)?,
                SelectionStep::Select(set) => {
                    let unpacked = set.unpack(self.catalog().samples()).map_err(|e| e.context("select"))?;
                    self.select_set(&unpacked, set.clone())?
                }
                SelectionStep::Weights { weight, samples } => self.weights(weight, *samples).await?,
                SelectionStep::Balanced(class) => self.balanced(class).await?,
                SelectionStep::WithColumn { name, sql } => self.with_column(name, sql).await?,
                SelectionStep::Rename(names) => {
                    let names = names.iter().map(|(old, new)| (old.as_str(), new.as_str()));
                    self.rename(&names.collect::<Vec<_>>())?
                }
                SelectionStep::Join { on, digest } => {
                    let missing = || Error::config("join: the description lacks the other data set");
                    let other = others.next().ok_or_else(missing)?;
                    let on = on.iter().map(|(left, right)| (left.as_str(), right.as_str()));
                    self.joined_with(other, &on.collect::<Vec<_>>(), Some(digest.as_str())).await?
                }
            };
        }
        match others.next() {
            None => Ok(self),
            Some(_) => Err(Error::config("the description has more data sets to join than joins")),
        }
    }

    /// Whether ids select its samples or those of a part. They name other samples when files are added or removed.
    pub fn selects_by_id(&self) -> bool {
        let is_select = |step: &SelectionStep| matches!(step, SelectionStep::Select(_));
        self.steps.iter().any(is_select)
            || match &self.composition {
                Composition::Stored => false,
                Composition::Mix(mix) => mix.datasets().any(Self::selects_by_id),
                Composition::Concat(parts) => parts.iter().any(Self::selects_by_id),
            }
    }

    /// Returns the text of the selection for the fingerprint; for a concatenation, those of all its stored parts in sequence.
    pub(crate) fn selection_text(&self) -> Option<String> {
        let Composition::Concat(_) = &self.composition else { return text(&self.steps) };
        let texts: Vec<Option<String>> = self.stored_steps().iter().map(|steps| text(steps)).collect();
        texts.iter().any(Option::is_some).then(|| serde_json::Value::from_iter(texts).to_string())
    }

    /// Returns the steps of each stored part: its own and those of the concatenations that contain it.
    fn stored_steps(&self) -> Vec<Arc<[SelectionStep]>> {
        match &self.composition {
            Composition::Concat(parts) => {
                let steps = parts.iter().flat_map(Self::stored_steps);
                steps.map(|own| joined(&own, &self.steps)).collect()
            }
            Composition::Stored | Composition::Mix(_) => vec![self.steps.clone()],
        }
    }

    /// Returns the selection in words, for errors about cursors; `None` if only filters select.
    pub(crate) fn selection_shown(&self) -> Option<String> {
        let parts: Vec<Option<String>> = match &self.composition {
            Composition::Stored => Vec::new(),
            Composition::Mix(mix) => mix.datasets().map(Self::selection_shown).collect(),
            Composition::Concat(parts) => parts.iter().flat_map(Self::flat_shown).collect(),
        };
        shown(&parts, &self.steps)
    }

    /// Returns the selections in words of a part of a concatenation; of one that selects nothing, those of the parts in it.
    fn flat_shown(&self) -> Vec<Option<String>> {
        match &self.composition {
            Composition::Concat(parts) if self.steps.is_empty() => {
                parts.iter().flat_map(Self::flat_shown).collect()
            }
            _ => vec![self.selection_shown()],
        }
    }

    /// Rejects a step after weights, whose numbers of draws are of all samples before them.
    pub(crate) fn check_before_weights(&self, step: &str) -> Result<()> {
        match self.selection().is_some_and(Selection::is_repeated) {
            true => Err(Error::config(format!(
                "{step}: weights are the last step of a selection; call {step} before weights or balanced"
            ))),
            false => Ok(()),
        }
    }

    /// Returns the selection so far; rejects a mix, and weights before this step.
    pub(crate) fn in_order(&self, step: &str) -> Result<Arc<Selection>> {
        self.check_before_weights(step)?;
        if matches!(self.composition, Composition::Mix(_)) {
            return Err(Error::config(format!(
                "{step}: a mix draws its samples by weight, so it has no first ones; call {step} on its parts"
            )));
        }
        let all = || Arc::new(Selection::all(self.opened.catalog.block_starts()));
        Ok(self.selection.clone().unwrap_or_else(all))
    }

    /// Adds a step, after which `selection` is kept. `name` names the step in the error if that is nothing.
    pub(crate) fn with(
        mut self,
        step: SelectionStep,
        selection: Selection,
        name: impl Fn() -> String,
    ) -> Result<Self> {
        if selection.is_empty() {
            let advice = match step {
                SelectionStep::Skip(_) => "; skip fewer",
                _ => "",
            };
            return Err(Error::config(format!(
                "{} keeps none of the {} samples of {}{advice}",
                name(),
                self.len(),
                self.uri()
            )));
        }
        self.steps = with_step(&self.steps, step);
        self.selection = Some(Arc::new(selection));
        Ok(self)
    }
}
