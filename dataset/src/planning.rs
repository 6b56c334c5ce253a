//! Computes the plan of a data set.

use crate::catalog::Catalog;
use crate::dataset::Composition;
use crate::{BlockId, Dataset, Result};
use feedstock_plan::{Plan, PlanInput, Shuffle};

/// Returns what the order of all samples of a catalog is computed from.
pub(crate) fn plan_input(catalog: &Catalog) -> PlanInput {
    #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
    let blocks = catalog.blocks() as u32;
    PlanInput {
        block_starts: catalog.block_starts().into(),
        selection: None,
        data: catalog.hashes(),
        filter: None,
        encoded_bytes: (0..blocks).map(|id| catalog.block(BlockId(id)).bytes).sum(),
        access: catalog.access(),
    }
}

impl Dataset {
    /// Returns the order of this data set's selected samples under `shuffle`.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, Position, Shuffle};
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
    /// let saved = dataset.plan(&Shuffle::seeded(7))?.cursor(0, Position(1));
    /// let cats = dataset.filter("class = 'cat'").await?.plan(&Shuffle::seeded(7))?;
    /// assert_eq!(cats.len(), 2);
    /// let error = cats.check(&saved).unwrap_err();
    /// assert!(error.message().starts_with("the cursor belongs to another order: its filter is "));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if the filter keeps nothing, or if lanes or window are out of range.
    pub fn plan(&self, shuffle: &Shuffle) -> Result<Plan> {
        let plan = match &self.composition {
            Composition::Mix(mix) => self.mixed_plan(mix, shuffle)?,
            Composition::Stored | Composition::Concat(_) => {
                let mut input = plan_input(self.catalog());
                input.selection = self.selection().cloned();
                input.filter = self.selection_text();
                Plan::new(input, shuffle)?
            }
        };
        let plan = match self.selection_shown() {
            Some(steps) => plan.with_selection_named(steps),
            None => plan,
        };
        Ok(match plan.fingerprint().permutes_pieces() {
            true => plan.with_continued_blocks(self.catalog().continued_blocks()),
            false => plan,
        })
    }
}
