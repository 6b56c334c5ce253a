//! Splits by a key: samples with equal keys are in one part.

use crate::sql::{SPLIT, per_sample};
use crate::steps::SelectionStep;
use crate::{Dataset, Error, Result, Selection};
use arrow::buffer::BooleanBuffer;

/// How far the sum of shares may be from 1: thirds that were written with ten digits are accepted.
const SUM_TOLERANCE: f64 = 1e-9;

impl Dataset {
    /// Splits the selected samples by a key: samples with equal keys are in the same part.
    ///
    /// A hash of the key and the seed decides, so a part keeps its samples when files are added or removed, and when the data set is
    /// stored in another layout. Shares are probabilities of keys: with few keys, or keys of different frequency, parts
    /// differ from their shares. Samples whose key is null are all in the first part.
    ///
    /// The columns of the key are read once. A key that reads encoded samples reads all of them.
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
        let bounds = bounds(shares)?;
        self.check_before_weights("split_by")?;
        let number = format!("{SPLIT}({key}, {seed})");
        let numbers = per_sample::split_numbers(&self.opened, key, &number).await;
        let numbers = numbers.map_err(|e| e.context("split_by"))?;
        let starts = self.catalog().block_starts();
        let mut parts = Vec::with_capacity(shares.len());
        for (at, (name, _)) in shares.iter().enumerate() {
            let from = at.checked_sub(1).map(|before| bounds[before]);
            let to = bounds.get(at).copied();
            let is_in =
                |number: f64| from.is_none_or(|from| number >= from) && to.is_none_or(|to| number < to);
            let bits = BooleanBuffer::collect_bool(numbers.len(), |sample| is_in(numbers[sample]));
            let mut selection = Selection::from_bools(bits, starts);
            if let Some(before) = &self.selection {
                selection = before.and(&selection, starts);
            }
            let conditions =
                [from.map(|from| format!("{number} >= {from}")), to.map(|to| format!("{number} < {to}"))];
            let conditions: Vec<String> = conditions.into_iter().flatten().collect();
            let filter =
                if conditions.is_empty() { format!("{number} >= 0") } else { conditions.join(" AND ") };
            let part = format!("split_by: the part {name}, the filter `{filter}`,");
            parts.push((
                (*name).to_owned(),
                self.clone().with(SelectionStep::Filter(filter), selection, || part.clone())?,
            ));
        }
        Ok(parts)
    }
}

/// Returns the upper bounds of the parts with these shares, except of the last one, which has none.
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
            return Err(Error::config(format!(
                "split_by: two parts have the name {name}; give each part a different name"
            )));
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
    let ends = shares[..shares.len() - 1].iter().map(|(_, share)| {
        end += share;
        end
    });
    Ok(ends.collect())
}
