//! Samples that an epoch draws several times, or never: by weights, or so that classes are equally frequent.

use crate::dataset::Composition;
use crate::sql::per_sample::{self, NO_CLASS};
use crate::steps::SelectionStep;
use crate::{Dataset, Error, Result, SampleId, Selection};
use feedstock_plan::draws_by_weight;
use std::sync::Arc;

/// Limit on the draws of an epoch: what JSON and doubles hold exactly.
const MAX_DRAWS: u64 = 1 << 53;

impl Dataset {
    /// Draws each of the N selected samples ⌊M · w / W⌋ times an epoch or once more, where w is its weight, W the sum of all
    /// weights, and M is `samples`, by default N. An epoch has M samples.
    ///
    /// The draws are spread evenly over the weights in catalog order (systematic sampling), the same in each epoch: a sample
    /// with less than one draw may never be drawn. A larger M draws all of them. Weight 0 is never drawn. Each draw of
    /// a sample has its own random numbers in ops, and the shuffle separates the draws. The numbers of draws take 8 bytes a
    /// sample.
    ///
    /// `weight` is a numeric column or an SQL expression. It is the last step: filter and take before.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("cat/3.jpg", "cc"), ("dog/4.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // three cats and a dog
    /// let weight = "case class when 'dog' then 3 else 1 end";
    /// assert_eq!(dataset.clone().weights(weight, Some(12)).await?.len(), 12); // two of each cat, six of the dog
    ///
    /// let error = dataset.weights("label - 1", None).await.unwrap_err();
    /// assert_eq!(error.message(), "weights: the weight of cat/1.jpg is -1; weights must be finite numbers >= 0");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an expression that is not valid or not numeric, a weight that is null, NaN, infinite or negative (the
    /// message names the sample), weights that are all 0, `samples` of 0 or above 2⁵³, and for a mix; storage's errors.
    pub async fn weights(self, weight: &str, samples: Option<u64>) -> Result<Self> {
        if let Some(wrong) = samples.filter(|samples| !(1..=MAX_DRAWS).contains(samples)) {
            return Err(Error::config(format!("weights: samples must be 1 to 2^53; got {wrong}")));
        }
        let before = self.weighable("weights")?;
        let all = per_sample::weights(&self.opened, weight).await?;
        let mut weights = Vec::with_capacity(before.bits().count_set_bits());
        for at in before.bits().set_indices() {
            let (found, sample) = (all[at], || self.catalog().describe_sample(SampleId(at as u64)));
            if found.is_nan() {
                return Err(Error::config(format!(
                    "weights: the weight of {} is null or NaN; leave such samples out with a filter, or give them a weight \
                     with coalesce",
                    sample()
                )));
            }
            if !(found >= 0.0 && found.is_finite()) {
                return Err(Error::config(format!(
                    "weights: the weight of {} is {found}; weights must be finite numbers >= 0",
                    sample()
                )));
            }
            weights.push(found);
        }
        if weights.iter().all(|weight| *weight == 0.0) {
            return Err(Error::config(format!("weights: all {} weights are 0", weights.len())));
        }
        let draws = draws_by_weight(&weights, samples.unwrap_or(before.len()));
        let drawn = before.repeated(draws, self.catalog().block_starts());
        let step = SelectionStep::Weights { weight: weight.to_owned(), samples };
        self.with(step, drawn, || "weights".to_owned())
    }

    /// Draws the selected samples so that each class is drawn as often as the largest class has samples.
    ///
    /// With K classes, and n samples in the largest, an epoch has K · n samples: each of the largest class once, and each of a
    /// class of m samples ⌊n / m⌋ times or once more. Otherwise as [`weights`](Self::weights).
    ///
    /// `class` is a column of texts, integers or flags, or an SQL expression.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("cat/3.jpg", "cc"), ("dog/4.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // three cats and a dog
    /// assert_eq!(dataset.balanced("class").await?.len(), 6); // each cat once, the dog three times
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an expression that is not valid or of another type, a sample whose class is null (the message names
    /// it), and for a mix; storage's errors.
    pub async fn balanced(self, class: &str) -> Result<Self> {
        let before = self.weighable("balanced")?;
        let all = per_sample::classes(&self.opened, class).await?;
        let mut counts: Vec<u64> = Vec::new();
        for at in before.bits().set_indices() {
            if all[at] == NO_CLASS {
                return Err(Error::config(format!(
                    "balanced: the class of {} is null; leave such samples out with a filter, or give them a class with \
                     coalesce",
                    self.catalog().describe_sample(SampleId(at as u64))
                )));
            }
            let class = all[at] as usize;
            counts.resize(counts.len().max(class + 1), 0);
            counts[class] += 1;
        }
        let largest = counts.iter().copied().max().unwrap_or(0);
        let total = u128::from(largest) * counts.len() as u128;
        if total > u128::from(MAX_DRAWS) {
            return Err(Error::config(format!(
                "balanced: {} classes with {largest} samples each are more than 2^53 samples; use fewer classes",
                counts.len()
            )));
        }
        let mut seen = vec![0u64; counts.len()];
        let draws = before.bits().set_indices().map(|at| {
            let (count, seen) = (counts[all[at] as usize], &mut seen[all[at] as usize]);
            let until = |samples: u64| u128::from(samples) * u128::from(largest) / u128::from(count);
            let draws = until(*seen + 1) - until(*seen);
            *seen += 1;
            u64::try_from(draws).unwrap_or(u64::MAX)
        });
        let drawn = before.repeated(draws.collect(), self.catalog().block_starts());
        self.with(SelectionStep::Balanced(class.to_owned()), drawn, || "balanced".to_owned())
    }

    /// Returns the selection so far; rejects a mix.
    fn weighable(&self, step: &str) -> Result<Arc<Selection>> {
        match self.composition {
            Composition::Mix(_) => Err(Error::config(format!(
                "{step}: a mix draws samples by the weights of its parts; concatenate the parts instead, then call {step}"
            ))),
            Composition::Stored | Composition::Concat(_) => self.in_order(step),
        }
    }
}
