//! Describing a data set for another process, and opening what is described.

use crate::steps::only_filter;
use crate::{Dataset, DatasetSpec, Error, OpenOptions, Result, SourceSpec};
use futures::future::BoxFuture;

/// Limit on the stored data sets in a description from outside.
const PARTS_MAX: usize = 4096;

impl DatasetSpec {
    /// Opens the described data set. `options` returns what a description does not hold: storage, caches, functions.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, DatasetSpec};
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
    /// let cats = Dataset::open_with(uri, options).await?.filter("class = 'cat'").await?;
    /// let sent = serde_json::to_string(&cats.spec()).unwrap();
    ///
    /// let spec: DatasetSpec = serde_json::from_str(&sent).unwrap(); // in another process
    /// let own = || OpenOptions {
    ///     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
    ///     ..OpenOptions::default()
    /// };
    /// assert_eq!(spec.open(&own).await?.len(), 2);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Dataset::open_with`], [`Dataset::mix`], [`Dataset::concat`], [`Dataset::filter`] and the other steps.
    pub async fn open(&self, options: &(dyn Fn() -> OpenOptions + Sync)) -> Result<Dataset> {
        let stored = self.sources().len();
        if stored > PARTS_MAX {
            return Err(Error::config(format!(
                "the description names {stored} data sets; it may name at most {PARTS_MAX}"
            )));
        }
        self.open_part(options).await
    }

    /// Opens the source, then selects its samples and columns.
    ///
    /// Boxed, because it calls itself for parts. The JSON parser limits how deep descriptions from outside are nested.
    fn open_part<'a>(
        &'a self,
        options: &'a (dyn Fn() -> OpenOptions + Sync),
    ) -> BoxFuture<'a, Result<Dataset>> {
        Box::pin(async move {
            let mut dataset = self.source.open(options).await?;
            if let Some(filter) = &self.filter {
                dataset = dataset.filter(filter).await?;
            }
            let mut others = Vec::with_capacity(self.joined.len());
            for other in &self.joined {
                others.push(other.open_part(options).await?);
            }
            self.chosen(dataset.applied(&self.steps, &others).await?)
        })
    }

    fn chosen(&self, mut dataset: Dataset) -> Result<Dataset> {
        if let Some(name) = &self.name {
            dataset = dataset.named(name);
        }
        match &self.columns {
            Some(columns) => dataset.columns(&columns.iter().map(String::as_str).collect::<Vec<_>>()),
            None => Ok(dataset),
        }
    }
}

impl SourceSpec {
    /// Returns options with those that the order depends on, which a description holds.
    pub(crate) fn options_with(&self, own: OpenOptions) -> OpenOptions {
        let Self::Uri {
            uri: _,
            layout,
            split,
            durations,
            block_bytes,
            bad_shards,
            tar_headers,
            pair,
            annotations,
        } = self
        else {
            return own;
        };
        OpenOptions {
            layout: *layout,
            split: split.clone(),
            durations: *durations,
            block_bytes: *block_bytes,
            bad_shards: *bad_shards,
            tar_headers: *tar_headers,
            pair: pair.clone(),
            annotations: annotations.clone(),
            ..own
        }
    }

    async fn open(&self, options: &(dyn Fn() -> OpenOptions + Sync)) -> Result<Dataset> {
        match self {
            Self::Uri { uri, .. } => Dataset::open_with(uri, self.options_with(options())).await,
            Self::Mix { parts, stop } => {
                let mut opened = Vec::with_capacity(parts.len());
                for (part, weight) in parts {
                    opened.push((part.open_part(options).await?, *weight));
                }
                Dataset::mix(opened, *stop)
            }
            Self::Concat { parts } => {
                let mut opened = Vec::with_capacity(parts.len());
                for part in parts {
                    opened.push(part.open_part(options).await?);
                }
                Dataset::concat(opened)
            }
        }
    }
}

impl Dataset {
    /// Returns its description, for another process.
    pub fn spec(&self) -> DatasetSpec {
        let fields = self.catalog().schema().fields();
        let all = self.columns.iter().copied().eq(0..fields.len());
        let names = self.columns.iter().map(|&column| fields[column].name().clone());
        let filter = only_filter(&self.steps); // as releases without other steps describe it
        DatasetSpec {
            source: self.opened.source.clone(),
            filter: filter.map(str::to_owned),
            steps: if filter.is_some() { Vec::new() } else { self.steps.to_vec() },
            joined: self.others.iter().map(Self::spec).collect(),
            columns: (!all).then(|| names.collect()),
            name: self.name.as_deref().map(str::to_owned),
        }
    }
}
