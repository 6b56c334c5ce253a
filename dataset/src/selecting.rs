//! Selecting samples: each call keeps some of the samples that the calls before it keep.

use crate::dataset::Composition;
use crate::sql::SPLIT;
use crate::steps::{SelectionStep, and, shown, text_after, with_step};
use crate::{Dataset, Error, Result, SampleId, Selection};
use feedstock_plan::SampleSet;
use std::sync::Arc;

/// How far the sum of shares may be from 1: thirds that were written with ten digits are accepted.
const SUM_TOLERANCE: f64 = 1e-9;

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
        self.select_set(SampleSet::new(ids).map_err(|e| e.context("select"))?)
    }

    fn select_set(self, set: SampleSet) -> Result<Self> {
        let starts = self.opened.catalog.block_starts();
        let Some(selection) = Selection::of_set(&set, starts) else {
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
        self.with(SelectionStep::Select(set), selection, || "select without ids".to_owned())
    }

    /// Splits the selected samples by a key: samples with equal keys are in the same part.
    ///
    /// A hash of the key and the seed decides, so a part keeps its samples when files are added or removed, and when the data set is
    /// stored in another layout. Shares are probabilities of keys: with few keys, or keys of different frequency, parts
    /// differ from their shares. Samples whose key is null are all in the first part.
    ///
    /// Each part is the data set with a [`filter`](Self::filter), such as `feedstock_split(speaker, 0) < 0.9`. The SQL function
    /// `feedstock_split(key, seed)` returns `(XXH64(key, seed) >> 11) / 2⁵³`, a number from 0 to below 1, of texts, bytes,
    /// and integers and flags as text (`42`, `true`); null has 0. It is the same on every machine and in every release.
    /// Parts of shares in sequence are disjoint: with the same key and seed, the first 80 % are a subset of the first 90 %.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for n in 0..40 {
    /// #     let path = folder.path().join(format!("speaker-{}/{n}.jpg", n / 2));
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, "a").unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // 40 samples of 20 classes
    /// let parts = dataset.split_by("class", &[("train", 0.7), ("val", 0.3)], 0).await?;
    /// assert_eq!(parts[0].0, "train");
    /// assert_eq!(parts[0].1.filter_sql().unwrap(), "feedstock_split(class, 0) < 0.7");
    /// assert_eq!(parts[0].1.len() + parts[1].1.len(), 40);
    ///
    /// let error = dataset.split_by("class", &[("train", 0.9), ("val", 0.2)], 0).await.unwrap_err();
    /// assert_eq!(error.message(), "split_by: the shares must sum to 1; train 0.9, val 0.2 sum to 1.1");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a key that is not valid, depends on chance or the clock, or reads `sample_id`; for shares that are
    /// not above 0 or do not sum to 1, and names that occur twice; and for a part without samples.
    pub async fn split_by(
        &self,
        key: &str,
        shares: &[(&str, f64)],
        seed: u64,
    ) -> Result<Vec<(String, Self)>> {
        let filters = self.split_filters(key, shares, seed).await?;
        let mut parts = Vec::with_capacity(shares.len());
        for ((name, _), filter) in shares.iter().zip(filters) {
            let part = self.clone().filter(&filter).await;
            let part = part.map_err(|e| e.context(format!("split_by: the part {name}")))?;
            parts.push(((*name).to_owned(), part));
        }
        Ok(parts)
    }

    /// Returns the filters of the parts of [`split_by`](Self::split_by), in the sequence of the shares.
    ///
    /// # Errors
    /// As `split_by`, without reading the key's values.
    pub async fn split_filters(&self, key: &str, shares: &[(&str, f64)], seed: u64) -> Result<Vec<String>> {
        let bounds = bounds(shares)?;
        crate::sql::check_key(&self.opened, key).await.map_err(|e| e.context("split_by"))?;
        let number = format!("{SPLIT}({key}, {seed})");
        let filter = |part: usize| {
            let from = (part > 0).then(|| format!("{number} >= {}", bounds[part - 1]));
            let to = (part + 1 < shares.len()).then(|| format!("{number} < {}", bounds[part]));
            let both: Vec<String> = from.into_iter().chain(to).collect();
            if both.is_empty() { format!("{number} >= 0") } else { both.join(" AND ") }
        };
        Ok((0..shares.len()).map(filter).collect())
    }

    /// Returns the selection as one SQL expression over this catalog: the filters, bounds of `sample_id` for `take` and
    /// `skip`, and the ids of `select`. Selections of the parts of a mix or a concatenation apply in addition.
    pub fn filter_sql(&self) -> Option<String> {
        let mut all: Option<String> = None;
        let mut add = |sql: String| all = Some(all.take().map_or_else(|| sql.clone(), |all| and(&all, &sql)));
        let mut is_cut = false;
        for step in self.steps.iter() {
            match step {
                SelectionStep::Filter(sql) => add(sql.clone()),
                SelectionStep::Take(_) | SelectionStep::Skip(_) => is_cut = true,
                SelectionStep::Select(set) => {
                    let ids: Vec<String> = set.ids().map(|id| id.to_string()).collect();
                    add(format!("sample_id in ({})", ids.join(", ")));
                }
            }
        }
        if let Some((first, last)) = self.selection().filter(|_| is_cut).and_then(Selection::bounds) {
            add(format!("sample_id between {first} and {last}"));
        }
        all
    }

    /// Applies steps that were described.
    pub(crate) async fn applied(mut self, steps: &[SelectionStep]) -> Result<Self> {
        for step in steps {
            self = match step {
                SelectionStep::Filter(sql) => self.filter(sql).await?,
                SelectionStep::Take(samples) => self.take(*samples)?,
                SelectionStep::Skip(samples) => self.skip(*samples)?,
                SelectionStep::Select(set) => self.select_set(set.clone())?,
            };
        }
        Ok(self)
    }

    /// Returns the text of the selection for the fingerprint; for a concatenation, those of all its stored parts in sequence.
    pub(crate) fn selection_text(&self) -> Option<String> {
        let Composition::Concat(_) = &self.composition else { return text_after(None, &self.steps) };
        let texts = self.stored_texts();
        let is_selected = texts.iter().any(Option::is_some);
        is_selected
            .then(|| texts.into_iter().map(Into::into).collect::<Vec<serde_json::Value>>())
            .map(|texts| serde_json::Value::from(texts).to_string())
    }

    /// Returns the text of each stored part: its own selection and those of the concatenations that contain it.
    fn stored_texts(&self) -> Vec<Option<String>> {
        match &self.composition {
            Composition::Concat(parts) => {
                let texts = parts.iter().flat_map(Self::stored_texts);
                texts.map(|own| text_after(own, &self.steps)).collect()
            }
            Composition::Stored | Composition::Mix(_) => vec![text_after(None, &self.steps)],
        }
    }

    /// Returns the selection in words, for errors about cursors; `None` if only filters select.
    pub(crate) fn selection_shown(&self) -> Option<String> {
        let parts: Vec<Option<String>> = match &self.composition {
            Composition::Stored => Vec::new(),
            Composition::Mix(mix) => mix.datasets().map(Self::selection_shown).collect(),
            Composition::Concat(parts) => parts.iter().map(Self::selection_shown).collect(),
        };
        shown(&parts, &self.steps)
    }

    /// Returns the selection so far; rejects a mix.
    fn in_order(&self, step: &str) -> Result<Arc<Selection>> {
        if matches!(self.composition, Composition::Mix(_)) {
            return Err(Error::config(format!(
                "{step}: a mix draws its samples by weight, so it has no first ones; call {step} on its parts"
            )));
        }
        let all = || Arc::new(Selection::all(self.opened.catalog.block_starts()));
        Ok(self.selection.clone().unwrap_or_else(all))
    }

    /// Adds a step, after which `selection` is kept. `name` names the step in the error if that is nothing.
    fn with(mut self, step: SelectionStep, selection: Selection, name: impl Fn() -> String) -> Result<Self> {
        if selection.is_empty() {
            return Err(Error::config(format!(
                "{} keeps none of the {} samples of {}",
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

/// Returns the upper bounds of parts with these shares, of which the last one has none.
fn bounds(shares: &[(&str, f64)]) -> Result<Vec<f64>> {
    if shares.is_empty() {
        return Err(Error::config("split_by: there must be at least 1 part; got none"));
    }
    for (at, (name, share)) in shares.iter().enumerate() {
        if !(share.is_finite() && *share > 0.0) {
            return Err(Error::config(format!(
                "split_by: the share of {name} must be a number > 0; got {share}"
            )));
        }
        if shares[..at].iter().any(|(known, _)| known == name) {
            return Err(Error::config(format!("split_by: two parts have the name {name}")));
        }
    }
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        let listed: Vec<String> = shares.iter().map(|(name, share)| format!("{name} {share}")).collect();
        let sum = (sum * 1e9).round() / 1e9; // 1.1, not 1.1000000000000001
        return Err(Error::config(format!(
            "split_by: the shares must sum to 1; {} sum to {sum}",
            listed.join(", ")
        )));
    }
    let mut end = 0.0;
    let ends = shares.iter().map(|(_, share)| {
        end += share;
        end
    });
    Ok(ends.collect())
}
