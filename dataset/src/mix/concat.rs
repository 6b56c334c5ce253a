//! Data sets end to end, each sample of each once an epoch.

use crate::dataset::Composition;
use crate::{Dataset, DatasetSpec, Error, Result, SourceSpec};

impl Dataset {
    /// Joins data sets end to end: every sample of every part is in each epoch exactly once.
    ///
    /// The result is a data set of the parts' samples in sequence; sample ids continue from part to part. Its order is that of
    /// a single data set: with a shuffle, samples of all parts are shuffled with each other. For shares by weight, with parts
    /// that repeat, see [`mix`](Self::mix).
    ///
    /// - **Columns**: the parts' chosen columns by name, null where a part lacks one, widened where number or text types
    ///   differ; and `dataset`, the part's name ([`named`](Self::named)).
    /// - **Filters** of the parts stay in effect, and the concatenation can be filtered further. A filter on every part is the
    ///   same as that filter on the whole, also for cursors.
    /// - **Nesting**: a concatenation of concatenations is the concatenation of all their parts, with the same order
    ///   and fingerprint. A concatenation may be part of a mix. A mix cannot be part of a concatenation.
    /// - **Fingerprint**: content and filters of the parts, in sequence. The same parts in another sequence are another
    ///   data set. Names and columns are not part of the fingerprint.
    ///
    /// Each part is read with its own storage options and disk cache. [`Dataset::storage`] returns those of the first part;
    /// [`Dataset::disk_cache`] that of the first part that has one.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("en/1.jpg", "a"), ("en/2.jpg", "bb"), ("de/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let open = async |part: &str| {
    /// #     let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// #     let path = folder.path().join(part);
    /// #     Dataset::open_with(path.to_str().unwrap(), OpenOptions { catalog, ..OpenOptions::default() }).await
    /// # };
    /// # futures::executor::block_on(async {
    /// let (en, de) = (open("en").await?.named("en"), open("de").await?.named("de"));
    /// let both = Dataset::concat(vec![en.clone(), de])?;
    /// assert_eq!((en.len(), both.len()), (2, 3));
    /// assert_eq!(both.clone().filter("dataset = 'de'").await?.len(), 1);
    ///
    /// let error = Dataset::concat(vec![en.clone(), en]).unwrap_err();
    /// assert!(error.message().starts_with("two parts of the concatenation have the name en"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no parts, a part that is a mix, parts of the same name, a column `dataset` in a part, and columns of the
    /// same name whose types do not fit; the message names the part and the column.
    pub fn concat(parts: Vec<Self>) -> Result<Self> {
        if parts.is_empty() {
            return Err(Error::config("a concatenation must have at least 1 data set; got none"));
        }
        if let Some(mix) = parts.iter().find(|part| matches!(part.composition, Composition::Mix(_))) {
            return Err(Error::config(format!(
                "{}: a mix draws samples by weight, so it cannot deliver each of them once an epoch; concatenate its \
                 parts, or mix the concatenation",
                mix.part_name()
            )));
        }
        let specs = parts.iter().flat_map(Self::sequence_specs).collect();
        let made = (SourceSpec::Concat { parts: specs }, Composition::Concat(parts.clone().into()));
        Self::joined("concatenation", &parts.iter().collect::<Vec<_>>(), made, Vec::new())
    }

    /// Returns its description as parts of a concatenation. One with nothing chosen, filtered or named returns its parts, so
    /// that a concatenation that grows part by part is not described level by level.
    fn sequence_specs(&self) -> Vec<DatasetSpec> {
        let spec = self.part_spec();
        match spec {
            DatasetSpec {
                source: SourceSpec::Concat { parts },
                filter: None,
                steps,
                joined: _, // by steps
                columns: None,
                name: None,
            } if steps.is_empty() => parts,
            spec => vec![spec],
        }
    }
}
